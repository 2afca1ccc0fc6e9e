"""Arrays in the device's memory, and the way to it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import operator
import sys
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from minfer.cuda.runtime import driver
from minfer.cuda.runtime.devices import device
from minfer.cuda.runtime.streams import Event, Stream, captures


class _Memory:
    """One allocation, freed with the last array that lies in it."""

    def __init__(self, nbytes: int) -> None:
        device()
        self.pointer = 0
        try:
            self.pointer = int(
                driver.call("cuMemAlloc", max(nbytes, 1), doing=f"allocating {nbytes:,} bytes")
            )
        except driver.DriverError as error:
            if error.code != driver.OUT_OF_MEMORY:
                raise
            free, total = driver.call("cuMemGetInfo")
            raise MemoryError(
                f"{device().name} has {int(free):,} of {int(total):,} bytes free, {nbytes:,} were asked for: "
                "free arrays, or use a smaller model or context"
            ) from error

    def __del__(self) -> None:
        if not self.pointer:
            return
        with captures.lock:
            if captures.open:
                captures.waiting.append(self.pointer)
                return
        with contextlib.suppress(Exception):  # the driver may be gone at exit
            driver.call("cuMemFree", self.pointer)


@functools.cache
def _name(dtype: np.dtype) -> str:
    """The dtype's name. NumPy puts it together anew each time, and every view has one."""
    return dtype.name


