"""A CUDA driver made of host memory, behind the calls that minfer.cuda.runtime makes.

`install(monkeypatch, ...)` puts it in place of cuda.bindings and libcuda. "Device" memory is host memory,
so copies and fills work; a launch calls `driver.run(arguments)`, which a test sets, with the raw 8-byte
parameter slots. `compiled` takes the compiler's place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, ClassVar

from cuda.bindings import driver as real

from minfer.cuda.kernel import Kernel
from minfer.cuda.runtime import devices, driver, launching
from minfer.cuda.runtime.compiler import CompiledKernel
from minfer.cuda.runtime.resources import Resources

ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_SHARED_MEMORY_PER_BLOCK": 49152,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024,
    "MAX_REGISTERS_PER_BLOCK": 65536,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "L2_CACHE_SIZE": 62914560,
}


class Status(IntEnum):
    """The few results that tests ask for."""

    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NO_DEVICE = 100
    INVALID_CONTEXT = 201
    UNKNOWN = 999


def compiled(kernel: Kernel, arch: str, static_shared_bytes: int = 0) -> CompiledKernel:
    """No code; the fake driver reads the number of parameters from the entry's name."""
    resources = Resources(
        32, static_shared_bytes=static_shared_bytes, spill_store_bytes=0, spill_load_bytes=0, stack_bytes=0
    )
    return CompiledKernel(kernel, arch, "", b"cubin", f"entry_of_{len(kernel.passed)}", resources)


