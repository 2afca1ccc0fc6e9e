"""A fragment's integers, and their way into the f32 accumulators."""

from __future__ import annotations

from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.mmq.config import HIGH_MAGIC_BITS, MAGIC_BITS, MmqConfig


def integer_product(config: MmqConfig) -> DeviceFunction:
    """(sums, a, ao, b, bo): sums[0 ... 3] of one 16 x 8 product of a chunk; of two scales those of its two
    halves, of folded weights those of the low and the high bytes, in sums[0 ... 3], sums[4 ... 7]
    (out="sums": put together in the first four)."""
    whole_sums = config.out == "sums"
    magic = config.rescale == "magic" and not whole_sums
    start, high_start = (MAGIC_BITS, HIGH_MAGIC_BITS) if magic else (0, 0)
    if config.two_scales:

        @device_function
        @unrolled
        def halves(sums, a, ao, b, bo):
            first = int32(start)
            for half in unroll(2):
                d0, d1, d2, d3 = ptx.mma_m16n8k16_s8(
                    a[ao + 2 * half], a[ao + 2 * half + 1], b[bo + half], first, first, first, first
                )
                sums[4 * half], sums[4 * half + 1] = d0, d1
                sums[4 * half + 2], sums[4 * half + 3] = d2, d3

        return halves

    unsigned = config.masked or config.variant == "folded"
    mma = ptx.mma_m16n8k32_s8u8 if unsigned else ptx.mma_m16n8k32_s8

    @device_function
    def whole(sums, a, ao, b, bo):
        first = int32(start)
        d0, d1, d2, d3 = mma(
            a[ao], a[ao + 1], a[ao + 2], a[ao + 3], b[bo], b[bo + 1], first, first, first, first
        )
        sums[0], sums[1], sums[2], sums[3] = d0, d1, d2, d3

    if config.variant != "folded":
        return whole

    @device_function
    @unrolled
    def bytes_apart(sums, a, ao, b, bo):
        first = int32(high_start)
        whole(sums, a, ao, b, bo)
        d0, d1, d2, d3 = ptx.mma_m16n8k32_s8(
            a[ao], a[ao + 1], a[ao + 2], a[ao + 3], b[bo + 4], b[bo + 5], first, first, first, first
        )
        sums[4], sums[5], sums[6], sums[7] = d0, d1, d2, d3
        if whole_sums:
            for i in unroll(4):
                sums[i] = sums[i] + 256 * sums[4 + i]

    return bytes_apart


def rescaling(config: MmqConfig) -> DeviceFunction:
    """(acc, o, sums, so, d, s, w0, w1): acc[o ... o + 3] += w * (d * sum), d of the two tokens, w of the two
    rows. "magic": d[s + 2], d[s + 3] hold `config.correction` * d, and fma(bits, d, correction) is d * sum
    rounded once, since the correction is exact (d has 11 bits): the same number as "convert"'s. Folded
    weights' two sums meet between the corrections, where the last bit is one unit of the sum."""
    magic, folded = config.rescale == "magic", config.variant == "folded"

    @device_function
    def scaled(sums, i, d, correction):
        if folded:
            high = ptx.fma_rn_f32(ptx.bitcast_f32_u32(uint32(sums[4 + i])), d, correction)
            return ptx.fma_rn_f32(ptx.bitcast_f32_u32(uint32(sums[i])), d, high)
        if magic:
            return ptx.fma_rn_f32(ptx.bitcast_f32_u32(uint32(sums[i])), d, correction)
        return d * ptx.cvt_rn_f32_s32(sums[i])

    @device_function
    def rescale(acc, o, sums, so, d, s, w0, w1):
        c0, c1 = float32(0), float32(0)
        if magic:
            c0, c1 = d[s + 2], d[s + 3]
        acc[o] = ptx.fma_rn_f32(scaled(sums, so, d[s], c0), w0, acc[o])
        acc[o + 1] = ptx.fma_rn_f32(scaled(sums, so + 1, d[s], c0), w1, acc[o + 1])
        acc[o + 2] = ptx.fma_rn_f32(scaled(sums, so + 2, d[s + 1], c1), w0, acc[o + 2])
        acc[o + 3] = ptx.fma_rn_f32(scaled(sums, so + 3, d[s + 1], c1), w1, acc[o + 3])

    return rescale


@device_function
def store_sums(sums, so, shift, out, token, row, index, count, nt, od):
    """Four accumulators as integers, shifted down: tokens token, token + 8, rows row, row + 1; the index-th
    of `count`."""
    for i in range(4):
        own_token, own_row = token + 8 * (i >> 1), row + (i & 1)
        if own_token < nt and own_row < od:
            at = (uint64(own_token) * uint64(od) + uint64(own_row)) * uint64(count) + uint64(index)
            ptx.st_global_u32(out + at * uint64(4), uint32(sums[so + i] >> shift))