class DeviceArray:
    """A C-contiguous array in the device's memory.

    Attributes:
        pointer: its address; shape, dtype, nbytes as in NumPy (bfloat16 is kept as uint16).
    """

    __slots__ = ("dtype", "dtype_name", "memory", "nbytes", "pointer", "shape")

    def __init__(self, memory: Any, pointer: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.memory, self.pointer, self.shape, self.dtype = memory, pointer, shape, dtype
        self.dtype_name = _name(dtype)
        self.nbytes = math.prod(shape) * dtype.itemsize

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "version": 3,
            "strides": None,
            "stream": None,
        }

    def reshape(self, *shape: int) -> DeviceArray:
        """The same memory under another shape; one axis may be -1."""
        wanted = _sizes(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape)
        if -1 in wanted:
            known = -math.prod(wanted)
            if wanted.count(-1) > 1 or known == 0 or self.size % known:
                raise ValueError(f"cannot reshape {self.shape} to {wanted}")
            wanted = tuple(self.size // known if n == -1 else n for n in wanted)
        if math.prod(wanted) != self.size or min(wanted, default=0) < 0:
            raise ValueError(f"cannot reshape {self.shape} ({self.size} elements) to {wanted}")
        return DeviceArray(self.memory, self.pointer, wanted, self.dtype)

    def view(self, dtype: Any) -> DeviceArray:
        """The same memory as another dtype; the last axis changes its length."""
        wanted = _element(dtype)
        last = (self.shape[-1] if self.shape else 1) * self.dtype.itemsize
        if last % wanted.itemsize:
            raise ValueError(f"rows of {last} bytes are no whole number of {wanted}")
        _check_aligned(self.pointer, wanted)
        return DeviceArray(self.memory, self.pointer, (*self.shape[:-1], last // wanted.itemsize), wanted)

    def __getitem__(self, key: int | slice) -> DeviceArray:
        """A row, or a range of rows (no steps), of the first axis: the same memory."""
        if not self.shape:
            raise IndexError("an array without axes has no rows")
        row = self.nbytes // self.shape[0] if self.shape[0] else 0
        if isinstance(key, slice):
            start, stop, step = key.indices(self.shape[0])
            if step != 1:
                raise IndexError("a slice of a DeviceArray has no step: rows must stay contiguous")
            shape = (max(stop - start, 0), *self.shape[1:])
            return DeviceArray(self.memory, self.pointer + start * row, shape, self.dtype)
        index = operator.index(key)
        index += self.shape[0] if index < 0 else 0
        if not 0 <= index < self.shape[0]:
            raise IndexError(f"row {key} of {self.shape[0]}")
        return DeviceArray(self.memory, self.pointer + index * row, self.shape[1:], self.dtype)

    def to_host(self, stream: Any = None) -> np.ndarray:
        """A NumPy copy; waits for the stream's work before it."""
        host = np.empty(self.shape, self.dtype)
        target = Stream.of(stream)
        if self.nbytes:
            driver.call("cuMemcpyDtoHAsync", host.ctypes.data, self.pointer, self.nbytes, target.handle)
        target.synchronize()
        return host

    def copy_from(self, source: np.ndarray | DeviceArray, stream: Any = None) -> DeviceArray:
        """Fill with `source`, of the same shape and dtype. From the host it waits for the copy, so that
        `source` may be changed afterwards."""
        if tuple(source.shape) != self.shape or source.dtype != self.dtype:
            raise ValueError(f"cannot copy {source.dtype}{source.shape} into {self.dtype}{self.shape}")
        target = Stream.of(stream)
        if not self.nbytes:
            return self
        if isinstance(source, DeviceArray):
            driver.call("cuMemcpyDtoDAsync", self.pointer, source.pointer, self.nbytes, target.handle)
        else:
            host = np.ascontiguousarray(source)
            driver.call("cuMemcpyHtoDAsync", self.pointer, host.ctypes.data, self.nbytes, target.handle)
            target.synchronize()
        return self

    def fill_bytes(self, value: int, stream: Any = None) -> DeviceArray:
        """Set every byte. Raises ValueError for a value that is none."""
        if not 0 <= operator.index(value) <= 255:
            raise ValueError(f"{value} is no byte (0 to 255)")
        if self.nbytes:
            driver.call("cuMemsetD8Async", self.pointer, value, self.nbytes, Stream.of(stream).handle)
        return self

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype.name}{list(self.shape)} at {self.pointer:#x})"


def empty(shape: int | tuple[int, ...], dtype: Any) -> DeviceArray:
    """An array of unset device memory, aligned to 256 bytes.

    Raises:
        MemoryError: the device has not that much free; says how much it has.
        ValueError: a negative size. TypeError: a size that is no whole number, or a dtype that kernels do not
            have.
    """
    wanted = _sizes(shape if isinstance(shape, Iterable) else (shape,))
    if min(wanted, default=0) < 0:
        raise ValueError(f"no array has the shape {wanted}: sizes must be at least 0")
    kind = _element(dtype)
    memory = _Memory(math.prod(wanted) * kind.itemsize)
    return DeviceArray(memory, memory.pointer, wanted, kind)


def _sizes(shape: Iterable[Any]) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(f"an array's sizes are whole numbers, not {tuple(shape)!r}") from None


def _element(dtype: Any) -> np.dtype:
    """The dtype, if elements of it can lie on a GPU."""
    kind = np.dtype(dtype)
    if kind.kind not in "biuf" or kind.itemsize > 8 or not kind.isnative:
        raise TypeError(f"no array of {kind!r} on the GPU: bool, int, uint or float, of 8 bytes at most")
    return kind


def zeros(shape: int | tuple[int, ...], dtype: Any, stream: Any = None) -> DeviceArray:
    """An array of zeros."""
    return empty(shape, dtype).fill_bytes(0, stream)


def to_device(array: np.ndarray, stream: Any = None) -> DeviceArray:
    """A device copy of a NumPy array; the copy is finished on return. Raises as `empty`."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{type(array).__name__} is no NumPy array: use np.asarray")
    return empty(array.shape, array.dtype).copy_from(array, stream)


class Pinned:
    """A page-locked host buffer: copies from it run at the bus's full speed.

    Attributes:
        array: the buffer as uint8. The memory lives as long as the array or a view of it.
    """

    def __init__(self, nbytes: int) -> None:
        device()
        pointer = int(driver.call("cuMemHostAlloc", nbytes, 0, doing=f"pinning {nbytes:,} bytes"))
        memory = (ctypes.c_uint8 * nbytes).from_address(pointer)
        # Not at exit: the driver may be gone, and the process's end frees it.
        weakref.finalize(memory, _free_pinned, pointer).atexit = False
        self.array = np.frombuffer(memory, np.uint8)

    @property
    def lent(self) -> bool:
        """Whether somebody holds a view of the array."""
        return sys.getrefcount(self.array) > 2  # the attribute and the call's own


def mapped(shape: int | tuple[int, ...], dtype: Any) -> tuple[DeviceArray, np.ndarray]:
    """A small array in pinned memory, zeros at first: as kernels see it, whose stores cross the bus by
    themselves, and as the host does. All memory has one address for both (CUDA Programming Guide, "Unified
    Virtual Address Space"); what a kernel has stored is there once the host has waited for it."""
    sizes = (shape,) if isinstance(shape, int) else shape
    pinned = Pinned(math.prod(sizes) * np.dtype(dtype).itemsize)
    array = pinned.array.view(dtype).reshape(sizes)
    array[...] = 0
    return DeviceArray(pinned, array.ctypes.data, sizes, np.dtype(dtype)), array


def _free_pinned(pointer: int) -> None:
    with contextlib.suppress(driver.DriverError):  # after a kernel that failed
        driver.call("cuMemFreeHost", pointer)


def upload(target: DeviceArray, source: np.ndarray, staging: tuple[Pinned, Pinned], stream: Stream) -> None:
    """Copy `source` (contiguous, as many bytes as `target`) through two pinned buffers by turns, so that
    reading the source (a memory-mapped file) and the bus overlap. Finished on return.

    Raises:
        ValueError: the byte counts differ.
    """
    data = source.reshape(-1).view(np.uint8)
    if data.nbytes != target.nbytes:
        raise ValueError(f"{data.nbytes} bytes for an array of {target.nbytes}")
    step = min(buffer.array.nbytes for buffer in staging)
    done: list[Event | None] = [None, None]
    for turn, start in enumerate(range(0, data.nbytes, step)):
        side = turn % 2
        if done[side] is not None:
            done[side].synchronize()
        part = data[start : start + step]
        buffer = staging[side].array
        buffer[: part.nbytes] = part
        driver.call(
            "cuMemcpyHtoDAsync", target.pointer + start, buffer.ctypes.data, part.nbytes, stream.handle
        )
        done[side] = Event().record(stream)
    stream.synchronize()


def send(target: DeviceArray, source: np.ndarray, buffer: Pinned, stream: Stream) -> None:
    """Enqueue a copy of `source` (contiguous, as many bytes as `target`) by way of a pinned buffer, which
    must not be written before the stream has come past it.

    Raises:
        ValueError: the byte counts differ, or the buffer is too small.
    """
    data = source.reshape(-1).view(np.uint8)
    if data.nbytes != target.nbytes or data.nbytes > buffer.array.nbytes:
        raise ValueError(
            f"{data.nbytes} bytes for an array of {target.nbytes} through a pinned buffer of "
            f"{buffer.array.nbytes}"
        )
    buffer.array[: data.nbytes] = data
    driver.call("cuMemcpyHtoDAsync", target.pointer, buffer.array.ctypes.data, data.nbytes, stream.handle)


def download(source: DeviceArray, buffer: Pinned, stream: Stream) -> np.ndarray:
    """The array in a pinned buffer, as a view of it; waits for the stream's work before it. A copy of its own
    would cost more than the bus, for pages that are touched for the first time.

    Raises:
        ValueError: the buffer is too small.
    """
    if source.nbytes > buffer.array.nbytes:
        raise ValueError(f"{source.nbytes} bytes through a pinned buffer of {buffer.array.nbytes}")
    pinned = buffer.array[: source.nbytes]
    if source.nbytes:
        driver.call("cuMemcpyDtoHAsync", pinned.ctypes.data, source.pointer, source.nbytes, stream.handle)
    stream.synchronize()
    return pinned.view(source.dtype).reshape(source.shape)


def describe(array: Any) -> tuple[int, tuple[int, ...], str]:
    """(address, shape, dtype name) of a `DeviceArray`, torch tensor or `__cuda_array_interface__` holder.

    Raises:
        TypeError: no array of the device.
        ValueError: not C-contiguous.
    """
    if isinstance(array, DeviceArray):
        return array.pointer, array.shape, array.dtype_name
    if hasattr(array, "data_ptr"):  # torch: its own attributes are faster, and know bfloat16
        if not array.is_cuda:
            raise TypeError(f"the tensor lies on {array.device}: move it to the GPU")
        if array.get_device() != device().index:
            raise TypeError(
                f"the tensor lies on {array.device}, kernels run on GPU {device().index}: move it"
            )
        if not array.is_contiguous():
            raise ValueError(
                f"the tensor of shape {tuple(array.shape)} is not contiguous: call .contiguous()"
            )
        return array.data_ptr(), tuple(array.shape), str(array.dtype).removeprefix("torch.")
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(f"{type(array).__name__} is no array on the GPU: use to_device()")
    try:
        dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
        pointer, strides = int(interface["data"][0]), interface.get("strides")
    except (KeyError, TypeError) as error:
        raise TypeError(f"{type(array).__name__} has no sound __cuda_array_interface__: {error}") from None
    if not dtype.isnative:
        raise TypeError(f"the array's {dtype} are in the other byte order: convert them")
    _check_aligned(pointer, dtype)
    expected = dtype.itemsize
    if strides is not None:
        for length, stride in zip(reversed(shape), reversed(strides), strict=True):
            if length != 1 and stride != expected:
                raise ValueError(f"the array of shape {shape} and strides {strides} is not C-contiguous")
            expected *= length
    return pointer, shape, dtype.name


def _check_aligned(pointer: int, dtype: np.dtype) -> None:
    """Refuse (ValueError) elements that do not lie at multiples of their size: the GPU cannot read them."""
    if pointer % dtype.itemsize:
        raise ValueError(f"{dtype} at {pointer:#x} lie at no multiple of {dtype.itemsize} bytes: make a copy")


def itemsize(dtype_name: str) -> int:
    """Bytes of one element: 2 for "bfloat16", 1 for "bool"."""
    digits = dtype_name.lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits) // 8 if digits else 1
