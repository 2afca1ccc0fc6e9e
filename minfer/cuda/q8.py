"""q8 activation records: what the decode GEMV multiplies with, and how every producer writes them.

A token's activations are int8 in runs of 32 with one f32 scale each (llama.cpp's q8_1 with f32 scales). 64
of them make a record of 80 bytes: 64 int8 in their natural order, scales d0 d1, sums s0 s1 (s = d * sum of
the int8), all little endian. The lanes of a warp that read runs 64 weights apart then start 80 bytes apart:
20 banks, so that the 16-byte loads of 8 lanes touch every bank of shared memory once, where a plain int8
array would conflict 4-way.
"""

from __future__ import annotations

from numba.cuda.types import float32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function

Q8_GROUP = 64  # activations a record covers
Q8_RECORD_BYTES = 80


def q8_record_bytes(dim: int) -> int:
    """Bytes of one token's q8 records for `dim` activations."""
    return -(-dim // Q8_GROUP) * Q8_RECORD_BYTES


@device_function
def magnitude_bits(v):
    """|v| as its bit pattern: integer order is the order of magnitudes, and NaN is above everything."""
    return uint32(ptx.bitcast_u32_f32(v) & uint32(0x7FFFFFFF))


@device_function
def quantize_run(v0, v1, v2, v3):
    """(word, scale, sum) of four activations: their int8, the scale of their run of 32 and scale * the sum of
    its int8. All 32 lanes call it, neighbouring lanes with neighbouring fours: 8 lanes share a run."""
    largest = max(max(magnitude_bits(v0), magnitude_bits(v1)), max(magnitude_bits(v2), magnitude_bits(v3)))
    largest = max(largest, ptx.shfl_xor_u32(largest, 1))
    largest = max(largest, ptx.shfl_xor_u32(largest, 2))
    largest = max(largest, ptx.shfl_xor_u32(largest, 4))
    top = ptx.bitcast_f32_u32(largest)
    inverse = float32(0)
    if largest != 0:
        inverse = float32(127) * ptx.rcp_approx(top)
    q0 = ptx.cvt_rni_s32_f32(v0 * inverse)
    q1 = ptx.cvt_rni_s32_f32(v1 * inverse)
    q2 = ptx.cvt_rni_s32_f32(v2 * inverse)
    q3 = ptx.cvt_rni_s32_f32(v3 * inverse)
    total = ptx.cvt_rn_f32_s32(q0 + q1 + q2 + q3)
    total += ptx.shfl_xor_f32(total, 1)
    total += ptx.shfl_xor_f32(total, 2)
    total += ptx.shfl_xor_f32(total, 4)
    scale = top * float32(1.0 / 127.0)
    word = (q0 & 255) | ((q1 & 255) << 8) | ((q2 & 255) << 16) | ((q3 & 255) << 24)
    return uint32(word), scale, scale * total


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
def store_q8_shared(record, index, v0, v1, v2, v3):
    """As `store_q8`, to records at a shared address, of a token whose end is a multiple of 128."""
    word, scale, total = quantize_run(v0, v1, v2, v3)
    base = record + uint32((index >> 6) * 80)
    ptx.st_shared_u32(base + uint32(index & 63), word)
    if (index & 31) == 0:
        tail = base + uint32(64 + ((index & 32) >> 3))
        ptx.st_shared_f32(tail, scale)
        ptx.st_shared_f32(tail + uint32(8), total)
