"""Softmax on score accumulators: what a warp does with its 16 x `columns` scores in registers.

A lane's scores lie as `minfer.cuda.tile.maps` says: in every 8 elements, 0 1 4 5 belong to row lane / 4
("low") and 2 3 6 7 to row + 8 ("high"). The four lanes of a quad share a row.
"""

from __future__ import annotations

import functools

from numba.cuda.types import float32

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function


@device_function
def quad_max(v):
    """The largest of a row, from the four lanes' own."""
    v = ptx.max_f32(v, ptx.shfl_xor_f32(v, 1))
    return ptx.max_f32(v, ptx.shfl_xor_f32(v, 2))


@device_function
def quad_sum(v):
    """The sum over a row, from the four lanes' own."""
    v += ptx.shfl_xor_f32(v, 1)
    return v + ptx.shfl_xor_f32(v, 2)


@functools.cache
def row_max(columns: int) -> DeviceFunction:
    """Factory: (scores, low, high) -> the two rows' maxima, not below the given ones."""

    @device_function
    def maximum(scores, low, high):
        for j in range(columns // 8):
            low = ptx.max_f32(low, ptx.max_f32(scores[4 * j], scores[4 * j + 1]))
            high = ptx.max_f32(high, ptx.max_f32(scores[4 * j + 2], scores[4 * j + 3]))
        return quad_max(low), quad_max(high)

    return maximum


@functools.cache
def exponentials(columns: int) -> DeviceFunction:
    """Factory: (scores, c, low, high): scores = 2^(scores * c + low or high); returns this lane's part of the
    two row sums."""

    @device_function
    def exponentiate(scores, c, low, high):
        low_even, low_odd = float32(0), float32(0)
        high_even, high_odd = float32(0), float32(0)
        for j in range(columns // 8):
            scores[4 * j] = ptx.ex2_approx(ptx.fma_rn_f32(scores[4 * j], c, low))
            scores[4 * j + 1] = ptx.ex2_approx(ptx.fma_rn_f32(scores[4 * j + 1], c, low))
            scores[4 * j + 2] = ptx.ex2_approx(ptx.fma_rn_f32(scores[4 * j + 2], c, high))
            scores[4 * j + 3] = ptx.ex2_approx(ptx.fma_rn_f32(scores[4 * j + 3], c, high))
            low_even += scores[4 * j]
            low_odd += scores[4 * j + 1]
            high_even += scores[4 * j + 2]
            high_odd += scores[4 * j + 3]
        return low_even + low_odd, high_even + high_odd

    return exponentiate
