"""int8 activations: how every producer quantizes them, and the two layouts that kernels read.

Activations are quantized in runs of 32 with one scale d each, q = x / d to the nearest integer, halves to
even, as in llama.cpp's q8_1.

**q8 records**, for the decode GEMV: 64 activations in 80 bytes, 64 int8 in their natural order, f32 scales d0
d1, f32 sums s0 s1 (s = d * sum of the int8), all little endian. The lanes of a warp that read runs 64 weights
apart then start 80 bytes apart: 20 banks, so that the 16-byte loads of 8 lanes touch every bank of shared
memory once, where a plain int8 array would conflict 4-way.

**pad40 chunks**, for MMQ (seed 003): 32 activations in 40 bytes, d as f16, two zero bytes, 32 int8 at byte 4,
the int32 sum of the int8 at byte 36. A chunk is what cp.async copies 8 bytes at a time and what an mma
fragment holds, word by word: nothing is unpacked. d here is exact (max|x| / 127 rounded to f16, by IEEE
divisions), so that every quantizer writes the same bits. A run whose scale f16 rounds to zero is stored as
zeros. Where the input is not finite, d is not either and the int8 are zero: what is multiplied with it
becomes NaN.
"""

from __future__ import annotations

from numba.cuda.types import float32, int32, uint32, uint64

from minfer.arithmetic.ledger import PAD40_BYTES
from minfer.cuda import ptx
from minfer.cuda.instruction import device_function

RUN = 32  # activations that share a scale
Q8_GROUP = 64  # activations a record covers
Q8_RECORD_BYTES = 80


