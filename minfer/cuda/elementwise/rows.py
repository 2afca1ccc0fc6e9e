"""What the row-wise kernels share: sums over a block, and stores in the dtype that the next kernel
reads."""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument
from minfer.cuda.q8 import store_pad40, store_q8

OUTPUTS = ("f32", "f16", "q8")  # what the kernels of a single token can write
ROW_OUTPUTS = (*OUTPUTS, "pad40")  # and those of many
_DTYPES = {"f32": "float32", "f16": "float16", "q8": "uint8", "pad40": "uint8"}


def output_argument(output: str, name: str = "out") -> Argument:
    """The output argument of a kernel that writes "f32", "f16", or the int8 of `minfer.cuda.q8`: "q8"
    records, "pad40" chunks."""
    return Argument(name, "out", _DTYPES[output])


@device_function
def _store4_f32(row, index, dim, v0, v1, v2, v3):
    if index < dim:
        ptx.st_global_v4_f32(row + uint64(index) * uint64(4), v0, v1, v2, v3)


@device_function
def _store4_f16(row, index, dim, v0, v1, v2, v3):
    if index < dim:
        target = row + uint64(index) * uint64(2)
        ptx.st_global_v2_u32(target, ptx.pack_f16x2(v0, v1), ptx.pack_f16x2(v2, v3))


def store4(output: str) -> Callable:
    """Device function (row address, index, dim, v0, v1, v2, v3) that stores elements index .. index + 3 of
    a row of `dim`; at or past the row's end nothing is stored. For "q8" and "pad40" the whole warp must call
    it, with zeros past the end, up to the end of the last record (`store_q8`)."""
    return {"f32": _store4_f32, "f16": _store4_f16, "q8": store_q8, "pad40": store_pad40}[output]


@device_function
def _load4_f32(address):
    return ptx.ld_global_v4_f32(address)


@device_function
def _load4_f16(address):
    low, high = ptx.ld_global_v2_u32(address)
    return (
        ptx.unpack_f16x2_lo(low),
        ptx.unpack_f16x2_hi(low),
        ptx.unpack_f16x2_lo(high),
        ptx.unpack_f16x2_hi(high),
    )


def load4(source: str) -> Callable:
    """Device function (address) -> four neighbouring elements, "f32" or "f16", as f32. Not through the
    read-only path: the buffer may be an output too, or the end of a kernel that still runs (`dependent`)."""
    return {"f32": _load4_f32, "f16": _load4_f16}[source]


@device_function
def load8_f16(values, o, address):
    """Eight neighbouring f16 into values[o ... o + 7] as f32."""
    w0, w1, w2, w3 = ptx.ld_global_v4_u32(address)
    values[o], values[o + 1] = ptx.unpack_f16x2_lo(w0), ptx.unpack_f16x2_hi(w0)
    values[o + 2], values[o + 3] = ptx.unpack_f16x2_lo(w1), ptx.unpack_f16x2_hi(w1)
    values[o + 4], values[o + 5] = ptx.unpack_f16x2_lo(w2), ptx.unpack_f16x2_hi(w2)
    values[o + 6], values[o + 7] = ptx.unpack_f16x2_lo(w3), ptx.unpack_f16x2_hi(w3)


@device_function
def _row_bytes_f32(dim):
    return uint64(dim) * uint64(4)


@device_function
def _row_bytes_f16(dim):
    return uint64(dim) * uint64(2)


@device_function
def _row_bytes_q8(dim):
    return uint64((dim + 63) >> 6) * uint64(80)


@device_function
def _row_bytes_pad40(dim):
    return uint64(dim >> 5) * uint64(40)


def row_bytes(output: str) -> Callable:
    """Device function: bytes of an output row of `dim` elements."""
    functions = {"f32": _row_bytes_f32, "f16": _row_bytes_f16, "q8": _row_bytes_q8, "pad40": _row_bytes_pad40}
    return functions[output]


def covered(output: str) -> Callable:
    """Device function: the elements that a row of `dim` must be walked to: q8 records are written whole."""
    return _whole_records if output == "q8" else _as_it_is


@device_function
def _whole_records(dim):
    return int32((dim + 63) & -64)


@device_function
def _as_it_is(dim):
    return int32(dim)


@device_function
def warp_sum(v):
    """The sum of v over the warp, in every lane, in one fixed order."""
    v += ptx.shfl_xor_f32(v, 16)
    v += ptx.shfl_xor_f32(v, 8)
    v += ptx.shfl_xor_f32(v, 4)
    v += ptx.shfl_xor_f32(v, 2)
    v += ptx.shfl_xor_f32(v, 1)
    return v


def block_sum(warps: int) -> Callable:
    """Device function (v, shared address of `warps` floats): the sum over the block, in every thread. One
    barrier; the scratch must not be reused before another."""

    @device_function
    def total(v, scratch):
        v = warp_sum(v)
        thread = int32(cuda.threadIdx.x)
        if (thread & 31) == 0:
            ptx.st_shared_f32(scratch + uint32((thread >> 5) * 4), v)
        cuda.syncthreads()
        v = float32(0)
        for w in range(warps):
            v += ptx.ld_shared_f32(scratch + uint32(w * 4))
        return v

    return total
