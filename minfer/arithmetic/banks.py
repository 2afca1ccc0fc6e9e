"""Shared-memory banks and global-memory sectors, from the addresses that a warp really asks for.

Shared memory has 32 banks of 4 bytes. One request of a warp is served in phases (wavefronts): lanes of one
phase that want different words of the same bank are served one after the other, lanes that want the same
word are served together. The lanes that share a phase depend on the access width: all 32 for up to 4 bytes,
half a warp for 8, a quarter for 16; `ldmatrix` serves one 8x8 matrix (8 rows of 16 bytes) a phase. (CUDA C++
Programming Guide, Shared Memory; PTX ISA, ldmatrix.)

Loads, stores and `ldmatrix` follow this model to the wavefront on an H200 (data/reference/banks-h200.json).
`cp.async` does not: its data are written as they arrive, sector by sector, whatever lane asked.

Global memory moves in sectors of 32 bytes; a warp's request costs as many as it touches.

Addresses come as arrays or as any lane -> byte address function, tiles as a (row, byte column) -> byte
address function: the kernels' own (`minfer.cuda.tile.SharedTile.address`), so that what is counted is what
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from minfer.arithmetic.counts import check_counts

BANKS = 32
BANK_BYTES = 4
SECTOR_BYTES = 32
LINE_BYTES = 128
WARP = 32
WIDTHS = (1, 2, 4, 8, 16)

TileAddress = Callable[[int, int], int]
"""(row, byte column) -> byte address inside the block's shared memory."""


@dataclass(frozen=True)
class BankRequest:
    """One shared-memory request of a warp.

    Attributes:
        degrees: the conflict degree of each phase: accesses that one bank must serve one after the other
            (1: none).
        words: for each phase, the distinct (bank, word index) pairs it touches, sorted.
    """

    degrees: tuple[int, ...]
    words: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def degree(self) -> int:
        """The worst phase's degree: "an 8-way conflict" is 8, no conflict is 1."""
        return max(self.degrees, default=0)

    @property
    def wavefronts(self) -> int:
        """Passes through the banks that the request takes."""
        return sum(self.degrees)

    @property
    def conflicts(self) -> int:
        """Passes beyond the one that each phase needs anyway (Nsight Compute's "bank conflicts")."""
        return self.wavefronts - sum(1 for d in self.degrees if d)

    def load(self) -> np.ndarray:
        """Distinct words a phase and bank: int array of shape (phases, 32)."""
        counts = np.zeros((len(self.words), BANKS), dtype=np.int64)
        for phase, words in enumerate(self.words):
            for bank, _ in words:
                counts[phase, bank] += 1
        return counts


def bank_of(address: int | np.ndarray) -> int | np.ndarray:
    """The bank, 0 to 31, that holds the byte at `address`."""
    return address // BANK_BYTES % BANKS


def phase_lanes(width: int) -> list[range]:
    """Lanes served together for an access of `width` bytes a lane (1, 2, 4, 8 or 16).

    Raises:
        ValueError: no load or store has this width.
    """
    if width not in WIDTHS:
        raise ValueError(f"an access is 1, 2, 4, 8 or 16 bytes a lane, not {width}")
    lanes = WARP if width <= 4 else WARP * 4 // width
    return [range(first, first + lanes) for first in range(0, WARP, lanes)]


def shared_request(
    addresses: Callable[[int], int] | Iterable[int], width: int = 4, active=None
) -> BankRequest:
    """Bank conflicts of one shared-memory load or store of a warp.

    Args:
        addresses: 32 byte addresses, or a function of the lane.
        width: bytes a lane.
        active: 32 booleans; lanes that are off ask for nothing. All on by default.

    Raises:
        ValueError: an unknown width, not 32 addresses, or one that is not a multiple of `width`.
    """
    where = _addresses(addresses, WARP)
    on = np.ones(WARP, dtype=bool) if active is None else np.asarray(active, dtype=bool)
    _check_alignment(where[on], width)
    phases = [[int(where[lane]) for lane in lanes if on[lane]] for lanes in phase_lanes(width)]
    return _request(phases, width)


def ldmatrix_request(rows: Callable[[int], int] | Iterable[int], matrices: int = 4) -> BankRequest:
    """Bank conflicts of one `ldmatrix.x1/.x2/.x4` (or `stmatrix`): a phase reads 8 rows of 16 bytes.

    Args:
        rows: byte addresses of the 8 * `matrices` rows, or a function of the lane that provides each
            (lanes 0-7 the first matrix, 8-15 the second, ...).
        matrices: 1, 2 or 4.

    Raises:
        ValueError: another number of matrices, a wrong number of rows, or a row not 16-byte aligned.
    """
    if matrices not in (1, 2, 4):
        raise ValueError(f"ldmatrix loads 1, 2 or 4 matrices, not {matrices}")
    where = _addresses(rows, 8 * matrices)
    _check_alignment(where, 16)
    return _request([where[8 * m : 8 * m + 8].tolist() for m in range(matrices)], 16)


