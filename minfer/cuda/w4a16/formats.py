"""Q4_K and Q6_K blocks in shared memory, as they are in the file, unpacked into wgmma's A fragments.

A consumer unpacks an eighth of a block, 32 weights a row, at a time. In a fragment of 16 columns of k, lane
4 g + t holds the columns 2t, 2t + 1, 2t + 8 and 2t + 9 of rows g and g + 8. Both formats keep the weights of
16 neighbouring k in 16 neighbouring bytes, so that two 16-bit loads bring a lane its four bytes, without bank
conflicts, and the activations keep their natural order.

Blocks come by TMA, whose tensor maps need rows of whole 16 bytes. A row of Q4_K blocks is a row of the map: a
box of 128 rows x 144 bytes. Q6_K blocks have 210 bytes, and a row of them need not be whole 16 bytes; eight
rows are. So eight rows of the matrix are one row of the map, whose coordinates may be any byte: a box takes
256 bytes from where a block begins, two halves of 128, of every eighth row, and eight boxes make a tile. The
halves' rows are lines of 128 bytes, swizzled; between the boxes of neighbouring rows lies an odd number of
lines, so that the eight rows that a warp reads at a time are swizzled differently: no bank conflicts.

A small unsigned number becomes f16 without a conversion: OR-ed into the mantissa of 1024 (0x6400) it is
1024 + q, and the subtraction that follows is exact.

Unpacking goes in two steps. `prepare` makes the numbers q in registers of its own: it may run while the
tensor cores still read the fragments that will be overwritten. `finish` scales them into the fragments. The
warps that bring the blocks have expanded the scales to f16 (`expand`).
"""

from __future__ import annotations

from dataclasses import dataclass

from numba.cuda.types import float32, uint32

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled

#: Weight rows of a tile.
ROWS = 128
#: Words of A that a lane holds of a quarter of a block, 64 weights a row, and words of scales.
WORDS = 16
PAIRS = 4
#: k-tiles of 64 in a block of 256 weights.
QUARTERS = 4
#: (a & b) | c
_AND_OR = 0xEA


@dataclass(frozen=True)
class PackedFormat:
    """How a block format goes through shared memory.

    Attributes:
        block_bytes: a block of 256 weights.
        folded: rows of the matrix that make a row of its tensor map.
        box_columns, swizzle: bytes of a box's row, and of its swizzle.
        halves: boxes, `HALF_BYTES` apart in shared memory, that hold a block.
        box_bytes: from the boxes of a row of the matrix to those of the next, if rows are folded.
        slot_bytes: the blocks of a tile and their expanded scales.
        words: registers of packed weights that `prepare` keeps from an eighth to the next.
        magic: a constant that `prepare` finds in the last of these, 0: none. The assembler must not know it:
            it would make it prmt's immediate operand, and copy the other constant, the selector, into a
            register before each of them.
        place: (slot, row): where the row's block is, and its expanded scales.
        expand: (block, scales): the block's scales as f16, from its place to theirs.
        prepare: (numbers, pairs, raw, first, second, byte, first_scales, second_scales, eighth): the f16
            numbers of the words of A of two k16 steps, and the rows' scales; odd eighths to the second halves
            of `numbers`. `first`, `second` and their scales are the places of the lane's rows g and g + 8,
            `byte` is 2 t. `raw` is a local array of `words`. Eighths come in order.
        finish: (a, numbers, pairs): the words of A of a quarter.
    """

    block_bytes: int
    folded: int
    box_columns: int
    swizzle: int
    halves: int
    box_bytes: int
    slot_bytes: int
    words: int
    magic: int
    place: DeviceFunction
    expand: DeviceFunction
    prepare: DeviceFunction
    finish: DeviceFunction


@device_function
def _four_bytes(address):
    """The lane's bytes 2t, 2t + 8, 2t + 1, 2t + 9 of a run of 16, in this order, from the address of byte
    2t."""
    return ptx.prmt(ptx.ld_shared_u16(address), ptx.ld_shared_u16(address + 8), 0x5140)


@device_function
def _both_low(pair):
    return ptx.prmt(pair, pair, 0x1010)


_and_or = ptx.lop3(_AND_OR)

# ---- Q4_K: d, dmin, eight 6-bit scales and minima in 12 bytes, four runs of 32 bytes, each two sub-blocks

