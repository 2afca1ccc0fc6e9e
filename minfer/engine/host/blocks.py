"""Walks over the blocks of every format: unpack 16 weights at a time and hand them to a visitor.

A walk `walk_q4_k(block, x, state, halves) -> state` goes through one block of a row. The visitor decides
what the walk is: `affine(state, x, q0, q1, scale, offset)` with its kin either accumulates a dot product with
the activations at address `x` (dot_*), or writes the weights there (write_*). Layouts: ggml's block structs,
as gguf-py's `quants.py` dequantizes them.
"""

from __future__ import annotations

import numpy as np
from gguf.constants import GGMLQuantizationType as Type

from minfer.engine.host import simd
from minfer.engine.host.compile import helper, specialise
from minfer.engine.host.simd import (
    bits_and,
    bits_or,
    fma,
    half_at,
    load,
    load_bfloats,
    load_bytes,
    load_halves,
    load_s8,
    load_signed_bytes,
    load_u32,
    mul,
    shift_left,
    shift_right,
    shift_right_lanes,
    splat,
    splat_bits,
    store,
    subtract,
    to_float,
)

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
"""Every float16 as float32, by its bits; `halves` is its address. A scale is then loaded right into all
lanes; converting it instead would take the vector units that the products need."""

# --- visitors: 32 weights (two vectors, x and x + 64 bytes) of one scale, or 16 ----------------------------


def dot_scaled(state, x, q0, q1, scale):
    """state += scale * (q . x)."""
    return fma(splat(scale), fma(q0, load(x), mul(q1, load(x + 64))), state)


def dot_affine(state, x, q0, q1, scale, offset):
    """state += (scale * q + offset) . x."""
    x0 = load(x)
    x1 = load(x + 64)
    state = fma(splat(scale), fma(q0, x0, mul(q1, x1)), state)
    return fma(splat(offset), simd.add(x0, x1), state)


def dot_plain(state, x, weights):
    """state += weights . x, 16 of them."""
    return fma(weights, load(x), state)


def write_scaled(state, x, q0, q1, scale):
    """x[:32] = scale * q."""
    store(x, mul(splat(scale), q0))
    store(x + 64, mul(splat(scale), q1))
    return state


def write_affine(state, x, q0, q1, scale, offset):
    """x[:32] = scale * q + offset."""
    store(x, fma(splat(scale), q0, splat(offset)))
    store(x + 64, fma(splat(scale), q1, splat(offset)))
    return state


def write_plain(state, x, weights):
    """x[:16] = weights."""
    store(x, weights)
    return state


# What a walk calls; `_visit` binds these names anew for each kind of walk.
scaled, affine, plain = dot_scaled, dot_affine, dot_plain


# --- walks -----------------------------------------------------------------------------------------------


def walk_q4_0(block, x, state, halves):
    """f16 d; 16 bytes: low nibbles are weights 0-15, high ones 16-31. w = d * (q - 8)."""
    packed = load_bytes(block + 2)
    low = to_float(subtract(bits_and(packed, 15), 8))
    high = to_float(subtract(shift_right(packed, 4), 8))
    return scaled(state, x, low, high, half_at(halves, block))


def walk_q4_1(block, x, state, halves):
    """f16 d, m; 16 bytes as Q4_0. w = d * q + m."""
    packed = load_bytes(block + 4)
    low = to_float(bits_and(packed, 15))
    high = to_float(shift_right(packed, 4))
    return affine(state, x, low, high, half_at(halves, block), half_at(halves, block + 2))


@helper
def fifth_bits(mask, first):
    """Bits first .. first+15 of a 32-bit mask, each as 0 or 16."""
    lanes = shift_right_lanes(shift_right(splat_bits(mask), first), simd.lane_index())
    return shift_left(bits_and(lanes, 1), 4)


