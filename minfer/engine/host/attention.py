"""Attention kernels of the host backend: a few queries straight over the KV cache, or many in blocks."""

from __future__ import annotations

import numpy as np

from minfer.engine.host.compile import helper, kernel
from minfer.engine.host.elementwise import exp
from minfer.engine.host.simd import (
    add,
    f32_of_bits,
    fma,
    load,
    load_f16,
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
from minfer.engine.host.tiles import outer_tile_1x1, outer_tile_1x4, outer_tile_4x1, outer_tile_4x4

_LOWEST = np.float32(-3.0e38)
_ONE = np.float32(1.0)

QUERY_BLOCK = 16


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
def attend_few(
    part, parts, out, q, q_stride, keys, values, context, position, first_query, rows, heads, group, head_dim,
    scratch, scale, halves,
):  # fmt: skip
    """Causal attention of a few rows straight over the cache, one head after another.

    out (rows, heads * head_dim) and q (rows of q_stride bytes) float32; keys, values (heads / group, context,
    head_dim) float16 or float32; row r sees position[0] + first_query + r + 1 tokens. scratch: rows * heads *
    context floats, context a multiple of 16. Parts share out rows * heads.
    """
    begin, end = share(rows * heads, part, parts)
    first = load_i64(position) + first_query
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


@kernel
def transpose_keys(part, parts, out, keys, context, count, width, heads, head_dim, halves):
    """out (heads, head_dim, width) float32 = the first `count` keys of a layer's cache, transposed.

    keys: see attend_few. width: at least count, a multiple of 64; the columns past count become 0. Parts
    share out groups of 16 tokens.
    """
    begin, end = share(heads * (width // 16), part, parts)
    size = 2 if halves != 0 else 4
    for item in range(begin, end):
        head = item // (width // 16)
        first = item % (width // 16) * 16
        last = min(first + 16, count)
        source = keys + head * context * head_dim * size
        for i in range(head_dim):
            target = out + 4 * ((head * head_dim + i) * width)
            store(target + 4 * first, zero())
            if halves != 0:
                for t in range(first, last):
                    store_f32(target + 4 * t, load_f16(source + 2 * (t * head_dim + i)))
            else:
                for t in range(first, last):
                    store_f32(target + 4 * t, load_f32(source + 4 * (t * head_dim + i)))


@helper
def _product(out, out_stride, a, a_stride, b, b_stride, rows, columns, depth):
    """out = a . b: a (rows, depth), b (depth, columns) float32, columns % 16 == 0, strides in bytes."""
    for column in range(0, columns // 64 * 64, 64):
        at = 4 * column
        for row in range(0, rows // 4 * 4, 4):
            outer_tile_4x4(
                a + row * a_stride, a_stride, b + at, b_stride, depth, out + row * out_stride + at, out_stride
            )
        for row in range(rows // 4 * 4, rows):
            outer_tile_1x4(
                a + row * a_stride, a_stride, b + at, b_stride, depth, out + row * out_stride + at, out_stride
            )
    for column in range(columns // 64 * 64, columns, 16):
        at = 4 * column
        for row in range(0, rows // 4 * 4, 4):
            outer_tile_4x1(
                a + row * a_stride, a_stride, b + at, b_stride, depth, out + row * out_stride + at, out_stride
            )
        for row in range(rows // 4 * 4, rows):
            outer_tile_1x1(
                a + row * a_stride, a_stride, b + at, b_stride, depth, out + row * out_stride + at, out_stride
            )


@kernel
def attend_many(
    part, parts, out, q, q_stride, keys, width, values, value_rows, first, queries, heads, group, head_dim,
    scratch, scale,
):  # fmt: skip
    """Causal attention of many rows: QUERY_BLOCK of them at a time against all keys that they see.

    out (queries, heads * head_dim), q (rows of q_stride bytes); keys: see transpose_keys; values (heads /
    group, value_rows, head_dim) float32. Query i sees first + i + 1 tokens. scratch: QUERY_BLOCK * width
    floats for each part. Parts take turns at blocks of queries, the longest ones first.
    """
    scores = scratch + 4 * part * QUERY_BLOCK * width
    blocks = (queries + QUERY_BLOCK - 1) // QUERY_BLOCK
    for item in range(part, heads * blocks, parts):
        head = item % heads
        begin = (blocks - 1 - item // heads) * QUERY_BLOCK
        rows = min(QUERY_BLOCK, queries - begin)
        seen = first + begin + rows
        reach = (seen + 63) // 64 * 64
        _product(
            scores, 4 * width, q + begin * q_stride + 4 * head * head_dim, q_stride,
            keys + 4 * (head // group) * head_dim * width, 4 * width, rows, reach, head_dim,
        )  # fmt: skip
        for row in range(rows):
            at = scores + 4 * row * width
            visible = first + begin + row + 1
            softmax(at, visible, f32_of_bits(scale))
            for i in range((visible + 15) // 16 * 16, reach, 16):
                store(at + 4 * i, zero())
        _product(
            out + 4 * (begin * heads + head) * head_dim, 4 * heads * head_dim, scores, 4 * width,
            values + 4 * (head // group) * value_rows * head_dim, 4 * head_dim, rows, head_dim, seen,
        )  # fmt: skip
