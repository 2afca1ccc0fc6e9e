"""What the other warps do with the tiles of a product: up to 8 blocks of weights of a row at a time.

A row's blocks are shared out to groups of up to 8, a warp each, and the rows to teams of as many warps as
there are groups. A warp keeps its group for a whole product, so that its activations are loaded once.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32

from minfer.cuda import ptx
from minfer.cuda.elementwise.rows import warp_sum
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.config import SLOT_BYTES, TokenConfig, row_groups
from minfer.cuda.token.dots import (
    UNIT_LANES,
    X_FACTORS,
    X_WORDS,
    dot_q4_k,
    dot_q6_k,
    load_activations,
)
from minfer.cuda.token.records import RECORD_BYTES
from minfer.cuda.token.schedule import SIX_BIT
from minfer.cuda.token.tiles import block_rows, cut, unit_bytes

NUMBER, PARITY = range(2)  # of a state: slot, its phase's parity


def make_multiply(config: TokenConfig) -> Callable:
    """Device function (shared, region, flags, rows, units, matrix, state, block, blocks, warp): this
    warp's share of a product. `matrix` is the low word of its offset."""
    slots, warps = config.slots, config.warps
    full_at, done_at = config.full_at, config.done_at
    partials_at, partial_bytes, ring_at = config.partials_at, config.partial_bytes, config.ring_at

    @device_function
    @unrolled
    def multiply(shared, region, flags, rows, units, matrix, state, block, blocks, warp):
        lane = int32(ptx.lane_id())
        part = lane & (UNIT_LANES - 1)
        groups = int32(row_groups(units))
        teams = int32(ptx.udiv_u32(int32(warps), groups))
        team = int32(ptx.udiv_u32(warp, groups))
        group = warp - team * groups
        next_row = team
        unit = int32(ptx.udiv_u32(group * units, groups)) + lane // UNIT_LANES
        end = int32(ptx.udiv_u32((group + 1) * units, groups))
        words = cuda.local.array(X_WORDS, uint32)
        factors = cuda.local.array(X_FACTORS, float32)
        six = flags & SIX_BIT
        load_activations(words, factors, region + uint32(int32(min(unit, end - 1)) * RECORD_BYTES), part, six)
        if unit >= end:  # this lane does the last block again, times nothing
            unit = end - 1
            for i in unroll(X_WORDS):
                words[i] = uint32(0)
            for i in unroll(X_FACTORS):
                factors[i] = float32(0)
        first, last = block_rows(flags, rows, block, blocks)
        each, pieces, pitch = cut(flags, units)
        unit_at = uint32(unit * unit_bytes(flags))
        for begin in range(first, last, each):
            count = int32(min(each, last - begin)) * pieces
            number = state[NUMBER]
            # Where in a 16-byte line the tile's copy begins.
            shift = uint32(matrix + uint32(int32(begin) * pitch)) & uint32(15)
            place = shared + uint32(ring_at) + number * uint32(SLOT_BYTES) + shift + unit_at
            partials = shared + uint32(partials_at) + number * uint32(partial_bytes) + uint32(group * 4)
            ptx.mbarrier_wait(shared + uint32(full_at) + number * uint32(8), state[PARITY])
            while next_row < count and team < teams:
                if six:
                    value = dot_q6_k(place + uint32(next_row * pitch), part, words, factors)
                else:
                    value = dot_q4_k(place + uint32(next_row * pitch), part, words, factors)
                value = warp_sum(value)
                if lane == 0:
                    ptx.st_shared_f32(partials + uint32(next_row * groups * 4), value)
                next_row = int32(next_row + teams)
            next_row = int32(next_row - count)
            ptx.syncwarp()
            if lane == 0:
                ptx.mbarrier_arrive(shared + uint32(done_at) + number * uint32(8))
            state[NUMBER] += uint32(1)
            if state[NUMBER] == uint32(slots):
                state[NUMBER] = uint32(0)
                state[PARITY] ^= uint32(1)

    return multiply