def ldmatrix_rows(tile: TileAddress, row: int = 0, byte_column: int = 0, matrices: int = 4) -> list[int]:
    """Row addresses for an `ldmatrix` of 8x8 f16 matrices at (row, byte column) of a tile.

    Lane l provides row l % 16 and the 16-byte column l // 16: the order in which `.x4` gives the A fragment
    of m16n8k16 (a0..a3), and `.x2` two matrices one below the other.
    """
    return [tile(row + lane % 16, byte_column + lane // 16 * 16) for lane in range(8 * matrices)]


def padded(row_bytes: int, pad_bytes: int = 0) -> TileAddress:
    """The address function of a row-major tile whose rows are `row_bytes + pad_bytes` apart."""
    stride = row_bytes + pad_bytes
    return lambda row, byte_column: row * stride + byte_column


def bank_map(tile: TileAddress, rows: int, row_bytes: int) -> np.ndarray:
    """The bank of every 4-byte word of a tile: int array of shape (rows, row_bytes // 4).

    Raises:
        ValueError: what is no count, or rows that are no whole words.
    """
    check_counts(1, rows=rows, row_bytes=row_bytes)
    if row_bytes % BANK_BYTES:
        raise ValueError(f"rows of {row_bytes} bytes are no whole words of {BANK_BYTES}")
    return np.array(
        [[bank_of(tile(row, column)) for column in range(0, row_bytes, BANK_BYTES)] for row in range(rows)]
    )


def tile_is_injective(tile: TileAddress, rows: int, row_bytes: int) -> bool:
    """Whether no two words of the tile share an address (a layout that loses data fails here)."""
    where = {tile(row, column) for row in range(rows) for column in range(0, row_bytes, BANK_BYTES)}
    return len(where) == rows * (row_bytes // BANK_BYTES)


@dataclass(frozen=True)
class GlobalRequest:
    """One global-memory request of a warp.

    Attributes:
        sectors: 32-byte sectors touched. lines: 128-byte lines touched.
        bytes_used: distinct bytes that the lanes ask for.
    """

    sectors: int
    lines: int
    bytes_used: int

    @property
    def efficiency(self) -> float:
        """Bytes asked for over bytes moved, 0 to 1."""
        return self.bytes_used / (self.sectors * SECTOR_BYTES) if self.sectors else 1.0


def global_request(
    addresses: Callable[[int], int] | Iterable[int], width: int = 4, active=None
) -> GlobalRequest:
    """Sectors of one global-memory load or store of a warp; arguments as in `shared_request`."""
    where = _addresses(addresses, WARP)
    if active is not None:
        where = where[np.asarray(active, dtype=bool)]
    phase_lanes(width)  # refuses an unknown width
    _check_alignment(where, width)
    touched = np.unique((where[:, None] + np.arange(width)).ravel())
    return GlobalRequest(
        sectors=np.unique(touched // SECTOR_BYTES).size,
        lines=np.unique(touched // LINE_BYTES).size,
        bytes_used=touched.size,
    )


def _request(phases: list[list[int]], width: int) -> BankRequest:
    span = max(width, BANK_BYTES)
    degrees, words = [], []
    for addresses in phases:
        touched = sorted({(a + step) // BANK_BYTES for a in addresses for step in range(0, span, BANK_BYTES)})
        load = np.bincount([w % BANKS for w in touched], minlength=BANKS) if touched else np.zeros(1, int)
        degrees.append(int(load.max()))
        words.append(tuple(sorted((w % BANKS, w) for w in touched)))
    return BankRequest(tuple(degrees), tuple(words))


def _addresses(addresses: Callable[[int], int] | Iterable[int], count: int) -> np.ndarray:
    values = [addresses(i) for i in range(count)] if callable(addresses) else list(addresses)
    if len(values) != count:
        raise ValueError(f"expected {count} addresses, got {len(values)}")
    return np.asarray(values, dtype=np.int64)


def _check_alignment(addresses: np.ndarray, width: int) -> None:
    off = addresses[addresses % width != 0]
    if off.size:
        raise ValueError(f"address {int(off[0])} is not a multiple of the access width, {width} bytes")
