"""Consumers whose two blocks of rows are apart at the ends of a tile, so that each is finished under the
other's wgmmas."""

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
    """As `minfer.cuda.gemm_hopper.consumer.make_consumer`."""
    from numba import cuda
    from numba.cuda import types

    tile_k, stages, stage_bytes, a_bytes = config.tile_k, config.stages, config.stage_bytes, config.a_bytes
    ring_bytes, store_bytes = stages * stage_bytes, config.store_buffers * BUFFER_BYTES
    consumer_rows, block_bytes, block_sums = 128, 64 * tile_k * 2, config.block_sums
    consumer_bytes, skew = 2 * block_bytes, config.skew
    gated = config.epilogue == "swiglu"
    k_steps = tile_k // 16
    top_of = {"k_steps": k_steps, "high": "operand"}
    bottom_of = top_of | {"a_offsets": tuple(block_bytes + 32 * k for k in range(k_steps))}
    n = config.tile_m
    top_first, top_next, top_behind = (
        ptx.wgmma(n, accumulate=False, **top_of), ptx.wgmma(n, **top_of), ptx.wgmma(n, wait=1, **top_of)
    )
    bottom_first, bottom_next, bottom_behind, bottom_both = (
        ptx.wgmma(n, accumulate=False, **bottom_of), ptx.wgmma(n, **bottom_of),
        ptx.wgmma(n, wait=1, **bottom_of), ptx.wgmma(n, wait=2, **bottom_of),
    )
    wait_top, wait_bottom = ptx.wgmma_wait(skew, block_sums), ptx.wgmma_wait(0, block_sums)
    waits = [ptx.wgmma_wait(skew - 1 - i) for i in range(skew)]
    wait_a, wait_b, wait_c = (waits + 3 * [None])[:3]
    chunks = len(chunk_starts(config.out_m, chunk_columns(config.out)))
    store = store_chunk(config.out_m, config.store_buffers, config.out, config.epilogue == "add")
    # Chunks of the epilogue between two wgmmas of the other block.
    bounds = tuple(round(chunks * i / skew) for i in range(skew + 1))
    wait_stores, activate = ptx.bulk_wait_group_read(0), gate_columns(block_sums // 2)
    descriptor, advance, pin = ptx.wgmma_descriptor, config.ring.advance, ptx.pin(block_sums, "f32")
    rows_of, begin, feed, _ = make_loads(config)

    @device_function
    def release(empty, thread):
        """A consumer's arrival: it has read the stage."""
        ptx.mbarrier_arrive_if(empty, thread == 0)

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
        rows, columns, step, _, k_tiles, _, _ = shape
        top = cuda.local.array(block_sums, dtype=types.float32)
        bottom = cuda.local.array(block_sums, dtype=types.float32)
        a_start = descriptor(base + consumer * consumer_bytes, 16)
        b_start = descriptor(base + a_bytes, 16)
        buffer = types.uint32(base + ring_bytes + (consumer * 4 + warp) * store_bytes)
        feeds, one = consumer * 4 + warp == 0, types.uint32(lane == 0)
        work = tile, types.int32(0), types.int32(0), types.int32(0), types.int32(0)
        if feeds:
            work = begin(maps[1], base, barriers, tile, shape, one)
            for early in range(stages):
                work = feed(maps, base, barriers, types.uint32(early), types.uint32(1), work, shape, one)
        stage, parity = types.uint32(0), types.uint32(0)
        low, low_parity = stage, parity
        if tile < rows * columns:
            for i in unroll(skew):
                ptx.mbarrier_wait(barriers + 8 * stage, parity)
                offset = stage * (stage_bytes >> 4)
                if i == 0:
                    top_first(top, a_start + offset, b_start + offset, high[0], high[1])
                else:
                    top_next(top, a_start + offset, b_start + offset, high[0], high[1])
                stage, parity = advance(stage, parity)
            while True:
                # The other block catches up.
                offset = low * (stage_bytes >> 4)
                bottom_first(bottom, a_start + offset, b_start + offset, high[0], high[1])
                a_row, b_row = rows_of(tile, shape)
                row, column = ptx.uniform(a_row), ptx.uniform(b_row)
                first_row = row + consumer * consumer_rows + warp * 16
                last, last_parity = low, low_parity
                for i in unroll(1, skew):
                    low, low_parity = advance(low, low_parity)
                    offset = low * (stage_bytes >> 4)
                    bottom_behind(bottom, a_start + offset, b_start + offset, high[0], high[1])
                    release(barriers + 8 * (stages + last), thread)
                    if feeds:
                        work = feed(maps, base, barriers, last, last_parity, work, shape, one)
                    last, last_parity = low, low_parity
                k = types.int32(2 * skew)
                while k < k_tiles:
                    ptx.mbarrier_wait(barriers + 8 * stage, parity)
                    offset = stage * (stage_bytes >> 4)
                    top_next(top, a_start + offset, b_start + offset, high[0], high[1])
                    bottom_both(bottom, a_start + offset, b_start + offset, high[0], high[1])
                    release(barriers + 8 * (stages + last), thread)
                    if feeds:
                        work = feed(maps, base, barriers, last, last_parity, work, shape, one)
                    last, last_parity = stage, parity
                    stage, parity = advance(stage, parity)
                    k = types.int32(k + 1)
                low, low_parity = stage, parity
                for i in unroll(skew):
                    ptx.mbarrier_wait(barriers + 8 * stage, parity)
                    offset = stage * (stage_bytes >> 4)
                    if i == 0:
                        top_behind(top, a_start + offset, b_start + offset, high[0], high[1])
                        release(barriers + 8 * (stages + last), thread)
                        if feeds:
                            work = feed(maps, base, barriers, last, last_parity, work, shape, one)
                    else:
                        top_next(top, a_start + offset, b_start + offset, high[0], high[1])
                    stage, parity = advance(stage, parity)
                last, last_parity = low, low_parity
                for i in unroll(skew):
                    offset = last * (stage_bytes >> 4)
                    bottom_next(bottom, a_start + offset, b_start + offset, high[0], high[1])
                    last, last_parity = advance(last, last_parity)
                wait_top(top)
                finish(top)
                for i in unroll(skew):
                    for c in unroll(bounds[i], bounds[i + 1]):
                        store(top, target, buffer, first_row, column, lane, c)
                    if i == skew - 1:
                        wait_bottom(bottom)
                    elif i == 0:
                        wait_a()
                    elif i == 1:
                        wait_b()
                    release(barriers + 8 * (stages + low), thread)
                    if feeds:
                        work = feed(maps, base, barriers, low, low_parity, work, shape, one)
                    low, low_parity = advance(low, low_parity)
                tile = types.int32(tile + step)
                if tile >= rows * columns:
                    break
                low, low_parity = stage, parity
                for i in unroll(skew):
                    ptx.mbarrier_wait(barriers + 8 * stage, parity)
                    offset = stage * (stage_bytes >> 4)
                    if i == 0:
                        top_first(top, a_start + offset, b_start + offset, high[0], high[1])
                        finish(bottom)
                    else:
                        top_next(top, a_start + offset, b_start + offset, high[0], high[1])
                    stage, parity = advance(stage, parity)
                    for c in unroll(bounds[i], bounds[i + 1]):
                        store(bottom, target, buffer, first_row + 64, column, lane, c)
            finish(bottom)
            for c in unroll(chunks):
                store(bottom, target, buffer, first_row + 64, column, lane, c)
        wait_stores()

    return consume
