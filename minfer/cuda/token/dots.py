"""Sixteen rows of one block of 256 quantized weights times a record of activations, by integer mma.

A dot product needs one column of an mma's eight. The columns serve as places instead: each run of 16
activations stands in a column of its own, zero elsewhere, so that the sums of all 16 runs, which have scales
of their own, come out apart: 2 fragments of 8 columns. Each lane (g, t) = (lane / 4, lane % 4) then has two
rows (g and g + 8) and four runs (8 h + 2 t, + 1): one 32-weight sub-block of each half h of the block. Which
of a sub-block's weights an mma calls k is free: lane t takes bytes 8 t ... 8 t + 7 as they lie.

Accumulators start at 1.5 * 2**23 as a bit pattern: as long as sums stay below 2**22, they are floats
whenever one looks at them, without a conversion.
"""

from __future__ import annotations

from numba import cuda
from numba.cuda.types import float32, int32, uint32

from minfer.cuda import ptx
from minfer.cuda.block_dots import LOW, two_words
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.records import SCALES_AT, SUMS_AT

HIGH = 0xF0F0F0F0
SIX_BITS = 0x3F3F3F3F
MAGIC_BITS = 0x4B400000
MAGIC = 12582912.0  # 1.5 * 2**23

_choose = ptx.lop3(0xE2)  # bits of a where b is 1, else of c


@device_function
def _number(bits):
    """The sum in an accumulator."""
    return ptx.fma_rn_f32(ptx.bitcast_f32_u32(uint32(bits)), float32(1), float32(-MAGIC))


@device_function
@unrolled
def columns(record, words):
    """This lane's part of the activations, 2 words a half: column g is run g of its half. Words of runs that
    are in other lanes are zero."""
    lane = int32(ptx.lane_id())
    g = lane >> 2
    t = lane & 3
    keep = uint32(0)
    if (t >> 1) == (g & 1):
        keep = uint32(0xFFFFFFFF)
    at = record + uint32((g >> 1) * 32 + t * 8)
    for h in unroll(2):
        w0, w1 = ptx.ld_shared_v2_u32(at + uint32(h * 128))
        words[2 * h] = w0 & keep
        words[2 * h + 1] = w1 & keep


@device_function
@unrolled
def masks(out):
    """For sub-block p of a half: whether this lane's column is of it."""
    g = int32(ptx.lane_id()) >> 2
    for p in unroll(4):
        out[p] = uint32(0)
        if (g >> 1) == p:
            out[p] = uint32(0xFFFFFFFF)


@device_function
@unrolled
def clear(sums):
    for i in unroll(8):
        sums[i] = int32(MAGIC_BITS)


@device_function
@unrolled
def add_dots(sums, h, a0, a1, a2, a3, b0, b1):
    c0, c1, c2, c3 = ptx.mma_m16n8k32_u8s8(
        a0, a1, a2, a3, b0, b1, sums[h * 4], sums[h * 4 + 1], sums[h * 4 + 2], sums[h * 4 + 3]
    )
    sums[h * 4] = c0
    sums[h * 4 + 1] = c1
    sums[h * 4 + 2] = c2
    sums[h * 4 + 3] = c3


@device_function
def _header_q4_k(block, t):
    """(d, dmin, scale and minimum of sub-block t, of sub-block 4 + t) of one row's block."""
    d = ptx.ld_shared_u32(block)
    at = block + uint32(t)
    a = ptx.ld_shared_u8(at + uint32(4))
    b = ptx.ld_shared_u8(at + uint32(8))
    c = ptx.ld_shared_u8(at + uint32(12))
    top = uint32(0x30)
    two = uint32(2)
    upper_scale = (c & uint32(15)) | ((a >> two) & top)
    upper_minimum = (c >> uint32(4)) | ((b >> two) & top)
    return (
        ptx.unpack_f16x2_lo(d),
        ptx.unpack_f16x2_hi(d),
        ptx.cvt_rn_f32_u32(a & uint32(63)),
        ptx.cvt_rn_f32_u32(b & uint32(63)),
        ptx.cvt_rn_f32_u32(upper_scale),
        ptx.cvt_rn_f32_u32(upper_minimum),
    )


