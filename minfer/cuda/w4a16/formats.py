"""Q4_K and Q6_K blocks in shared memory, as they are in the file, unpacked into wgmma's A fragments.

Two parties share the work. The warps that bring the blocks turn every row's packed scales into f16 once a
block (`scales`); a consumer then only unpacks weights (`fragments`), a quarter of a block (64 weights) at a
time.

In a fragment of 16 columns of k, lane 4 g + t holds the columns 2t, 2t + 1, 2t + 8 and 2t + 9 of rows g and
g + 8. Both formats keep the weights of 16 neighbouring k in 16 neighbouring bytes, so that two 16-bit loads
bring a lane its four bytes, at any 2-byte aligned address, without bank conflicts, and the activations keep
their natural order.

A small unsigned number becomes f16 without a conversion: OR-ed into the mantissa of 1024 (0x6400) it is
1024 + q, and the subtraction that follows is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba.cuda.types import int32, uint32

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled

#: Weight rows (outputs) of a tile.
ROWS = 128
QUARTERS = 4
#: A row's f16 scales of a quarter of a block, and those of all rows.
SCALE_BYTES = 8
QUARTER_BYTES = ROWS * SCALE_BYTES
SCALES_BYTES = QUARTERS * QUARTER_BYTES
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
        words: registers of packed weights that a consumer keeps from a quarter to the next.
        scales: (block, target): a row's scales as f16 to shared memory, `target` the row's place in the first
            quarter.
        fragments: (a, raw, first, second, scales, apart, quarter): the 16 words of A of four k16 steps;
            `first` and `second` are the shared addresses of the blocks of the lane's rows g and g + 8, plus
            2 t, `scales` that of row g's scales, the other row's are `apart` bytes behind them. `raw` is a
            local array of `words`. Quarters come in order.
    """

    block_bytes: int
    pitch: int
    by_tma: bool
    words: int
    scales: DeviceFunction
    fragments: DeviceFunction


@device_function
def _four_bytes(address):
    """The lane's bytes 2t, 2t + 8, 2t + 1, 2t + 9 of a run of 16, in this order, from the address of byte
    2t."""
    return ptx.prmt(ptx.ld_shared_u16(address), ptx.ld_shared_u16(address + 8), 0x5140)


@device_function
def _both_low(pair):
    return ptx.prmt(pair, pair, 0x1010)


@device_function
def _both_high(pair):
    return ptx.prmt(pair, pair, 0x3232)


# ---- Q4_K: d, dmin, eight 6-bit scales and minima in 12 bytes, four runs of 32 bytes, each two sub-blocks

_and_or = ptx.lop3(_AND_OR)


@device_function
def _scaled_pair(d, minus, scales, minima, shift):
    """(d * scale, -dmin * minimum) of the sub-block in byte `shift` / 8."""
    scale, minimum = (scales >> shift) & 255, (minima >> shift) & 255
    return ptx.pack_f16x2(d * ptx.cvt_rn_f32_u32(scale), minus * ptx.cvt_rn_f32_u32(minimum))


@device_function
def _scales_q4_k(block, target):
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
                _scaled_pair(d, minus, scales, minima, 16 * pair),
                _scaled_pair(d, minus, scales, minima, 16 * pair + 8),
            )


@device_function
def _low_nibbles(word, scale, minimum):
    """q * scale + minimum for the low nibbles of bytes 0 and 2; one rounding."""
    number = ptx.hadd2(_and_or(word, 0x000F000F, 0x64006400), 0xE400E400)
    return ptx.hfma2(number, scale, minimum)


@device_function
def _high_nibbles(word, scale, minimum):
    """The same for the high nibbles: 1024 + 16 q, times 1/16, minus 64."""
    number = ptx.hfma2(_and_or(word, 0x00F000F0, 0x64006400), 0x2C002C00, 0xD400D400)
    return ptx.hfma2(number, scale, minimum)


@device_function
def _unpack_q4_k(a, o, word, low, high):
    """Four bytes of a row: two words of the k16 step at `o`, two of the one half a quarter later."""
    late = uint32(word) >> 8
    scale, minimum = _both_low(low), _both_high(low)
    a[o] = _low_nibbles(word, scale, minimum)
    a[o + 2] = _low_nibbles(late, scale, minimum)
    scale, minimum = _both_low(high), _both_high(high)
    a[o + 8] = _high_nibbles(word, scale, minimum)
    a[o + 10] = _high_nibbles(late, scale, minimum)


