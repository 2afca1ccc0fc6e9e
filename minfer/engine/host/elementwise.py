"""Kernels of the host backend that are not matrix products: norm, RoPE, SwiGLU, conversions.

Arguments are int64: addresses, sizes in elements, strides in bytes, float bits. Rows are float32 and a
multiple of 16 wide; `parts` share out rows, or items as each docstring says.
"""

from __future__ import annotations

import math

import numpy as np

from minfer.engine.host.compile import helper, kernel
from minfer.engine.host.simd import (
    add,
    div,
    f32_of_bits,
    fma,
    load,
    load_f32,
    load_halves,
    load_i64,
    maximum,
    minimum,
    mul,
    power_of_two,
    round_even,
    splat,
    store,
    store_f32,
    store_halves,
    sub,
    sum_lanes,
    zero,
)
from minfer.engine.host.team import share

_ONE = np.float32(1.0)
_LOG2_E = np.float32(1.4426950408889634)
_LN_2 = np.float32(0.6931471805599453)
_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)
# exp(r) on |r| <= ln(2) / 2: Taylor's coefficients reach 1e-7 there.
_C2, _C3, _C4, _C5, _C6 = (np.float32(1 / math.factorial(i)) for i in (2, 3, 4, 5, 6))


@helper
def exp(x):
    """e ** x of 16 lanes, relative error below 1e-6; x is clamped to [-87, 88]."""
    x = minimum(maximum(x, splat(_LOWEST)), splat(_HIGHEST))
    n = round_even(mul(x, splat(_LOG2_E)))
    r = fma(n, splat(-_LN_2), x)
    y = fma(r, splat(_C6), splat(_C5))
    y = fma(r, y, splat(_C4))
    y = fma(r, y, splat(_C3))
    y = fma(r, y, splat(_C2))
    y = fma(mul(r, r), y, add(r, splat(_ONE)))
    return mul(y, power_of_two(n))


@helper
def normalise(out, x, weight, width, eps):
    """out = x / sqrt(mean(x^2) + eps) * weight, one row; out may be x."""
    squares = zero()
    for i in range(0, 4 * width, 64):
        v = load(x + i)
        squares = fma(v, v, squares)
    scale = splat(_ONE / np.float32(math.sqrt(sum_lanes(squares) / np.float32(width) + eps)))
    for i in range(0, 4 * width, 64):
        store(out + i, mul(mul(load(x + i), scale), load(weight + i)))


@kernel
def rmsnorm(part, parts, out, x, weight, rows, width, eps):
    """RMSNorm (arXiv:1910.07467) of `rows` contiguous rows."""
    begin, end = share(rows, part, parts)
    for row in range(begin, end):
        at = row * width * 4
        normalise(out + at, x + at, weight, width, f32_of_bits(eps))


@kernel
def head_norm(part, parts, x, stride, weight, rows, heads, head_dim, eps):
    """RMSNorm of each head of each row in place (qwen3's q and k norms)."""
    begin, end = share(rows * heads, part, parts)
    for item in range(begin, end):
        at = x + (item // heads) * stride + (item % heads) * head_dim * 4
        normalise(at, at, weight, head_dim, f32_of_bits(eps))


@kernel
def rotary_table(part, parts, table, position, frequencies, pairs, rows, scale):
    """table[row] = cos of `pairs` angles, then sin of them, for token position[0] + row; times scale."""
    begin, end = share(rows, part, parts)
    factor = f32_of_bits(scale)
    first = load_i64(position)
    for row in range(begin, end):
        at = table + row * pairs * 8
        for i in range(pairs):
            angle = float(first + row) * float(load_f32(frequencies + 4 * i))
            store_f32(at + 4 * i, np.float32(math.cos(angle)) * factor)
            store_f32(at + 4 * (pairs + i), np.float32(math.sin(angle)) * factor)


@kernel
def rotate(part, parts, x, stride, table, rows, heads, pairs, interleaved):
    """RoPE (arXiv:2104.09864) in place: pairs (2i, 2i+1) if interleaved, else (i, i + pairs) (NEOX).

    `table`: see rotary_table, its row for row 0 of x.
    """
    begin, end = share(rows * heads, part, parts)
    step, other = (8, 4) if interleaved != 0 else (4, 4 * pairs)
    for item in range(begin, end):
        row = item // heads
        at = x + row * stride + (item % heads) * pairs * 8
        cosines = table + row * pairs * 8
        sines = cosines + 4 * pairs
        for i in range(pairs):
            cos = load_f32(cosines + 4 * i)
            sin = load_f32(sines + 4 * i)
            a = load_f32(at + step * i)
            b = load_f32(at + step * i + other)
            store_f32(at + step * i, a * cos - b * sin)
            store_f32(at + step * i + other, a * sin + b * cos)


@kernel
def store_kv(part, parts, cache, context, position, x, stride, rows, heads, head_dim, halves):
    """cache[head, position[0] + row] = x[row, head] as float16 (halves) or float32; cache (heads, context,
    head_dim).
    """
    begin, end = share(rows * heads, part, parts)
    first = load_i64(position)
    for item in range(begin, end):
        row = item // heads
        head = item % heads
        source = x + row * stride + head * head_dim * 4
        index = (head * context + first + row) * head_dim
        for i in range(0, head_dim, 16):
            if halves != 0:
                store_halves(cache + 2 * (index + i), load(source + 4 * i))
            else:
                store(cache + 4 * (index + i), load(source + 4 * i))


@kernel
def widen(part, parts, out, x, count):
    """out[:count] = x[:count], float16 to float32; count is a multiple of 16."""
    begin, end = share(count // 16, part, parts)
    for i in range(begin, end):
        store(out + 64 * i, load_halves(x + 32 * i))


@kernel
def swiglu(part, parts, out, gate_up, rows, width):
    """out = silu(gate) * up (arXiv:2002.05202); a row of gate_up is `width` of gate, then of up."""
    vectors = width // 16
    begin, end = share(rows * vectors, part, parts)
    one = splat(_ONE)
    for item in range(begin, end):
        row = item // vectors
        gate_at = gate_up + 8 * row * width + 64 * (item % vectors)
        gate = load(gate_at)
        silu = div(gate, add(one, exp(sub(zero(), gate))))
        store(out + 64 * item, mul(silu, load(gate_at + 4 * width)))