class FakeDriver:
    """Attributes set what the driver answers; `calls` records every call's name and arguments."""

    _owners: ClassVar[dict[int, FakeDriver]] = {}
    """Who holds which memory."""

    def __init__(self) -> None:
        self.init_status, self.version = Status.SUCCESS, 13000
        self.attributes = dict(ATTRIBUTES)
        self.name = b"NVIDIA H200"
        self.function_attributes = {
            "MAX_DYNAMIC_SHARED_SIZE_BYTES": 49152,
            "MAX_THREADS_PER_BLOCK": 1024,
            "NUM_REGS": 32,
        }
        self.memory_left = 1 << 30
        self.calls: list[tuple] = []
        self.memory: dict[int, ctypes.Array] = {}
        self.launch_status: list[int] = []
        self.launched: list[SimpleNamespace] = []
        self.parameters: dict[int, int] = {}
        self.tensor_maps: dict[tuple, int] = {}
        self.run: Callable[[list[int]], None] = lambda arguments: None

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("CU", "cuuint")):  # enumerations and structures are cuda.bindings' own
            return getattr(real, name)
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *args: self._default(name, args)

    def _default(self, name: str, args: tuple) -> tuple:
        self.calls.append((name, *args))
        handles = ("Create", "BeginCapture", "Retain", "LoadData", "Instantiate", "EndCapture")
        return (Status.SUCCESS, 4096 + len(self.calls)) if name.endswith(handles) else (Status.SUCCESS,)

    def named(self, name: str) -> list[tuple]:
        """The arguments of every call of this name."""
        return [call[1:] for call in self.calls if call[0] == name]

    # ---- starting

    def cuInit(self, flags):
        return (self.init_status,)

    def cuGetErrorString(self, code):
        return Status.SUCCESS, b"as the driver words it"

    def cuDriverGetVersion(self):
        return Status.SUCCESS, self.version

    def cuDeviceGetCount(self):
        return Status.SUCCESS, 1

    def cuDeviceGet(self, index):
        return Status.SUCCESS, index

    def cuDeviceGetName(self, length, handle):
        return Status.SUCCESS, self.name + b"\0" * 4

    def cuDeviceTotalMem(self, handle):
        return Status.SUCCESS, 1 << 37

    def cuDeviceGetAttribute(self, attribute, handle):
        return Status.SUCCESS, self.attributes[attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuCtxGetCurrent(self):
        return Status.SUCCESS, 0

    # ---- functions

    def cuModuleGetFunction(self, module, entry):
        function = 1 << 20 | len(self.parameters)
        self.parameters[function] = int(entry.rpartition(b"_")[2])
        return Status.SUCCESS, function

    def cuFuncGetAttribute(self, attribute, function):
        return Status.SUCCESS, self.function_attributes[attribute.name.removeprefix("CU_FUNC_ATTRIBUTE_")]

    def cuFuncSetAttribute(self, function, attribute, value):
        self.function_attributes[attribute.name.removeprefix("CU_FUNC_ATTRIBUTE_")] = value
        return (Status.SUCCESS,)

    def cuOccupancyMaxActiveClusters(self, function, config):
        return Status.SUCCESS, 66

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function, threads, shared):
        return Status.SUCCESS, 2048 // threads

    # ---- memory

    def cuMemAlloc(self, nbytes):
        if nbytes > self.memory_left:
            return (Status.OUT_OF_MEMORY,)
        buffer = ctypes.create_string_buffer(nbytes + 256)
        pointer = -(-ctypes.addressof(buffer) // 256) * 256
        self.memory[pointer], self._owners[pointer] = buffer, self
        return Status.SUCCESS, pointer

    def cuMemHostAlloc(self, nbytes, flags):
        return self.cuMemAlloc(nbytes)

    def cuTensorMapEncodeTiled(self, *args):
        """Equal descriptions get the same number, in the map's first 8 bytes."""
        self.calls.append(("cuTensorMapEncodeTiled", *args))
        described = tuple(tuple(map(int, arg)) if isinstance(arg, list) else arg for arg in args)
        made = real.CUtensorMap()
        number = self.tensor_maps.setdefault(described, len(self.tensor_maps))
        ctypes.c_uint64.from_address(int(made.getPtr())).value = number
        return Status.SUCCESS, made

    def cuMemFree(self, pointer):
        owner = self._owners.pop(pointer)  # an array of an earlier test may be collected only now
        owner.calls.append(("cuMemFree", pointer))
        del owner.memory[pointer]
        return (Status.SUCCESS,)

    def cuMemGetInfo(self):
        return Status.SUCCESS, self.memory_left, 1 << 37

    def _copy(self, target, source, nbytes, stream):
        ctypes.memmove(target, source, nbytes)
        return (Status.SUCCESS,)

    cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = _copy

    def cuMemsetD8Async(self, pointer, value, count, stream):
        ctypes.memset(pointer, value, count)
        return (Status.SUCCESS,)

    def cuMemsetD16Async(self, pointer, value, count, stream):
        ctypes.memmove(pointer, value.to_bytes(2, "little") * count, 2 * count)
        return (Status.SUCCESS,)

    def cuMemsetD32Async(self, pointer, value, count, stream):
        ctypes.memmove(pointer, value.to_bytes(4, "little") * count, 4 * count)
        return (Status.SUCCESS,)

    # ---- libcuda's cuLaunchKernelEx

    def launch(self, config_address, function, parameters, extra):
        if self.launch_status and (status := self.launch_status.pop(0)):
            return status
        config = driver.LaunchConfig.from_address(config_address)
        attributes = (driver.LaunchAttribute * config.count).from_address(config.attributes)
        pointers = (ctypes.c_void_p * self.parameters[function]).from_address(parameters)
        slots = [ctypes.c_uint64.from_address(pointer).value for pointer in pointers]
        self.launched.append(
            SimpleNamespace(
                function=function,
                grid=tuple(config.grid),
                block=tuple(config.block),
                shared=config.shared_bytes,
                stream=config.stream or 0,
                attributes=[attribute.id for attribute in attributes],
                slots=slots,
                pointers=list(pointers),
            )
        )
        self.run(slots)
        return 0


def install(monkeypatch) -> FakeDriver:
    """A fresh fake driver in place of the real one; the memos of the runtime forget what they knew."""
    fake = FakeDriver()
    monkeypatch.setattr(driver, "bindings", lambda: fake)
    monkeypatch.setattr(driver, "launch_function", lambda: fake.launch)
    monkeypatch.setattr(launching, "_loaded", {})
    driver.initialize.cache_clear()
    devices.device.cache_clear()
    return fake


def uninstall() -> None:
    """Forget the fake device."""
    driver.initialize.cache_clear()
    devices.device.cache_clear()
