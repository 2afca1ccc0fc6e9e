"""Attention kernels of the host backend: a few queries straight over the KV cache, and softmax for the BLAS
path.
"""

from __future__ import annotations

import numpy as np

from minfer.engine.host.compile import helper, kernel
from minfer.engine.host.elementwise import exp
from minfer.engine.host.simd import (
    add,
    f32_of_bits,
    fma,
    load,
    load_f32,
    load_halves,
    load_i64,
    max_lanes,
    maximum,
    mul,
    splat,
    store,
    store_f32,
    sub,
    sum_lanes,
    zero,
)
from minfer.engine.host.team import share

_LOWEST = np.float32(-3.0e38)
_ONE = np.float32(1.0)


@helper
def softmax(scores, count, scale):
    """scores[:count] = softmax(scale * scores[:count]) in place; then zeros up to a multiple of 16 floats."""
    padded = (count + 15) // 16 * 16
    for i in range(count, padded):
        store_f32(scores + 4 * i, _LOWEST)
    factor = splat(scale)
    largest = splat(_LOWEST)
    for i in range(0, 4 * padded, 64):
        largest = maximum(largest, load(scores + i))
    shift = mul(splat(max_lanes(largest)), factor)
    total = zero()
    for i in range(0, 4 * padded, 64):
        e = exp(sub(mul(load(scores + i), factor), shift))
        store(scores + i, e)
        total = add(total, e)
    inverse = splat(_ONE / sum_lanes(total))
    for i in range(0, 4 * padded, 64):
        store(scores + i, mul(load(scores + i), inverse))
    for i in range(count, padded):
        store_f32(scores + 4 * i, np.float32(0.0))


@kernel
def causal_softmax(part, parts, scores, queries, heads, width, first, scale):
    """Softmax of scores (heads, queries, width) in place; query i of a head sees its first `first + i + 1`
    columns.

    Masked columns become 0. width is a multiple of 16.
    """
    begin, end = share(heads * queries, part, parts)
    for row in range(begin, end):
        at = scores + 4 * row * width
        visible = first + row % queries + 1
        softmax(at, visible, f32_of_bits(scale))
        for i in range((visible + 15) // 16 * 64, 4 * width, 64):
            store(at + i, zero())


@helper
def _scores(out, q, keys, count, head_dim, halves):
    """out[t] = q . keys[t]."""
    for t in range(count):
        total = zero()
        if halves != 0:
            at = keys + 2 * t * head_dim
            for i in range(0, head_dim, 16):
                total = fma(load(q + 4 * i), load_halves(at + 2 * i), total)
        else:
            at = keys + 4 * t * head_dim
            for i in range(0, head_dim, 16):
                total = fma(load(q + 4 * i), load(at + 4 * i), total)
        store_f32(out + 4 * t, sum_lanes(total))


@helper
def _mix(out, weights, values, count, head_dim, halves):
    """out = sum over t of weights[t] * values[t]."""
    for i in range(0, head_dim, 16):
        total = zero()
        if halves != 0:
            for t in range(count):
                total = fma(
                    splat(load_f32(weights + 4 * t)), load_halves(values + 2 * (t * head_dim + i)), total
                )
        else:
            for t in range(count):
                total = fma(splat(load_f32(weights + 4 * t)), load(values + 4 * (t * head_dim + i)), total)
        store(out + 4 * i, total)


@kernel
def attend(
    part, parts, out, q, q_stride, keys, values, context, position, rows, heads, group, head_dim,
    scratch, scale, halves,
):  # fmt: skip
    """Causal attention of a few rows over the cache, one head after another.

    out (rows, heads * head_dim) and q (rows of q_stride bytes) float32; keys, values (heads / group, context,
    head_dim); row r sees position[0] + r + 1 tokens. scratch: rows * heads * context floats (context a
    multiple of 16). `parts` share out rows * heads.
    """
    begin, end = share(rows * heads, part, parts)
    first = load_i64(position)
    size = 2 if halves != 0 else 4
    for item in range(begin, end):
        row = item // heads
        head = item % heads
        visible = first + row + 1
        base = (head // group) * context * head_dim * size
        scores = scratch + 4 * item * context
        _scores(scores, q + row * q_stride + 4 * head * head_dim, keys + base, visible, head_dim, halves)
        softmax(scores, visible, f32_of_bits(scale))
        _mix(out + 4 * item * head_dim, scores, values + base, visible, head_dim, halves)
