"""What the Hopper GEMM's blocks load, and when: k-tiles of A and B into the stages of the ring."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from minfer.cuda import ptx
from minfer.cuda.gemm_hopper.config import GemmHopperConfig
from minfer.cuda.gemm_hopper.heads import PIECE, run_starts
from minfer.cuda.gemm_hopper.split import Exchange
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled


class Loads(NamedTuple):
    """The loading of a config. `shape` is (tile rows, tile columns, blocks, span, group, od), `work` what is
    loaded next: (tile, k-tile, its rows of A and of B, stages already open), and `one` is 1 in the thread
    that loads. A span is (first k-tile, k-tiles, those for both consumers, part): with a lead the last ones
    are for the consumer that has the part's number, and are not counted from the first (`share_with_lead`).

    Attributes:
        rows_of: (tile, shape) -> the first rows of A and B that a tile takes; of none behind the last.
        begin: (map of B, base, barriers, tile, shape, one) -> work. With pdl the kernel before has ended
            then, and the first tile's B is on its way.
        feed: (maps, base, barriers, stage, parity, work, shape, one) -> work: load into a stage, as soon as
            its consumers have read it.
        produce: (maps, base, barriers, tile, shape, half): all that a producer does.
    """

    rows_of: DeviceFunction
    begin: DeviceFunction
    feed: DeviceFunction
    produce: DeviceFunction


@cache
def make_loads(config: GemmHopperConfig) -> Loads:
    """The loading of a config."""
    from numba.cuda import types

    from minfer.cuda.tile.scheduler import strip_xy

    tile_n, tile_m, tile_k = config.tile_n, config.tile_m, config.tile_k
    stages, stage_bytes, a_bytes = config.stages, config.stage_bytes, config.a_bytes
    out_m, loads, gated = config.out_m, config.loads, config.epilogue == "swiglu"
    load_bytes = tile_m // loads * tile_k * 2  # what one load brings of B
    advance, pdl, split_k, lead = config.ring.advance, config.pdl, config.split_k, config.split_lead
    boxes, box_rows, box_bytes = config.a_loads, tile_n // config.a_loads, a_bytes // config.a_loads
    exchange = Exchange(config.sums, stage_bytes, config.ring)
    locate, fetch = (exchange.place, exchange.fetch) if split_k else (None, None)
    split, pieces = config.heads is not None and config.heads.split, tile_m // PIECE
    starts = run_starts(config.heads) if split else None
    load = ptx.tma_load_2d_if

    @device_function
    def rows_of(tile, shape):
        """The first rows of A and B that a tile takes; of none behind the last."""
        rows, columns, _, _, group, _ = shape
        a_row, b_row = types.int32(0), types.int32(0)
        if tile < rows * columns:
            row, column = strip_xy(tile, rows, columns, group)
            a_row, b_row = types.int32(row * tile_n), types.int32(column * out_m)
        return a_row, b_row

    @device_function
    @unrolled
    def load_b(b_map, place, full, k, b_row, od, one):
        """A tile of B."""
        if split:
            for piece in unroll(pieces):
                first, second = starts((b_row >> 6) + piece)
                run_place = place + 2 * piece * load_bytes
                load(run_place, b_map, full, k * tile_k, first, one)
                load(run_place + load_bytes, b_map, full, k * tile_k, second, one)
        else:
            load(place, b_map, full, k * tile_k, b_row, one)
            if gated:
                load(place + load_bytes, b_map, full, k * tile_k, b_row + od, one)

    @device_function
    def number_of(k, span):
        """The k-tile that a block multiplies as its k-th."""
        k_first, _, both, _ = span
        return types.int32(k if lead and k >= both else k_first + k)

    @device_function
    def open_stage(b_map, base, barriers, stage, parity, k, shape, b_row, one):
        """Wait until a stage is free, and load its tile of B, of a block's k-th k-tile."""
        _, _, _, span, _, od = shape
        full = barriers + 8 * stage
        ptx.mbarrier_wait(full + 8 * stages, parity)
        expected = types.uint32(stage_bytes)
        if lead and k >= span[2]:
            expected = types.uint32(stage_bytes - box_bytes)
        ptx.mbarrier_arrive_expect_tx_if(full, expected, one)
        load_b(b_map, base + a_bytes + stage * stage_bytes, full, number_of(k, span), b_row, od, one)

    @device_function
    @unrolled
    def load_a(a_map, place, full, k, span, a_row, one):
        """A tile of A, of a block's k-th k-tile; the rows of one consumer, if it is for that one."""
        _, _, both, part = span
        column = number_of(k, span) * tile_k
        for box in unroll(boxes):
            wanted = one
            if lead:
                wanted = types.uint32(one & ((k < both) | (part == box)))
            load(place + box * box_bytes, a_map, full, column, a_row + box * box_rows, wanted)

    @device_function
    def begin(b_map, base, barriers, tile, shape, one):
        """What is loaded first: tile, k-tile, rows; and how many stages are open. With pdl as many as the
        first tile fills; then the kernel before has ended."""
        rows, columns, _, (_, k_tiles, _, _), _, _ = shape
        a_row, b_row = rows_of(tile, shape)
        opened = types.int32(0)
        if pdl:
            if tile < rows * columns:
                while opened < min(k_tiles, types.int32(stages)):
                    stage = types.uint32(opened)
                    open_stage(b_map, base, barriers, stage, types.uint32(1), opened, shape, b_row, one)
                    opened = types.int32(opened + 1)
            ptx.griddepcontrol_wait()
        return tile, types.int32(0), a_row, b_row, opened

    @device_function
    def feed(maps, base, barriers, stage, parity, work, shape, one):
        """Load the next k-tile into a stage, where `one` is 1; what is loaded after it."""
        tile, k, a_row, b_row, opened = work
        rows, columns, step, span, _, _ = shape
        if tile < rows * columns:
            if pdl and opened > 0:
                opened = types.int32(opened - 1)
            else:
                open_stage(maps[1], base, barriers, stage, parity, k, shape, b_row, one)
            load_a(maps[0], base + stage * stage_bytes, barriers + 8 * stage, k, span, a_row, one)
            k = types.int32(k + 1)
            if k == span[1]:
                k, tile = types.int32(0), types.int32(tile + step)
                a_row, b_row = rows_of(tile, shape)
        return tile, k, a_row, b_row, opened

    @device_function
    def produce(maps, base, barriers, tile, shape, half):
        one = types.uint32(1)
        work = begin(maps[1], base, barriers, tile, shape, one)
        stage, parity = types.uint32(0), types.uint32(1)
        while work[0] < shape[0] * shape[1]:
            work = feed(maps, base, barriers, stage, parity, work, shape, one)
            stage, parity = advance(stage, parity)
        if split_k and tile < shape[0] * shape[1]:
            parts, ready = half
            there, counter = locate(parts, ready, tile, shape[3][3])
            fetch(there, counter, base, barriers, stage, parity)

    return Loads(rows_of, begin, feed, produce)
