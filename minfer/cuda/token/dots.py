"""A warp takes 8 blocks of a row at a time, four lanes a block, and the activations of a lane's 64 weights
stay in its registers for all rows of a product: only weights are read from shared memory, and once.

Lane (u, part) of Q4_K takes the 32 bytes of sub-blocks 2 part (low nibbles) and 2 part + 1 (high); of Q6_K
likewise 32 bytes of nibbles, sub-blocks of 32 two apart, and the bytes with the two bits above. Blocks are 36
and 52.5 words apart, so that the lanes of a load fall on different banks.

Nothing is shifted into place: masked nibbles and bits go into dp4a where they are, 4 or 16 or 64 times too
large, and the sums are scaled. Sums start at 1.5 * 2**23 as a bit pattern: below 2**22 they are floats
whenever one looks at them, without a conversion.
"""

from __future__ import annotations

from numba import cuda
from numba.cuda.types import float32, int32, uint32

from minfer.cuda import ptx
from minfer.cuda.block_dots import LOW, k4_scales, load_8_words
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.config import GROUP_UNITS
from minfer.cuda.token.records import SCALES_AT, SUMS_AT

UNIT_LANES = 32 // GROUP_UNITS
X_WORDS, X_FACTORS = 16, 8
HIGH = 0xF0F0F0F0
MAGIC_BITS = 0x4B400000
MAGIC = 12582912.0  # 1.5 * 2**23


@device_function
def _number(bits):
    """The sum in an accumulator."""
    return ptx.bitcast_f32_u32(uint32(bits)) - float32(MAGIC)


@device_function
@unrolled
def load_activations(words, factors, record, part, six):
    """A lane's activations: `words`, 4 runs of 16, those of low nibbles first; `factors`, their scales, then
    what offsets are multiplied with: of the runs' sums, of Q4_K added up a sub-block, of Q6_K times -32. High
    nibbles' are 16 times smaller."""
    first = part * 4
    apart = int32(2)
    if six:
        first = (part >> 1) * 8 + (part & 1) * 2
        apart = int32(4)
    sums = cuda.local.array(4, float32)
    for i in unroll(4):
        run = first + (i // 2) * apart + i % 2
        w0, w1, w2, w3 = ptx.ld_shared_v4_u32(record + uint32(run * 16))
        words[4 * i] = w0
        words[4 * i + 1] = w1
        words[4 * i + 2] = w2
        words[4 * i + 3] = w3
        factors[i] = ptx.ld_shared_f32(record + uint32(SCALES_AT + run * 4))
        sums[i] = ptx.ld_shared_f32(record + uint32(SUMS_AT + run * 4))
    for i in unroll(2):
        factors[2 + i] *= float32(0.0625)
    if six:
        for i in unroll(4):
            factors[4 + i] = sums[i] * float32(-32)
    else:
        for i in unroll(2):
            factors[4 + i] = sums[2 * i] + sums[2 * i + 1]
            factors[6 + i] = float32(0)


@device_function
@unrolled
def dot_q4_k(block, part, words, factors):
    """This lane's part of the dot product; `block` is a shared address."""
    h0, h1, h2, h3 = ptx.ld_shared_v4_u32(block)
    sums = cuda.local.array(4, int32)
    for i in unroll(4):
        sums[i] = int32(MAGIC_BITS)
    quants = cuda.local.array(8, uint32)
    for i in unroll(2):
        w0, w1, w2, w3 = ptx.ld_shared_v4_u32(block + uint32(16 + part * 32 + i * 16))
        quants[4 * i] = w0
        quants[4 * i + 1] = w1
        quants[4 * i + 2] = w2
        quants[4 * i + 3] = w3
    for i in unroll(8):
        sums[i // 4] = ptx.dp4a_u8s8(quants[i] & uint32(LOW), words[i], sums[i // 4])
        sums[2 + i // 4] = ptx.dp4a_u8s8(quants[i] & uint32(HIGH), words[8 + i], sums[2 + i // 4])
    scales, minima = k4_scales(h1, h2, h3, part)
    byte = uint32(255)
    eight = uint32(8)
    low = factors[0] * _number(sums[0]) + factors[1] * _number(sums[1])
    high = factors[2] * _number(sums[2]) + factors[3] * _number(sums[3])
    products = ptx.cvt_rn_f32_u32(scales & byte) * low + ptx.cvt_rn_f32_u32((scales >> eight) & byte) * high
    offsets = ptx.cvt_rn_f32_u32(minima & byte) * factors[4]
    offsets += ptx.cvt_rn_f32_u32((minima >> eight) & byte) * factors[5]
    return ptx.unpack_f16x2_lo(h0) * products - ptx.unpack_f16x2_hi(h0) * offsets


@device_function
@unrolled
def dot_q6_k(block, part, words, factors):
    """As `dot_q4_k`. 210-byte blocks are 2-byte aligned: words come from the aligned address below,
    funnel-shifted."""
    quants = cuda.local.array(8, uint32)
    bits = cuda.local.array(8, uint32)
    load_8_words(quants, block + uint32(part * 32))
    load_8_words(bits, block + uint32(128 + (part >> 1) * 32))
    place = uint32((part & 1) * 2)  # where in a byte the two bits above the low nibble are
    low_bits = uint32(0x03030303) << place
    high_bits = uint32(0x30303030) << place
    weight = float32(16)
    if part & 1:
        weight = float32(4)
    sums = cuda.local.array(4, int32)
    tops = cuda.local.array(4, int32)
    for i in unroll(4):
        sums[i] = int32(MAGIC_BITS)
        tops[i] = int32(MAGIC_BITS)
    for i in unroll(8):
        n = i // 4
        sums[n] = ptx.dp4a_u8s8(quants[i] & uint32(LOW), words[i], sums[n])
        tops[n] = ptx.dp4a_u8s8(bits[i] & low_bits, words[i], tops[n])
        sums[2 + n] = ptx.dp4a_u8s8(quants[i] & uint32(HIGH), words[8 + i], sums[2 + n])
        tops[2 + n] = ptx.dp4a_u8s8(bits[i] & high_bits, words[8 + i], tops[2 + n])
    scales = block + uint32(192 + (part >> 1) * 8 + (part & 1) * 2)
    total = float32(0)
    for i in unroll(4):
        scale = ptx.cvt_rn_f32_s32(ptx.ld_shared_s8(scales + uint32((i // 2) * 4 + i % 2)))
        value = _number(sums[i]) + weight * _number(tops[i])
        total += scale * (factors[i] * value + factors[4 + i])
    return ptx.unpack_f16x2_lo(ptx.ld_shared_u16(block + uint32(208))) * total
