"""A block of quantized weights times activations that stay in registers: the inner step of `gemv_stream`.

A lane always works on the same columns, so its share of the fine records is loaded once a launch; a block
then costs shared memory nothing but its own bytes. In `minfer.cuda.block_dots` the records are read again for
every row: 320 bytes beside a Q4_K block's 144.

A lane's activations of one block are `words` u32 registers (int8, or a small integer each) and `floats` f32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numba.cuda.types import float32, int32, uint32

from minfer.cuda import ptx
from minfer.cuda.block_dots import LOW, two_words
from minfer.cuda.gemv.fine import FINE_RECORD_BYTES
from minfer.cuda.instruction import device_function, unroll, unrolled

HIGH = 0xF0F0F0F0
SIX_BITS = 0x3F3F3F3F
MINUS_32 = 0xE0E0E0E0  # four int8

_choose = ptx.lop3(0xE2)  # bits of a where b is 1, else of c


@dataclass(frozen=True)
class LaneDot:
    """How lanes take blocks of 256 weights of one format.

    Attributes:
        lanes: lanes a block.
        words, floats: u32 and f32 registers of a lane that hold its activations of a block.
        load: device function (words, floats, step, records, part, inside): fill the registers of step
            `step` from the block's records at a shared address; zeros if not `inside`.
        dot: device function (words, floats, step, block, part) -> f32, `block` a shared address.
    """

    lanes: int
    words: int
    floats: int
    load: Callable
    dot: Callable


@device_function
def _kept(inside):
    keep = float32(0)
    if inside:
        keep = float32(1)
    return keep


@device_function
@unrolled
def _load_q4_k(words, floats, step, records, part, inside):
    at = records + uint32(part * FINE_RECORD_BYTES)
    for i in unroll(4):
        w0, w1, w2, w3 = ptx.ld_shared_v4_u32(at + uint32(i * 16))
        words[step * 16 + i * 4] = w0
        words[step * 16 + i * 4 + 1] = w1
        words[step * 16 + i * 4 + 2] = w2
        words[step * 16 + i * 4 + 3] = w3
    d0, d1, d2, d3 = ptx.ld_shared_v4_f32(at + uint32(64))
    s0, s1, s2, s3 = ptx.ld_shared_v4_f32(at + uint32(80))
    keep = _kept(inside)
    floats[step * 6] = d0 * keep
    floats[step * 6 + 1] = d1 * keep
    # High nibbles are multiplied where they are: 16 times too large.
    floats[step * 6 + 2] = d2 * keep * float32(0.0625)
    floats[step * 6 + 3] = d3 * keep * float32(0.0625)
    floats[step * 6 + 4] = (s0 + s1) * keep
    floats[step * 6 + 5] = (s2 + s3) * keep


@device_function
def _scales_k4(low, middle, high, part):
    """(scales, minima) of sub-blocks 2 part and 2 part + 1, in the two low bytes of each word. As in
    `block_dots`, with masks instead of a branch: they depend on the lane alone."""
    shift = uint32((part & 1) * 16)
    more = shift + uint32(2)
    six = uint32(0x3F3F)
    top = uint32(0)
    first = low
    second = middle
    if part >= 2:
        six = uint32(0x0F0F)
        top = uint32(0x3030)
        first = high
        second = high >> uint32(4)
    scales = ((first >> shift) & six) | ((low >> more) & top)
    minima = ((second >> shift) & six) | ((middle >> more) & top)
    return scales, minima


@device_function
@unrolled
def _dot_q4_k(words, floats, step, block, part):
    """Lane t takes the 32 bytes of sub-blocks 2t (low nibbles) and 2t + 1 (high nibbles)."""
    h0, h1, h2, h3 = ptx.ld_shared_v4_u32(block)
    quants = block + uint32(16 + part * 32)
    scales, minima = _scales_k4(h1, h2, h3, part)
    byte = uint32(255)
    eight = uint32(8)
    low_total = float32(0)
    high_total = float32(0)
    for half in unroll(2):
        w0, w1, w2, w3 = ptx.ld_shared_v4_u32(quants + uint32(half * 16))
        at = step * 16 + half * 4
        low = ptx.dp4a_u8s8(w0 & uint32(LOW), words[at], int32(0))
        high = ptx.dp4a_u8s8(w0 & uint32(HIGH), words[at + 8], int32(0))
        low = ptx.dp4a_u8s8(w1 & uint32(LOW), words[at + 1], low)
        high = ptx.dp4a_u8s8(w1 & uint32(HIGH), words[at + 9], high)
        low = ptx.dp4a_u8s8(w2 & uint32(LOW), words[at + 2], low)
        high = ptx.dp4a_u8s8(w2 & uint32(HIGH), words[at + 10], high)
        low = ptx.dp4a_u8s8(w3 & uint32(LOW), words[at + 3], low)
        high = ptx.dp4a_u8s8(w3 & uint32(HIGH), words[at + 11], high)
        low_total += floats[step * 6 + half] * ptx.cvt_rn_f32_s32(low)
        high_total += floats[step * 6 + 2 + half] * ptx.cvt_rn_f32_s32(high)
    products = ptx.cvt_rn_f32_u32(scales & byte) * low_total
    products += ptx.cvt_rn_f32_u32((scales >> eight) & byte) * high_total
    offsets = ptx.cvt_rn_f32_u32(minima & byte) * floats[step * 6 + 4]
    offsets += ptx.cvt_rn_f32_u32((minima >> eight) & byte) * floats[step * 6 + 5]
    return ptx.unpack_f16x2_lo(h0) * products - ptx.unpack_f16x2_hi(h0) * offsets


@device_function
@unrolled
def _load_q6_k(words, floats, step, records, part, inside):
    """8 int8 of each of the half's 4 sub-blocks, and what their weights' offset of -32 contributes."""
    half = part >> 2
    i = part & 3
    keep = _kept(inside)
    for p in unroll(4):
        record = records + uint32((half * 2 + (p >> 1)) * FINE_RECORD_BYTES)
        x0, x1 = ptx.ld_shared_v2_u32(record + uint32((p & 1) * 32 + i * 8))
        words[step * 12 + p * 2] = x0
        words[step * 12 + p * 2 + 1] = x1
        offset = ptx.dp4a(uint32(MINUS_32), x1, ptx.dp4a(uint32(MINUS_32), x0, int32(0)))
        words[step * 12 + 8 + p] = uint32(offset)
        scale = record + uint32(64 + (p & 1) * 8 + (i >> 1) * 4)
        floats[step * 4 + p] = ptx.ld_shared_f32(scale) * keep


@device_function
def six_bits(low, high):
    """Four weights of 6 bits: nibbles of `low`, and the two bits above them in place in `high`."""
    return _choose(low, uint32(LOW), high) & uint32(SIX_BITS)


@device_function
def _piece_q6_k(words, floats, step, p, q0, q1, scales):
    offset = int32(words[step * 12 + 8 + p])
    v = ptx.dp4a(q1, words[step * 12 + p * 2 + 1], ptx.dp4a(q0, words[step * 12 + p * 2], offset))
    return floats[step * 4 + p] * ptx.cvt_rn_f32_s32(v * ptx.ld_shared_s8(scales + uint32(2 * p)))


@device_function
def _dot_q6_k(words, floats, step, block, part):
    """Lane (half, i) takes bytes 8 i ... 8 i + 7 of each of the 4 sub-blocks of 32 of its half. 210-byte
    blocks are 2-byte aligned: words come from the aligned address below, funnel-shifted."""
    half = part >> 2
    i = part & 3
    two = uint32(2)
    four = uint32(4)
    p0, p1 = two_words(block + uint32(half * 64 + i * 8))
    r0, r1 = two_words(block + uint32(half * 64 + 32 + i * 8))
    z0, z1 = two_words(block + uint32(128 + half * 32 + i * 8))
    scales = block + uint32(192 + half * 8 + (i >> 1))
    total = _piece_q6_k(words, floats, step, 0, six_bits(p0, z0 << four), six_bits(p1, z1 << four), scales)
    total += _piece_q6_k(words, floats, step, 1, six_bits(r0, z0 << two), six_bits(r1, z1 << two), scales)
    total += _piece_q6_k(words, floats, step, 2, six_bits(p0 >> four, z0), six_bits(p1 >> four, z1), scales)
    total += _piece_q6_k(
        words, floats, step, 3, six_bits(r0 >> four, z0 >> two), six_bits(r1 >> four, z1 >> two), scales
    )
    return ptx.unpack_f16x2_lo(ptx.ld_shared_u16(block + uint32(208))) * total


LANE_DOTS = {
    "Q4_K": LaneDot(4, 16, 6, _load_q4_k, _dot_q4_k),
    "Q6_K": LaneDot(8, 12, 4, _load_q6_k, _dot_q6_k),
}
