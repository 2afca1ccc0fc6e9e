"""Consumers that finish one half of a tile under the wgmmas of the other.

A consumer of 256-token tiles holds the sums of two blocks of 64 rows, the top and the bottom one. wgmma is
asynchronous: the tensor cores go on while a warp rounds and stores sums that no wgmma in flight writes. So
the blocks part at the ends of a tile. Of its last `skew` k-tiles the top multiplies all first, then the
bottom, and under the bottom's wgmmas the top is finished; of the next tile's first ones the top multiplies
all, and the last tile's bottom is finished under that. Then the bottom catches up, and both go on together.
The ring holds the k-tiles between them.

Predicted: 5,400 of the 6,600 cycles that a tile of 256 x 224 spends outside of its main loop are hidden, 4
percent of o at 8192 tokens. Measured on an H200, two k-tiles apart, percent fewer cycles under a load that
lasts, for q+k+v, o, gate+up, down of a 7B: 0.9, 1.6, 1.1, 0.3 at 8192 tokens (in bursts 0.7, 1.8, 1.0, 0.5);
for o, gate+up, down at 2048 tokens 1.5, 0.8, 0.2 (1.6, 1.0, 0.8). So 1,700 cycles a tile of 256 x 224 are
hidden, and 900 of 256 x 192. Without any stores (and with wrong results) o takes 2.0 percent less again and
q+k+v 1.5: 2,100 and 1,400 cycles a tile.

What was tried and brought no more (the same figures at 8192 tokens, under a load): one k-tile apart (o 1.3,
the others alike); three (o 1.5, but q+k+v 0.2 and gate+up 0.3: all stages of the ring are held, and loads
start late); two at a tile's end and three at its beginning (o 1.6), three and two (0.9); the next tile's
first wgmmas queued before the bottom's last ones have ended (all within 0.15 of the same; a tile's end is
written twice then, as wgmmas that two paths wait for are serialised: C7514); C in chunks of 32 columns, five
buffers a warp and no column stored twice (o 1.6, q+k+v 0.7).
"""

from __future__ import annotations

from functools import cache

from minfer.cuda import ptx
from minfer.cuda.gemm_hopper.config import GemmHopperConfig
from minfer.cuda.gemm_hopper.loads import make_loads
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.tile.activation import gate_columns
from minfer.cuda.tile.hopper import BUFFER_BYTES, chunk_columns, chunk_starts, store_chunk


