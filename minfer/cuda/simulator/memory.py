"""Memory of a simulated launch: one global address space, shared memory per block, local arrays per thread.

Global arrays get bases that are multiples of 2**40, so that every gap is a guard and an address names its
array. Shared memory starts at SHARED_BASE in every block: a multiple of 1024, so that bank arithmetic and
swizzles on addresses are the hardware's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from greenlet import getcurrent

from minfer.cuda.simulator.errors import (
    AsyncHazard,
    Misaligned,
    OutOfBounds,
    SimulatorError,
    UninitializedLocal,
    UninitializedShared,
)
from minfer.cuda.simulator.scalars import CASTS, INTEGER_FORMATS
from minfer.cuda.trace import Op

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
            self.valid[offset : offset + len(data)] = b"\1" * len(data)


class SharedMemory(Region):
    """A block's shared memory: the dynamic bytes first, then static arrays as they are declared."""

    LIMIT = 227 * 1024  # most that a block of any supported device may have

    def __init__(self, dynamic_bytes: int, strict: bool = False) -> None:
        self.dynamic_bytes = dynamic_bytes
        self._static_end = -(-dynamic_bytes // 16) * 16
        self._static: dict[Any, SharedArray] = {}
        super().__init__("shared memory", SHARED_BASE, memoryview(bytearray([SHARED_FILL]) * dynamic_bytes))
        if strict:
            self.valid = bytearray(dynamic_bytes)

    def find(self, address: int, size: int) -> Region:
        if address < SHARED_BASE or address + size > self.end:
            raise OutOfBounds(
                f"shared memory access of {size} bytes at {address:#x} (byte {address - SHARED_BASE}): the block has "
                f"{self.size} bytes",
                address=address,
            )
        return self

    def check_written(self, address: int, size: int) -> None:
        offset = address - self.base
        if self.valid is not None and self.valid.find(0, offset, offset + size) >= 0:
            raise UninitializedShared(
                f"reads shared memory bytes {offset} to {offset + size - 1} at {address:#x}, which nothing has written",
                address=address,
            )

    def array(self, site: Any, shape: tuple[int, ...], dtype: str) -> SharedArray:
        """The array of this declaration: the dynamic bytes for shape (0,), else a static array, made once a
        site."""
        if shape == (0,):
            count = self.dynamic_bytes // np.dtype(dtype).itemsize
            return SharedArray(self, SHARED_BASE, (count,), dtype)
        known = self._static.get(site)
        if known is None:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            offset, self._static_end = self._static_end, self._static_end + -(-size // 16) * 16
            if self._static_end > self.LIMIT:
                raise SimulatorError(
                    f"{self._static_end} bytes of shared memory; no block has over {self.LIMIT}"
                )
            self._grow(self._static_end)
            known = self._static[site] = SharedArray(self, SHARED_BASE + offset, shape, dtype)
        return known

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


def check_aligned(address: int, alignment: int, what: str) -> None:
    if address % alignment:
        raise Misaligned(
            f"{what} at {address:#x} needs an address that is a multiple of {alignment}", address=address
        )


def check_writable(region: Region) -> None:
    if not region.writable:
        raise SimulatorError(f"writes {region.name}, which is read-only")


class LocalArray:
    """A thread's local array (registers on the device). Reading an element before writing it raises."""

    __slots__ = ("_cast", "_flat_extent", "dtype", "future", "in_flight", "readers", "shape", "values")

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape = shape
        self.dtype = dtype
        self._cast = CASTS[dtype]
        self.values: list[Any] = [None] * math.prod(shape)
        self._flat_extent = len(self.values) if len(shape) == 1 else 0
        self.in_flight = 0  # wgmma that will still write the array; `future` is what the last one leaves
        self.future: list[Any] = []
        self.readers = 0  # wgmma that still read the array

    def __len__(self) -> int:
        return self.shape[0]

    def _flat(self, index: Any) -> int:
        indices = index if isinstance(index, tuple) else (index,)
        flat = 0
        if len(indices) == len(self.shape):
            for i, extent in zip(indices, self.shape, strict=True):
                if not 0 <= i < extent:
                    break
                flat = flat * extent + int(i)
            else:
                return flat
        raise OutOfBounds(f"local array of shape {self.shape} indexed with {index}")

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and 0 <= index < self._flat_extent:
            value = self.values[index]
        else:
            value = self.values[self._flat(index)]
        if self.in_flight:
            raise AsyncHazard(f"reads element {index} of accumulators while wgmma is in flight")
        if value is None:
            raise UninitializedLocal(f"reads element {index} of a local array before anything wrote it")
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.in_flight or self.readers:
            raise AsyncHazard(f"writes element {index} of a local array that wgmma in flight uses")
        if type(index) is int and 0 <= index < self._flat_extent:
            self.values[index] = self._cast(value)
        else:
            self.values[self._flat(index)] = self._cast(value)

    def __iter__(self) -> Iterable[Any]:
        return (self[i] for i in range(len(self)))

    def initialized(self, count: int) -> list[Any]:
        """The first `count` values, all of which must have been written (or be about to be, by wgmma)."""
        if len(self.values) < count:
            raise OutOfBounds(f"an instruction uses {count} registers of a local array of {len(self.values)}")
        values = self.future[:count] if self.in_flight else self.values[:count]
        if None in values:
            raise UninitializedLocal(
                f"an instruction reads element {values.index(None)}, which nothing has written"
            )
        return values


def _record(op: Op, address: int, size: int) -> None:
    lane = getcurrent()
    trace = getattr(lane, "trace", None)
    if trace is not None:
        trace.record(lane, op, address, size)


class _TypedMemory:
    """Elements of one type at consecutive addresses; what pointers and shared arrays have in common."""

    __slots__ = ("_cast", "_float", "_view", "address", "dtype", "itemsize", "region", "space")

    def __init__(self, region: Region, address: int, dtype: str, space: str) -> None:
        self.region = region
        self.address = address
        self.dtype = dtype
        self.space = space
        self.itemsize = np.dtype(dtype).itemsize
        self._cast = CASTS[dtype]
        self._float = dtype not in INTEGER_FORMATS
        check_aligned(address, self.itemsize, f"{space} array of {dtype}")
        self._view = None

    def _typed(self) -> Any:
        offset = self.address - self.region.base
        raw = self.region.raw[offset:]
        raw = raw[: len(raw) // self.itemsize * self.itemsize]
        if self._float:
            self._view = np.frombuffer(raw, self.dtype) if len(raw) else np.zeros(0, self.dtype)
        else:
            self._view = raw.cast(INTEGER_FORMATS[self.dtype])
        return self._view


class Pointer(_TypedMemory):
    """A `types.CPointer` argument: p[i] reads or writes element i, checked against the array's bounds."""

    __slots__ = ("count",)

    def __init__(self, region: Region, dtype: str) -> None:
        super().__init__(region, region.base, dtype, "global")
        self.count = region.size // self.itemsize

    def _check(self, index: int) -> None:
        if not 0 <= index < self.count:
            address = self.address + int(index) * self.itemsize
            raise OutOfBounds(
                f"element {index} of {self.region.name}, which has {self.count} elements of {self.dtype}",
                address=address,
            )

    def __getitem__(self, index: int) -> Any:
        self._check(index)
        _record(Op.LOAD_GLOBAL, self.address + index * self.itemsize, self.itemsize)
        return (self._view if self._view is not None else self._typed())[index]

    def __setitem__(self, index: int, value: Any) -> None:
        self._check(index)
        check_writable(self.region)
        _record(Op.STORE_GLOBAL, self.address + index * self.itemsize, self.itemsize)
        (self._view if self._view is not None else self._typed())[index] = self._cast(value)


class SharedArray(_TypedMemory):
    """A `cuda.shared.array`: indexable, and the source of `ptx.shared_address`."""

    __slots__ = ("shape",)

    def __init__(self, region: SharedMemory, address: int, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__(region, address, dtype, "shared")
        self.shape = shape

    def __len__(self) -> int:
        return self.shape[0]

    def _flat(self, index: Any) -> int:
        indices = index if isinstance(index, tuple) else (index,)
        flat = 0
        if len(indices) == len(self.shape):
            for i, extent in zip(indices, self.shape, strict=True):
                if not 0 <= i < extent:
                    break
                flat = flat * extent + int(i)
            else:
                return flat
        raise OutOfBounds(f"shared array of shape {self.shape} indexed with {index}")

    def __getitem__(self, index: Any) -> Any:
        flat = self._flat(index)
        address = self.address + flat * self.itemsize
        self.region.check_written(address, self.itemsize)
        _record(Op.LOAD_SHARED, address, self.itemsize)
        return self._typed()[flat]

    def __setitem__(self, index: Any, value: Any) -> None:
        flat = self._flat(index)
        address = self.address + flat * self.itemsize
        _record(Op.STORE_SHARED, address, self.itemsize)
        self._typed()[flat] = self._cast(value)
        if self.region.valid is not None:
            offset = address - self.region.base
            self.region.valid[offset : offset + self.itemsize] = b"\1" * self.itemsize


def shape_of(shape: Any) -> tuple[int, ...]:
    """A shape given as an integer or a tuple."""
    return tuple(int(n) for n in shape) if isinstance(shape, tuple) else (int(shape),)
