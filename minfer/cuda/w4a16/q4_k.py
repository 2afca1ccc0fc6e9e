"""Q4_K blocks: d, dmin, eight 6-bit scales and minima in 12 bytes, then four runs of 32 bytes, each the low
and the high nibbles of two sub-blocks of 32 weights."""

from __future__ import annotations

from functools import cache

from numba.cuda.types import float32, uint32

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.w4a16.formats import QUARTERS, SCALE_BYTES, PackedFormat, and_or, join_run, load_two_runs

BYTES = BLOCKS["Q4_K"].size
#: The weight at which the rounding of a scale to f16 is made good by the minimum.
MIDDLE = 7.5


@device_function
def _scale_and_shift(d, minus, factors, minima, byte):
    """The sub-block's (scale, shift) as f16: a weight is q * scale + shift. The scale's rounding error is
    taken off the shift for a q in the middle."""
    exact = d * ptx.cvt_rn_f32_u32((factors >> (8 * byte)) & 255)
    scale = ptx.pack_f16x2(exact, float32(0))
    lost = (exact - ptx.unpack_f16x2_lo(scale)) * float32(MIDDLE)
    shift = minus * ptx.cvt_rn_f32_u32((minima >> (8 * byte)) & 255) + lost
    return ptx.pack_f16x2(exact, shift)


@device_function
def _low_nibbles(word):
    """The low nibbles of bytes 0 and 2."""
    return ptx.hadd2(and_or(word, 0x000F000F, 0x64006400), 0xE400E400)


@device_function
def _high_nibbles(word):
    """The high nibbles: 1024 + 16 q, times 1/16, minus 64."""
    return ptx.hfma2(and_or(word, 0x00F000F0, 0x64006400), 0x2C002C00, 0xD400D400)


@device_function
@unrolled
def _finish(a, numbers, pairs):
    """q * scale + shift, rounded once. Pairs are of the first eighth's two rows, then of the second's."""
    for i in unroll(4):
        for word in unroll(4):
            at = 8 * (i // 2) + i % 2 + 2 * word
            a[at] = ptx.hfma2_pair(numbers[at], pairs[i])


@cache
def q4_k(rows: int) -> PackedFormat:
    """Tiles of `rows` rows: a TMA box holds their blocks. Behind them lie the scales of all rows, a quarter
    of a block after the other."""
    quarter_bytes = rows * SCALE_BYTES

    @device_function
    def place(slot, row, start):
        return uint32(slot + row * BYTES), uint32(slot + rows * BYTES + row * SCALE_BYTES)

    @device_function
    def expand(block, scales):
        h0, h1, h2, h3 = ptx.ld_shared_v4_u32(block)
        d, minus = ptx.unpack_f16x2_lo(h0), -ptx.unpack_f16x2_hi(h0)
        for late in range(2):
            factors, minima = uint32(h1 & 0x3F3F3F3F), uint32(h2 & 0x3F3F3F3F)
            if late:
                factors = uint32((h3 & 0x0F0F0F0F) | ((h1 >> 2) & 0x30303030))
                minima = uint32(((h3 >> 4) & 0x0F0F0F0F) | ((h2 >> 2) & 0x30303030))
            for pair in range(2):
                ptx.st_shared_v2_u32(
                    scales + (2 * late + pair) * quarter_bytes,
                    _scale_and_shift(d, minus, factors, minima, 2 * pair),
                    _scale_and_shift(d, minus, factors, minima, 2 * pair + 1),
                )

    @device_function
    @unrolled
    def fetch(raw, pairs, first, second, first_scales, second_scales, quarter):
        run, scales = 16 + 32 * quarter, quarter_bytes * quarter
        load_two_runs(raw, 0, first + run, second + run)
        pairs[0], pairs[2] = ptx.ld_shared_v2_u32(first_scales + scales)
        pairs[1], pairs[3] = ptx.ld_shared_v2_u32(second_scales + scales)

    @device_function
    @unrolled
    def prepare(numbers, raw, quarter):
        """The low nibbles are a sub-block, the high ones the next."""
        for i in unroll(4):
            raw[i] = join_run(raw[2 * i], raw[2 * i + 1])
        for o in unroll(4):
            # Word o is of step o / 2, row o % 2.
            at, later = 4 * (o // 2) + o % 2, uint32(raw[o]) >> 8
            numbers[at], numbers[at + 2] = _low_nibbles(raw[o]), _low_nibbles(later)
            numbers[at + 8], numbers[at + 10] = _high_nibbles(raw[o]), _high_nibbles(later)

    return PackedFormat(
        block_bytes=BYTES,
        pitch=BYTES,
        by_tma=True,
        slot_bytes=rows * BYTES + QUARTERS * quarter_bytes,
        words=8,
        magic=0,
        place=place,
        expand=expand,
        fetch=fetch,
        prepare=prepare,
        finish=_finish,
    )
