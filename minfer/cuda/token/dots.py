"""A warp takes 8 blocks of a row at a time, four lanes a block, or 16 and two, and the activations of a
lane's 64 or 128 weights stay in its registers for all rows of a product: only weights are read from shared
memory, and once.

A block has four parts. Part n of Q4_K is the 32 bytes of sub-blocks 2 n (low nibbles) and 2 n + 1 (high); of
Q6_K likewise 32 bytes of nibbles, sub-blocks of 32 two apart, and the bytes with the two bits above, which
two parts share. A lane takes one part, or the two of a half: header, bits above and addresses are loaded and
worked out once for both then, and a sum over the lanes is one of twice as many weights. Blocks are 36 and
52.5 words apart, so that the lanes of a load fall on different banks (two lanes a block, Q6_K: two on one at
most).

Nothing is shifted into place: masked nibbles and bits go into dp4a where they are, 4 or 16 or 64 times too
large, and the sums are scaled. Sums start at MAGIC = 1.5 * 2**23 as a bit pattern: below 2**22 they are
floats whenever one looks at them, MAGIC too large. What that makes of their product with a scale is known
before the sum is, and subtracted with what else is: rounded to half of 1 in a sum, the error of one
activation.

Tried and out again (H200). Q4_K's rows of 3584 on tensor cores, as `minfer.cuda.gemv_mma` has them: some 340
instructions of a warp where 460 are here, predicted 4 % less energy. Two teams of four warps with a tile each
made 697 tokens a second, where these dots made 832; eight warps a tile, with half of each block a warp, 748
where these made 838. The clock was at 1,845 and 1,935 MHz then, so that not power but time was short: 16 rows
are one warp's and take it several hundred instructions, here eleven warps share them. Minima four at a time
by dp2a, with sums of activations as integers of 15 bits: 18 of 229 instructions for two rows less, predicted
1 %, found 0 (785.8 tokens a second at the power limit, 786.4 without).
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32

from minfer.cuda import ptx
from minfer.cuda.block_dots import (
    HIGH,
    LOW,
    MAGIC,
    MAGIC_BITS,
    byte_of,
    k4_scales,
    load_2_words,
    load_8_words,
)
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.records import Layout


@device_function
def _above(bits):
    """The sum in an accumulator, and MAGIC."""
    return ptx.bitcast_f32_u32(uint32(bits))


@device_function
def _signed_byte(word, n):
    """Byte n of a word, signed: three times its sign above it."""
    return ptx.cvt_rn_f32_s32(int32(ptx.prmt(word, word, uint32(0x8880 + n * 0x1111))))


@device_function
def _half_scales(header_low, header_middle, header_high, half):
    """(scales, minima) of the four sub-blocks of a half of Q4_K, in the bytes of a word each."""
    shift = uint32(0)
    low = uint32(0x3F3F3F3F)
    high = uint32(0)
    if half:  # four bits in the last word, two above them in the others
        shift = uint32(2)
        low = uint32(0x30303030)
        high = uint32(LOW)
    scales = ((header_low >> shift) & low) | (header_high & high)
    minima = ((header_middle >> shift) & low) | ((header_high >> uint32(4)) & high)
    return uint32(scales), uint32(minima)


def make_dots(lanes: int, layout: Layout) -> tuple[Callable, Callable, Callable, int, int]:
    """Device functions load_activations (words, factors, record, lane, six) and, of Q4_K and Q6_K, dot
    (block, lane, words, factors) -> f32: `lane` of those that share the block, `record` and `block` shared
    addresses; and the lengths of the local arrays `words` (u32) and `factors` (f32)."""
    parts = 4 // lanes  # of a lane
    run_at, scale_at, load_factors, fma = layout.run_at, layout.scale_at, layout.load_factors, ptx.fma_rn_f32
    run_places, scale_places = layout.run_places, layout.scale_places
    runs_apart, scales_apart = run_places[8] - run_places[0], scale_places[8] - scale_places[0]
    scales_of = k4_scales if lanes == 4 else _half_scales

    @device_function
    @unrolled
    def part_of(lane, p):
        """(half of the block, which part of it) of a lane's part p."""
        half = lane
        odd = int32(p)
        if parts == 1:
            half = lane >> 1
            odd = lane & 1
        return half, odd

    def make_load(six: bool) -> Callable:
        """`load_activations` of one format."""
        odd_runs, apart = (2, 4) if six else (4, 2)

        @device_function
        @unrolled
        def load(words, factors, record, lane):
            # Of a lane that takes a half of the block; all else is known when this is compiled.
            half_runs = record + uint32(lane * runs_apart)
            half_factors = record + uint32(lane * scales_apart)
            for p in unroll(parts):
                half, odd = part_of(lane, p)
                first = half * 8 + odd * odd_runs
                sums = cuda.local.array(4, float32)
                for i in unroll(4):
                    if parts == 1:
                        runs = record + uint32(run_at(first + (i // 2) * apart + i % 2))
                        scales = record + uint32(scale_at(first + (i // 2) * apart + i % 2))
                    else:
                        runs = half_runs + uint32(run_places[p * odd_runs + (i // 2) * apart + i % 2])
                        scales = half_factors + uint32(scale_places[p * odd_runs + (i // 2) * apart + i % 2])
                    w0, w1, w2, w3 = ptx.ld_shared_v4_u32(runs)
                    words[16 * p + 4 * i] = w0
                    words[16 * p + 4 * i + 1] = w1
                    words[16 * p + 4 * i + 2] = w2
                    words[16 * p + 4 * i + 3] = w3
                    scale, total = load_factors(scales)
                    factors[8 * p + i] = scale
                    sums[i] = total
                for i in unroll(2):
                    factors[8 * p + 2 + i] *= float32(0.0625)
                if six:
                    for i in unroll(4):
                        factors[8 * p + 4 + i] = sums[i] * float32(-32) - factors[8 * p + i] * float32(MAGIC)
                else:
                    for i in unroll(2):
                        factors[8 * p + 4 + i] = sums[2 * i] + sums[2 * i + 1]
                        both = factors[8 * p + 2 * i] + factors[8 * p + 2 * i + 1]
                        factors[8 * p + 6 + i] = both * float32(-MAGIC)

        return load

    load_four, load_six = make_load(False), make_load(True)

    @device_function
    @unrolled
    def load_activations(words, factors, record, lane, six):
        """Of each part `words` has 4 runs of 16, those of low nibbles first; `factors` has their scales, high
        nibbles' 16 times smaller, then of Q4_K the sums of each sub-block's two runs, which minima are
        multiplied with, and what MAGIC makes of them; of Q6_K both together, of a run, which all weights are
        32 too large for."""
        if six:
            load_six(words, factors, record, lane)
        else:
            load_four(words, factors, record, lane)

    @device_function
    @unrolled
    def dot_q4_k(block, lane, words, factors):
        """This lane's part of the dot product."""
        h0, h1, h2, h3 = ptx.ld_shared_v4_u32(block)
        scales, minima = scales_of(h1, h2, h3, lane)
        products = float32(0)
        offsets = float32(0)
        for p in unroll(parts):
            at = block + uint32(16 + lane * (32 * parts) + p * 32)
            quants = cuda.local.array(8, uint32)
            for i in unroll(2):
                w0, w1, w2, w3 = ptx.ld_shared_v4_u32(at + uint32(i * 16))
                quants[4 * i] = w0
                quants[4 * i + 1] = w1
                quants[4 * i + 2] = w2
                quants[4 * i + 3] = w3
            sums = cuda.local.array(4, int32)
            for i in unroll(4):
                sums[i] = int32(MAGIC_BITS)
            for i in unroll(8):
                low = words[16 * p + i]
                high = words[16 * p + 8 + i]
                sums[i // 4] = ptx.dp4a_u8s8(quants[i] & uint32(LOW), low, sums[i // 4])
                sums[2 + i // 4] = ptx.dp4a_u8s8(quants[i] & uint32(HIGH), high, sums[2 + i // 4])
            f = 8 * p
            lows = fma(factors[f], _above(sums[0]), fma(factors[f + 1], _above(sums[1]), factors[f + 6]))
            highs = fma(factors[f + 2], _above(sums[2]), fma(factors[f + 3], _above(sums[3]), factors[f + 7]))
            products = fma(byte_of(scales, 2 * p), lows, products)
            products = fma(byte_of(scales, 2 * p + 1), highs, products)
            offsets = fma(byte_of(minima, 2 * p), factors[f + 4], offsets)
            offsets = fma(byte_of(minima, 2 * p + 1), factors[f + 5], offsets)
        return ptx.unpack_f16x2_lo(h0) * products - ptx.unpack_f16x2_hi(h0) * offsets

    @device_function
    @unrolled
    def dot_q6_k(block, lane, words, factors):
        """As `dot_q4_k`. 210-byte blocks are 2-byte aligned: words come from the aligned address below,
        funnel-shifted."""
        quants = cuda.local.array(8, uint32)
        bits = cuda.local.array(8, uint32)
        half, _ = part_of(lane, 0)
        load_8_words(quants, block + uint32(lane * (32 * parts)))
        load_8_words(bits, block + uint32(128 + half * 32))
        scales = cuda.local.array(2, uint32)
        load_2_words(scales, block + uint32(192 + half * 8))
        total = float32(0)
        for p in unroll(parts):
            _, odd = part_of(lane, p)
            if p > 0:
                load_8_words(quants, block + uint32(lane * (32 * parts) + p * 32))
            place = uint32(odd * 2)  # where in a byte the two bits above the low nibble are
            low_bits = uint32(0x03030303) << place
            high_bits = uint32(0x30303030) << place
            weight = int32(16)
            if odd:
                weight = int32(4)
            sums = cuda.local.array(4, int32)
            tops = cuda.local.array(4, int32)
            for i in unroll(4):
                sums[i] = int32(MAGIC_BITS)
                tops[i] = int32(0)
            for i in unroll(8):
                n = i // 4
                low = words[16 * p + i]
                high = words[16 * p + 8 + i]
                sums[n] = ptx.dp4a_u8s8(quants[i] & uint32(LOW), low, sums[n])
                tops[n] = ptx.dp4a_u8s8(bits[i] & low_bits, low, tops[n])
                sums[2 + n] = ptx.dp4a_u8s8(quants[i] & uint32(HIGH), high, sums[2 + n])
                tops[2 + n] = ptx.dp4a_u8s8(bits[i] & high_bits, high, tops[2 + n])
            for i in unroll(4):
                scale = _signed_byte(scales[i // 2], odd * 2 + i % 2)
                value = _above(sums[i] + tops[i] * weight)
                total = fma(scale, fma(factors[8 * p + i], value, factors[8 * p + 4 + i]), total)
        return ptx.unpack_f16x2_lo(ptx.ld_shared_u16(block + uint32(208))) * total

    x_words, x_factors = 16 * parts, 8 * parts
    return load_activations, dot_q4_k, dot_q6_k, x_words, x_factors
