"""Q4_K and Q6_K blocks in shared memory, as they are in the file, unpacked into wgmma's A fragments.

A consumer unpacks an eighth of a block, 32 weights a row, at a time. In a fragment of 16 columns of k, lane
4 g + t holds the columns 2t, 2t + 1, 2t + 8 and 2t + 9 of rows g and g + 8. Both formats keep the weights of
16 neighbouring k in 16 neighbouring bytes, so that two 16-bit loads bring a lane its four bytes, at any
2-byte aligned address, without bank conflicts, and the activations keep their natural order.

A small unsigned number becomes f16 without a conversion: OR-ed into the mantissa of 1024 (0x6400) it is
1024 + q, and the subtraction that follows is exact.

Unpacking goes in two steps. `prepare` makes the numbers q in registers of its own: it may run while the
tensor cores still read the fragments that will be overwritten. `finish` scales them into the fragments.
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
#: A row's f16 scales of a quarter of a Q4_K block, and those of all rows.
SCALE_BYTES = 8
QUARTER_BYTES = ROWS * SCALE_BYTES
SCALES_BYTES = 4 * QUARTER_BYTES
#: (a & b) | c
_AND_OR = 0xEA


@dataclass(frozen=True)
class PackedFormat:
    """How a block format goes through shared memory.

    Attributes:
        block_bytes: a block of 256 weights.
        pitch: bytes from a row's block to the next row's in shared memory.
        by_tma: the blocks of a tile are one TMA box (rows of whole 16 bytes); else cp.async copies the
            aligned chunks that a block lies in.
        words: registers of packed weights that `prepare` keeps from an eighth to the next.
        magic: a constant that `prepare` finds in the last of these, 0: none. The assembler must not know it:
            it would make it prmt's immediate operand, and copy the other constant, the selector, into a
            register before each of them.
        expand: (block, target): a row's scales as f16 to shared memory, `target` the row's place in the first
            quarter; None: `prepare` takes them from the block.
        prepare: (numbers, pairs, raw, first, second, byte, scales, apart, eighth): the f16 numbers of the
            words of A of two k16 steps, and the rows' scales; odd eighths to the second halves of both
            arrays. `first` and `second` are the shared addresses of the blocks of the lane's rows g and
            g + 8, `byte` is 2 t, `scales` the place of row g's expanded scales, the other row's are `apart`
            bytes behind. `raw` is a local array of `words`. Eighths come in order.
        finish: (a, numbers, pairs): the words of A of a quarter.
    """

    block_bytes: int
    pitch: int
    by_tma: bool
    words: int
    magic: int
    expand: DeviceFunction | None
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

#: The weight at which the rounding of a scale to f16 is made good by the minimum.
MIDDLE = 7.5


@device_function
def _scale_and_shift(d, minus, scales, minima, byte):
    """The sub-block's (scale, shift) as f16: a weight is q * scale + shift. The scale's rounding error is
    taken off the shift for a q in the middle."""
    exact = d * ptx.cvt_rn_f32_u32((scales >> (8 * byte)) & 255)
    scale = ptx.pack_f16x2(exact, float32(0))
    lost = (exact - ptx.unpack_f16x2_lo(scale)) * float32(MIDDLE)
    shift = minus * ptx.cvt_rn_f32_u32((minima >> (8 * byte)) & 255) + lost
    return ptx.pack_f16x2(exact, shift)


@device_function
def _expand_q4_k(block, target):
    h0, h1, h2, h3 = ptx.ld_shared_v4_u32(block)
    d, minus = ptx.unpack_f16x2_lo(h0), -ptx.unpack_f16x2_hi(h0)
    for late in range(2):
        scales, minima = uint32(h1 & 0x3F3F3F3F), uint32(h2 & 0x3F3F3F3F)
        if late:
            scales = uint32((h3 & 0x0F0F0F0F) | ((h1 >> 2) & 0x30303030))
            minima = uint32(((h3 >> 4) & 0x0F0F0F0F) | ((h2 >> 2) & 0x30303030))
        for pair in range(2):
            ptx.st_shared_v2_u32(
                target + (2 * late + pair) * QUARTER_BYTES,
                _scale_and_shift(d, minus, scales, minima, 2 * pair),
                _scale_and_shift(d, minus, scales, minima, 2 * pair + 1),
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
def _prepare_q4_k(numbers, pairs, raw, first, second, byte, scales, apart, eighth):
    """Two eighths share their bytes: the first takes low nibbles, the second high ones."""
    if eighth & 1 == 0:
        run = uint32(16 + 16 * eighth) + byte
        for half in unroll(2):
            raw[2 * half] = _four_bytes(first + run + 16 * half)
            raw[2 * half + 1] = _four_bytes(second + run + 16 * half)
        place = scales + QUARTER_BYTES * (eighth >> 1)
        pairs[0], pairs[2] = ptx.ld_shared_v2_u32(place)
        pairs[1], pairs[3] = ptx.ld_shared_v2_u32(place + apart)
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


# ---- Q6_K: 128 bytes of low nibbles, 64 bytes of two high bits, sixteen int8 scales, d


@device_function
def _two_scales(address, d, magic):
    """d times the two int8 at an address, as f16: 1024 + 128 + s without a conversion, minus 1152."""
    biased = ptx.prmt(ptx.ld_shared_u16(address), magic, 0x4140) ^ 0x00800080
    return ptx.hmul2(ptx.hadd2(biased, 0xE480E480), d)


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
def _prepare_q6_k(numbers, pairs, raw, first, second, byte, scales, apart, eighth):
    """Four eighths share their bytes: two take low nibbles, two high ones."""
    if eighth == 0:
        raw[12] = _both_low(ptx.ld_shared_u16(first + 208))
        raw[13] = _both_low(ptx.ld_shared_u16(second + 208))
    if eighth & 3 == 0:
        nibbles, bits = uint32(16 * eighth) + byte, uint32(128 + 8 * eighth) + byte
        for part in unroll(4):
            raw[2 * part] = _four_bytes(first + nibbles + 16 * part)
            raw[2 * part + 1] = _four_bytes(second + nibbles + 16 * part)
        for half in unroll(2):
            raw[8 + 2 * half] = _four_bytes(first + bits + 16 * half)
            raw[9 + 2 * half] = _four_bytes(second + bits + 16 * half)
    scale = uint32(192 + 2 * eighth)
    pairs[2 * (eighth & 1)] = _two_scales(first + scale, raw[12], raw[14])
    pairs[2 * (eighth & 1) + 1] = _two_scales(second + scale, raw[13], raw[14])
    for o in unroll(4):
        # Word o is of step o / 2, row o % 2.
        low, at = raw[4 * (eighth & 1) + o], 8 * (eighth & 1) + 4 * (o // 2) + o % 2
        _numbers_q6_k(numbers, at, low, raw[8 + o], raw[14], eighth)


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
    "Q4_K": PackedFormat(BLOCKS["Q4_K"].size, 144, True, 4, 0, _expand_q4_k, _prepare_q4_k, _finish_q4_k),
    # 15 chunks of 16 bytes apart, 14 of them copied: rows start 28 banks apart.
    "Q6_K": PackedFormat(BLOCKS["Q6_K"].size, 240, False, 15, 0x64646464, None, _prepare_q6_k, _finish_q6_k),
}
