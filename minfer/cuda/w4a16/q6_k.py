"""Q6_K blocks: 128 bytes of low nibbles, 64 bytes of two high bits, sixteen int8 scales, d.

They have 210 bytes and start anywhere at even addresses; TMA copies from multiples of 16 only (a box's first
coordinate too: any other is an illegal instruction). So the 14 aligned chunks of 16 bytes that a block lies
in are copied by cp.async. Wherever it starts, its weights end before the last of them: that one and a 15th
take the f16 scales.

A half block's bytes serve four eighths, so two quarters.
"""

from __future__ import annotations

from functools import cache

from numba import cuda
from numba.cuda.types import uint32

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.w4a16.formats import (
    SCALE_BYTES,
    PackedFormat,
    and_or,
    join_run,
    load_two_runs,
)

BYTES = BLOCKS["Q6_K"].size
#: 15 chunks, 14 of them copied: rows start 28 banks apart.
PITCH = 240
#: Where in a row's chunks the f16 scales are.
SCALES = 208
#: Registers of a half block: 24 loads, which become 16 words, those of high bits from BITS on, and the
#: constant.
BITS, WORDS = 8, 25
#: (a & c) | (b & ~c); a & b, which the compiler would move behind the next shift and do again after it.
select, both = ptx.lop3(0xE4), ptx.lop3(0xC0)


@device_function
def _times_two(two, d):
    """d times two int8, as f16: 1024 + 128 + s without a conversion, minus 1152."""
    return ptx.hmul2(ptx.hadd2(ptx.prmt(two, 0x64646464, 0x4140) ^ 0x00800080, 0xE480E480), d)


@device_function
@unrolled
def _expand(block, scales):
    """All is read before any is written: they overlap."""
    twos = cuda.local.array(8, dtype=uint32)
    d = ptx.ld_shared_u16(block + 208)
    for i in unroll(8):
        twos[i] = ptx.ld_shared_u16(block + (192 + 2 * i))
    d = ptx.prmt(d, d, 0x1010)
    for half in unroll(2):
        ptx.st_shared_v4_u32(
            scales + 16 * half,
            _times_two(twos[4 * half], d),
            _times_two(twos[4 * half + 1], d),
            _times_two(twos[4 * half + 2], d),
            _times_two(twos[4 * half + 3], d),
        )


@device_function
@unrolled
def _fetch(raw, pairs, first, second, first_scales, second_scales, quarter):
    if quarter % 2 == 0:
        nibbles, bits = 32 * quarter, 128 + 16 * quarter
        load_two_runs(raw, 0, first + nibbles, second + nibbles)
        load_two_runs(raw, 8, first + (nibbles + 32), second + (nibbles + 32))
        load_two_runs(raw, 16, first + bits, second + bits)
    pairs[0], pairs[2] = ptx.ld_shared_v2_u32(first_scales + SCALE_BYTES * quarter)
    pairs[1], pairs[3] = ptx.ld_shared_v2_u32(second_scales + SCALE_BYTES * quarter)


@device_function
@unrolled
def _finish(a, numbers, pairs):
    """(q - 32) * scale, rounded once; a scale for each k16 step."""
    for i in unroll(4):
        for half in unroll(2):
            at = 8 * (i // 2) + i % 2 + 2 * half
            a[at] = ptx.hmul2_low(numbers[at], pairs[i])
            a[at + 4] = ptx.hmul2_high(numbers[at + 4], pairs[i])


@device_function
@unrolled
def _prepare(numbers, raw, quarter):
    """Two quarters share their bytes: the first takes low nibbles, the second high ones. A byte has the two
    high bits of four eighths: the even and the odd ones are taken apart once, so that no others are beside
    them."""
    if quarter % 2 == 0:
        for i in unroll(12):
            raw[i] = join_run(raw[2 * i], raw[2 * i + 1])
        for o in unroll(4):
            raw[BITS + 4 + o] = both(uint32(raw[BITS + o]) >> 2, 0x33333333, 0)
            raw[BITS + o] = both(raw[BITS + o], 0x33333333, 0)
    for i in unroll(8):
        # Word i is of step i / 2, row i % 2.
        low, bits = uint32(raw[i]), uint32(raw[BITS + i])
        if quarter % 2:
            number = select(low >> 4, bits, 0x0F0F0F0F)
        else:
            number = select(low, bits << 4, 0x0F0F0F0F)
        at = 4 * (i // 2) + i % 2
        numbers[at] = ptx.hadd2(and_or(number, 0x00FF00FF, 0x64006400), 0xE420E420)
        numbers[at + 2] = ptx.hadd2(ptx.prmt(number, raw[WORDS - 1], 0x4341), 0xE420E420)


@cache
def q6_k(rows: int) -> PackedFormat:
    """Tiles of `rows` rows."""

    @device_function
    def place(slot, row, start):
        at = uint32(slot + row * PITCH)
        return uint32(at + start), uint32(at + SCALES)

    return PackedFormat(
        block_bytes=BYTES,
        pitch=PITCH,
        by_tma=False,
        slot_bytes=rows * PITCH,
        words=WORDS,
        magic=0x64646464,
        place=place,
        expand=_expand,
        fetch=_fetch,
        prepare=_prepare,
        finish=_finish,
    )