@device_function
@unrolled
def _fragments_q4_k(a, raw, first, second, scales, apart, quarter):
    run = uint32(16 + 32 * quarter)
    for half in unroll(2):
        raw[2 * half] = _four_bytes(first + run + 16 * half)
        raw[2 * half + 1] = _four_bytes(second + run + 16 * half)
    place = scales + QUARTER_BYTES * quarter
    low0, high0 = ptx.ld_shared_v2_u32(place)
    low1, high1 = ptx.ld_shared_v2_u32(place + apart)
    for half in unroll(2):
        _unpack_q4_k(a, 4 * half, raw[2 * half], low0, high0)
        _unpack_q4_k(a, 4 * half + 1, raw[2 * half + 1], low1, high1)


# ---- Q6_K: 128 bytes of low nibbles, 64 bytes of two high bits, sixteen int8 scales, d


@device_function
def _signed(byte):
    return ptx.cvt_rn_f32_s32(int32((byte & 255) ^ 128) - 128)


@device_function
def _scales_q6_k(block, target):
    d = ptx.unpack_f16x2_lo(ptx.ld_shared_u16(block + 208))
    for quarter in range(QUARTERS):
        near = ptx.ld_shared_u16(block + 192 + 4 * quarter)
        far = ptx.ld_shared_u16(block + 194 + 4 * quarter)
        ptx.st_shared_v2_u32(
            target + quarter * QUARTER_BYTES,
            ptx.pack_f16x2(d * _signed(near), d * _signed(near >> 8)),
            ptx.pack_f16x2(d * _signed(far), d * _signed(far >> 8)),
        )


@device_function
def _unpack_q6_k(a, o, low, high, quarter, sub_block, scale):
    """Four bytes of a row: the two words of a k16 step."""
    number = uint32(low) & 0x0F0F0F0F
    bits = uint32(high) << (4 - 2 * sub_block)
    if quarter & 1:
        number = (uint32(low) >> 4) & 0x0F0F0F0F
        bits = uint32(high) >> (2 * sub_block)
    number = number | (bits & 0x30303030)
    near = _and_or(number, 0x00FF00FF, 0x64006400)
    far = ptx.prmt(number, 0x64646464, 0x4341)
    a[o] = ptx.hmul2(ptx.hadd2(near, 0xE420E420), scale)
    a[o + 2] = ptx.hmul2(ptx.hadd2(far, 0xE420E420), scale)


@device_function
@unrolled
def _fragments_q6_k(a, raw, first, second, scales, apart, quarter):
    """Two quarters share their bytes: the first takes low nibbles, the second high ones."""
    if quarter & 1 == 0:
        low, high = uint32(32 * quarter), uint32(128 + 16 * quarter)
        for part in unroll(4):
            raw[2 * part] = _four_bytes(first + low + 16 * part)
            raw[2 * part + 1] = _four_bytes(second + low + 16 * part)
        for half in unroll(2):
            raw[8 + 2 * half] = _four_bytes(first + high + 16 * half)
            raw[9 + 2 * half] = _four_bytes(second + high + 16 * half)
    place = scales + QUARTER_BYTES * quarter
    for row in unroll(2):
        near, far = ptx.ld_shared_v2_u32(place + apart * row)
        _unpack_q6_k(a, row, raw[row], raw[8 + row], quarter, 0, _both_low(near))
        _unpack_q6_k(a, 4 + row, raw[2 + row], raw[10 + row], quarter, 0, _both_high(near))
        _unpack_q6_k(a, 8 + row, raw[4 + row], raw[8 + row], quarter, 1, _both_low(far))
        _unpack_q6_k(a, 12 + row, raw[6 + row], raw[10 + row], quarter, 1, _both_high(far))


FORMATS = {
    "Q4_K": PackedFormat(BLOCKS["Q4_K"].size, 144, True, 4, _scales_q4_k, _fragments_q4_k),
    # 15 chunks of 16 bytes apart, 14 of them copied: rows start 28 banks apart.
    "Q6_K": PackedFormat(BLOCKS["Q6_K"].size, 240, False, 12, _scales_q6_k, _fragments_q6_k),
}
