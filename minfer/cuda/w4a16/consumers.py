"""The warpgroups that multiply: they unpack weights while the tensor cores work on those before."""

from __future__ import annotations

from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.elementwise.activation import silu_product_by
from minfer.cuda.gemm_hopper.split import Exchange
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.tile.scheduler import tile_xy
from minfer.cuda.tile.transposed import store_accumulators_transposed, store_tile_transposed
from minfer.cuda.w4a16.config import W4A16Config
from minfer.cuda.w4a16.formats import PAIRS, QUARTERS, WORDS, PackedFormat
from minfer.cuda.w4a16.movers import chunk_start


def hand_fraction_over(exchange: Exchange, fraction: int) -> DeviceFunction:
    """(sums, (workspace, counters), tile, part, consumer, thread): a consumer hands a fraction of its sums to
    the part that finishes it, if that is not its own."""
    place, give, piece_bytes = exchange.place, exchange.give(fraction), exchange.piece_bytes

    @device_function
    def hand_over(sums, workspace, tile, part, consumer, thread):
        finishing = types.int32(2 * fraction + consumer)
        if part != finishing:
            there, counter = place(workspace[0], workspace[1], tile, finishing)
            piece = types.uint32(part - types.int32(part > finishing))
            give(sums, there + types.uint64(piece * types.uint32(piece_bytes)), counter, thread)

    return hand_over


def store_fraction(config: W4A16Config, tokens: int, fractions: int) -> DeviceFunction:
    """(sums, fraction, c, buffer, token, column, first, width, nt, od, consumer, thread, constant): store a
    fraction, 0 or 1, of a consumer's tile of `tokens` into C, whose outputs begin at `column` behind those
    that come first."""
    accumulators, columns = tokens // 2 // fractions, tokens // fractions
    stored_by_tma, element_bytes = config.store == "tma", 2 if config.out == "f16" else 4
    # Gates and the ups that belong to them are rows g and g + 8 of the fragments.
    combine = silu_product_by if config.gated else None
    store_tile = store_tile_transposed(columns, config.buffers, combine) if stored_by_tma else None
    store_elements = store_accumulators_transposed(columns, config.out)

    @device_function
    def store_own(own, c, buffer, row, column, first, width, nt, od, consumer, thread, constant):
        if stored_by_tma:
            store_tile(own, c, buffer, row, first + column, thread, 1 + consumer, constant)
        else:
            warp, lane = ptx.uniform(thread >> 5), thread & 31
            target = c + types.uint64(first * element_bytes)
            store_elements(own, target, width, row, column + warp * 16, nt, od, lane)

    @device_function
    def store_all(sums, _, c, buffer, token, column, first, width, nt, od, consumer, thread, constant):
        store_own(sums, c, buffer, token, column, first, width, nt, od, consumer, thread, constant)

    @device_function
    def store(sums, fraction, c, buffer, token, column, first, width, nt, od, consumer, thread, constant):
        own = cuda.local.array(accumulators, dtype=types.float32)
        for i in range(accumulators):
            own[i] = sums[fraction * accumulators + i]
        row = types.int32(token + fraction * columns)
        store_own(own, c, buffer, row, column, first, width, nt, od, consumer, thread, constant)

    return store if fractions > 1 else store_all


