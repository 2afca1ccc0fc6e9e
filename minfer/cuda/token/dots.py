"""A warp takes 16 blocks of a row at a time, two lanes a block, and the activations of a lane's 128 weights
stay in its registers for all rows of a product: only weights are read from shared memory, and once.

Lane (u, half) of Q4_K takes the 64 bytes of sub-blocks 4 half ... 4 half + 3: two parts of 32 bytes, each a
sub-block of low nibbles and one of high ones. Of Q6_K it takes half a block: two parts of 32 bytes of
nibbles, and the 32 bytes with the two bits above them. Blocks are 36 and 52.5 words apart, so that the lanes
of a load fall on different banks (of Q6_K two on one at most).

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
PARTS = 2  # of a lane
X_WORDS, X_FACTORS = 16 * PARTS, 8 * PARTS
HIGH = 0xF0F0F0F0
MAGIC_BITS = 0x4B400000
MAGIC = 12582912.0  # 1.5 * 2**23


@device_function
def _number(bits):
    """The sum in an accumulator."""
    return ptx.bitcast_f32_u32(uint32(bits)) - float32(MAGIC)


@device_function
@unrolled
def load_activations(words, factors, record, half, six):
    """A lane's activations. Of each part `words` has 4 runs of 16, those of low nibbles first; `factors` has
    their scales, then what offsets are multiplied with: the runs' sums, of Q4_K added up a sub-block, of Q6_K
    times -32. High nibbles' are 16 times smaller."""
    for p in unroll(PARTS):
        first = half * 8 + p * 4
        apart = int32(2)
        if six:
            first = half * 8 + p * 2
            apart = int32(4)
        sums = cuda.local.array(4, float32)
        for i in unroll(4):
            run = first + (i // 2) * apart + i % 2
            w0, w1, w2, w3 = ptx.ld_shared_v4_u32(record + uint32(run * 16))
            words[16 * p + 4 * i] = w0
            words[16 * p + 4 * i + 1] = w1
            words[16 * p + 4 * i + 2] = w2
            words[16 * p + 4 * i + 3] = w3
            factors[8 * p + i] = ptx.ld_shared_f32(record + uint32(SCALES_AT + run * 4))
            sums[i] = ptx.ld_shared_f32(record + uint32(SUMS_AT + run * 4))
        for i in unroll(2):
            factors[8 * p + 2 + i] *= float32(0.0625)
        if six:
            for i in unroll(4):
                factors[8 * p + 4 + i] = sums[i] * float32(-32)
        else:
            for i in unroll(2):
                factors[8 * p + 4 + i] = sums[2 * i] + sums[2 * i + 1]
                factors[8 * p + 6 + i] = float32(0)


@device_function
def _byte(word, n):
    return ptx.cvt_rn_f32_u32((word >> uint32(8 * n)) & uint32(255))


@device_function
@unrolled
def dot_q4_k(block, half, words, factors):
    """This lane's part of the dot product; `block` is a shared address."""
    h0, h1, h2, h3 = ptx.ld_shared_v4_u32(block)
    scales, minima = k4_scales(h1, h2, h3, half)
    products = float32(0)
    offsets = float32(0)
    for p in unroll(PARTS):
        sums = cuda.local.array(4, int32)
        for i in unroll(4):
            sums[i] = int32(MAGIC_BITS)
        for n in unroll(2):
            at = block + uint32(16 + half * 64 + p * 32 + n * 16)
            quants = cuda.local.array(4, uint32)
            quants[0], quants[1], quants[2], quants[3] = ptx.ld_shared_v4_u32(at)
            for i in unroll(4):
                x = 16 * p + 4 * n + i
                sums[n] = ptx.dp4a_u8s8(quants[i] & uint32(LOW), words[x], sums[n])
                sums[2 + n] = ptx.dp4a_u8s8(quants[i] & uint32(HIGH), words[x + 8], sums[2 + n])
        f = 8 * p
        low = factors[f] * _number(sums[0]) + factors[f + 1] * _number(sums[1])
        high = factors[f + 2] * _number(sums[2]) + factors[f + 3] * _number(sums[3])
        products += _byte(scales, 2 * p) * low + _byte(scales, 2 * p + 1) * high
        offsets += _byte(minima, 2 * p) * factors[f + 4] + _byte(minima, 2 * p + 1) * factors[f + 5]
    return ptx.unpack_f16x2_lo(h0) * products - ptx.unpack_f16x2_hi(h0) * offsets


@device_function
@unrolled
def dot_q6_k(block, half, words, factors):
    """As `dot_q4_k`. 210-byte blocks are 2-byte aligned: words come from the aligned address below,
    funnel-shifted."""
    bits = cuda.local.array(8, uint32)
    load_8_words(bits, block + uint32(128 + half * 32))
    total = float32(0)
    for p in unroll(PARTS):
        quants = cuda.local.array(8, uint32)
        load_8_words(quants, block + uint32(half * 64 + p * 32))
        sums = cuda.local.array(4, int32)
        tops = cuda.local.array(4, int32)
        for i in unroll(4):
            sums[i] = int32(MAGIC_BITS)
            tops[i] = int32(MAGIC_BITS)
        for i in unroll(8):
            n = i // 4
            low, high = words[16 * p + i], words[16 * p + 8 + i]
            sums[n] = ptx.dp4a_u8s8(quants[i] & uint32(LOW), low, sums[n])
            tops[n] = ptx.dp4a_u8s8(bits[i] & uint32(0x03030303 << 2 * p), low, tops[n])
            sums[2 + n] = ptx.dp4a_u8s8(quants[i] & uint32(HIGH), high, sums[2 + n])
            tops[2 + n] = ptx.dp4a_u8s8(bits[i] & uint32(0x30303030 << 2 * p), high, tops[2 + n])
        scales = block + uint32(192 + half * 8 + p * 2)
        for i in unroll(4):
            scale = ptx.cvt_rn_f32_s32(ptx.ld_shared_s8(scales + uint32((i // 2) * 4 + i % 2)))
            value = _number(sums[i]) + float32(16 >> 2 * p) * _number(tops[i])
            total += scale * (factors[8 * p + i] * value + factors[8 * p + 4 + i])
    return ptx.unpack_f16x2_lo(ptx.ld_shared_u16(block + uint32(208))) * total
