"""Tensor maps: what Hopper's TMA must know of an array in global memory."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from minfer.cuda.runtime import driver
from minfer.cuda.runtime.arrays import describe, itemsize


class TensorMap:
    """A CUtensorMap: how TMA sees a row-major 2-D array, in boxes. Passed to a kernel by value.

    Attributes:
        array: the array that it describes (kept alive); address: where the 128 bytes lie.
    """

    __slots__ = ("address", "array", "box", "handle", "swizzle")

    def __init__(self, handle: Any, array: Any, box: tuple[int, int], swizzle: int) -> None:
        self.handle, self.array, self.box, self.swizzle = handle, array, box, swizzle
        self.address = int(handle.getPtr())

    def __repr__(self) -> str:
        return f"TensorMap(box {self.box[0]}x{self.box[1]}, swizzle {self.swizzle}, over {self.array!r})"


SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
PROMOTIONS = {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}
_TENSOR_MAP_TYPES = {
    "uint8": ("UINT8", 1),
    "int8": ("UINT8", 1),
    "uint16": ("UINT16", 2),
    "int32": ("INT32", 4),
    "uint32": ("UINT32", 4),
    "float16": ("FLOAT16", 2),
    "bfloat16": ("BFLOAT16", 2),
    "float32": ("FLOAT32", 4),
}


def tensor_map(
    array: Any,
    box_rows: int,
    box_columns: int | None = None,
    swizzle: int = 128,
    *,
    dtype: str | None = None,
    row_bytes: int | None = None,
    promotion: int = 256,
) -> TensorMap:
    """A tensor map over a row-major 2-D array (cuTensorMapEncodeTiled).

    Args:
        array: `DeviceArray` or anything with `__cuda_array_interface__`, two axes.
        box_rows, box_columns: size of one TMA copy, in elements; columns default to what the swizzle spans.
        swizzle: 0, 32, 64 or 128 bytes; a box row may not be longer than it.
        dtype: element type, if not the array's own (bfloat16 in a uint16 array).
        row_bytes: distance of two rows, if it is not the columns' bytes.
        promotion: bytes that L2 fetches at least: 0, 64, 128 or 256.

    Out of range, loads give zeros and stores are dropped.

    Raises:
        ValueError: what the hardware does not allow, with the number (PTX ISA, "Tensor-map").
    """
    pointer, shape, name = describe(array)
    kind, size = _TENSOR_MAP_TYPES.get(dtype or name, (None, 0))
    if kind is None:
        raise ValueError(f"tensor maps of {dtype or name}: use one of {', '.join(_TENSOR_MAP_TYPES)}")
    if size != itemsize(name):
        raise ValueError(f"a tensor map of {dtype} over an array of {name}: the element sizes differ")
    box = (box_rows, (swizzle or 16) // size if box_columns is None else box_columns)
    if len(shape) != 2:
        raise ValueError(f"a tensor map here has 2 axes, the array has {len(shape)}: reshape it")
    stride = row_bytes or shape[1] * size
    if pointer % 16:
        raise ValueError(f"the array starts at {pointer:#x}: a tensor map needs 16-byte alignment")
    if min(shape) < 1:
        raise ValueError(f"an array of shape {shape} is empty: a tensor map needs at least one element")
    if stride < shape[1] * size:
        raise ValueError(f"rows {stride} bytes apart overlap: a row of the array has {shape[1] * size} bytes")
    if stride % 16:
        raise ValueError(f"rows of {stride} bytes: a tensor map needs a multiple of 16")
    if swizzle not in SWIZZLES:
        raise ValueError(f"a swizzle of {swizzle} bytes: 0, 32, 64 or 128 exist")
    if promotion not in PROMOTIONS:
        raise ValueError(f"a promotion of {promotion} bytes: 0, 64, 128 or 256 exist")
    if not all(isinstance(n, Integral) and 1 <= n <= 256 for n in box):
        raise ValueError(f"a box of {box[0]} x {box[1]}: each side is 1 to 256 elements")
    if (box[1] * size) % 16:
        raise ValueError(f"box rows of {box[1] * size} bytes: they must be a multiple of 16")
    if swizzle and box[1] * size > swizzle:
        raise ValueError(f"box rows of {box[1] * size} bytes do not fit the {swizzle}-byte swizzle")
    cu = driver.bindings()
    handle = driver.call(
        "cuTensorMapEncodeTiled",
        getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}"),
        2,
        pointer,
        [cu.cuuint64_t(shape[1]), cu.cuuint64_t(shape[0])],
        [cu.cuuint64_t(stride)],
        [cu.cuuint32_t(box[1]), cu.cuuint32_t(box[0])],
        [cu.cuuint32_t(1), cu.cuuint32_t(1)],
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[swizzle]}"),
        getattr(cu.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{PROMOTIONS[promotion]}"),
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        doing=f"making a tensor map of {shape} {kind} in boxes of {box}",
    )
    return TensorMap(handle, array, box, swizzle)
