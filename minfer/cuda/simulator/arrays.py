"""Arrays as kernel source sees them: local arrays, shared arrays, pointers to global memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from greenlet import getcurrent

from minfer.cuda.simulator.errors import AsyncHazard, OutOfBounds, UninitializedLocal
from minfer.cuda.simulator.memory import Region, check_aligned, check_writable
from minfer.cuda.simulator.scalars import CASTS, INTEGER_FORMATS
from minfer.cuda.trace.ops import Op


def shape_of(shape: Any) -> tuple[int, ...]:
    """A shape given as an integer or a tuple."""
    return tuple(int(n) for n in shape) if isinstance(shape, tuple) else (int(shape),)


def flat_index(index: Any, shape: tuple[int, ...], what: str) -> int:
    """Position of a row-major element; no index may be negative or past its dimension."""
    indices = index if isinstance(index, tuple) else (index,)
    if len(indices) == len(shape) and all(0 <= i < n for i, n in zip(indices, shape, strict=True)):
        flat = 0
        for i, extent in zip(indices, shape, strict=True):
            flat = flat * extent + int(i)
        return flat
    raise OutOfBounds(f"{what} of shape {shape} indexed with {index}")


class LocalArray:
    """A thread's local array (registers on the device). Reading an element before writing it raises."""

    __slots__ = ("_cast", "_length", "dtype", "future", "in_flight", "readers", "shape", "values")

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape = shape
        self.dtype = dtype
        self._cast = CASTS[dtype]
        self.values: list[Any] = [None] * math.prod(shape)
        self._length = len(self.values) if len(shape) == 1 else 0
        self.in_flight = 0  # wgmma that will still write the array; `future` is what the last one leaves
        self.future: list[Any] = []
        self.readers = 0  # wgmma that still read the array

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if type(index) is not int or not 0 <= index < self._length:
            index = flat_index(index, self.shape, "local array")
        value = self.values[index]
        if self.in_flight:
            raise AsyncHazard(f"reads element {index} of accumulators while wgmma is in flight")
        if value is None:
            raise UninitializedLocal(f"reads element {index} of a local array before anything wrote it")
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.in_flight or self.readers:
            raise AsyncHazard(f"writes element {index} of a local array that wgmma in flight uses")
        if type(index) is not int or not 0 <= index < self._length:
            index = flat_index(index, self.shape, "local array")
        self.values[index] = self._cast(value)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._length))

    def initialized(self, count: int) -> list[Any]:
        """The first `count` values, all of which must have been written (or be about to be, by wgmma)."""
        if len(self.values) < count:
            raise OutOfBounds(f"an instruction uses {count} registers of a local array of {len(self.values)}")
        values = self.future[:count] if self.in_flight else self.values[:count]
        if None in values:
            raise UninitializedLocal(
                f"an instruction reads element {values.index(None)} of a local array before anything wrote it"
            )
        return values


class _TypedMemory:
    """Elements of one type at consecutive addresses; what pointers and shared arrays have in common."""

    __slots__ = ("_cast", "_raw", "_view", "address", "dtype", "itemsize", "region")

    LOAD: Op
    STORE: Op

    def __init__(self, region: Region, address: int, dtype: str) -> None:
        self.region = region
        self.address = address
        self.dtype = dtype
        self.itemsize = np.dtype(dtype).itemsize
        self._cast = CASTS[dtype]
        self._raw: memoryview | None = None
        self._view: Any = None
        check_aligned(address, self.itemsize, f"array of {dtype}")

    def _locate(self, index: Any) -> int:
        """Position of an element; raises where there is none."""
        raise NotImplementedError

    def _elements(self) -> Any:
        """The memory from `address` on as numbers; made anew after the region has grown."""
        if self._raw is not self.region.raw:
            self._raw = self.region.raw
            raw = self._raw[self.address - self.region.base :]
            raw = raw[: len(raw) // self.itemsize * self.itemsize]
            if self.dtype in INTEGER_FORMATS:
                self._view = raw.cast(INTEGER_FORMATS[self.dtype])
            else:
                self._view = np.frombuffer(raw, self.dtype) if len(raw) else np.zeros(0, self.dtype)
        return self._view

    def _record(self, op: Op, position: int) -> None:
        lane = getcurrent()
        trace = getattr(lane, "trace", None)
        if trace is not None:
            trace.record(lane, op, self.address + position * self.itemsize, self.itemsize)

    def __getitem__(self, index: Any) -> Any:
        position = self._locate(index)
        self._record(self.LOAD, position)
        if self.region.valid is not None:
            self.region.check_written(self.address + position * self.itemsize, self.itemsize)
        return self._elements()[position]

    def __setitem__(self, index: Any, value: Any) -> None:
        position = self._locate(index)
        self._record(self.STORE, position)
        check_writable(self.region)
        self._elements()[position] = self._cast(value)
        if self.region.valid is not None:
            self.region.mark_written(self.address + position * self.itemsize, self.itemsize)

    def update(self, index: Any, function: Callable[[Any, Any], Any], value: Any) -> Any:
        """Atomically replace an element by function(old, value); returns the old one."""
        position = self._locate(index)
        self._record(Op.ATOMIC, position)
        check_writable(self.region)
        if self.region.valid is not None:
            self.region.check_written(self.address + position * self.itemsize, self.itemsize)
        elements = self._elements()
        old = elements[position]
        elements[position] = self._cast(function(old, value))
        return old


class Pointer(_TypedMemory):
    """A `types.CPointer` argument: p[i] reads or writes element i, checked against the array's bounds."""

    __slots__ = ("count",)

    LOAD, STORE = Op.LOAD_GLOBAL, Op.STORE_GLOBAL

    def __init__(self, region: Region, dtype: str) -> None:
        super().__init__(region, region.base, dtype)
        self.count = region.size // self.itemsize

    def _locate(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise OutOfBounds(
                f"element {index} of {self.region.name}, which has {self.count} elements of {self.dtype}",
                address=self.address + int(index) * self.itemsize,
            )
        return index


class SharedArray(_TypedMemory):
    """A `cuda.shared.array`: indexable, and the source of `ptx.shared_address`."""

    __slots__ = ("shape",)

    LOAD, STORE = Op.LOAD_SHARED, Op.STORE_SHARED

    def __init__(self, region: Region, address: int, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__(region, address, dtype)
        self.shape = shape

    def __len__(self) -> int:
        return self.shape[0]

    def _locate(self, index: Any) -> int:
        return flat_index(index, self.shape, "shared array")
