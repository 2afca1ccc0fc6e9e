"""int8 activations of the token kernel: 256 in 384 bytes.

256 int8 in their natural order; 16 f32 scales, one a run of 16, q = x / scale; 16 f32 sums of the runs' int8
times their scales. A block of weights is multiplied with one such record. In runs of 16, 132 blocks can share
out the 18944 inputs of a 7B's down projection almost evenly (9 runs at most, 8.97 on average), so that
whoever makes an activation also quantizes it.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.elementwise.rows import warp_sum
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.q8 import largest_bits, quantize_four

RECORD_BYTES = 384
SCALES_AT, SUMS_AT = 256, 320
WEIGHTS = 256  # a block's
RUN = 16  # activations that share a scale


def record_bytes(dim: int) -> int:
    """Bytes of the records of `dim` activations, a multiple of 256."""
    return dim // WEIGHTS * RECORD_BYTES


@device_function
def quantize_run(v0, v1, v2, v3):
    """(word, scale, sum) of four activations: their int8, the scale of their run of 16, and its sum of int8
    times that. All 32 lanes call it, neighbouring lanes with neighbouring fours: 4 lanes share a run. A NaN
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
    return word, scale, scale * ptx.cvt_rn_f32_s32(int32(total))


@device_function
def store_record(records, index, dim, v0, v1, v2, v3):
    """Quantize and store activations `index` ... `index + 3` (a multiple of 4) of `dim` (a multiple of 16) at
    the u64 address of their first record. All 32 lanes call it, neighbouring lanes with neighbouring fours.
    Past `dim` nothing is stored."""
    word, scale, total = quantize_run(v0, v1, v2, v3)
    if index >= dim:
        return
    base = records + uint64((index >> 8) * RECORD_BYTES)
    ptx.st_global_u32(base + uint64(index & 255), word)
    if (index & 15) == 0:
        tail = base + uint64(SCALES_AT + ((index & 240) >> 2))
        ptx.st_global_f32(tail, scale)
        ptx.st_global_f32(tail + uint64(SUMS_AT - SCALES_AT), total)


@device_function
def store_record_shared(records, index, v0, v1, v2, v3):
    """As `store_record`, at a shared address."""
    word, scale, total = quantize_run(v0, v1, v2, v3)
    base = records + uint32((index >> 8) * RECORD_BYTES)
    ptx.st_shared_u32(base + uint32(index & 255), word)
    if (index & 15) == 0:
        tail = base + uint32(SCALES_AT + ((index & 240) >> 2))
        ptx.st_shared_f32(tail, scale)
        ptx.st_shared_f32(tail + uint32(SUMS_AT - SCALES_AT), total)


def make_copy(dim: int, threads: int) -> Callable:
    """Device function (records, source): records of `dim` activations from a global to a shared address, by
    `threads` threads. Plain loads: the copy engine does not see what another block has just written."""
    chunks = record_bytes(dim) // 16
    rounds = -(-chunks // threads)
    held = 4 * rounds

    @device_function
    @unrolled
    def copy(records, source):
        words = cuda.local.array(held, uint32)
        for i in unroll(rounds):
            at = int32(cuda.threadIdx.x) + int32(i * threads)
            if at < chunks:
                w0, w1, w2, w3 = ptx.ld_global_v4_u32(source + uint64(at) * uint64(16))
                words[i * 4] = w0
                words[i * 4 + 1] = w1
                words[i * 4 + 2] = w2
                words[i * 4 + 3] = w3
        for i in unroll(rounds):
            at = int32(cuda.threadIdx.x) + int32(i * threads)
            if at < chunks:
                place = records + uint32(at * 16)
                ptx.st_shared_v4_u32(
                    place, words[i * 4], words[i * 4 + 1], words[i * 4 + 2], words[i * 4 + 3]
                )

    return copy


def make_norm(dim: int, warps: int) -> tuple[Callable, Callable, int]:
    """Device functions (factors, gains) and (factors, records, scratch, x), and the length of the local f32
    array `factors`.

    The first loads what is there before the activations are; the second leaves the records of x times the
    gains at a shared address, and the warps' sums of x squared in `scratch`: 1 / rms is left to what is made
    of them."""
    threads = warps * 32
    fours = dim // 4
    rounds = -(-fours // threads)
    held = rounds * 4

    @device_function
    @unrolled
    def load(values, x):
        for i in unroll(rounds):
            four = int32(cuda.threadIdx.x) + int32(i * threads)
            if four < fours:
                v0, v1, v2, v3 = ptx.ld_global_v4_f32(x + uint64(four) * uint64(16))
                values[i * 4] = v0
                values[i * 4 + 1] = v1
                values[i * 4 + 2] = v2
                values[i * 4 + 3] = v3

    @device_function
    @unrolled
    def prepare(factors, gains):
        for i in unroll(rounds * 4):
            factors[i] = float32(0)
        load(factors, gains)

    @device_function
    @unrolled
    def norm(factors, records, scratch, x):
        values = cuda.local.array(held, float32)
        for i in unroll(rounds * 4):
            values[i] = float32(0)
        load(values, x)
        squares = float32(0)
        for i in unroll(rounds):
            four = int32(cuda.threadIdx.x) + int32(i * threads)
            for j in unroll(4):
                squares += values[i * 4 + j] * values[i * 4 + j]
                values[i * 4 + j] *= factors[i * 4 + j]
            if four < fours:
                store_record_shared(
                    records,
                    four * 4,
                    values[i * 4],
                    values[i * 4 + 1],
                    values[i * 4 + 2],
                    values[i * 4 + 3],
                )
        squares = warp_sum(squares)
        if ptx.lane_id() == 0:
            ptx.st_shared_f32(scratch + uint32((int32(cuda.threadIdx.x) >> 5) * 4), squares)

    return prepare, norm, held