@cache
def make_skewed_consumer(config: GemmHopperConfig) -> DeviceFunction:
    """What a consumer does, as `minfer.cuda.gemm_hopper.consumer.make_consumer`, of a config with `skew`. A
    tile has 2 * skew k-tiles at least: TMA fills those past the depth with zeros."""
    from numba import cuda
    from numba.cuda import types

    stages, stage_bytes, a_bytes = config.stages, config.stage_bytes, config.a_bytes
    ring_bytes, store_bytes = stages * stage_bytes, config.store_buffers * BUFFER_BYTES
    skew, block_sums, block_bytes = config.skew, config.block_sums, 64 * config.tile_k * 2
    gated, stage_units = config.epilogue == "swiglu", stage_bytes >> 4
    k_steps = config.tile_k // 16

    def product(block: int, **options):
        """wgmma of a k-tile with a block of rows."""
        offsets = tuple(block * block_bytes + 32 * k for k in range(k_steps))
        return ptx.wgmma(config.tile_m, k_steps=k_steps, a_offsets=offsets, high="operand", **options)

    # A tile's first k-tiles, with the first of which the sums begin; those between; the last ones. Who gives
    # a stage back waits with the next k-tile's wgmmas for the last one's.
    top, bottom = product(0), product(1)
    top_first = (product(0, accumulate=False), *[top] * (skew - 1))
    bottom_first = (product(1, accumulate=False), *[product(1, wait=1)] * (skew - 1))
    bottom_beside = product(1, wait=2)
    top_last = (product(0, wait=1), *[top] * (skew - 1))
    wait_top, wait_bottom = ptx.wgmma_wait(skew, block_sums), ptx.wgmma_wait(0, block_sums)
    wait_stage = tuple(ptx.wgmma_wait_read(pending) for pending in range(skew - 1, 0, -1))
    chunks = len(chunk_starts(config.out_m, chunk_columns(config.out)))
    # The chunks of the epilogue that leave behind each of the other block's k-tiles.
    bounds = tuple(round(chunks * i / skew) for i in range(skew + 1))
    store = store_chunk(config.out_m, config.store_buffers, config.out, config.epilogue == "add")
    wait_stores, activate = ptx.bulk_wait_group_read(0), gate_columns(block_sums // 2)
    descriptor, advance, pin = ptx.wgmma_descriptor, config.ring.advance, ptx.pin(block_sums, "f32")
    rows_of, _, begin, feed, _ = make_loads(config)

    @device_function
    def give_back(stage, parity, maps, base, barriers, work, shape, thread, feeds):
        """A consumer has read a stage; the warp that loads fills it when all have."""
        ptx.mbarrier_arrive_if(barriers + 8 * (stages + stage), thread == 0)
        if feeds:
            work = feed(maps, base, barriers, stage, parity, work, shape, types.uint32(thread == 0))
        return work

    @device_function
    def finish(sums):
        """The epilogue's arithmetic."""
        if gated:
            activate(sums)
            pin(sums)

    @device_function
    @unrolled
    def consume(target, maps, base, barriers, tile, shape, consumer, thread, high, half):
        lane, warp = thread & 31, ptx.uniform(thread >> 5)
        rows, columns, step, (_, k_tiles, _, _), _, _ = shape
        above = cuda.local.array(block_sums, dtype=types.float32)
        below = cuda.local.array(block_sums, dtype=types.float32)
        a_start = descriptor(base + consumer * (2 * block_bytes), 16)
        b_start = descriptor(base + a_bytes, 16)
        buffer = types.uint32(base + ring_bytes + (consumer * 4 + warp) * store_bytes)
        feeds = consumer * 4 + warp == 0
        work = tile, types.int32(0), types.int32(0), types.int32(0)
        if feeds:
            one = types.uint32(lane == 0)
            work, count = begin(tile, shape)
            while count < stages:  # where the first tile has fewer k-tiles
                work = feed(maps, base, barriers, types.uint32(count), types.uint32(1), work, shape, one)
                count = types.int32(count + 1)
        # In the ring: where the top is, where the bottom is while they are apart, what is given back next.
        stage, parity = types.uint32(0), types.uint32(0)
        low, low_parity = last, last_parity = stage, parity
        if tile < rows * columns:
            for i in unroll(skew):
                ptx.mbarrier_wait(barriers + 8 * stage, parity)
                at = stage * stage_units
                top_first[i](above, a_start + at, b_start + at, high[0], high[1])
                stage, parity = advance(stage, parity)
            while True:
                for i in unroll(skew):
                    at = low * stage_units
                    bottom_first[i](below, a_start + at, b_start + at, high[0], high[1])
                    if i == 0:
                        # Divisions that run under the tensor cores' work.
                        a_row, b_row = rows_of(tile, shape)
                        row, column = ptx.uniform(a_row), ptx.uniform(b_row)
                    else:
                        work = give_back(last, last_parity, maps, base, barriers, work, shape, thread, feeds)
                    last, last_parity = low, low_parity
                    low, low_parity = advance(low, low_parity)
                k = types.int32(2 * skew)
                while k < k_tiles:
                    ptx.mbarrier_wait(barriers + 8 * stage, parity)
                    at = stage * stage_units
                    top(above, a_start + at, b_start + at, high[0], high[1])
                    bottom_beside(below, a_start + at, b_start + at, high[0], high[1])
                    work = give_back(last, last_parity, maps, base, barriers, work, shape, thread, feeds)
                    last, last_parity = stage, parity
                    stage, parity = advance(stage, parity)
                    k = types.int32(k + 1)
                low, low_parity = stage, parity
                for i in unroll(skew):
                    ptx.mbarrier_wait(barriers + 8 * stage, parity)
                    at = stage * stage_units
                    top_last[i](above, a_start + at, b_start + at, high[0], high[1])
                    if i == 0:
                        work = give_back(last, last_parity, maps, base, barriers, work, shape, thread, feeds)
                    stage, parity = advance(stage, parity)
                last, last_parity = low, low_parity
                for _ in unroll(skew):
                    at = last * stage_units
                    bottom(below, a_start + at, b_start + at, high[0], high[1])
                    last, last_parity = advance(last, last_parity)
                wait_top(above)
                finish(above)
                first_row = row + consumer * 128 + warp * 16
                for i in unroll(skew):
                    for chunk in unroll(bounds[i], bounds[i + 1]):
                        store(above, target, buffer, first_row, column, lane, chunk)
                    if i < skew - 1:
                        wait_stage[i]()
                    else:
                        wait_bottom(below)
                    work = give_back(low, low_parity, maps, base, barriers, work, shape, thread, feeds)
                    low, low_parity = advance(low, low_parity)
                tile = types.int32(tile + step)
                if tile >= rows * columns:
                    break
                for i in unroll(skew):
                    ptx.mbarrier_wait(barriers + 8 * stage, parity)
                    at = stage * stage_units
                    top_first[i](above, a_start + at, b_start + at, high[0], high[1])
                    stage, parity = advance(stage, parity)
                    if i == 0:
                        finish(below)
                    for chunk in unroll(bounds[i], bounds[i + 1]):
                        store(below, target, buffer, first_row + 64, column, lane, chunks + chunk)
            finish(below)
            for chunk in unroll(chunks):
                store(below, target, buffer, first_row + 64, column, lane, chunks + chunk)
        wait_stores()

    return consume
