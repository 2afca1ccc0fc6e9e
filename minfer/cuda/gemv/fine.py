"""Fine records: the int8 activations of the fused decode step.

As q8 records (`minfer.cuda.q8`), with runs of 16 instead of 32: 64 activations in 96 bytes, 64 int8 in their
natural order, 4 f32 scales, 4 f32 sums (scale * the sum of the int8). 132 blocks can then share out the 18944
inputs of a 7B's down projection in whole runs and almost evenly (9 runs at most, 8.97 on average; in runs of
32 it would be 5 and 4.48), so that whoever makes an activation also quantizes it.
"""

from __future__ import annotations

from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function
from minfer.cuda.q8 import Q8_GROUP, largest_bits, quantize_four

FINE_RUN = 16
FINE_RECORD_BYTES = 96


def fine_record_bytes(dim: int) -> int:
    """Bytes of one token's records for `dim` activations, a multiple of 64."""
    return dim // Q8_GROUP * FINE_RECORD_BYTES


@device_function
def quantize_fine(v0, v1, v2, v3):
    """(word, scale, sum) of four activations: their int8, the scale of their run of 16, and the sum of its
    int8. All 32 lanes call it, neighbouring lanes with neighbouring fours: 4 lanes share a run. A NaN
    makes its run's scale NaN, an infinity makes it infinite."""
    largest = largest_bits(v0, v1, v2, v3)
    largest = max(largest, ptx.shfl_xor_u32(largest, 1))
    largest = max(largest, ptx.shfl_xor_u32(largest, 2))
    top = ptx.bitcast_f32_u32(largest)
    inverse = float32(0)
    if largest != 0:
        inverse = float32(127) * ptx.rcp_approx(top)
    word, part = quantize_four(v0, v1, v2, v3, inverse)
    total = uint32(part)
    total = uint32(total + ptx.shfl_xor_u32(total, 1))
    total = uint32(total + ptx.shfl_xor_u32(total, 2))
    scale = top * float32(1.0 / 127.0)
    return word, scale, ptx.cvt_rn_f32_s32(int32(total))


@device_function
def store_fine(record, index, dim, v0, v1, v2, v3):
    """Quantize and store activations `index` ... `index + 3` (a multiple of 4) of a token of `dim` (a
    multiple of 16); `record` is the u64 address of the token's records. Past `dim` nothing is stored."""
    word, scale, total = quantize_fine(v0, v1, v2, v3)
    if index >= dim:
        return
    base = record + uint64((index >> 6) * FINE_RECORD_BYTES)
    ptx.st_global_u32(base + uint64(index & 63), word)
    if (index & 15) == 0:
        tail = base + uint64(64 + ((index & 48) >> 2))
        ptx.st_global_f32(tail, scale)
        ptx.st_global_f32(tail + uint64(16), scale * total)


@device_function
def store_fine_shared(record, index, v0, v1, v2, v3):
    """As `store_fine`, to records at a shared address."""
    word, scale, total = quantize_fine(v0, v1, v2, v3)
    base = record + uint32((index >> 6) * FINE_RECORD_BYTES)
    ptx.st_shared_u32(base + uint32(index & 63), word)
    if (index & 15) == 0:
        tail = base + uint32(64 + ((index & 48) >> 2))
        ptx.st_shared_f32(tail, scale)
        ptx.st_shared_f32(tail + uint32(16), scale * total)
