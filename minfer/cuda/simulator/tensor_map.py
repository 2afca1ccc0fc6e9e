"""Tensor maps for the simulator: a matrix in global memory, cut into boxes for TMA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minfer.cuda.simulator.errors import InvalidInstruction
from minfer.cuda.simulator.memory import offset_in_memory
from minfer.cuda.tensor_map_rules import check_tensor_map, widest_box_row


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A row-major matrix and the box that one TMA instruction moves.

    Attributes:
        array: the matrix, (rows, columns), each row contiguous, rows a multiple of 16 bytes apart.
        box_rows, box_columns: size of the box, in elements.
        swizzle: 0, 32, 64 or 128: bytes of the pattern that 16-byte units are permuted in (PTX ISA 5.5.7).

    What TMA does not take is refused (`check_tensor_map`).
    """

    array: np.ndarray
    box_rows: int
    box_columns: int
    swizzle: int

    def __post_init__(self) -> None:
        array = self.array
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a tensor map is of a NumPy array, not of {type(array).__name__}")
        if not array.dtype.isnative:
            raise TypeError(f"the array's {array.dtype} are in the other byte order: convert them")
        check_tensor_map(
            array.dtype.name,
            offset_in_memory(array),
            array.shape,
            array.strides,
            (self.box_rows, self.box_columns),
            self.swizzle,
        )

    @property
    def box_row_bytes(self) -> int:
        return self.box_columns * self.array.itemsize

    @property
    def box_bytes(self) -> int:
        return self.box_rows * self.box_row_bytes

    def _overlap(self, x: int, y: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
        """The part of the box at column x, row y that lies in the matrix: (in the matrix, in the box).

        Raises InvalidInstruction for a column that is no multiple of 16 bytes, as an H200 does."""
        if x * self.array.itemsize % 16:
            raise InvalidInstruction(
                f"a box at column {x} of {self.array.dtype}: TMA needs a multiple of 16 bytes"
            )
        rows, columns = self.array.shape
        top, bottom = max(0, y), max(0, y, min(rows, y + self.box_rows))
        left, right = max(0, x), max(0, x, min(columns, x + self.box_columns))
        return (
            (slice(top, bottom), slice(left, right)),
            (slice(top - y, bottom - y), slice(left - x, right - x)),
        )

    def read_box(self, x: int, y: int) -> np.ndarray:
        """The box at column x, row y as bytes, row by row; zeros outside the matrix."""
        box = np.zeros((self.box_rows, self.box_columns), self.array.dtype)
        inside, part = self._overlap(x, y)
        box[part] = self.array[inside]
        return box.reshape(-1).view(np.uint8)

    def write_box(self, x: int, y: int, data: np.ndarray) -> None:
        """Store a box of bytes at column x, row y; what lies outside the matrix is dropped."""
        box = np.ascontiguousarray(data).reshape(-1).view(self.array.dtype)
        inside, part = self._overlap(x, y)
        self.array[inside] = box.reshape(self.box_rows, self.box_columns)[part]

    def add_box(self, x: int, y: int, data: np.ndarray) -> None:
        """Add a box of bytes to what is at column x, row y; what lies outside the matrix is dropped."""
        box = np.ascontiguousarray(data).reshape(-1).view(self.array.dtype)
        inside, part = self._overlap(x, y)
        self.array[inside] += box.reshape(self.box_rows, self.box_columns)[part]


def tensor_map(
    array: np.ndarray, box_rows: int, box_columns: int | None = None, swizzle: int = 128
) -> TensorMap:
    """A `TensorMap` of boxes of `box_rows` rows by `box_columns` columns (default: as many as the swizzle
    spans)."""
    if box_columns is None:
        box_columns = widest_box_row(array.dtype.name, swizzle)
    return TensorMap(array, box_rows, box_columns, swizzle)


def swizzle_units(units: np.ndarray, swizzle: int) -> np.ndarray:
    """Where 16-byte units of shared memory (address / 16) lie under a swizzle of 0, 32, 64 or 128 bytes.

    Bits 4 ff of an address are XORed with bits 7 ff: one, two or three of them (PTX ISA 5.5.7, "Swizzling
    modes").
    """
    return units ^ ((units >> 3) & (swizzle // 16 - 1 if swizzle else 0))
