"""The consumers of the Hopper GEMM: they multiply a tile's k-tiles, and then finish it."""

from __future__ import annotations

from functools import cache

from minfer.cuda import ptx
from minfer.cuda.gemm_hopper.config import GemmHopperConfig
from minfer.cuda.gemm_hopper.heads import store_heads
from minfer.cuda.gemm_hopper.loads import make_loads
from minfer.cuda.gemm_hopper.split import Exchange
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.tile.activation import gate_columns
from minfer.cuda.tile.hopper import BUFFER_BYTES, store_tile


@cache
def make_consumer(config: GemmHopperConfig) -> DeviceFunction:
    """What a consumer does: (target, maps, base, barriers, tile, shape, consumer, thread, high, half). `maps`
    are the addresses of A's and B's tensor maps, `shape` is as in `minfer.cuda.gemm_hopper.loads`, thread is
    of 128, `high` are the descriptors' high words; target is what the epilogue stores to, half what split_k
    takes."""
    from numba import cuda
    from numba.cuda import types

    tile_k, stages, stage_bytes, a_bytes = config.tile_k, config.stages, config.stage_bytes, config.a_bytes
    ring_bytes, store_bytes = stages * stage_bytes, config.store_buffers * BUFFER_BYTES
    row_blocks, consumer_rows = config.warpgroups.row_blocks, 64 * config.warpgroups.row_blocks
    consumer_bytes = consumer_rows * tile_k * 2
    block_sums, accumulators = config.block_sums, config.sums
    producer, gated = config.producer, config.epilogue == "swiglu"
    split_k, lead = config.split_k, config.split_lead
    # The first k-tile overwrites the sums; of the others at most this stage's group is in flight.
    stage_of = {"k_steps": tile_k // 16, "row_blocks": row_blocks, "high": "operand"}
    multiply_first = ptx.wgmma(config.tile_m, accumulate=False, **stage_of)
    multiply = ptx.wgmma(config.tile_m, wait=1, **stage_of)
    wait_sums = ptx.wgmma_wait(0, accumulators)
    exchange = Exchange(accumulators, stage_bytes, config.ring)
    locate, give, add = (exchange.place, exchange.give(0), exchange.add(0)) if split_k else (None,) * 3
    if config.heads is not None:
        store = store_heads(config.heads, config.tile_m)
    else:
        store = store_tile(config.out_m, config.store_buffers, config.out, config.epilogue == "add")
    wait_stores, activate = ptx.bulk_wait_group_read(0), gate_columns(block_sums // 2)
    descriptor, advance, pin = ptx.wgmma_descriptor, config.ring.advance, ptx.pin(block_sums, "f32")
    rows_of, _, begin, feed, _ = make_loads(config)

    @device_function
    def release(empty, thread, others):
        """A consumer's arrival, by the threads whose number has none of these bits: it has read the stage."""
        ptx.mbarrier_arrive_if(empty, (thread & others) == 0)

    @device_function
    @unrolled
    def finish(sums, target, buffer, row, column, lane):
        """The epilogue of a warp's rows, 16 of each block."""
        part = cuda.local.array(block_sums, dtype=types.float32)
        for block in unroll(row_blocks):
            first = block * block_sums
            for i in range(block_sums):
                part[i] = sums[first + i]
            if gated:
                activate(part)
                pin(part)
                for i in range(block_sums):
                    sums[first + i] = part[i]
            store(part, target, buffer, row + 64 * block, column, lane)

    @device_function
    def consume(target, maps, base, barriers, tile, shape, consumer, thread, high, half):
        lane, warp = thread & 31, ptx.uniform(thread >> 5)
        rows, columns, step, (_, k_tiles, both, part), _, _ = shape
        if lead:
            k_tiles = types.int32(ptx.select_u32(types.uint32(consumer == part), k_tiles, both))
        sums = cuda.local.array(accumulators, dtype=types.float32)
        a_start = descriptor(base + consumer * consumer_bytes, 16)
        b_start = descriptor(base + a_bytes, 16)
        buffer = types.uint32(base + ring_bytes + (consumer * 4 + warp) * store_bytes)
        # Without a producer a warp that multiplies loads too.
        feeds, one = not producer and consumer * 4 + warp == 0, types.uint32(lane == 0)
        work = tile, types.int32(0), types.int32(0), types.int32(0)
        if feeds:
            work, count = begin(tile, shape)
            while count < stages:  # where the first tile has fewer k-tiles
                work = feed(maps, base, barriers, types.uint32(count), types.uint32(1), work, shape, one)
                count = types.int32(count + 1)
        stage, parity = types.uint32(0), types.uint32(0)
        while tile < rows * columns:
            a_row, b_row = rows_of(tile, shape)
            row, column = ptx.uniform(a_row), ptx.uniform(b_row)
            ptx.mbarrier_wait(barriers + 8 * stage, parity)
            offset = stage * (stage_bytes >> 4)
            multiply_first(sums, a_start + offset, b_start + offset, high[0], high[1])
            last, last_parity = stage, parity
            stage, parity = advance(stage, parity)
            k, others = types.int32(1), types.uint32(127)
            while k < k_tiles:
                ptx.mbarrier_wait(barriers + 8 * stage, parity)
                offset = stage * (stage_bytes >> 4)
                multiply(sums, a_start + offset, b_start + offset, high[0], high[1])
                if lead:
                    others = ptx.select_u32(k > both, 95, 127)  # alone: for both
                release(barriers + 8 * (stages + last), thread, others)
                if feeds:
                    work = feed(maps, base, barriers, last, last_parity, work, shape, one)
                last, last_parity = stage, parity
                stage, parity = advance(stage, parity)
                k = types.int32(k + 1)
            wait_sums(sums)
            if lead:
                others = ptx.select_u32(k > both, 95, 127)
            release(barriers + 8 * (stages + last), thread, others)
            first_row = row + consumer * consumer_rows + warp * 16
            if split_k:
                parts, ready = half
                if consumer == part:
                    add(sums, base, barriers, stage, parity, thread)
                    finish(sums, target, buffer, first_row, column, lane)
                else:
                    there, counter = locate(parts, ready, tile, consumer)
                    give(sums, there, counter, thread)
            else:
                finish(sums, target, buffer, first_row, column, lane)
            if feeds:
                work = feed(maps, base, barriers, last, last_parity, work, shape, one)
            tile = types.int32(tile + step)
        if lane == 0:
            wait_stores()

    return consume
