"""Tensor maps: what Hopper's TMA must know of an array in global memory."""

from __future__ import annotations

import math
from typing import Any

from minfer.cuda.runtime import driver
from minfer.cuda.runtime.arrays import describe, itemsize
from minfer.cuda.tensor_map_rules import ELEMENT_BYTES, check_tensor_map, widest_box_row


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


PROMOTIONS = {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}


def tensor_map(
    array: Any,
    box_rows: int,
    box_columns: int | None = None,
    swizzle: int = 128,
    *,
    dtype: str | None = None,
    row_bytes: int | None = None,
    promotion: int | None = None,
) -> TensorMap:
    """A tensor map over a row-major 2-D array (cuTensorMapEncodeTiled).

    Args:
        array: `DeviceArray` or anything with `__cuda_array_interface__`, two axes.
        box_rows, box_columns: size of one TMA copy, in elements; columns default to what the swizzle spans.
        swizzle: 0, 32, 64 or 128 bytes; a box row may not be longer than it.
        dtype: element type, if not the array's own (bfloat16 in a uint16 array).
        row_bytes: distance of two rows, if it is not the columns' bytes.
        promotion: bytes that L2 fetches at least: 0, 64, 128 or 256; None: what a row of a box needs. (256
            for rows of 128 bytes made L2 look up a fourth more: the Hopper GEMM took 0.4 to 2 percent longer
            at 512 tokens, measured on an H200.)

    Out of range, loads give zeros and stores are dropped.

    Raises:
        ValueError: what the hardware does not allow, with the number (PTX ISA, "Tensor-map").
    """
    pointer, shape, name = describe(array)
    element, size = dtype or name, itemsize(name)
    if ELEMENT_BYTES.get(element, size) != size:
        raise ValueError(f"a tensor map of {element} over an array of {name}: the element sizes differ")
    stride = row_bytes or math.prod(shape[1:]) * size
    box = (box_rows, widest_box_row(element, swizzle) if box_columns is None else box_columns)
    check_tensor_map(element, pointer, shape, (stride, size), box, swizzle)
    if promotion is None:
        promotion = min(256, max(64, 1 << (box[1] * size - 1).bit_length()))
    if promotion not in PROMOTIONS:
        raise ValueError(f"a promotion of {promotion} bytes: 0, 64, 128 or 256 exist")
    kind = "UINT8" if element == "int8" else element.upper()
    pattern = f"{swizzle}B" if swizzle else "NONE"
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
        getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{pattern}"),
        getattr(cu.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{PROMOTIONS[promotion]}"),
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        doing=f"making a tensor map of {shape} {kind} in boxes of {box}",
    )
    return TensorMap(handle, array, box, swizzle)
