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
    loaded next: (tile, k-tile, its rows of A and of B), and `one` is 1 in the thread that loads. A span is
    (first k-tile, k-tiles, those for both consumers, part): with a lead the last ones are for the consumer
    that has the part's number, and are not counted from the first (`share_with_lead`).

    Attributes:
        rows_of: (tile, shape) -> the first rows of A and B that a tile takes; of none behind the last.
        load_first: (maps, base, barriers, tile, shape, lane): load the first tile's k-tiles into fresh
            stages; a whole warp calls it. With pdl the kernel before has ended when it loads A.
        begin: (tile, shape) -> (work, stages): what is loaded behind that.
        feed: (maps, base, barriers, stage, parity, work, shape, one) -> work: load into a stage, as soon as
            its consumers have read it.
        produce: (maps, base, barriers, tile, shape, half): all that a producer does.
    """

    rows_of: DeviceFunction
    load_first: DeviceFunction
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
    def open_stage(b_map, base, full, stage, k, shape, b_row, one):
        """Expect a stage's bytes and load its tile of B, of a block's k-th k-tile."""
        _, _, _, span, _, od = shape
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
    def first_stages(tile, shape):
        """How many stages are loaded at once."""
        rows, columns, _, (_, k_tiles, _, _), _, _ = shape
        count = types.int32(0)
        if tile < rows * columns:
            count = min(k_tiles, types.int32(stages))
        return count

    @device_function
    def load_first(maps, base, barriers, tile, shape, lane):
        """Load the first tile's B into fresh stages, each by a lane of its own, and A when the kernel before
        has ended."""
        a_row, b_row = rows_of(tile, shape)
        stage, wanted = types.uint32(lane), types.uint32(lane < first_stages(tile, shape))
        full = types.uint32(barriers + 8 * stage)
        open_stage(maps[1], base, full, stage, lane, shape, b_row, wanted)
        if pdl:
            ptx.griddepcontrol_wait()
        load_a(maps[0], base + stage * stage_bytes, full, lane, shape[3], a_row, wanted)

    @device_function
    def follow(work, shape):
        """What is loaded after this."""
        tile, k, a_row, b_row = work
        k = types.int32(k + 1)
        if k == shape[3][1]:
            k, tile = types.int32(0), types.int32(tile + shape[2])
            a_row, b_row = rows_of(tile, shape)
        return tile, k, a_row, b_row

    @device_function
    def begin(tile, shape):
        """What is loaded next, and how many stages are loaded already."""
        a_row, b_row = rows_of(tile, shape)
        count = first_stages(tile, shape)
        return follow((tile, types.int32(count - 1), a_row, b_row), shape), count

    @device_function
    def feed(maps, base, barriers, stage, parity, work, shape, one):
        """Load the next k-tile into a stage, where `one` is 1; what is loaded after it."""
        tile, k, a_row, b_row = work
        if tile < shape[0] * shape[1]:
            full = types.uint32(barriers + 8 * stage)
            ptx.mbarrier_wait(full + 8 * stages, parity)
            open_stage(maps[1], base, full, stage, k, shape, b_row, one)
            load_a(maps[0], base + stage * stage_bytes, full, k, shape[3], a_row, one)
            work = follow(work, shape)
        return work

    @device_function
    def produce(maps, base, barriers, tile, shape, half):
        work, count = begin(tile, shape)
        stage, parity = advance(types.uint32(count - 1), types.uint32(1))
        while work[0] < shape[0] * shape[1]:
            work = feed(maps, base, barriers, stage, parity, work, shape, types.uint32(1))
            stage, parity = advance(stage, parity)
        if split_k and tile < shape[0] * shape[1]:
            parts, ready = half
            there, counter = locate(parts, ready, tile, shape[3][3])
            fetch(there, counter, base, barriers, stage, parity)

    return Loads(rows_of, load_first, begin, feed, produce)
