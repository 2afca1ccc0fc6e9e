"""A product of the schedule: this block's rows, out of the ring, times activations in registers."""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.elementwise.activation import silu_product
from minfer.cuda.elementwise.rows import warp_sum
from minfer.cuda.gemv.fine import FINE_RECORD_BYTES, store_fine
from minfer.cuda.gemv.lanes import LANE_DOTS
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.config import PAIR, TokenConfig
from minfer.cuda.token.ring import Q6_BYTES, Ring
from minfer.cuda.token.schedule import ACTIVATED, ADD, PAIRS

RECORDS_BYTES = 4 * FINE_RECORD_BYTES  # a block's activations


def make_product(config: TokenConfig, ring: Ring, format: str) -> Callable:
    """Device function (flags, rows, units, matrix, records, sums, x, y, cursor, state, table, weights, block,
    blocks, warp, barriers, slots): this warp's turns of a product of this format. `matrix` is the low word of
    its offset, `records` and `sums` are shared addresses, `x` the residual stream, `y` where outputs go, `state`
    (slot, its number, parity)."""
    dot = LANE_DOTS[format]
    load, multiply, lanes = dot.load, dot.dot, dot.lanes
    across, steps = 32 // dot.lanes, config.steps(format)
    word_count, float_count = steps * dot.words, steps * dot.floats
    six = format == "Q6_K"
    each = 1 if six else PAIR
    unit = config.piece_bytes // config.longest if not six else Q6_BYTES
    piece, slot_bytes, slots, team = config.piece_bytes, config.slot_bytes, config.slots, config.team
    turns, part_of, refill = ring.turns, ring.part, ring.refill

    @device_function
    def keep(flags, x, y, sums, first, last, row, warp, early, value):
        """A row's sum to where it belongs; one lane a row does."""
        if flags & ACTIVATED:
            member = warp - warp // int32(team) * int32(team)
            ptx.st_shared_f32(sums + uint32(((row - first) * team + member) * 4), value)
        elif flags & PAIRS:
            ptx.st_shared_f32(sums + uint32((row - first) * 4), value)
        elif flags & ADD:
            ptx.st_global_f32(x + uint64(row) * uint64(4), early + value)
        else:
            ptx.st_global_f32(y + uint64(row) * uint64(4), value)

    @device_function
    @unrolled
    def product(
        flags, rows, units, matrix, records, sums, x, y, cursor, state, table, weights, block, blocks, warp,
        barriers, slots_at,
    ):  # fmt: skip
        lane = int32(ptx.lane_id())
        first, last, begin, stride = turns(flags, rows, block, blocks, warp)
        first_unit, count = part_of(flags, units, warp)
        words = cuda.local.array(word_count, uint32)
        floats = cuda.local.array(float_count, float32)
        offsets = cuda.local.array(steps, uint32)
        part = lane & (lanes - 1)
        if begin < last:
            for s in unroll(steps):
                index = int32(s * across) + lane // lanes
                inside = index < count
                index = int32(min(index, count - 1))
                offsets[s] = uint32(index * unit)
                load(words, floats, s, records + uint32((first_unit + index) * RECORDS_BYTES), part, inside)
        pairs = (flags & PAIRS) != 0
        for at in range(begin, last, stride):
            row = int32(at)
            two = not six and (pairs or row + 1 < last)
            mine = row
            if two and not pairs and lane >= 16:
                mine = row + 1
            writer = lane == 0 or (lane == 16 and two and not pairs)
            early = float32(0)
            if flags & ADD and not flags & ACTIVATED and writer:
                early = ptx.ld_global_f32(x + uint64(mine) * uint64(4))
            barrier = barriers + state[1] * uint32(8)
            slot = slots_at + state[0]
            ptx.mbarrier_wait(barrier, state[2])
            here = slot
            if six:
                here += (matrix + uint32(row * units * unit + first_unit * unit)) & uint32(15)
            total = float32(0)
            for s in unroll(steps):
                total += multiply(words, floats, s, here + offsets[s], part)
            if six:
                value = warp_sum(total)
            else:
                there = here
                if two:
                    there = here + uint32(piece)
                other = float32(0)
                for s in unroll(steps):
                    other += multiply(words, floats, s, there + offsets[s], part)
                # Row 1's sum in the upper half of the warp.
                kept = total
                sent = other
                if lane >= 16:
                    kept = other
                    sent = total
                value = kept + ptx.shfl_xor_f32(sent, uint32(16))
                for level in unroll(4):
                    value += ptx.shfl_xor_f32(value, uint32(8 >> level))
            ptx.syncwarp()
            refill(cursor, table, weights, block, blocks, warp, slot, barrier)
            state[0] += uint32(slot_bytes)
            state[1] += uint32(1)
            if state[1] == uint32(slots):
                state[0] = uint32(0)
                state[1] = uint32(0)
                state[2] ^= uint32(1)
            if not six:
                gated = silu_product(value, ptx.shfl_xor_f32(value, uint32(16)))
                if pairs:
                    value = gated
            if writer:
                keep(flags, x, y, sums, first, last, mine, warp, early, value)

    return product


def make_finish(config: TokenConfig, ring: Ring) -> Callable:
    """Device function (flags, rows, sums, x, activated, block, blocks), after a barrier: sums of warps that
    shared rows are added to the residual stream, gated activations become records."""
    turns, team, outputs, threads = ring.turns, config.team, config.outputs, config.threads

    @device_function
    @unrolled
    def finish(flags, rows, sums, x, activated, block, blocks):
        first, last, _, _ = turns(flags, rows, block, blocks, int32(0))
        thread = int32(cuda.threadIdx.x)
        if flags & ACTIVATED:
            for at in range(thread, last - first, threads):
                local = int32(at)
                place = x + uint64(first + local) * uint64(4)
                total = ptx.ld_global_f32(place)
                for member in unroll(team):
                    total += ptx.ld_shared_f32(sums + uint32((local * team + member) * 4))
                ptx.st_global_f32(place, total)
        elif flags & PAIRS:
            # Whole warps go round together: lanes of a run exchange its largest value.
            for base in range(0, outputs, threads * 4):
                local = int32(base) + thread * 4
                v0 = float32(0)
                v1 = float32(0)
                v2 = float32(0)
                v3 = float32(0)
                if local < last - first:
                    v0, v1, v2, v3 = ptx.ld_shared_v4_f32(sums + uint32(local * 4))
                store_fine(activated, first + local, last, v0, v1, v2, v3)

    return finish
