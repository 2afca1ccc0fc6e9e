"""What Hopper's TMA asks of a matrix and of the boxes that it is cut into."""

from __future__ import annotations

from minfer.arithmetic.counts import is_whole

ELEMENT_BYTES = {
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
}
"""The element types that tensor maps here have."""
SWIZZLES = (0, 32, 64, 128)
"""Bytes of the patterns that 16-byte units of a box are permuted in (PTX ISA 5.5.7); 0: none."""
_ALIGNMENT = 16
_BOX_SIDE = 256


def widest_box_row(dtype: str, swizzle: int) -> int:
    """Elements in a row of the widest box that a swizzle allows; without one, 16 bytes of them."""
    return (swizzle or _ALIGNMENT) // ELEMENT_BYTES.get(dtype, 1)


def check_tensor_map(
    dtype: str,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, int],
    swizzle: int,
) -> None:
    """Refuse (ValueError, with the number) what TMA does not take: PTX ISA 5.5 and cuTensorMapEncodeTiled.

    Args:
        dtype: element type. address: of the first element, in bytes.
        shape: rows and columns. strides: bytes from row to row and from column to column.
        box: rows and columns that one copy moves, in elements. swizzle: one of `SWIZZLES`.
    """
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"tensor maps of {dtype}: use one of {', '.join(ELEMENT_BYTES)}")
    size = ELEMENT_BYTES[dtype]
    if len(shape) != 2:
        raise ValueError(f"a tensor map here has 2 axes, the array has {len(shape)}: reshape it")
    if min(shape) < 1:
        raise ValueError(f"an array of shape {shape} is empty: a tensor map needs at least one element")
    if address % _ALIGNMENT:
        raise ValueError(f"the array starts at {address:#x}: a tensor map needs 16-byte alignment")
    row, column = strides
    if column != size:
        raise ValueError(f"columns {column} bytes apart: a tensor map needs rows of adjacent elements")
    if row < shape[1] * size:
        raise ValueError(f"rows {row} bytes apart overlap: a row of the array has {shape[1] * size} bytes")
    if row % _ALIGNMENT:
        raise ValueError(f"rows {row} bytes apart: a tensor map needs a multiple of 16")
    if swizzle not in SWIZZLES:
        raise ValueError(f"a swizzle of {swizzle} bytes: {', '.join(map(str, SWIZZLES))} exist")
    if not all(is_whole(side) and 1 <= side <= _BOX_SIDE for side in box):
        raise ValueError(f"a box of {box[0]} x {box[1]}: each side is 1 to {_BOX_SIDE} elements")
    if box[1] * size % _ALIGNMENT:
        raise ValueError(f"box rows of {box[1] * size} bytes: a tensor map needs a multiple of 16")
    if swizzle and box[1] * size > swizzle:
        raise ValueError(f"box rows of {box[1] * size} bytes do not fit the {swizzle}-byte swizzle")
