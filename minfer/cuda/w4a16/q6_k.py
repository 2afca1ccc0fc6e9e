"""Q6_K blocks: 128 bytes of low nibbles, 64 bytes of two high bits, sixteen int8 scales, d.

They have 210 bytes and start anywhere at even addresses; TMA copies from multiples of 16 only (a box's first
coordinate too: any other is an illegal instruction). So the 14 aligned chunks of 16 bytes that a block lies
in are copied by cp.async, and where it starts in them is noted. The f16 scales
lie behind the rows, a quarter of a block after the other.
"""

from __future__ import annotations

from functools import cache

from numba.cuda.types import uint32

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.w4a16.formats import QUARTERS, PackedFormat, and_or, four_bytes

BYTES = BLOCKS["Q6_K"].size
#: 15 chunks, 14 of them copied: rows start 28 banks apart.
PITCH = 240
#: A row's f16 scales of a quarter of a block.
SCALE_BYTES = 8


@device_function
def _times_two(address, d):
    """d times the two int8 at an address, as f16: 1024 + 128 + s without a conversion, minus 1152."""
    biased = ptx.prmt(ptx.ld_shared_u16(address), 0x64646464, 0x4140) ^ 0x00800080
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
    """Tiles of `rows` rows: the blocks, the scales of all rows, and where each row's block starts."""
    quarter_bytes, scales_start = rows * SCALE_BYTES, rows * PITCH
    notes_start = scales_start + QUARTERS * quarter_bytes

    @device_function
    def place(slot, row):
        start = ptx.ld_shared_u32(slot + notes_start + row * 4)
        return uint32(start), uint32(slot + scales_start + row * SCALE_BYTES)

    @device_function
    def expand(block, scales):
        d = ptx.ld_shared_u16(block + 208)
        d = ptx.prmt(d, d, 0x1010)
        for quarter in range(QUARTERS):
            four = uint32(block + 192 + 4 * quarter)
            target = uint32(scales + quarter * quarter_bytes)
            ptx.st_shared_v2_u32(target, _times_two(four, d), _times_two(four + 2, d))

    @device_function
    @unrolled
    def prepare(
        numbers, pairs, raw, first, second, byte, first_scales, second_scales, eighth
    ):  # fmt: skip
        """Four eighths share their bytes: two take low nibbles, two high ones."""
        if eighth & 3 == 0:
            nibbles, bits = uint32(16 * eighth) + byte, uint32(128 + 8 * eighth) + byte
            for part in unroll(4):
                raw[2 * part] = four_bytes(first + nibbles + 16 * part)
                raw[2 * part + 1] = four_bytes(second + nibbles + 16 * part)
            for half in unroll(2):
                raw[8 + 2 * half] = four_bytes(first + bits + 16 * half)
                raw[9 + 2 * half] = four_bytes(second + bits + 16 * half)
        if eighth & 1 == 0:
            quarter = quarter_bytes * (eighth >> 1)
            pairs[0], pairs[2] = ptx.ld_shared_v2_u32(first_scales + quarter)
            pairs[1], pairs[3] = ptx.ld_shared_v2_u32(second_scales + quarter)
        for o in unroll(4):
            # Word o is of step o / 2, row o % 2.
            low, at = raw[4 * (eighth & 1) + o], 8 * (eighth & 1) + 4 * (o // 2) + o % 2
            _numbers(numbers, at, low, raw[8 + o], raw[12], eighth)

    return PackedFormat(
        block_bytes=BYTES,
        pitch=PITCH,
        by_tma=False,
        notes_start=notes_start,
        slot_bytes=notes_start + 4 * rows,
        words=13,
        magic=0x64646464,
        place=place,
        expand=expand,
        prepare=prepare,
        finish=_finish,
    )
