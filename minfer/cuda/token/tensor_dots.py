"""Q4_K's dot products on tensor cores: a warp takes 16 rows of up to four blocks of weights at a time.

mma.m16n8k32 has eight columns, one token needs one. Here all are used: lane t of four has weights of block
t, and of B columns 2 t and 2 t + 1 alone are not zero where those weights meet it. Column 2 t has the
activations of a sub-block 2 p, column 2 t + 1 those of 2 p + 1: the low and the high nibbles of the same
bytes, which meet both, one masked as the other. So blocks come out apart, and lane t has the sums of the block whose
header and weights it has read, of two rows. Half of what comes out, low nibbles by the activations of high
ones and the reverse, is not used.

What lane (g, t) holds of B are 16 words of each run of 16 of its block's even or odd sub-blocks if g / 2 is
t, and zeros else. They stay in registers for all rows of a product, as the activations of
`minfer.cuda.token.dots`; magic numbers and minima are as there.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32

from minfer.cuda import ptx
from minfer.cuda.block_dots import HIGH, LOW
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.dots import LARGEST_SUM, MAGIC, MAGIC_BITS, above, byte_of, half_scales, make_put_sums
from minfer.cuda.token.records import Layout

MMA_WORDS, MMA_FACTORS = 18, 14
"""Of the local arrays: 16 words of B and 2 of sums of activations; 8 scales, 4 of MAGIC, 2 of minima."""


def make_tensor_dots(layout: Layout) -> tuple[Callable, Callable]:
    """Device functions load_fragments (words, factors, record, lane) and dot_rows (values, first, second,
    words, factors): `record` the shared address of the lane's block's activations, `first` and `second` those
    of its block in two rows, `values` their products."""
    run_at, load_factors, fma = layout.run_at, layout.load_factors, ptx.fma_rn_f32
    put_sums = make_put_sums(4, LARGEST_SUM, 16, 12)

    @device_function
    @unrolled
    def load_fragments(words, factors, record, lane, half):
        odd = (lane >> 2) & 1
        mine = (lane >> 3) == (lane & 3)
        sums = cuda.local.array(4, float32)
        for p in unroll(2):
            run = int32(8 * half + 4 * p)
            for h in unroll(2):
                w0 = uint32(0)
                w1 = uint32(0)
                w2 = uint32(0)
                w3 = uint32(0)
                if mine:
                    w0, w1, w2, w3 = ptx.ld_shared_v4_u32(record + uint32(run_at(run + 2 * odd + h)))
                words[8 * p + 4 * h] = w0
                words[8 * p + 4 * h + 1] = w1
                words[8 * p + 4 * h + 2] = w2
                words[8 * p + 4 * h + 3] = w3
            for j in unroll(2):
                total = float32(0)
                scales = float32(0)
                for h in unroll(2):
                    scale, part = load_factors(record, run + 2 * j + h)
                    if j == 1:
                        scale *= float32(0.0625)
                    factors[4 * p + 2 * j + h] = scale
                    scales += scale
                    total += part
                factors[8 + 2 * p + j] = scales * float32(-MAGIC)
                sums[2 * p + j] = total
        put_sums(words, factors, sums)

    @device_function
    @unrolled
    def dot_rows(values, first, second, words, factors, half):
        heads = cuda.local.array(2, uint32)
        scales = cuda.local.array(2, uint32)
        products = cuda.local.array(2, float32)
        offsets = cuda.local.array(2, float32)
        for r in unroll(2):
            at = first
            if r == 1:
                at = second
            h0, h1, h2, h3 = ptx.ld_shared_v4_u32(at)
            heads[r] = h0
            s, minima = half_scales(h1, h2, h3, half)
            scales[r] = s
            whole = ptx.dp2a_lo_s16u8(words[16], minima, int32(MAGIC_BITS))
            whole = ptx.dp2a_hi_s16u8(words[17], minima, whole)
            offsets[r] = fma(above(whole), factors[12], factors[13])
            products[r] = float32(0)
        a = cuda.local.array(8, uint32)
        sums = cuda.local.array(8, int32)  # of a run and of the next: low and high nibbles of two rows
        for p in unroll(2):
            for h in unroll(2):
                at = uint32(16 + p * 32 + h * 16) + uint32(half * 64)
                w0, w1, w2, w3 = ptx.ld_shared_v4_u32(first + at)
                a[0] = w0
                a[1] = w1
                a[2] = w2
                a[3] = w3
                w0, w1, w2, w3 = ptx.ld_shared_v4_u32(second + at)
                a[4] = w0
                a[5] = w1
                a[6] = w2
                a[7] = w3
                low0 = low1 = low2 = low3 = int32(MAGIC_BITS)
                high0 = high1 = high2 = high3 = int32(MAGIC_BITS)
                for i in unroll(2):
                    b0 = words[8 * p + 4 * h + 2 * i]
                    b1 = words[8 * p + 4 * h + 2 * i + 1]
                    mask = uint32(LOW)
                    low0, low1, low2, low3 = ptx.mma_m16n8k32_u8s8(
                        a[2 * i] & mask, a[4 + 2 * i] & mask, a[2 * i + 1] & mask, a[5 + 2 * i] & mask,
                        b0, b1, low0, low1, low2, low3,
                    )  # fmt: skip
                    mask = uint32(HIGH)
                    high0, high1, high2, high3 = ptx.mma_m16n8k32_u8s8(
                        a[2 * i] & mask, a[4 + 2 * i] & mask, a[2 * i + 1] & mask, a[5 + 2 * i] & mask,
                        b0, b1, high0, high1, high2, high3,
                    )  # fmt: skip
                sums[4 * h] = low0
                sums[4 * h + 1] = high1
                sums[4 * h + 2] = low2
                sums[4 * h + 3] = high3
            for r in unroll(2):
                for j in unroll(2):
                    f = 4 * p + 2 * j
                    value = fma(factors[f + 1], above(sums[4 + 2 * r + j]), factors[8 + 2 * p + j])
                    value = fma(factors[f], above(sums[2 * r + j]), value)
                    scale = byte_of(scales[r], 2 * p + j)
                    products[r] = fma(scale, value, products[r])
        for r in unroll(2):
            d = ptx.unpack_f16x2_lo(heads[r])
            values[r] = d * products[r] - ptx.unpack_f16x2_hi(heads[r]) * offsets[r]

    return load_fragments, dot_rows
