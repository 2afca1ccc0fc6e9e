"""Q4_K blocks as unsigned bytes: the 6-bit scales multiplied into the weights.

A group is two blocks, 512 weights of a row. With D the larger d of the two, a weight is

    d scale q - dmin minimum = D (256 / 69) b - dmin minimum,
    b = (q S + 128) >> 8,   S = round(scale d 69 / D)

where b is a byte, since 15 * 63 * 69 + 128 < 2^16. It is within half a unit of its exact value: a rounding
error of 0.2 % of the largest weight that the block can hold. S, the minima and D are made once a group by the
warps that bring the blocks; the minima meet the sums of the activations' runs of 32 in a tf32 wgmma.

In an A fragment of 32 columns of bytes, lane 4 g + t holds the columns 4t ... 4t + 3 and 16 + 4t ... of rows
g and g + 8: words of the block as they are, low nibbles for a sub-block, high ones for the next.
"""

from __future__ import annotations

from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.w4a16.packed_tile import ROWS

GROUP_BLOCKS = 2
GROUP = 512
BLOCK_BYTES = 144
#: Runs of 32 weights (sub-blocks) a group.
RUNS = GROUP // 32
SCALE_BYTES = 4
#: Two 16-bit scales a row and pair of sub-blocks.
PAIR_BYTES = ROWS * 4
FACTORS_BYTES = RUNS // 2 * PAIR_BYTES
#: A column of minima: the columns of a fragment's four lanes lie 8 banks apart.
MINIMA_PITCH = (ROWS + 8) * 4
MINIMA_BYTES = RUNS * MINIMA_PITCH
PLANE_BYTES = ROWS * BLOCK_BYTES
#: The largest that keeps 15 * 63 * it + 128 in 16 bits, and what a unit of the resulting bytes is worth.
FACTOR = 69.0
UNIT = 256.0 / 69.0


@device_function
def _sub_blocks(h1, h2, h3, late):
    """Four scales and four minima, one a byte."""
    if late:
        scales = types.uint32((h3 & 0x0F0F0F0F) | ((h1 >> 2) & 0x30303030))
        minima = types.uint32(((h3 >> 4) & 0x0F0F0F0F) | ((h2 >> 2) & 0x30303030))
    else:
        scales, minima = types.uint32(h1 & 0x3F3F3F3F), types.uint32(h2 & 0x3F3F3F3F)
    return scales, minima


@device_function
def _factor(scales, byte, ratio):
    return ptx.cvt_rni_s32_f32(ptx.cvt_rn_f32_u32((scales >> (8 * byte)) & 255) * ratio)


@device_function
def _expand_block(h0, h1, h2, h3, ratio, block, row, factors, minima):
    minus = -ptx.unpack_f16x2_hi(h0)
    for late in range(2):
        scales, lows = _sub_blocks(h1, h2, h3, late)
        for pair in range(2):
            first, second = _factor(scales, 2 * pair, ratio), _factor(scales, 2 * pair + 1, ratio)
            place = factors + (4 * block + 2 * late + pair) * PAIR_BYTES + row * 4
            ptx.st_shared_u32(place, first | (second << 16))
        for i in range(4):
            low = minus * ptx.cvt_rn_f32_u32((lows >> (8 * i)) & 255)
            place = minima + (8 * block + 4 * late + i) * MINIMA_PITCH + row * 4
            ptx.st_shared_u32(place, ptx.cvt_rna_tf32_f32(low))


@device_function
def expand(slot, row, factors, minima, rows):
    """What a row's two headers hold, to the three tables at these shared addresses."""
    near = types.uint32(slot + row * BLOCK_BYTES)
    a0, a1, a2, a3 = ptx.ld_shared_v4_u32(near)
    b0, b1, b2, b3 = ptx.ld_shared_v4_u32(near + PLANE_BYTES)
    first, second = ptx.unpack_f16x2_lo(a0), ptx.unpack_f16x2_lo(b0)
    largest = ptx.max_f32(first, second)
    inverse = types.float32(0)
    if largest > types.float32(0):
        inverse = types.float32(FACTOR) * ptx.rcp_approx(largest)
    _expand_block(a0, a1, a2, a3, first * inverse, 0, row, factors, minima)
    _expand_block(b0, b1, b2, b3, second * inverse, 1, row, factors, minima)
    ptx.st_shared_f32(rows + row * 4, largest * types.float32(UNIT))


@device_function
def _scaled(near, far, factor):
    """Four bytes: bytes 1 and 3 of two words of 16-bit products, in turn."""
    return ptx.prmt(near * factor + 0x00800080, far * factor + 0x00800080, 0x7351)


@device_function
def _unpack(a, o, word, factors):
    """Four packed bytes of a row: a word of the k32 step at `o`, and one of the next step."""
    first, second = types.uint32(factors & 0xFFFF), types.uint32(factors >> 16)
    mask = types.uint32(0x000F000F)
    a[o] = _scaled(word & mask, (word >> 8) & mask, first)
    a[o + 4] = _scaled((word >> 4) & mask, (word >> 12) & mask, second)


@device_function
@unrolled
def fragments(a, near, far, factors, apart, quarter):
    """The 16 words of A of a k-tile, the `quarter`-th of a group; `near` and `far` are the shared addresses
    of the blocks of the lane's rows g and g + 8, plus 4 t, `factors` that of row g's; the other row's
    are `apart` bytes behind."""
    for half in unroll(2):
        pair = 2 * quarter + half
        run = types.uint32((quarter >> 1) * PLANE_BYTES + 16 + 32 * (2 * (quarter & 1) + half))
        low0, low1 = ptx.ld_shared_u32(near + run), ptx.ld_shared_u32(near + run + 16)
        high0, high1 = ptx.ld_shared_u32(far + run), ptx.ld_shared_u32(far + run + 16)
        place = factors + pair * PAIR_BYTES
        near_factors, far_factors = ptx.ld_shared_u32(place), ptx.ld_shared_u32(place + apart)
        _unpack(a, 8 * half, low0, near_factors)
        _unpack(a, 8 * half + 1, high0, far_factors)
        _unpack(a, 8 * half + 2, low1, near_factors)
        _unpack(a, 8 * half + 3, high1, far_factors)