@device_function
@unrolled
def dots_q4_k(record, low_block, high_block, mask):
    """(row g's sum, row g + 8's): this lane's runs. Blocks and record are shared addresses; blocks of rows
    g and g + 8."""
    t = int32(ptx.lane_id()) & 3
    words = cuda.local.array(4, uint32)
    sums = cuda.local.array(8, int32)
    columns(record, words)
    clear(sums)
    at = uint32(16 + t * 8)
    low = uint32(LOW)
    high = uint32(HIGH)
    for j in unroll(4):
        a0, a2 = ptx.ld_shared_v2_u32(low_block + at + uint32(j * 32))
        a1, a3 = ptx.ld_shared_v2_u32(high_block + at + uint32(j * 32))
        b0 = words[2 * (j // 2)]
        b1 = words[2 * (j // 2) + 1]
        add_dots(
            sums, j // 2, a0 & low, a1 & low, a2 & low, a3 & low,
            b0 & mask[j % 2 * 2], b1 & mask[j % 2 * 2],
        )  # fmt: skip
        add_dots(
            sums, j // 2, a0 & high, a1 & high, a2 & high, a3 & high,
            b0 & mask[j % 2 * 2 + 1], b1 & mask[j % 2 * 2 + 1],
        )  # fmt: skip
    # High nibbles are multiplied where they are: 16 times too large.
    factor = float32(1)
    if t & 1:
        factor = float32(0.0625)
    scales = record + uint32(SCALES_AT + t * 8)
    d0, d1 = ptx.ld_shared_v2_f32(scales)
    d2, d3 = ptx.ld_shared_v2_f32(scales + uint32(32))
    s0, s1 = ptx.ld_shared_v2_f32(scales + uint32(SUMS_AT - SCALES_AT))
    s2, s3 = ptx.ld_shared_v2_f32(scales + uint32(SUMS_AT - SCALES_AT + 32))
    offset0 = d0 * s0 + d1 * s1
    offset1 = d2 * s2 + d3 * s3
    d0 *= factor
    d1 *= factor
    d2 *= factor
    d3 *= factor
    d, dmin, scale0, minimum0, scale1, minimum1 = _header_q4_k(low_block, t)
    total = scale0 * (d0 * _number(sums[0]) + d1 * _number(sums[1]))
    total += scale1 * (d2 * _number(sums[4]) + d3 * _number(sums[5]))
    first = d * total - dmin * (minimum0 * offset0 + minimum1 * offset1)
    d, dmin, scale0, minimum0, scale1, minimum1 = _header_q4_k(high_block, t)
    total = scale0 * (d0 * _number(sums[2]) + d1 * _number(sums[3]))
    total += scale1 * (d2 * _number(sums[6]) + d3 * _number(sums[7]))
    return first, d * total - dmin * (minimum0 * offset0 + minimum1 * offset1)


@device_function
def _six_bits(low, high):
    """Four weights of 6 bits: nibbles of `low`, and the two bits above them in place in `high`."""
    return _choose(low, uint32(LOW), high) & uint32(SIX_BITS)


@device_function
def _scale_q6_k(block, run):
    return ptx.cvt_rn_f32_s32(ptx.ld_shared_s8(block + uint32(192 + run)))


@device_function
@unrolled
def dots_q6_k(record, low_block, high_block, mask):
    """As `dots_q4_k`. 210-byte blocks are 2-byte aligned: words come from the aligned address below,
    funnel-shifted."""
    t = int32(ptx.lane_id()) & 3
    words = cuda.local.array(4, uint32)
    sums = cuda.local.array(8, int32)
    columns(record, words)
    clear(sums)
    four = uint32(4)
    two = uint32(2)
    for h in unroll(2):
        b0 = words[2 * h]
        b1 = words[2 * h + 1]
        at = uint32(h * 64 + t * 8)
        l0, l2 = two_words(low_block + at)
        l1, l3 = two_words(high_block + at)
        m0, m2 = two_words(low_block + at + uint32(32))
        m1, m3 = two_words(high_block + at + uint32(32))
        at = uint32(128 + h * 32 + t * 8)
        z0, z2 = two_words(low_block + at)
        z1, z3 = two_words(high_block + at)
        add_dots(
            sums, h, _six_bits(l0, z0 << four), _six_bits(l1, z1 << four), _six_bits(l2, z2 << four),
            _six_bits(l3, z3 << four), b0 & mask[0], b1 & mask[0],
        )  # fmt: skip
        add_dots(
            sums, h, _six_bits(m0, z0 << two), _six_bits(m1, z1 << two), _six_bits(m2, z2 << two),
            _six_bits(m3, z3 << two), b0 & mask[1], b1 & mask[1],
        )  # fmt: skip
        add_dots(
            sums, h, _six_bits(l0 >> four, z0), _six_bits(l1 >> four, z1), _six_bits(l2 >> four, z2),
            _six_bits(l3 >> four, z3), b0 & mask[2], b1 & mask[2],
        )  # fmt: skip
        add_dots(
            sums, h, _six_bits(m0 >> four, z0 >> two), _six_bits(m1 >> four, z1 >> two),
            _six_bits(m2 >> four, z2 >> two), _six_bits(m3 >> four, z3 >> two), b0 & mask[3], b1 & mask[3],
        )  # fmt: skip
    first = float32(0)
    second = float32(0)
    for h in unroll(2):
        scales = record + uint32(SCALES_AT + h * 32 + t * 8)
        d0, d1 = ptx.ld_shared_v2_f32(scales)
        s0, s1 = ptx.ld_shared_v2_f32(scales + uint32(SUMS_AT - SCALES_AT))
        # Weights are 32 less than their six bits.
        s0 *= float32(-32)
        s1 *= float32(-32)
        run = 8 * h + 2 * t
        first += _scale_q6_k(low_block, run) * d0 * (_number(sums[4 * h]) + s0)
        first += _scale_q6_k(low_block, run + 1) * d1 * (_number(sums[4 * h + 1]) + s1)
        second += _scale_q6_k(high_block, run) * d0 * (_number(sums[4 * h + 2]) + s0)
        second += _scale_q6_k(high_block, run + 1) * d1 * (_number(sums[4 * h + 3]) + s1)
    first *= ptx.unpack_f16x2_lo(ptx.ld_shared_u16(low_block + uint32(208)))
    second *= ptx.unpack_f16x2_lo(ptx.ld_shared_u16(high_block + uint32(208)))
    return first, second
