"""The activation of a gated feed-forward on accumulator registers."""

from __future__ import annotations

import functools

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled

LOG2_E = 1.4426950408889634
#: exp(-x) is cut off here, so that a product of two sums 1 + exp(-x) stays finite; silu is 0 in f16 by then.
LARGEST_EXPONENT = 60.0


@functools.cache
def gate_columns(count: int) -> DeviceFunction:
    """Factory: array[i] = silu(array[i]) * array[i + count] for i < count, f32; `count` is even.

    silu(x) = x / (1 + exp(-x)). The exponential and the reciprocal share the multiprocessor's slowest unit,
    so one reciprocal, of a product, serves two values."""
    from numba.cuda import types

    @device_function
    def denominator(x):
        exponent = ptx.min_f32(x * types.float32(-LOG2_E), types.float32(LARGEST_EXPONENT))
        return types.float32(1) + ptx.ex2_approx(exponent)

    @device_function
    @unrolled
    def activate(array):
        for i in unroll(count // 2):
            a, b = array[2 * i], array[2 * i + 1]
            below_a, below_b = denominator(a), denominator(b)
            both = ptx.rcp_approx(below_a * below_b)
            array[2 * i] = a * array[2 * i + count] * (both * below_b)
            array[2 * i + 1] = b * array[2 * i + 1 + count] * (both * below_a)

    return activate
