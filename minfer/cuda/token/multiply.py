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
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.config import TokenConfig
from minfer.cuda.token.dots import make_dots
from minfer.cuda.token.exchange import Exchange
from minfer.cuda.token.outputs import make_outputs
from minfer.cuda.token.schedule import ARRIVE, PAIRS, SIX_BIT
from minfer.cuda.token.tiles import make_block_rows, make_groups, tile_shape, unit_bytes

NUMBER, PARITY = range(2)  # of a state: slot, its phase's parity
QUIET_TILES = 3  # of a product: from the first of its last three the stream asks for less
FIRST, LAST, TEAMS, TEAM, GROUP, UNIT, END = range(7)
SHARE = 7
"""Of a share: the block's outputs; teams, this warp's, its group; this lane's block of weights, the group's
end."""


def make_multiply(config: TokenConfig, exchange: Exchange, sync: Callable) -> tuple[Callable, Callable]:
    """Device functions (share, flags, rows, shape, block, warp): this warp's share of a product; and (shared,
    region, share, flags, shape, place, matrix, state, old, tag): its work. `shape` is a word of
    the schedule, `matrix` the low word of the weights' offset; `sync` is the warps' barrier."""
    slots, warps, block_rows = config.slots, config.warps, make_block_rows(config)
    full_at, done_at, sums_at, ring_at = config.full_at, config.done_at, config.sums_at, config.ring_at
    most, lanes, pitch_of_records = config.sums, config.lanes, config.layout.pitch
    slot_bytes, hushed, quiet_at = config.slot_bytes, config.hushed, config.quiet_at
    write = make_outputs(config, exchange)
    row_groups = make_groups(config.group_units)
    load_activations, dot_q4_k, dot_q6_k, x_words, x_factors = make_dots(lanes, config.layout)

    @device_function
    def take_share(share, flags, rows, shape, block, warp):
        units, _ = tile_shape(shape)
        groups, inverse = row_groups(units), int32(shape) >> 14
        first, last = block_rows(flags, rows, block)
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
    def put(kept, sent, at, lane):
        """The sums over the lanes of two values, to an address each if it is not 0; a lane of the upper half
        has the second as `kept` and the first as `sent`."""
        kept += ptx.shfl_xor_f32(sent, uint32(16))
        for step in range(4):
            kept += ptx.shfl_xor_f32(kept, uint32(8 >> step))
        if lane & 15 == 0 and at != uint32(0):
            ptx.st_shared_f32(at, kept)

    @device_function
    def sum_at(sums, row, count, before, pieces, groups):
        """Where the sum of a row of a tile of `count` outputs belongs, `before` outputs from the first."""
        index = (before + row) * pieces
        if row >= count:  # of up
            index = (before + row - count) * 2 + 1
        return uint32(sums + uint32(index * groups * 4))

    @device_function
    def hush(shared, flags):
        """What is handed on will soon be: the stream may ask for less."""
        if hushed and flags & ARRIVE and cuda.threadIdx.x == 0:
            ptx.mbarrier_arrive(shared + uint32(quiet_at))

    @device_function
    @unrolled
    def multiply(shared, region, share, flags, shape, place, matrix, state, old, tag):
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
            for i in unroll(x_factors):
                factors[i] = float32(0)
        pitch = units * unit_bytes(flags)
        unit_at = uint32(unit * unit_bytes(flags))
        last, teams = share[LAST], share[TEAMS]
        next_row = share[TEAM]
        if next_row >= teams:  # a warp too many
            next_row = int32(1 << 30)
        begin = share[FIRST]
        first = begin  # of the outputs whose sums are in shared memory
        sums = shared + uint32(sums_at + share[GROUP] * 4)

        kept = float32(0)  # of the rows before, whose sums are put together behind the next ones' loads
        sent = float32(0)
        at = uint32(0)
        if begin == last:
            hush(shared, flags)
            sync()  # as behind every product: the activations may be overwritten
        while begin < last:
            count = int32(min(each, int32(last - begin)))
            rows = int32(count * pieces)
            number = state[NUMBER]
            # Where in a 16-byte line the tile's copy begins.
            shift = uint32(matrix + uint32(begin * pitch)) & uint32(15)
            tile = shared + uint32(ring_at) + number * uint32(slot_bytes) + shift + unit_at
            ptx.mbarrier_wait(shared + uint32(full_at) + number * uint32(8), state[PARITY])
            quiet_from = int32(last - QUIET_TILES * each)
            if quiet_from <= begin and (begin == share[FIRST] or begin < quiet_from + each):
                hush(shared, flags)
            second = int32(next_row + teams)
            while second < rows:
                if six:
                    a = dot_q6_k(tile + uint32(next_row * pitch), part, words, factors)
                    b = dot_q6_k(tile + uint32(second * pitch), part, words, factors)
                else:
                    a = dot_q4_k(tile + uint32(next_row * pitch), part, words, factors)
                    b = dot_q4_k(tile + uint32(second * pitch), part, words, factors)
                put(kept, sent, at, lane)
                at = sum_at(sums, next_row, count, begin - first, pieces, groups)
                kept = a
                sent = b
                if lane >= 16:
                    kept = b
                    sent = a
                    at = sum_at(sums, second, count, begin - first, pieces, groups)
                next_row = int32(second + teams)
                second = int32(next_row + teams)
            if next_row < rows:
                if six:
                    a = dot_q6_k(tile + uint32(next_row * pitch), part, words, factors)
                else:
                    a = dot_q4_k(tile + uint32(next_row * pitch), part, words, factors)
                put(kept, sent, at, lane)
                at = sum_at(sums, next_row, count, begin - first, pieces, groups)
                kept = a
                sent = a
                next_row = int32(next_row + teams)
            next_row = int32(next_row - rows)
            ptx.syncwarp()
            if lane == 0:
                ptx.mbarrier_arrive(shared + uint32(done_at) + number * uint32(8))
            state[NUMBER] += uint32(1)
            if state[NUMBER] == uint32(slots):
                state[NUMBER] = uint32(0)
                state[PARITY] ^= uint32(1)
            begin = int32(begin + count)
            following = int32(min(int32(begin + each), last))
            if begin == last or int32((following - first) * pieces * groups) > most:
                put(kept, sent, at, lane)
                at = uint32(0)
                sync()
                write(shared, flags, place, first, int32(begin - first), groups, old, tag)
                sync()
                first = begin

    return take_share, multiply