Q4_BYTES = BLOCKS["Q4_K"].size
#: A row's f16 scales of a quarter of a block, and those of all rows.
SCALE_BYTES = 8
QUARTER_BYTES = ROWS * SCALE_BYTES

#: The weight at which the rounding of a scale to f16 is made good by the minimum.
MIDDLE = 7.5


@device_function
def _place_q4_k(slot, row):
    return uint32(slot + row * Q4_BYTES), uint32(slot + ROWS * Q4_BYTES + row * SCALE_BYTES)


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
def _expand_q4_k(block, scales):
    h0, h1, h2, h3 = ptx.ld_shared_v4_u32(block)
    d, minus = ptx.unpack_f16x2_lo(h0), -ptx.unpack_f16x2_hi(h0)
    for late in range(2):
        factors, minima = uint32(h1 & 0x3F3F3F3F), uint32(h2 & 0x3F3F3F3F)
        if late:
            factors = uint32((h3 & 0x0F0F0F0F) | ((h1 >> 2) & 0x30303030))
            minima = uint32(((h3 >> 4) & 0x0F0F0F0F) | ((h2 >> 2) & 0x30303030))
        for pair in range(2):
            ptx.st_shared_v2_u32(
                scales + (2 * late + pair) * QUARTER_BYTES,
                _scale_and_shift(d, minus, factors, minima, 2 * pair),
                _scale_and_shift(d, minus, factors, minima, 2 * pair + 1),
            )


@device_function
def _low_nibbles(word):
    """The low nibbles of bytes 0 and 2."""
    return ptx.hadd2(_and_or(word, 0x000F000F, 0x64006400), 0xE400E400)


@device_function
def _high_nibbles(word):
    """The high nibbles: 1024 + 16 q, times 1/16, minus 64."""
    return ptx.hfma2(_and_or(word, 0x00F000F0, 0x64006400), 0x2C002C00, 0xD400D400)