def walk_q5_0(block, x, state, halves):
    """f16 d; u32 of fifth bits; 16 bytes as Q4_0. w = d * (q - 16)."""
    mask = load_u32(block + 2)
    packed = load_bytes(block + 6)
    low = bits_or(bits_and(packed, 15), fifth_bits(mask, 0))
    high = bits_or(shift_right(packed, 4), fifth_bits(mask, 16))
    return scaled(state, x, to_float(subtract(low, 16)), to_float(subtract(high, 16)), half_at(halves, block))


def walk_q5_1(block, x, state, halves):
    """f16 d, m; u32 of fifth bits; 16 bytes as Q4_0. w = d * q + m."""
    mask = load_u32(block + 4)
    packed = load_bytes(block + 8)
    low = bits_or(bits_and(packed, 15), fifth_bits(mask, 0))
    high = bits_or(shift_right(packed, 4), fifth_bits(mask, 16))
    return affine(state, x, to_float(low), to_float(high), half_at(halves, block), half_at(halves, block + 2))


def walk_q8_0(block, x, state, halves):
    """f16 d; 32 signed bytes. w = d * q."""
    low = to_float(load_signed_bytes(block + 2))
    high = to_float(load_signed_bytes(block + 18))
    return scaled(state, x, low, high, half_at(halves, block))


@helper
def packed_scales(scales):
    """The eight 6-bit scales of Q4_K and Q5_K as bytes of an int64, from their 12 packed bytes."""
    first = load_u32(scales)
    last = load_u32(scales + 8)
    return (first & 0x3F3F3F3F) | (((last & 0x0F0F0F0F) | ((first >> 2) & 0x30303030)) << 32)


@helper
def packed_minimums(scales):
    """The eight 6-bit minimums of Q4_K and Q5_K as bytes of an int64, from their 12 packed bytes."""
    middle = load_u32(scales + 4)
    last = load_u32(scales + 8)
    return (middle & 0x3F3F3F3F) | ((((last >> 4) & 0x0F0F0F0F) | ((middle >> 2) & 0x30303030)) << 32)


@helper
def times_byte(factor, packed, i):
    """factor times byte i of `packed`."""
    return factor * np.float32((packed >> (8 * i)) & 63)


def walk_q4_k(block, x, state, halves):
    """f16 d, dmin; 12 bytes of scales; 4 x 32 bytes: low nibbles sub-block 2j, high ones 2j+1. w = d*s*q -
    dmin*m.
    """
    d = half_at(halves, block)
    dmin = half_at(halves, block + 2)
    scales = packed_scales(block + 4)
    minimums = packed_minimums(block + 4)
    for j in range(4):
        p0 = load_bytes(block + 16 + 32 * j)
        p1 = load_bytes(block + 32 + 32 * j)
        scale = times_byte(d, scales, 2 * j)
        offset = times_byte(-dmin, minimums, 2 * j)
        low0 = to_float(bits_and(p0, 15))
        low1 = to_float(bits_and(p1, 15))
        state = affine(state, x + 256 * j, low0, low1, scale, offset)
        scale = times_byte(d, scales, 2 * j + 1)
        offset = times_byte(-dmin, minimums, 2 * j + 1)
        high0 = to_float(shift_right(p0, 4))
        high1 = to_float(shift_right(p1, 4))
        state = affine(state, x + 256 * j + 128, high0, high1, scale, offset)
    return state


