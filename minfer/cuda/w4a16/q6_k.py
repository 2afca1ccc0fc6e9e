"""Q6_K blocks: 128 bytes of low nibbles, 64 bytes of two high bits, sixteen int8 scales, d.

They have 210 bytes and start anywhere at even addresses; TMA copies from multiples of 16 only (a box's first
coordinate too: any other is an illegal instruction). So the 14 aligned chunks of 16 bytes that a block lies
in are copied by cp.async. The f16 scales lie behind the rows, a quarter of a block after the other; behind
them is noted in which byte of its chunk the first row's block starts.

A half block's bytes serve four eighths. Those for its first and third are loaded while the eighth before the
first is unpacked, the others with the first: 24 loads at once would take longer than a k-tile's products.
"""

from __future__ import annotations

from functools import cache

from numba.cuda.types import uint32

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.w4a16.formats import PAIRS, QUARTERS, SCALE_BYTES, PackedFormat, and_or, load_two_runs

BYTES = BLOCKS["Q6_K"].size
#: 15 chunks, 14 of them copied: rows start 28 banks apart.
PITCH = 240
#: Registers of a half block: 12 words of weights, those of the later quarter's scales from HELD on, and the
#: constant.
HELD, WORDS = 12, 17


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
def _begin(raw, first, second, byte):
    load_two_runs(raw, 0, first + byte, second + byte)


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
    """Tiles of `rows` rows: the blocks, the scales of all rows, and a note."""
    quarter_bytes, scales_start = rows * SCALE_BYTES, rows * PITCH
    note_start = scales_start + QUARTERS * quarter_bytes

    @device_function
    def place(slot, row, skew):
        start = uint32(ptx.ld_shared_u32(slot + note_start) + skew) & uint32(15)
        return uint32(slot + row * PITCH + start), uint32(slot + scales_start + row * SCALE_BYTES)

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
            nibbles, bits = uint32(16 * eighth + 32) + byte, uint32(128 + 8 * eighth) + byte
            load_two_runs(raw, 4, first + nibbles, second + nibbles)
            load_two_runs(raw, 8, first + bits, second + bits)
            quarter = quarter_bytes * (eighth >> 1)
            pairs[0], pairs[2] = ptx.ld_shared_v2_u32(first_scales + quarter)
            pairs[1], pairs[3] = ptx.ld_shared_v2_u32(second_scales + quarter)
            later = quarter + quarter_bytes
            raw[HELD], raw[HELD + 2] = ptx.ld_shared_v2_u32(first_scales + later)
            raw[HELD + 1], raw[HELD + 3] = ptx.ld_shared_v2_u32(second_scales + later)
        if eighth & 3 == 2:
            for i in unroll(PAIRS):
                pairs[i] = raw[HELD + i]
        for o in unroll(4):
            # Word o is of step o / 2, row o % 2.
            low, at = raw[4 * (eighth & 1) + o], 8 * (eighth & 1) + 4 * (o // 2) + o % 2
            _numbers(numbers, at, low, raw[8 + o], raw[WORDS - 1], eighth)
        if eighth == 2:
            _begin(raw, first + 64, second + 64, byte)

    return PackedFormat(
        block_bytes=BYTES,
        pitch=PITCH,
        by_tma=False,
        note_start=note_start,
        slot_bytes=note_start + 16,
        words=WORDS,
        magic=0x64646464,
        read_by=1,
        place=place,
        expand=expand,
        begin=_begin,
        prepare=prepare,
        finish=_finish,
    )