@device_function
@unrolled
def _prepare_q4_k(
    numbers, pairs, raw, first, second, byte, first_scales, second_scales, eighth
):  # fmt: skip
    """Two eighths share their bytes: the first takes low nibbles, the second high ones."""
    if eighth & 1 == 0:
        run = uint32(16 + 16 * eighth) + byte
        for half in unroll(2):
            raw[2 * half] = _four_bytes(first + run + 16 * half)
            raw[2 * half + 1] = _four_bytes(second + run + 16 * half)
        quarter = QUARTER_BYTES * (eighth >> 1)
        pairs[0], pairs[2] = ptx.ld_shared_v2_u32(first_scales + quarter)
        pairs[1], pairs[3] = ptx.ld_shared_v2_u32(second_scales + quarter)
        for o in unroll(4):
            # Word o is of step o / 2, row o % 2.
            at = 4 * (o // 2) + o % 2
            numbers[at], numbers[at + 2] = _low_nibbles(raw[o]), _low_nibbles(uint32(raw[o]) >> 8)
    else:
        for o in unroll(4):
            at = 8 + 4 * (o // 2) + o % 2
            numbers[at], numbers[at + 2] = _high_nibbles(raw[o]), _high_nibbles(uint32(raw[o]) >> 8)


@device_function
@unrolled
def _finish_q4_k(a, numbers, pairs):
    """q * scale + shift, rounded once. Pairs are of the first eighth's two rows, then of the second's."""
    for i in unroll(4):
        for word in unroll(4):
            at = 8 * (i // 2) + i % 2 + 2 * word
            a[at] = ptx.hfma2_pair(numbers[at], pairs[i])


# ---- Q6_K: 128 bytes of low nibbles, 64 bytes of two high bits, sixteen int8 scales, d. In a line of the
# second half, 16-byte units 0 to 3 hold the high bits, 4 the scales, 5 begins with d; 6 and 7, which hold what
# follows in the matrix, are overwritten with the scales as f16.

Q6_BYTES = BLOCKS["Q6_K"].size
FOLDED = 8
LINE_BYTES = 128
#: From the first half of a block to its second: 16 lines, one for each row of a box.
HALF_BYTES = ROWS // FOLDED * LINE_BYTES
Q6_BOX_BYTES = 2 * HALF_BYTES + LINE_BYTES


@device_function
def _place_q6_k(slot, row):
    """Where unit 0 of the row's line is; unit n is there with bits 4 to 6 of the address XORed with n."""
    box, line = row & (FOLDED - 1), row >> 3
    block = uint32(slot + box * Q6_BOX_BYTES + line * LINE_BYTES + (((box + line) & 7) << 4))
    return block, uint32((block ^ 0x60) + HALF_BYTES)


@device_function
def _times_two(word, selector, d):
    """d times two of a word's int8, as f16: 1024 + 128 + s without a conversion, minus 1152."""
    biased = ptx.prmt(word, 0x64646464, selector) ^ 0x00800080
    return ptx.hmul2(ptx.hadd2(biased, 0xE480E480), d)


@device_function
def _expand_q6_k(block, scales):
    d = _both_low(ptx.ld_shared_u16((block ^ 0x50) + HALF_BYTES))
    s0, s1, s2, s3 = ptx.ld_shared_v4_u32((block ^ 0x40) + HALF_BYTES)
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
def _numbers_q6_k(numbers, at, low, high, magic, eighth):
    """Four bytes of a row: the two words of a k16 step."""
    number = uint32(low) & 0x0F0F0F0F
    bits = uint32(high) << (4 - 2 * (eighth & 1))
    if eighth & 2:
        number = (uint32(low) >> 4) & 0x0F0F0F0F
        bits = uint32(high) >> (2 * (eighth & 1))
    number = number | (bits & 0x30303030)
    numbers[at] = ptx.hadd2(_and_or(number, 0x00FF00FF, 0x64006400), 0xE420E420)
    numbers[at + 2] = ptx.hadd2(ptx.prmt(number, magic, 0x4341), 0xE420E420)


@device_function
@unrolled
def _prepare_q6_k(
    numbers, pairs, raw, first, second, byte, first_scales, second_scales, eighth
):  # fmt: skip
    """Four eighths share their bytes: two take low nibbles, two high ones."""
    if eighth & 3 == 0:
        near, far = uint32(first + byte), uint32(second + byte)
        for part in unroll(4):
            unit = 16 * (eighth + part)
            raw[2 * part] = _four_bytes(near ^ unit)
            raw[2 * part + 1] = _four_bytes(far ^ unit)
        for half in unroll(2):
            unit = 16 * (eighth // 2 + half)
            raw[8 + 2 * half] = _four_bytes((near ^ unit) + HALF_BYTES)
            raw[9 + 2 * half] = _four_bytes((far ^ unit) + HALF_BYTES)
    if eighth & 1 == 0:
        unit, offset = 16 * (eighth // 4), 4 * (eighth & 2)
        pairs[0], pairs[2] = ptx.ld_shared_v2_u32((first_scales ^ unit) + offset)
        pairs[1], pairs[3] = ptx.ld_shared_v2_u32((second_scales ^ unit) + offset)
    for o in unroll(4):
        # Word o is of step o / 2, row o % 2.
        low, at = raw[4 * (eighth & 1) + o], 8 * (eighth & 1) + 4 * (o // 2) + o % 2
        _numbers_q6_k(numbers, at, low, raw[8 + o], raw[12], eighth)


@device_function
@unrolled
def _finish_q6_k(a, numbers, pairs):
    """(q - 32) * scale, rounded once; a scale for each k16 step."""
    for i in unroll(4):
        for half in unroll(2):
            at = 8 * (i // 2) + i % 2 + 2 * half
            a[at] = ptx.hmul2_low(numbers[at], pairs[i])
            a[at + 4] = ptx.hmul2_high(numbers[at + 4], pairs[i])


FORMATS = {
    "Q4_K": PackedFormat(
        block_bytes=Q4_BYTES,
        folded=1,
        box_columns=Q4_BYTES,
        swizzle=0,
        halves=1,
        box_bytes=0,
        slot_bytes=ROWS * Q4_BYTES + QUARTERS * QUARTER_BYTES,
        words=4,
        magic=0,
        place=_place_q4_k,
        expand=_expand_q4_k,
        prepare=_prepare_q4_k,
        finish=_finish_q4_k,
    ),
    "Q6_K": PackedFormat(
        block_bytes=Q6_BYTES,
        folded=FOLDED,
        box_columns=LINE_BYTES,
        swizzle=128,
        halves=2,
        box_bytes=Q6_BOX_BYTES,
        slot_bytes=FOLDED * Q6_BOX_BYTES,
        words=13,
        magic=0x64646464,
        place=_place_q6_k,
        expand=_expand_q6_k,
        prepare=_prepare_q6_k,
        finish=_finish_q6_k,
    ),
}
