"""What the warps do with the tiles of a product: up to 8 blocks of weights of a row at a time (16 with two
lanes a block), of two rows.

A row's blocks are shared out to groups of that size, a warp each, and the rows to teams of as many warps as
there are groups. A warp keeps its group for a whole product, so that its activations are loaded once.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32

from minfer.cuda import ptx
from minfer.cuda.elementwise.rows import warp_sum
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.config import TokenConfig
from minfer.cuda.token.dots import (
    make_dots,
)
from minfer.cuda.token.exchange import Exchange
from minfer.cuda.token.outputs import make_outputs
from minfer.cuda.token.records import RUN
from minfer.cuda.token.schedule import DEALT, PAIRS, ROW_BITS, SIX_BIT
from minfer.cuda.token.tiles import dealt_grain, make_groups, own_rows, tile_shape, unit_bytes

NUMBER, PARITY, SEEN = range(3)  # of a state: slot, its phase's parity; what was told of the tile before
FIRST, LAST, TEAMS, TEAM, GROUP, UNIT, END = range(7)
SHARE, STATE = 7, 3
"""Of a share: the block's outputs; teams, this warp's, its group; this lane's block of weights, the group's
end."""


def make_multiply(config: TokenConfig, exchange: Exchange, sync: Callable) -> tuple[Callable, Callable]:
    """Device functions (share, flags, rows, own, shape, block, warp): this warp's share of a product; and
    (shared, region, share, entry, flags, outputs, shape, place, matrix, state, old, eps, tag, best): its
    work. `own` and `shape` are words of the schedule, `matrix` the low word of the weights' offset; `sync` is
    the warps' barrier."""
    slots, warps, blocks = config.slots, config.warps, config.blocks
    full_at, done_at, told_at, ring_at = config.full_at, config.done_at, config.told_at, config.ring_at
    sums_at, places_at = config.sums_at, config.places_at
    most, lanes, pitch_of_records = config.sums, config.lanes, config.layout.pitch
    slot_bytes = config.slot_bytes
    write = make_outputs(config, exchange)
    row_groups = make_groups(config.group_units)
    load_activations, dot_q4_k, dot_q6_k, x_words, x_factors = make_dots(lanes, config.layout)

    @device_function
    def take_share(share, flags, rows, own, shape, block, warp):
        units, _ = tile_shape(shape)
        groups, inverse = row_groups(units), int32(shape) >> 14
        first, last = own_rows(flags, rows, own, block, blocks)
        team = (warp * inverse) >> 16
        group = warp - team * groups
        share[FIRST] = first
        share[LAST] = last
        share[TEAMS] = (warps * inverse) >> 16
        share[TEAM] = team
        share[GROUP] = group
        share[UNIT] = ((group * units * inverse) >> 16) + int32(ptx.lane_id()) // lanes
        share[END] = ((group + 1) * units * inverse) >> 16

    @device_function
    def put_two(a, b, lane, at, second_at):
        """The sums over the lanes of two values."""
        kept = a
        sent = b
        if lane >= 16:
            kept = b
            sent = a
            at = second_at
        kept += ptx.shfl_xor_f32(sent, uint32(16))
        for step in range(4):
            kept += ptx.shfl_xor_f32(kept, uint32(8 >> step))
        if lane & 15 == 0:
            ptx.st_shared_f32(at, kept)

    @device_function
    def told(shared, state):
        """What comes next: the number of its entry, from 1, above ROW_BITS of its first output."""
        at = shared + uint32(told_at) + state[NUMBER] * uint32(4)
        word = ptx.ld_shared_relaxed_u32(at)
        polls = uint32(0)
        while word <= state[SEEN]:  # of the tile that was there before
            polls = uint32(polls + uint32(1))
            ptx.poll_again(polls)
            word = ptx.ld_shared_relaxed_u32(at)
        return word

    @device_function
    @unrolled
    def multiply(
        shared, region, share, entry, flags, outputs, shape, place, matrix, state, old, eps, tag, best
    ):  # fmt: skip
        lane = int32(ptx.lane_id())
        part = lane & (lanes - 1)
        units, each = tile_shape(shape)
        groups = row_groups(units)
        six = flags & SIX_BIT
        pieces = int32(1)
        if flags & PAIRS:
            pieces = int32(2)
        unit = int32(min(share[UNIT], share[END] - 1))
        words = cuda.local.array(x_words, uint32)
        factors = cuda.local.array(x_factors, float32)
        load_activations(words, factors, region + uint32(unit * pitch_of_records), part, six)
        if share[UNIT] >= share[END]:  # this lane does the last block again, times nothing
            for i in unroll(x_words):
                words[i] = uint32(0)
            for i in unroll(x_factors):
                factors[i] = float32(0)
        pitch = units * unit_bytes(flags)
        unit_at = uint32(unit * unit_bytes(flags))
        teams = share[TEAMS]
        next_row = share[TEAM]
        if next_row >= teams:  # a warp too many
            next_row = int32(1 << 30)
        if flags & DEALT:
            place = uint32(0)
        grain = dealt_grain(flags, each)
        end = share[LAST]  # of the piece that the block is at
        before = int32(0)  # outputs whose sums are in shared memory
        sums = shared + uint32(sums_at + share[GROUP] * 4)
        pitch_of_sums = uint32(groups * 4)
        teams_apart = uint32(teams) * pitch_of_sums

        word = told(shared, state)
        while int32(word >> uint32(ROW_BITS)) == entry + 1:
            state[SEEN] = word
            begin = int32(word & uint32((1 << ROW_BITS) - 1))
            if begin >= end:
                end = int32(min(begin + grain, outputs))
            count = int32(min(each, end - begin))
            room = count
            if flags & PAIRS:  # a run of activations is written at once
                room = int32(RUN - (before & (RUN - 1)))
            if int32((before + room) * pieces * groups) > most:
                sync()
                write(shared, flags, place, before, groups, old, eps, tag, best)
                sync()
                before = int32(0)
            thread = int32(cuda.threadIdx.x)
            first_row = int32(before * pieces)
            if thread < count:
                at = shared + uint32(places_at + (before + thread) * 8)
                ptx.st_shared_v2_u32(at, uint32(begin + thread), uint32(first_row + thread | count << 16))
            rows = int32(count * pieces)
            rows_at = sums + uint32(first_row) * pitch_of_sums
            number = state[NUMBER]
            # Where in a 16-byte line the tile's copy begins.
            shift = uint32(matrix + uint32(begin * pitch)) & uint32(15)
            tile = shared + uint32(ring_at) + number * uint32(slot_bytes) + shift + unit_at
            ptx.mbarrier_wait(shared + uint32(full_at) + number * uint32(8), state[PARITY])
            second = int32(next_row + teams)
            while second < rows:
                if six:
                    a = dot_q6_k(tile + uint32(next_row * pitch), part, words, factors)
                    b = dot_q6_k(tile + uint32(second * pitch), part, words, factors)
                else:
                    a = dot_q4_k(tile + uint32(next_row * pitch), part, words, factors)
                    b = dot_q4_k(tile + uint32(second * pitch), part, words, factors)
                at = rows_at + uint32(next_row) * pitch_of_sums
                put_two(a, b, lane, at, at + teams_apart)
                next_row = int32(second + teams)
                second = int32(next_row + teams)
            if next_row < rows:
                if six:
                    a = dot_q6_k(tile + uint32(next_row * pitch), part, words, factors)
                else:
                    a = dot_q4_k(tile + uint32(next_row * pitch), part, words, factors)
                a = warp_sum(a)
                if lane == 0:
                    ptx.st_shared_f32(rows_at + uint32(next_row) * pitch_of_sums, a)
                next_row = int32(next_row + teams)
            next_row = int32(next_row - rows)
            ptx.syncwarp()
            if lane == 0:
                ptx.mbarrier_arrive(shared + uint32(done_at) + number * uint32(8))
            state[NUMBER] += uint32(1)
            if state[NUMBER] == uint32(slots):
                state[NUMBER] = uint32(0)
                state[PARITY] ^= uint32(1)
            before = int32(before + count)
            word = told(shared, state)
        sync()
        if before > 0:
            write(shared, flags, place, before, groups, old, eps, tag, best)
        sync()

    return take_share, multiply
