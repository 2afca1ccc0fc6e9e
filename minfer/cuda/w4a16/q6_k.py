"""Q6_K blocks: 128 bytes of low nibbles, 64 bytes of two high bits, sixteen int8 scales, d.

They have 210 bytes, and a row of them need not be the whole 16 bytes that TMA asks of a matrix's rows; eight
rows are. So eight rows of the matrix are one row of its tensor map, whose coordinates may be any byte: a box
takes every eighth row of the tile, 128 bytes from where a block begins, a second box the 128 bytes that
follow. Eight such pairs make a tile.

A row of a box is a line of 128 bytes, swizzled: its 16-byte unit n is where the line begins with bits 4 to 6
of the address XORed with n. Between the pairs lies an odd number of lines, so that the eight rows which a
warp reads at a time are swizzled differently: no bank conflicts. In a line of the second box units 0 to 3
hold the high bits, 4 the scales, and 5 begins with d; 6 and 7, which hold what follows in the matrix, are
overwritten with the scales as f16.
"""

from __future__ import annotations

from functools import cache

from numba.cuda.types import uint32

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.w4a16.formats import PackedFormat, and_or, four_bytes

FOLDED = 8
LINE_BYTES = 128


@device_function
def _times_two(word, selector, d):
    """d times two of a word's int8, as f16: 1024 + 128 + s without a conversion, minus 1152."""
    biased = ptx.prmt(word, 0x64646464, selector) ^ 0x00800080
    return ptx.hmul2(ptx.hadd2(biased, 0xE480E480), d)


@device_function
def _numbers(numbers, at, low, high, magic, eighth):
    """Four bytes of a row: the two words of a k16 step."""
    number = uint32(low) & 0x0F0F0F0F
    bits = uint32(high) << (4 - 2 * (eighth & 1))
    if eighth & 2:
        number = (uint32(low) >> 4) & 0x0F0F0F0F
        bits = uint32(high) >> (2 * (eighth & 1))
    number = number | (bits & 0x30303030)
    numbers[at] = ptx.hadd2(and_or(number, 0x00FF00FF, 0x64006400), 0xE420E420)
    numbers[at + 2] = ptx.hadd2(ptx.prmt(number, magic, 0x4341), 0xE420E420)


@device_function
@unrolled
def _finish(a, numbers, pairs):
    """(q - 32) * scale, rounded once; a scale for each k16 step."""
    for i in unroll(4):
        for half in unroll(2):
            at = 8 * (i // 2) + i % 2 + 2 * half
            a[at] = ptx.hmul2_low(numbers[at], pairs[i])
            a[at + 4] = ptx.hmul2_high(numbers[at + 4], pairs[i])


@cache
def q6_k(rows: int) -> PackedFormat:
    """Tiles of `rows` rows, a multiple of 64."""
    half_bytes = rows // FOLDED * LINE_BYTES
    box_bytes = 2 * half_bytes + LINE_BYTES

    @device_function
    def place(slot, row):
        """Where unit 0 of the row's line is; unit n is there with bits 4 to 6 of the address XORed with n."""
        box, line = row & (FOLDED - 1), row >> 3
        block = uint32(slot + box * box_bytes + line * LINE_BYTES + (((box + line) & 7) << 4))
        return block, uint32((block ^ 0x60) + half_bytes)

    @device_function
    def expand(block, scales):
        d = ptx.ld_shared_u16((block ^ 0x50) + half_bytes)
        d = ptx.prmt(d, d, 0x1010)
        s0, s1, s2, s3 = ptx.ld_shared_v4_u32((block ^ 0x40) + half_bytes)
        for late in range(2):
            low, high = (s2, s3) if late else (s0, s1)
            ptx.st_shared_v4_u32(
                scales ^ (16 * late),
                _times_two(low, 0x4140, d),
                _times_two(low, 0x4342, d),
                _times_two(high, 0x4140, d),
                _times_two(high, 0x4342, d),
            )

    @device_function
    @unrolled
    def prepare(
        numbers, pairs, raw, first, second, byte, first_scales, second_scales, eighth
    ):  # fmt: skip
        """Four eighths share their bytes: two take low nibbles, two high ones."""
        if eighth & 3 == 0:
            near, far = uint32(first + byte), uint32(second + byte)
            for part in unroll(4):
                unit = 16 * (eighth + part)
                raw[2 * part] = four_bytes(near ^ unit)
                raw[2 * part + 1] = four_bytes(far ^ unit)
            for half in unroll(2):
                unit = 16 * (eighth // 2 + half)
                raw[8 + 2 * half] = four_bytes((near ^ unit) + half_bytes)
                raw[9 + 2 * half] = four_bytes((far ^ unit) + half_bytes)
        if eighth & 1 == 0:
            unit, offset = 16 * (eighth // 4), 4 * (eighth & 2)
            pairs[0], pairs[2] = ptx.ld_shared_v2_u32((first_scales ^ unit) + offset)
            pairs[1], pairs[3] = ptx.ld_shared_v2_u32((second_scales ^ unit) + offset)
        for o in unroll(4):
            # Word o is of step o / 2, row o % 2.
            low, at = raw[4 * (eighth & 1) + o], 8 * (eighth & 1) + 4 * (o // 2) + o % 2
            _numbers(numbers, at, low, raw[8 + o], raw[12], eighth)

    return PackedFormat(
        block_bytes=BLOCKS["Q6_K"].size,
        folded=FOLDED,
        box_columns=LINE_BYTES,
        swizzle=128,
        halves=2,
        half_bytes=half_bytes,
        box_bytes=box_bytes,
        slot_bytes=FOLDED * box_bytes,
        words=13,
        magic=0x64646464,
        place=place,
        expand=expand,
        prepare=prepare,
        finish=_finish,
    )
