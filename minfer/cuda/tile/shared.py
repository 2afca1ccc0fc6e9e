"""Shared-memory tiles as values: how many rows, how wide, and where each byte lies.

Shared memory has 32 banks of 4 bytes. The eight 16-byte rows that one phase of `ldmatrix` reads are
conflict-free if they fall on the eight different 16-byte columns of a 128-byte line. Rows of 128 or 256 bytes
do not by themselves: either `padding` moves each row on, or `swizzle` permutes the 16-byte chunks within a
row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from minfer.cuda.checks import check_types
from minfer.cuda.instruction import DeviceFunction, device_function
from minfer.cuda.kernel import ConfigRefused

CHUNK = 16
LINE = 128


@dataclass(frozen=True)
class SharedTile:
    """`rows` rows of `row_bytes` bytes, each followed by `padding` bytes, or with chunks XORed within
    `swizzle` bytes.

    The swizzle of 128, 64 or 32 bytes is the one that TMA and wgmma know by that name when `row_bytes` equals
    it and the tile starts at a multiple of 1024 bytes: 16-byte chunk c of row r lies at chunk c ^ (r / rows a
    line) of its span. Raises ConfigRefused for a tile whose rows are not whole chunks or do not fit the
    swizzle."""

    rows: int
    row_bytes: int
    padding: int = 0
    swizzle: int = 0

    def __post_init__(self):
        check_types("shared tile", self)
        whole = self.row_bytes % CHUNK == 0 and self.padding % CHUNK == 0
        if self.rows < 1 or self.row_bytes < CHUNK or self.padding < 0 or not whole:
            raise ConfigRefused(
                f"shared tile: {self.rows} rows of {self.row_bytes} + {self.padding} bytes: take at least "
                f"one row; rows (from {CHUNK}) and padding (from 0) must be multiples of {CHUNK} bytes"
            )
        if self.swizzle:
            fits = self.row_bytes % LINE == 0 or LINE % self.row_bytes == 0
            if self.swizzle not in (32, 64, 128) or self.padding or self.row_bytes % self.swizzle or not fits:
                raise ConfigRefused(
                    f"shared tile: swizzle {self.swizzle}, rows of {self.row_bytes} + {self.padding} bytes: "
                    "use 32, 64 or 128, no padding, rows that are a multiple of it and divide, or are a "
                    "multiple of, 128"
                )

    @property
    def stride(self) -> int:
        """Bytes from a row to the next."""
        return self.row_bytes + self.padding

    @property
    def size_bytes(self) -> int:
        """Bytes of shared memory that the tile occupies."""
        return self.rows * self.stride

    @functools.cached_property
    def address(self) -> DeviceFunction:
        """(row, byte in the row) -> byte offset from the tile's start; ordinary Python, and callable in
        kernels."""
        stride = self.stride
        if not self.swizzle:

            @device_function
            def address(row, byte):
                return row * stride + byte

            return address
        mask = self.swizzle // CHUNK - 1
        shift = max(LINE // self.row_bytes, 1).bit_length() - 1

        @device_function
        def address(row, byte):
            return row * stride + (byte ^ (((row >> shift) & mask) << 4))

        return address
