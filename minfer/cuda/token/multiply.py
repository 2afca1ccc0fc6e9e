"""What the other warps do with the tiles of a product: each takes blocks of weights, of all 16 rows."""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import int32, uint32

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function
from minfer.cuda.token.config import SLOT_BYTES, TILE_ROWS, TokenConfig
from minfer.cuda.token.dots import dots_q4_k, dots_q6_k, masks
from minfer.cuda.token.records import RECORD_BYTES
from minfer.cuda.token.schedule import PAIRS, SIX_BIT
from minfer.cuda.token.tiles import block_rows, cut, slice_of

NUMBER, PARITY, TURN = range(3)  # of a state: slot, its phase's parity, the warp whose turn it is


def make_multiply(config: TokenConfig) -> Callable:
    """Device function (shared, region, flags, rows, units, matrix, state, block, blocks, warp): this
    warp's share of a product. `matrix` is the low word of its offset."""
    slots, warps = config.slots, config.warps
    full_at, done_at = 0, slots * 8
    partials_at, partial_bytes, ring_at = config.partials_at, config.partial_bytes, config.ring_at

    @device_function
    def shift_of(matrix, row, units, unit, first_unit):
        """Where in a 16-byte line the copy that begins with this row does."""
        return uint32(matrix + uint32(int32(row * units + first_unit) * unit)) & uint32(15)

    @device_function
    def multiply(shared, region, flags, rows, units, matrix, state, block, blocks, warp):
        mask = cuda.local.array(4, uint32)
        masks(mask)
        lane = int32(ptx.lane_id())
        first, last = block_rows(flags, rows, block, blocks)
        each, unit, slices, share, pitch = cut(flags, units)
        for at in range(first, last, each):
            begin = int32(at)
            # Rows past the end are computed from the last one, and not used.
            most = int32(min(each, last - begin)) - 1
            if flags & PAIRS:
                most = int32(TILE_ROWS - 1)
            low_row = int32(min(lane >> 2, most))
            high_row = int32(min((lane >> 2) + 8, most))
            low_at = uint32(low_row * pitch)
            high_at = uint32(high_row * pitch)
            if slices == 1:  # one copy
                low_row = int32(0)
                high_row = int32(0)
            for s in range(slices):
                first_unit, count = slice_of(units, share, int32(s))
                number = state[NUMBER]
                ptx.mbarrier_wait(shared + uint32(full_at) + number * uint32(8), state[PARITY])
                u = warp - int32(state[TURN])
                if u < 0:
                    u += int32(warps)
                slot = shared + uint32(ring_at) + number * uint32(SLOT_BYTES)
                partials = shared + uint32(partials_at) + number * uint32(partial_bytes)
                while u < count:
                    record = region + uint32((first_unit + u) * RECORD_BYTES)
                    low_block = slot + low_at + uint32(u * unit)
                    high_block = slot + high_at + uint32(u * unit)
                    if flags & SIX_BIT:
                        low_block += shift_of(matrix, begin + low_row, units, unit, first_unit)
                        high_block += shift_of(matrix, begin + high_row, units, unit, first_unit)
                        a, b = dots_q6_k(record, low_block, high_block, mask)
                    else:
                        a, b = dots_q4_k(record, low_block, high_block, mask)
                    a += ptx.shfl_xor_f32(a, uint32(1))
                    b += ptx.shfl_xor_f32(b, uint32(1))
                    a += ptx.shfl_xor_f32(a, uint32(2))
                    b += ptx.shfl_xor_f32(b, uint32(2))
                    place = partials + uint32((u * TILE_ROWS + (lane >> 2)) * 4)
                    if lane & 3 == 0:
                        ptx.st_shared_f32(place, a)
                    if lane & 3 == 1:
                        ptx.st_shared_f32(place + uint32(32), b)
                    u += int32(warps)
                ptx.syncwarp()
                if lane == 0:
                    ptx.mbarrier_arrive(shared + uint32(done_at) + number * uint32(8))
                state[TURN] += uint32(count)
                while state[TURN] >= uint32(warps):
                    state[TURN] -= uint32(warps)
                state[NUMBER] += uint32(1)
                if state[NUMBER] == uint32(slots):
                    state[NUMBER] = uint32(0)
                    state[PARITY] ^= uint32(1)

    return multiply