def walk_q5_k(block, x, state, halves):
    """As Q4_K with 32 bytes of fifth bits after the scales: bit i of byte l belongs to weight l of sub-block
    i.
    """
    d = half_at(halves, block)
    dmin = half_at(halves, block + 2)
    scales = packed_scales(block + 4)
    minimums = packed_minimums(block + 4)
    h0 = load_bytes(block + 16)
    h1 = load_bytes(block + 32)
    for j in range(4):
        p0 = load_bytes(block + 48 + 32 * j)
        p1 = load_bytes(block + 64 + 32 * j)
        scale = times_byte(d, scales, 2 * j)
        offset = times_byte(-dmin, minimums, 2 * j)
        f0 = shift_left(bits_and(shift_right(h0, 2 * j), 1), 4)
        f1 = shift_left(bits_and(shift_right(h1, 2 * j), 1), 4)
        low0 = to_float(bits_or(bits_and(p0, 15), f0))
        low1 = to_float(bits_or(bits_and(p1, 15), f1))
        state = affine(state, x + 256 * j, low0, low1, scale, offset)
        scale = times_byte(d, scales, 2 * j + 1)
        offset = times_byte(-dmin, minimums, 2 * j + 1)
        f0 = shift_left(bits_and(shift_right(h0, 2 * j + 1), 1), 4)
        f1 = shift_left(bits_and(shift_right(h1, 2 * j + 1), 1), 4)
        high0 = to_float(bits_or(shift_right(p0, 4), f0))
        high1 = to_float(bits_or(shift_right(p1, 4), f1))
        state = affine(state, x + 256 * j + 128, high0, high1, scale, offset)
    return state


@helper
def q6_weights(nibbles, high, shift, d, scale):
    """16 weights of Q6_K: 4 low bits, 2 high bits at `shift`, one signed scale."""
    q = bits_or(nibbles, shift_left(bits_and(shift_right(high, shift), 3), 4))
    return mul(splat(d * np.float32(load_s8(scale))), to_float(subtract(q, 32)))


def walk_q6_k(block, x, state, halves):
    """128 bytes low nibbles, 64 bytes of high bit pairs, 16 signed scales (16 weights each), f16 d. w =
    d*s*(q-32).
    """
    d = half_at(halves, block + 208)
    for half in range(2):
        ql = block + 64 * half
        qh = block + 128 + 32 * half
        scales = block + 192 + 8 * half
        out = x + 512 * half
        for i in range(2):
            p0 = load_bytes(ql + 16 * i)
            p1 = load_bytes(ql + 32 + 16 * i)
            high = load_bytes(qh + 16 * i)
            at = out + 64 * i
            state = plain(state, at, q6_weights(bits_and(p0, 15), high, 0, d, scales + i))
            state = plain(state, at + 128, q6_weights(bits_and(p1, 15), high, 2, d, scales + i + 2))
            state = plain(state, at + 256, q6_weights(shift_right(p0, 4), high, 4, d, scales + i + 4))
            state = plain(state, at + 384, q6_weights(shift_right(p1, 4), high, 6, d, scales + i + 6))
    return state


def walk_f16(block, x, state, halves):
    """16 float16."""
    return plain(state, x, load_halves(block))


def walk_bf16(block, x, state, halves):
    """16 bfloat16."""
    return plain(state, x, load_bfloats(block))


def walk_f32(block, x, state, halves):
    """16 float32."""
    return plain(state, x, load(block))


WALKS = {
    Type.Q4_0: walk_q4_0,
    Type.Q4_1: walk_q4_1,
    Type.Q5_0: walk_q5_0,
    Type.Q5_1: walk_q5_1,
    Type.Q8_0: walk_q8_0,
    Type.Q4_K: walk_q4_k,
    Type.Q5_K: walk_q5_k,
    Type.Q6_K: walk_q6_k,
    Type.F16: walk_f16,
    Type.BF16: walk_bf16,
    Type.F32: walk_f32,
}
"""The walk of each format that the host engine reads directly."""


def _visit(walk, prefix):
    visitors = {name: helper(globals()[f"{prefix}_{name}"]) for name in ("scaled", "affine", "plain")}
    return helper(specialise(walk, f"{prefix}_{walk.__name__}", **visitors))


def dot_walk(kind: Type):
    """Compilable `(block, x, state, halves) -> state` that adds a block's dot product with x."""
    return _visit(WALKS[kind], "dot")


def write_walk(kind: Type):
    """Compilable `(block, x, state, halves) -> state` that writes a block as float32 to x."""
    return _visit(WALKS[kind], "write")