def consume_tiles(
    config: W4A16Config,
    packed: PackedFormat,
    tokens: int,
    following: DeviceFunction,
    last: bool,
    narrow: int = 0,
) -> DeviceFunction:
    """(source, bias, c, base, barriers, tile, step, last_round, token_tiles, output_tiles, wide, workspace,
    blocks, nt, od, first, width, group, pitch, consumer, thread, lap, parity, slot, slot_parity) -> (tile,
    lap, parity, slot, slot_parity): multiply and store all tiles of this thread block, one at least, of
    weights in this format, with `tokens` each. Tiles come as `following` (`minfer.cuda.tile.scheduler`) says;
    from tile `wide` on they have at most `narrow` tokens, if that is not 0. With split_k `workspace` is
    (sums, counters), and `source` where this part of a row begins.

    The cursors of both rings (at first 0, 0, 0, 0) are those of the first block; what is returned is the
    first tile past the last one, and the cursors for what follows. `last`: nothing follows."""
    outputs = config.outputs
    stages, stage_bytes = config.stages, config.stage_bytes
    slots, slot_bytes = config.slots, config.slot_bytes
    buffers_start, slots_start = config.buffers_start, config.slots_start
    slot_barriers = config.ring.size_bytes
    ready_start, constant_start = config.ready_start, config.constant_start
    accumulators, words, magic = tokens // 2, packed.words, packed.magic
    # The ring holds whole blocks, so that a quarter's stage is known when the kernel is compiled.
    laps, block_stages = stages // QUARTERS, QUARTERS
    biased = config.bias
    gated, consumer_outputs = config.gated, outputs // config.consumers
    # Weight rows of a warp, and from row g of its fragments to row g + 8.
    warp_rows, apart = (8, outputs) if gated else (16, 8)
    buffers_bytes = max(0, config.buffers) * config.chunk_bytes
    advance_slot = config.slot_ring.advance
    fetch, prepare, finish, ahead = packed.fetch, packed.prepare, packed.finish, config.ahead
    locate, start = packed.place, chunk_start(config, packed)
    # The first k-tile overwrites the sums; afterwards at most this k-tile's group is in flight.
    multiply_first = ptx.wgmma(tokens, a="registers", k_steps=4, accumulate="operand")
    multiply = ptx.wgmma(tokens, a="registers", k_steps=4)
    multiply_narrow_first = ptx.wgmma(narrow or tokens, a="registers", k_steps=4, accumulate="operand")
    multiply_narrow = ptx.wgmma(narrow or tokens, a="registers", k_steps=4)
    wait_last = ptx.wgmma_wait(1, accumulators)
    wait_sums, pin = ptx.wgmma_wait(0, accumulators), ptx.pin(WORDS)
    descriptor = ptx.wgmma_descriptor
    split_k, quartered = config.split_k > 1, config.split_k == 4
    exchange = Exchange(accumulators, stage_bytes, config.ring, max(2, config.split_k))
    hand_over, add = hand_fraction_over(exchange, 0), exchange.add(0)
    hand_rest_over, add_rest = (
        (hand_fraction_over(exchange, 1), exchange.add(1)) if quartered else (None, None)
    )
    store = store_fraction(config, tokens, exchange.fractions)

    @device_function
    def multiply_tile(sums, a, activations, quarter, block, is_narrow):
        if narrow > 0 and is_narrow:
            if quarter == 0:
                multiply_narrow_first(sums, a, activations, block)
            else:
                multiply_narrow(sums, a, activations)
        elif quarter == 0:
            multiply_first(sums, a, activations, block)
        else:
            multiply(sums, a, activations)

    @device_function
    def open_block(source, slot, row, byte, od, pitch, block):
        """(place, scales) of the lane's first row, and of its second."""
        near_start = start(source, row, od, pitch, block)
        # Eight rows are whole chunks.
        far_start = start(source, row + apart, od, pitch, block) if gated else near_start
        near, near_scales = locate(slot, row, near_start)
        far, far_scales = locate(slot, row + apart, far_start)
        return types.uint32(near + byte), near_scales, types.uint32(far + byte), far_scales

    @device_function
    def add_bias(sums, low, high):
        for j in range(tokens // 8):
            sums[4 * j] += low
            sums[4 * j + 1] += low
            sums[4 * j + 2] += high
            sums[4 * j + 3] += high

    @device_function
    def bias_of(bias, row, od):
        return ptx.ld_global_nc_f32(bias + types.uint64(min(row, od - 1)) * types.uint64(4))

    @device_function
    def next_lap(lap, parity):
        """The first stage of the next block, and its parity."""
        if laps == 1:
            return lap, types.uint32(parity ^ 1)
        after = types.uint32(lap ^ block_stages)
        return after, types.uint32(parity ^ (after == 0))

    @device_function
    def last_stage(lap):
        """The last stage of the block before the one that starts at `lap`."""
        if laps == 1:
            return types.uint32(block_stages - 1)
        return types.uint32((lap ^ block_stages) + (block_stages - 1))

    @device_function
    def release(barriers, stage, thread):
        ptx.mbarrier_arrive_if(barriers + 8 * (stages + stage), thread == 0)

    @device_function
    @unrolled
    def consume(
        source, bias, c, base, barriers, tile, step, last_round, token_tiles, output_tiles, wide, workspace,
        blocks, nt, od, first, width, group, pitch, consumer, thread,
        lap, parity, slot, slot_parity,
    ):  # fmt: skip
        lane, warp = thread & 31, ptx.uniform(thread >> 5)
        row = types.int32(consumer * consumer_outputs + warp * warp_rows + (lane >> 2))
        byte = types.uint32((lane & 3) * 2)
        sums = cuda.local.array(accumulators, dtype=types.float32)
        even = cuda.local.array(WORDS, dtype=types.uint32)
        odd = cuda.local.array(WORDS, dtype=types.uint32)
        numbers = cuda.local.array(WORDS, dtype=types.uint32)
        pairs = cuda.local.array(PAIRS, dtype=types.uint32)
        raw = cuda.local.array(words, dtype=types.uint32)
        for i in range(accumulators):
            sums[i] = types.float32(0)
        low_bias, high_bias = types.float32(0), types.float32(0)
        a_start = descriptor(base, 16)
        slots_at, ready = types.uint32(base + slots_start), types.uint32(barriers + ready_start)
        constant = types.uint32(barriers + constant_start)
        buffer = types.uint32(base + buffers_start + consumer * buffers_bytes)
        if magic:
            # The lane's number, below 32, keeps the assembler from using a uniform register.
            raw[words - 1] = ptx.ld_shared_u32(constant + 4) + (ptx.lane_id() >> 5)
        token_tile, output_tile = types.int32(0), types.int32(0)
        tiles = types.int32(token_tiles * output_tiles)
        ptx.mbarrier_wait(ready + 8 * slot, slot_parity)
        place = types.uint32(slots_at + slot * slot_bytes)
        near, near_scales, far, far_scales = open_block(source, place, row, byte, od, pitch, 0)
        fetch(raw, pairs, near, far, near_scales, far_scales, 0)
        prepare(numbers, raw, 0)
        finish(even, numbers, pairs)
        pin(even)
        fetch(raw, pairs, near, far, near_scales, far_scales, 1)
        while tile < tiles:
            # With split_k there is one tile.
            coming = tiles if split_k else types.int32(following(tile, step, last_round))
            is_narrow = tile >= wide
            block = types.int32(0)
            while block < blocks:
                later = types.int32(block + 1)
                more = later < blocks or coming < tiles
                for quarter in unroll(QUARTERS):
                    ptx.mbarrier_wait(barriers + 8 * (lap + quarter), parity)
                    activations = a_start + (lap + quarter) * (stage_bytes >> 4)
                    if quarter % 2 == 0:
                        multiply_tile(sums, even, activations, quarter, block, is_narrow)
                    else:
                        multiply_tile(sums, odd, activations, quarter, block, is_narrow)
                    if not ahead:
                        wait_last(sums)
                    # The next k-tile's weights while this one is multiplied.
                    prepare(numbers, raw, (quarter + 1) % QUARTERS)
                    if quarter == 2:
                        # All of the block has been fetched.
                        ptx.syncwarp()
                        free = lane == 0
                        if not last:
                            # What is read of the last slot once more is read before it is overwritten.
                            free &= more
                        ptx.mbarrier_arrive_if(barriers + slot_barriers + 8 * (slots + slot), free)
                    if ahead:
                        pin(numbers)
                        wait_last(sums)
                    # The k-tile before is done: its stage and its fragments are free.
                    if quarter > 0:
                        release(barriers, lap + (quarter - 1), thread)
                    elif block > 0:
                        release(barriers, last_stage(lap), thread)
                    else:
                        # Divisions that run under the tensor cores' work.
                        x, y = tile_xy(tile, token_tiles, output_tiles, group)
                        token_tile, output_tile = ptx.uniform(x), ptx.uniform(y)
                        if biased:
                            low_bias = bias_of(bias, output_tile * outputs + row, od)
                            high_bias = bias_of(bias, output_tile * outputs + row + 8, od)
                    if quarter % 2 == 0:
                        finish(odd, numbers, pairs)
                        pin(odd)
                    else:
                        finish(even, numbers, pairs)
                        pin(even)
                    # Those of the k-tile after it, so that they have a k-tile's time to come.
                    if quarter == 2:
                        # At the very end the last block is unpacked once more, for nothing.
                        if more:
                            slot, slot_parity = advance_slot(slot, slot_parity)
                            ptx.mbarrier_wait(ready + 8 * slot, slot_parity)
                        place = types.uint32(slots_at + slot * slot_bytes)
                        after = types.int32(0 if later == blocks else later)
                        near, near_scales, far, far_scales = open_block(
                            source, place, row, byte, od, pitch, after
                        )
                    fetch(raw, pairs, near, far, near_scales, far_scales, (quarter + 2) % QUARTERS)
                block = later
                lap, parity = next_lap(lap, parity)
            wait_sums(sums)
            release(barriers, last_stage(lap), thread)
            if biased:
                add_bias(sums, low_bias, high_bias)
            token, column = token_tile * tokens, output_tile * outputs + consumer * consumer_outputs
            if split_k:
                # Read anew, so that it takes no register before.
                part = types.int32(ptx.udiv_u32(ptx.uniform(cuda.blockIdx.x), tiles))
                hand_over(sums, workspace, tile, part, consumer, thread)
                if quartered:
                    hand_rest_over(sums, workspace, tile, part, consumer, thread)
                if part == consumer:
                    add(sums, base, barriers, lap, parity, thread)
                    store(sums, 0, c, buffer, token, column, first, width, nt, od, consumer, thread, constant)
                if quartered and part == consumer + 2:
                    add_rest(sums, base, barriers, lap, parity, thread)
                    store(sums, 1, c, buffer, token, column, first, width, nt, od, consumer, thread, constant)
            else:
                store(sums, 0, c, buffer, token, column, first, width, nt, od, consumer, thread, constant)
            tile = coming
        if not last:
            ptx.syncwarp()
            ptx.mbarrier_arrive_if(barriers + slot_barriers + 8 * (slots + slot), lane == 0)
        slot, slot_parity = advance_slot(slot, slot_parity)
        return tile, lap, parity, slot, slot_parity

    return consume