def q8_record_bytes(dim: int) -> int:
    """Bytes of one token's q8 records for `dim` activations."""
    return -(-dim // Q8_GROUP) * Q8_RECORD_BYTES


def pad40_bytes(dim: int) -> int:
    """Bytes of one token's pad40 chunks for `dim` activations, a multiple of 32."""
    return dim // RUN * PAD40_BYTES


@device_function
def magnitude_bits(v):
    """|v| as its bit pattern: integer order is the order of magnitudes, and NaN is above everything."""
    return uint32(ptx.bitcast_u32_f32(v) & uint32(0x7FFFFFFF))


@device_function
def largest_bits(v0, v1, v2, v3):
    """The greatest of four magnitudes, as bits: a tree of two levels."""
    return max(max(magnitude_bits(v0), magnitude_bits(v1)), max(magnitude_bits(v2), magnitude_bits(v3)))


@device_function
def quantize_four(v0, v1, v2, v3, inverse):
    """(four int8 in a word, their sum) of four activations times 1 / d. No clamp is needed: |v| / max|v|
    times 127 rounds to 127 at most."""
    q0 = ptx.cvt_rni_s32_f32(v0 * inverse)
    q1 = ptx.cvt_rni_s32_f32(v1 * inverse)
    q2 = ptx.cvt_rni_s32_f32(v2 * inverse)
    q3 = ptx.cvt_rni_s32_f32(v3 * inverse)
    word = uint32((q0 & 255) | ((q1 & 255) << 8) | ((q2 & 255) << 16) | ((q3 & 255) << 24))
    return word, ptx.dp4a(word, uint32(0x01010101), 0)


@device_function
def over_four_lanes(largest):
    """The greatest over 4 neighbouring lanes."""
    largest = max(largest, ptx.shfl_xor_u32(largest, 1))
    return max(largest, ptx.shfl_xor_u32(largest, 2))


@device_function
def over_run(largest):
    """The greatest over the 8 neighbouring lanes that share a run of 32."""
    largest = over_four_lanes(largest)
    return max(largest, ptx.shfl_xor_u32(largest, 4))


@device_function
def sum_over_four_lanes(total):
    """The sum of an int32 over 4 neighbouring lanes, as u32."""
    total = uint32(total)
    total = uint32(total + ptx.shfl_xor_u32(total, 1))
    return uint32(total + ptx.shfl_xor_u32(total, 2))


@device_function
def sum_over_run(total):
    """The sum of an int32 over the 8 neighbouring lanes that share a run of 32, as u32."""
    total = sum_over_four_lanes(total)
    return uint32(total + ptx.shfl_xor_u32(total, 4))


@device_function
def quantize_run(v0, v1, v2, v3):
    """(word, scale, sum) of four activations: their int8, the scale of their run of 32 and scale * the sum of
    its int8. All 32 lanes call it, neighbouring lanes with neighbouring fours: 8 lanes share a run."""
    largest = over_run(largest_bits(v0, v1, v2, v3))
    top = ptx.bitcast_f32_u32(largest)
    inverse = float32(0)
    if largest != 0:
        inverse = float32(127) * ptx.rcp_approx(top)
    word, part = quantize_four(v0, v1, v2, v3, inverse)
    total = sum_over_run(part)
    scale = top * float32(1.0 / 127.0)
    return word, scale, scale * ptx.cvt_rn_f32_s32(int32(total))


@device_function
def store_q8(record, index, dim, v0, v1, v2, v3):
    """Quantize and store activations `index` .. `index + 3` (a multiple of 4) of a token of `dim`; `record`
    is the u64 address of the token's records. All 32 lanes call it, neighbouring lanes on neighbouring
    fours: 8 lanes share a run of 32. From `dim` to the end of the last record the values must be zero; past
    it nothing is stored. A NaN makes its run's scale NaN, an infinity makes it infinite."""
    word, scale, total = quantize_run(v0, v1, v2, v3)
    if index >= ((dim + 63) & -64):
        return
    base = record + uint64((index >> 6) * 80)
    ptx.st_global_u32(base + uint64(index & 63), word)
    if (index & 31) == 0:
        tail = base + uint64(64 + ((index & 32) >> 3))
        ptx.st_global_f32(tail, scale)
        ptx.st_global_f32(tail + uint64(8), total)


@device_function
def pad40_scale(largest):
    """(the first word of a chunk: d as f16 and zeros, 1 / d) of a run's greatest magnitude (bits)."""
    top = ptx.bitcast_f32_u32(largest)
    head = uint32(ptx.pack_f16x2(ptx.div_rn_f32(top, float32(127)), float32(0)))
    inverse = float32(0)
    if head != 0:
        inverse = ptx.div_rn_f32(float32(127), top)
    return head, inverse


@device_function
def store_pad40(row, index, dim, v0, v1, v2, v3):
    """As `store_q8`, into pad40 chunks; dim is a multiple of 32, `row` the u64 address of the token's
    chunks."""
    head, inverse = pad40_scale(over_run(largest_bits(v0, v1, v2, v3)))
    word, part = quantize_four(v0, v1, v2, v3, inverse)
    total = sum_over_run(part)
    if index >= dim:
        return
    chunk = row + uint64(index >> 5) * uint64(40)
    place = index & 31
    ptx.st_global_u32(chunk + uint64(4 + place), word)
    if place == 0:
        ptx.st_global_u32(chunk, head)
    if place == 28:
        ptx.st_global_u32(chunk + uint64(36), total)


@device_function
def store_pad40_of_eight(row, index, dim, v, o):
    """As `store_pad40`, of eight activations v[o ... o + 7] a lane (`index` a multiple of 8): 4 lanes share a
    run."""
    largest = max(
        largest_bits(v[o], v[o + 1], v[o + 2], v[o + 3]), largest_bits(v[o + 4], v[o + 5], v[o + 6], v[o + 7])
    )
    head, inverse = pad40_scale(over_four_lanes(largest))
    first, part = quantize_four(v[o], v[o + 1], v[o + 2], v[o + 3], inverse)
    second, other = quantize_four(v[o + 4], v[o + 5], v[o + 6], v[o + 7], inverse)
    total = sum_over_four_lanes(part + other)
    if index >= dim:
        return
    chunk = row + uint64(index >> 5) * uint64(40)
    place = index & 31
    ptx.st_global_u32(chunk + uint64(4 + place), first)
    ptx.st_global_u32(chunk + uint64(8 + place), second)
    if place == 0:
        ptx.st_global_u32(chunk, head)
    if place == 24:
        ptx.st_global_u32(chunk + uint64(36), total)
