"""Memory of a simulated launch: one global address space, and shared memory per block.

Global arrays get bases that are multiples of 2**40, so that every gap is a guard and an address names its
array. Shared memory starts at SHARED_BASE in every block: a multiple of 1024, so that bank arithmetic and
swizzles on addresses are the hardware's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minfer.cuda.kernel import MAX_SHARED_BYTES
from minfer.cuda.simulator.errors import Misaligned, OutOfBounds, SimulatorError, UninitializedShared

SHARED_BASE = 1024
SHARED_FILL = 0xFF  # NaN as f16, bf16 and f32
_SPAN = 40  # log2 of the distance between two arrays' bases

#: (memoryview or NumPy view name) of the scalar kinds that instructions move
_VIEWS = {
    "u8": "B", "s8": "b", "u16": "H", "s16": "h", "u32": "I", "s32": "i", "u64": "Q",
}  # fmt: skip


class Region:
    """Bytes with typed views: a NumPy array's memory or a block's shared memory.

    `u8`, `s8`, `u16`, `u32`, `s32`, `u64` index as Python integers, `f16`, `f32` as NumPy scalars. A view
    covers the whole elements only, so an aligned access past it is past the end.
    """

    def __init__(self, name: str, base: int, raw: memoryview, writable: bool = True) -> None:
        self.name = name
        self.base = base
        self.raw = raw
        self.size = len(raw)
        self.end = base + len(raw)
        self.writable = writable
        self.valid: bytearray | None = None  # 1 for every written byte, where initialisation is checked

    def __getattr__(self, view: str) -> Any:  # views are made at first use
        if view in _VIEWS:
            width = 8 if view == "u64" else int(view[1:]) // 8
            made: Any = self.raw[: self.size // width * width].cast(_VIEWS[view])
        elif view in ("f16", "f32", "f64"):
            width = int(view[1:]) // 8
            made = (
                np.frombuffer(self.raw, f"f{width}", self.size // width)
                if self.size >= width
                else np.zeros(0)
            )
        else:
            raise AttributeError(view)
        setattr(self, view, made)
        return made

    def read(self, address: int, size: int) -> bytes:
        offset = address - self.base
        return bytes(self.raw[offset : offset + size])

    def write(self, address: int, data: bytes) -> None:
        offset = address - self.base
        self.raw[offset : offset + len(data)] = data
        if self.valid is not None:
            self.mark_written(address, len(data))

    def check_written(self, address: int, size: int) -> None:
        """Raise if a byte was not written, where initialisation is checked."""
        offset = address - self.base
        if self.valid is not None and self.valid.find(0, offset, offset + size) >= 0:
            raise UninitializedShared(
                f"reads shared memory bytes {offset} to {offset + size - 1} at {address:#x}, which nothing "
                f"has written",
                address=address,
            )

    def mark_written(self, address: int, size: int) -> None:
        offset = address - self.base
        self.valid[offset : offset + size] = b"\1" * size


class SharedMemory(Region):
    """A block's shared memory: the dynamic bytes first, then static arrays as they are declared."""

    LIMIT = MAX_SHARED_BYTES

    def __init__(self, dynamic_bytes: int, strict: bool = False) -> None:
        if dynamic_bytes > self.LIMIT:
            raise SimulatorError(f"{dynamic_bytes} bytes of shared memory; no block has over {self.LIMIT}")
        self.dynamic_bytes = dynamic_bytes
        self._static_end = -(-dynamic_bytes // 16) * 16
        self._static: dict[Any, int] = {}
        super().__init__("shared memory", SHARED_BASE, memoryview(bytearray([SHARED_FILL]) * dynamic_bytes))
        if strict:
            self.valid = bytearray(dynamic_bytes)

    def find(self, address: int, size: int) -> Region:
        if address < SHARED_BASE or address + size > self.end:
            raise OutOfBounds(
                f"shared memory access of {size} bytes at {address:#x} (byte {address - SHARED_BASE}): the "
                f"block has {self.size} bytes",
                address=address,
            )
        return self

    def allocate(self, site: Any, size: int) -> int:
        """Address of the static array of `size` bytes that is declared at `site`, the same for all
        threads."""
        address = self._static.get(site)
        if address is None:
            address = self._static[site] = SHARED_BASE + self._static_end
            self._static_end += -(-size // 16) * 16
            if self._static_end > self.LIMIT:
                raise SimulatorError(
                    f"{self._static_end} bytes of shared memory; no block has over {self.LIMIT}"
                )
            self._grow(self._static_end)
        return address

    def _grow(self, size: int) -> None:
        for view in (*_VIEWS, "f16", "f32", "f64"):
            self.__dict__.pop(view, None)
        grown = bytearray([SHARED_FILL]) * size
        grown[: self.size] = self.raw
        self.raw = memoryview(grown)
        if self.valid is not None:
            self.valid.extend(bytes(size - self.size))
        self.size, self.end = size, SHARED_BASE + size


class GlobalMemory:
    """The arrays that a launch was given, at addresses."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self._known: dict[tuple[int, int], Region] = {}
        self.objects: dict[int, Any] = {}  # tensor maps by address

    def add(self, array: np.ndarray, name: str) -> Region:
        """Give `array` (C-contiguous) an address; the same memory given twice has one address."""
        if not array.flags.c_contiguous:
            raise ValueError(
                f"argument {name}: the array is not C-contiguous; pass np.ascontiguousarray(...)"
            )
        key = (array.__array_interface__["data"][0], array.nbytes)
        region = self._known.get(key)
        if region is None or array.nbytes == 0:
            data = memoryview(array.reshape(-1).view(np.uint8)) if array.nbytes else memoryview(bytearray())
            region = Region(name, (len(self.regions) + 1) << _SPAN, data, array.flags.writeable)
            self.regions.append(region)
            self._known[key] = region
        return region

    def region_of(self, array: np.ndarray) -> Region:
        """The region of an array that was added."""
        return self._known[array.__array_interface__["data"][0], array.nbytes]

    def add_object(self, thing: Any) -> int:
        """An address for an opaque object such as a tensor map."""
        address = (1 << 62) + 128 * len(self.objects)
        self.objects[address] = thing
        return address

    def find(self, address: int, size: int) -> Region:
        index = (address >> _SPAN) - 1
        if 0 <= index < len(self.regions):
            region = self.regions[index]
            if address + size <= region.end:
                return region
        raise OutOfBounds(self._describe(address, size), address=address)

    def _describe(self, address: int, size: int) -> str:
        message = f"global memory access of {size} bytes at {address:#x} is outside every array"
        if not self.regions:
            return message

        def distance(region: Region) -> int:
            return region.base - address if address < region.base else max(0, address + size - region.end)

        nearest = min(self.regions, key=distance)
        side = "before the start" if address < nearest.base else "past the end"
        return (
            f"{message}; nearest is {nearest.name} ({nearest.size} bytes), {distance(nearest)} bytes {side}"
        )


def offset_in_memory(array: np.ndarray) -> int:
    """Bytes from the beginning of the memory that a view is of; memory begins at a line, as on a GPU."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return array.ctypes.data - owner.ctypes.data


def check_aligned(address: int, alignment: int, what: str) -> None:
    if address % alignment:
        raise Misaligned(
            f"{what} at {address:#x} needs an address that is a multiple of {alignment}", address=address
        )


def check_writable(region: Region) -> None:
    if not region.writable:
        raise SimulatorError(f"writes {region.name}, which is an input or a read-only array")
