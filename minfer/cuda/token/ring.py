"""The stream of weights: each warp copies its own turns, in the schedule's order, into a ring of its own.

Weights depend on nothing, so that a warp asks for its next turn as soon as a slot is free, whatever phase that
turn belongs to: while blocks wait for each other, and while they attend, their rings fill with the weights
of the phases to come.
"""

from __future__ import annotations

from typing import NamedTuple

from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.instruction import device_function, unrolled
from minfer.cuda.token.config import ENTRY_BYTES, PAIR, WEIGHTS, TokenConfig
from minfer.cuda.token.schedule import ACTIVATED, ATTENTION, BACKWARDS, PAIRS, SIX_BIT
from minfer.cuda.gemv.fine import FINE_RUN

Q4_BYTES, Q6_BYTES = BLOCKS["Q4_K"].row_bytes(WEIGHTS), BLOCKS["Q6_K"].row_bytes(WEIGHTS)
ENTRY, BEGIN, LAST = range(3)  # of a cursor: entry, first row of the next turn, end of the block's rows


class Ring(NamedTuple):
    """Device functions, see their docstrings."""

    turns: object
    part: object
    open: object
    refill: object


def make_ring(config: TokenConfig) -> Ring:
    """The functions for a config."""
    entries, warps, team = config.entries, config.warps, config.team
    piece = config.piece_bytes

    @device_function
    def turns(flags, rows, block, blocks, warp):
        """(first, last, begin, stride): the block's rows of a product, where this warp's first turn begins,
        and how far on the next one does."""
        grain = int32(1)
        if flags & PAIRS:
            grain = int32(FINE_RUN)
        grains = int32(ptx.udiv_u32(rows, grain))
        first = int32(ptx.udiv_u32(block * grains, blocks)) * grain
        last = int32(ptx.udiv_u32((block + 1) * grains, blocks)) * grain
        number = warp
        if flags & BACKWARDS:
            number = int32(warps - 1) - warp
        teams = int32(warps)
        if flags & ACTIVATED:
            teams = int32(warps // team)
            number = number // int32(team)
        each = int32(PAIR)
        if flags & (PAIRS | SIX_BIT):
            each = int32(1)
        return first, last, first + number * each, teams * each

    @device_function
    def part(flags, units, warp):
        """(first block of weights, number of them) of a row that this warp takes."""
        if flags & ACTIVATED:
            member = warp - warp // int32(team) * int32(team)
            first = int32(member * units) // int32(team)
            return first, int32((member + 1) * units) // int32(team) - first
        return int32(0), int32(units)

    @device_function
    def open(cursor, table, block, blocks, warp):
        """Bring the cursor to the next turn, past entries that have none for this warp."""
        while cursor[ENTRY] < entries and cursor[BEGIN] >= cursor[LAST]:
            cursor[ENTRY] += int32(1)
            if cursor[ENTRY] < entries:
                at = table + uint32(cursor[ENTRY] * ENTRY_BYTES + 16)
                rows, _, flags, _ = ptx.ld_shared_v4_u32(at)
                if not int32(flags) & ATTENTION:
                    _, last, begin, _ = turns(int32(flags), int32(rows), block, blocks, warp)
                    cursor[BEGIN] = begin
                    cursor[LAST] = last

    @device_function
    @unrolled
    def refill(cursor, table, weights, block, blocks, warp, slot, barrier):
        """Start the copies of the cursor's turn, and go on to the next."""
        open(cursor, table, block, blocks, warp)
        if cursor[ENTRY] < entries:
            at = table + uint32(cursor[ENTRY] * ENTRY_BYTES)
            low, high, _, _ = ptx.ld_shared_v4_u32(at)
            rows, shape, word, _ = ptx.ld_shared_v4_u32(at + uint32(16))
            flags = int32(word)
            units = int32(shape) & 255
            unit = int32(Q4_BYTES)
            each = int32(PAIR)
            apart = int32(1)
            if flags & SIX_BIT:
                unit = int32(Q6_BYTES)
                each = int32(1)
            if flags & PAIRS:
                each = int32(1)
                apart = int32(rows)
            first_unit, count = part(flags, units, warp)
            pitch = units * unit
            begin = cursor[BEGIN]
            if ptx.lane_id() == 0:
                matrix = weights + (uint64(low) | (uint64(high) << uint64(32)))
                address = matrix + uint64(begin) * uint64(pitch) + uint64(first_unit * unit)
                line = address & uint64(0xFFFFFFFFFFFFFFF0)
                size = (uint32(address - line) + uint32(count * unit) + uint32(15)) & uint32(0xFFFFFFF0)
                two = not flags & SIX_BIT and (flags & PAIRS or begin + 1 < cursor[LAST])
                if two:
                    ptx.mbarrier_arrive_expect_tx(barrier, size + size)
                    ptx.bulk_load(slot, line, size, barrier)
                    line += uint64(apart) * uint64(pitch)
                    ptx.bulk_load(slot + uint32(piece), line, size, barrier)
                else:
                    ptx.mbarrier_arrive_expect_tx(barrier, size)
                    ptx.bulk_load(slot, line, size, barrier)
            teams = int32(warps)
            if flags & ACTIVATED:
                teams = int32(warps // team)
            cursor[BEGIN] = begin + teams * each

    return Ring(turns, part, open, refill)
