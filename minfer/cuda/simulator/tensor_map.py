"""Tensor maps for the simulator: a matrix in global memory, cut into boxes for TMA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A row-major matrix and the box that one TMA instruction moves.

    Attributes:
        array: the matrix, (rows, columns), C-contiguous.
        box_rows, box_columns: size of the box, in elements.
        swizzle: 0, 32, 64 or 128: bytes of the pattern that 16-byte units are permuted in (PTX ISA 5.5.5).
    """

    array: np.ndarray
    box_rows: int
    box_columns: int
    swizzle: int

    def __post_init__(self) -> None:
        array = self.array
        if array.ndim != 2 or not array.flags.c_contiguous:
            raise ValueError(f"a tensor map needs a C-contiguous matrix, not shape {array.shape}")
        if self.swizzle not in (0, 32, 64, 128):
            raise ValueError(f"swizzle {self.swizzle}; 0, 32, 64 or 128 bytes exist")
        if not (1 <= self.box_rows <= 256 and 1 <= self.box_columns <= 256):
            raise ValueError(f"a box of {self.box_rows} x {self.box_columns}; each side is 1 to 256 elements")
        if array.shape[1] * array.itemsize % 16:
            raise ValueError(f"rows of {array.shape[1] * array.itemsize} bytes; TMA needs a multiple of 16")
        if self.box_row_bytes % 16:
            raise ValueError(f"box rows of {self.box_row_bytes} bytes; TMA needs a multiple of 16")
        if self.swizzle and self.box_row_bytes > self.swizzle:
            raise ValueError(f"box rows of {self.box_row_bytes} bytes; a swizzle of {self.swizzle} allows that many")

    @property
    def box_row_bytes(self) -> int:
        return self.box_columns * self.array.itemsize

    @property
    def box_bytes(self) -> int:
        return self.box_rows * self.box_row_bytes


def tensor_map(
    array: np.ndarray, box_rows: int, box_columns: int | None = None, swizzle: int = 128
) -> TensorMap:
    """A `TensorMap` of boxes of `box_rows` rows by `box_columns` columns (default: as many as the swizzle spans)."""
    if box_columns is None:
        box_columns = (swizzle or 16) // array.itemsize
    return TensorMap(array, box_rows, box_columns, swizzle)
