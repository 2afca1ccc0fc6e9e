"""A block of quantized weights times its activations, out of shared memory: the inner step of the decode
GEMV.

Each function is (block, x, part) -> f32: `block` the shared address of a block, `x` the shared address of
the record that its first activation is in (see `minfer.cuda.q8`), `part` which of the block's lanes this
is. Nibbles and int8 meet in dp4a; per run of 32 the integer sum is scaled once, and offsets (-8, -16,
minima) go through the record's sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import float32, int32, uint32

from minfer.cuda import ptx
from minfer.cuda.blocks import spread_bits
from minfer.cuda.instruction import device_function, unroll, unrolled

LOW = 0x0F0F0F0F
HIGH = 0xF0F0F0F0
MAGIC_BITS = 0x4B400000
MAGIC = 12582912.0
"""1.5 * 2**23, whose bits these are: an integer below 2**22 added to the bits is added to the float."""


@dataclass(frozen=True)
class BlockDot:
    """How a warp takes blocks of one format.

    Attributes:
        lanes: lanes a block.
        weights: weights a block (of f32, f16, bf16: what a lane takes at a time, 16 bytes).
        quantized: activations are q8 records; else f32.
        dot: the device function.
    """

    lanes: int
    weights: int
    quantized: bool
    dot: Callable


@device_function
@unrolled
def byte_of(word, n):
    """Byte n of a word, as f32: the last one of 2**23 and it."""
    return ptx.bitcast_f32_u32(ptx.prmt(word, uint32(0x4B000000), uint32(0x7440 + n))) - float32(8388608.0)


@device_function
def _nibble_dots(word, low, high, low_sum, high_sum):
    """Adds low nibbles times `low`, and 16 times high nibbles (they are not shifted) times `high`."""
    return (
        ptx.dp4a(word & uint32(LOW), low, low_sum),
        ptx.dp4a_u8s8(word & uint32(HIGH), high, high_sum),
    )


@device_function
def k4_scales(header_low, header_middle, header_high, part):
    """(scales, minima) of sub-blocks 2 part and 2 part + 1, in the two low bytes of each word (Q4_K,
    Q5_K). Above the low byte pair they are not zero."""
    pair = uint32((part & 1) * 16)
    low = uint32(0x3F3F3F3F)
    high = uint32(0)
    six = pair
    if part >= 2:  # four bits in the last word, two above them in the others
        low = uint32(0x30303030)
        high = uint32(LOW)
        six = pair + uint32(2)
    scales = ((header_low >> six) & low) | ((header_high >> pair) & high)
    minima = ((header_middle >> six) & low) | ((header_high >> (pair + uint32(4))) & high)
    return scales, minima


@device_function
def _scaled_k4(header, scales, minima, low, high, d0, d1, s0, s1):
    """d (scale0 d0 low + scale1 d1 high) - dmin (minimum0 s0 + minimum1 s1)."""
    byte = uint32(255)
    eight = uint32(8)
    products = ptx.cvt_rn_f32_u32(scales & byte) * d0 * ptx.cvt_rn_f32_s32(low)
    products += ptx.cvt_rn_f32_u32((scales >> eight) & byte) * d1 * ptx.cvt_rn_f32_s32(high)
    offsets = ptx.cvt_rn_f32_u32(minima & byte) * s0 + ptx.cvt_rn_f32_u32((minima >> eight) & byte) * s1
    return ptx.unpack_f16x2_lo(header) * products - ptx.unpack_f16x2_hi(header) * offsets


@device_function
def _dot_q4_k(block, x, part):
    """4 lanes: lane t takes the 32 bytes of sub-blocks 2t (low nibbles) and 2t + 1 (high nibbles)."""
    h0, h1, h2, h3 = ptx.ld_shared_v4_u32(block)
    quants = block + uint32(16 + part * 32)
    record = x + uint32(part * 80)
    low = int32(0)
    high = int32(0)
    for half in range(2):
        w0, w1, w2, w3 = ptx.ld_shared_v4_u32(quants + uint32(half * 16))
        a0, a1, a2, a3 = ptx.ld_shared_v4_u32(record + uint32(half * 16))
        b0, b1, b2, b3 = ptx.ld_shared_v4_u32(record + uint32(32 + half * 16))
        low, high = _nibble_dots(w0, a0, b0, low, high)
        low, high = _nibble_dots(w1, a1, b1, low, high)
        low, high = _nibble_dots(w2, a2, b2, low, high)
        low, high = _nibble_dots(w3, a3, b3, low, high)
    d0, d1, s0, s1 = ptx.ld_shared_v4_f32(record + uint32(64))
    scales, minima = k4_scales(h1, h2, h3, part)
    return _scaled_k4(h0, scales, minima, low, high >> 4, d0, d1, s0, s1)


@device_function
def _fifth_dots(word, fifth, shift, low, high, low_sum, high_sum):
    """As `_nibble_dots`, with a fifth bit from bits `shift` and `shift + 1` of each byte of `fifth`."""
    bit = uint32(0x01010101)
    low_bits = ((fifth >> shift) & bit) << uint32(4)
    high_bits = ((fifth >> (shift + uint32(1))) & bit) << uint32(4)
    return (
        ptx.dp4a((word & uint32(LOW)) | low_bits, low, low_sum),
        ptx.dp4a(((word >> uint32(4)) & uint32(LOW)) | high_bits, high, high_sum),
    )


@device_function
def _dot_q5_k(block, x, part):
    """4 lanes, as Q4_K; the fifth bits of sub-block j are bit j of 32 bytes that all lanes read."""
    h0, h1, h2, h3 = ptx.ld_shared_v4_u32(block)
    quants = block + uint32(48 + part * 32)
    record = x + uint32(part * 80)
    shift = uint32(part * 2)
    low = int32(0)
    high = int32(0)
    for half in range(2):
        w0, w1, w2, w3 = ptx.ld_shared_v4_u32(quants + uint32(half * 16))
        f0, f1, f2, f3 = ptx.ld_shared_v4_u32(block + uint32(16 + half * 16))
        a0, a1, a2, a3 = ptx.ld_shared_v4_u32(record + uint32(half * 16))
        b0, b1, b2, b3 = ptx.ld_shared_v4_u32(record + uint32(32 + half * 16))
        low, high = _fifth_dots(w0, f0, shift, a0, b0, low, high)
        low, high = _fifth_dots(w1, f1, shift, a1, b1, low, high)
        low, high = _fifth_dots(w2, f2, shift, a2, b2, low, high)
        low, high = _fifth_dots(w3, f3, shift, a3, b3, low, high)
    d0, d1, s0, s1 = ptx.ld_shared_v4_f32(record + uint32(64))
    scales, minima = k4_scales(h1, h2, h3, part)
    return _scaled_k4(h0, scales, minima, low, high, d0, d1, s0, s1)


def _load_words(count: int) -> Callable:
    """Device function (u32 array, shared address, 2-byte aligned): `count` words, touching no word that
    holds none of their bytes."""

    @device_function
    def load(words, address):
        base = address & uint32(0xFFFFFFFC)
        odd = address & uint32(2)
        shift = odd * uint32(8)
        current = ptx.ld_shared_u32(base)
        for i in range(count - 1):
            following = ptx.ld_shared_u32(base + uint32(4 * i + 4))
            words[i] = ptx.shf_r_wrap(current, following, shift)
            current = following
        # The last word needs one more only if the address is odd in halves; else it is read again.
        following = ptx.ld_shared_u32(base + uint32(4 * count - 4) + odd * uint32(2))
        words[count - 1] = ptx.shf_r_wrap(current, following, shift)

    return load


load_2_words, _load4, _load5, load_8_words = (_load_words(count) for count in (2, 4, 5, 8))


@device_function
@unrolled
def _dot_q6_k(block, x, part):
    """4 lanes: lane (half, odd) takes the 32 bytes of nibbles of sub-blocks `odd` (low) and `odd` + 2 (high)
    of the four of 32 of its half, and the bytes with the two bits above, which two lanes share. 210-byte
    blocks are 2-byte aligned: words come from the aligned address below, funnel-shifted. Nibbles and bits are
    multiplied where they are in their bytes; -32 times the activations is the offset. Odd lanes begin with
    the high nibbles: so the lanes of a load find their activations on different banks."""
    half = part >> 1
    odd = part & 1
    quants = cuda.local.array(8, uint32)
    bits = cuda.local.array(8, uint32)
    values = cuda.local.array(4, uint32)
    load_8_words(quants, block + uint32(part * 32))
    load_8_words(bits, block + uint32(128 + half * 32))
    total = float32(0)
    for turn in unroll(2):
        high = int32(turn ^ odd)
        place = int32(4 * high + 2 * odd)
        mask = uint32(LOW) << uint32(4 * high)
        above = uint32(0x03030303) << uint32(place)
        record = x + uint32(half * 160 + high * 80)
        two_scales = ptx.ld_shared_u16(block + uint32(192 + half * 8 + odd * 2 + high * 4))
        scaled = int32(0)
        for n in unroll(2):
            w0, w1, w2, w3 = ptx.ld_shared_v4_u32(record + uint32(odd * 32 + n * 16))
            values[0] = w0
            values[1] = w1
            values[2] = w2
            values[3] = w3
            nibbles = int32(0)
            upper = int32(0)
            offset = int32(0)
            for i in unroll(4):
                nibbles = ptx.dp4a_u8s8(quants[4 * n + i] & mask, values[i], nibbles)
                upper = ptx.dp4a_u8s8(bits[4 * n + i] & above, values[i], upper)
                offset = ptx.dp4a(uint32(0xE0E0E0E0), values[i], offset)
            # All of it 16 times too large.
            value = nibbles * int32(16 >> (4 * high)) + upper * int32(256 >> place) + offset * 16
            scaled += value * (int32(two_scales << uint32(24 - 8 * n)) >> 24)
        d = ptx.ld_shared_f32(record + uint32(64 + odd * 4))
        total += d * ptx.cvt_rn_f32_s32(scaled)
    return ptx.unpack_f16x2_lo(ptx.ld_shared_u16(block + uint32(208))) * (total * float32(0.0625))


@device_function
def _half_at(address):
    return ptx.unpack_f16x2_lo(ptx.ld_shared_u16(address))


@device_function
def _activations(values, record, half):
    """The 32 int8 of one half of a record, as 8 words."""
    for i in range(2):
        w0, w1, w2, w3 = ptx.ld_shared_v4_u32(record + uint32(half * 32 + i * 16))
        values[4 * i] = w0
        values[4 * i + 1] = w1
        values[4 * i + 2] = w2
        values[4 * i + 3] = w3


@device_function
def _scale_sum(record, half):
    return (
        ptx.ld_shared_f32(record + uint32(64 + half * 4)),
        ptx.ld_shared_f32(record + uint32(72 + half * 4)),
    )


@device_function
def _dot_q8_0(block, x, half):
    words = cuda.local.array(8, uint32)
    values = cuda.local.array(8, uint32)
    load_8_words(words, block + uint32(2))
    _activations(values, x, half)
    total = int32(0)
    for i in range(8):
        total = ptx.dp4a(words[i], values[i], total)
    d, _ = _scale_sum(x, half)
    return _half_at(block) * d * ptx.cvt_rn_f32_s32(total)


@device_function
def _dot_q4_0(block, x, half):
    words = cuda.local.array(4, uint32)
    values = cuda.local.array(8, uint32)
    _load4(words, block + uint32(2))
    _activations(values, x, half)
    low = int32(0)
    high = int32(0)
    for i in range(4):
        low, high = _nibble_dots(words[i], values[i], values[4 + i], low, high)
    d, s = _scale_sum(x, half)
    return _half_at(block) * (d * ptx.cvt_rn_f32_s32(low + (high >> 4)) - float32(8) * s)


@device_function
def _dot_q4_1(block, x, half):
    values = cuda.local.array(8, uint32)
    _activations(values, x, half)
    header = ptx.ld_shared_u32(block)
    low = int32(0)
    high = int32(0)
    for i in range(4):
        word = ptx.ld_shared_u32(block + uint32(4 + 4 * i))
        low, high = _nibble_dots(word, values[i], values[4 + i], low, high)
    d, s = _scale_sum(x, half)
    total = low + (high >> 4)
    return ptx.unpack_f16x2_lo(header) * d * ptx.cvt_rn_f32_s32(total) + ptx.unpack_f16x2_hi(header) * s


@device_function
def _five_bit_dots(word, fifth, i, low, high, low_sum, high_sum):
    """Word i of a Q5_0 or Q5_1 block: bits 4 i ... and 16 + 4 i ... of `fifth` are the fifth bits of its
    nibbles."""
    four = uint32(4)
    low_bits = spread_bits(fifth >> uint32(4 * i)) << four
    high_bits = spread_bits(fifth >> uint32(16 + 4 * i)) << four
    return (
        ptx.dp4a((word & uint32(LOW)) | low_bits, low, low_sum),
        ptx.dp4a(((word >> four) & uint32(LOW)) | high_bits, high, high_sum),
    )


@device_function
def _dot_q5_0(block, x, half):
    words = cuda.local.array(5, uint32)
    values = cuda.local.array(8, uint32)
    _load5(words, block + uint32(2))
    _activations(values, x, half)
    low = int32(0)
    high = int32(0)
    for i in range(4):
        low, high = _five_bit_dots(words[1 + i], words[0], i, values[i], values[4 + i], low, high)
    d, s = _scale_sum(x, half)
    return _half_at(block) * (d * ptx.cvt_rn_f32_s32(low + high) - float32(16) * s)


@device_function
def _dot_q5_1(block, x, half):
    values = cuda.local.array(8, uint32)
    _activations(values, x, half)
    header = ptx.ld_shared_u32(block)
    fifth = ptx.ld_shared_u32(block + uint32(4))
    low = int32(0)
    high = int32(0)
    for i in range(4):
        word = ptx.ld_shared_u32(block + uint32(8 + 4 * i))
        low, high = _five_bit_dots(word, fifth, i, values[i], values[4 + i], low, high)
    d, s = _scale_sum(x, half)
    return ptx.unpack_f16x2_lo(header) * d * ptx.cvt_rn_f32_s32(low + high) + ptx.unpack_f16x2_hi(header) * s


@device_function
def _dot_f32(block, x, part):
    a0, a1, a2, a3 = ptx.ld_shared_v4_f32(block)
    x0, x1, x2, x3 = ptx.ld_shared_v4_f32(x)
    return a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3


@device_function
def _low_f16(word):
    return ptx.unpack_f16x2_lo(word)


@device_function
def _high_f16(word):
    return ptx.unpack_f16x2_hi(word)


@device_function
def _low_bf16(word):
    return ptx.bitcast_f32_u32(word << uint32(16))


@device_function
def _high_bf16(word):
    return ptx.bitcast_f32_u32(word & uint32(0xFFFF0000))


def _dot_halves(low: Callable, high: Callable) -> Callable:
    @device_function
    def dot(block, x, part):
        w0, w1, w2, w3 = ptx.ld_shared_v4_u32(block)
        x0, x1, x2, x3 = ptx.ld_shared_v4_f32(x)
        x4, x5, x6, x7 = ptx.ld_shared_v4_f32(x + uint32(16))
        total = low(w0) * x0 + high(w0) * x1 + low(w1) * x2 + high(w1) * x3
        return total + low(w2) * x4 + high(w2) * x5 + low(w3) * x6 + high(w3) * x7

    return dot


DOTS = {
    "Q4_K": BlockDot(4, 256, True, _dot_q4_k),
    "Q5_K": BlockDot(4, 256, True, _dot_q5_k),
    "Q6_K": BlockDot(4, 256, True, _dot_q6_k),
    "Q8_0": BlockDot(1, 32, True, _dot_q8_0),
    "Q4_0": BlockDot(1, 32, True, _dot_q4_0),
    "Q4_1": BlockDot(1, 32, True, _dot_q4_1),
    "Q5_0": BlockDot(1, 32, True, _dot_q5_0),
    "Q5_1": BlockDot(1, 32, True, _dot_q5_1),
    "F32": BlockDot(1, 4, False, _dot_f32),
    "F16": BlockDot(1, 8, False, _dot_halves(_low_f16, _high_f16)),
    "BF16": BlockDot(1, 8, False, _dot_halves(_low_bf16, _high_bf16)),
}
