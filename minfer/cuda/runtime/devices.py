"""The GPU in use: what it is, what it allows, and the primary context that torch and numba share with us."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from minfer.cuda.kernel import NoDevice
from minfer.cuda.runtime import driver

LEAST_CAPABILITY = (8, 0)


def arch_of(capability: tuple[int, int]) -> str:
    """The architecture that kernels are compiled for: "sm_89" for (8, 9), "sm_90a" for (9, 0)."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@dataclass(frozen=True, eq=False)
class Gpu:
    """A GPU and its limits. Bytes where the name says so, else counts. Compared by identity.

    `shared_optin_bytes` is the most dynamic plus static shared memory that one block may opt in to;
    `shared_sm_bytes` is what an SM holds, of which every block also takes `shared_reserved_bytes`.
    """

    index: int
    name: str
    capability: tuple[int, int]
    driver_version: int
    sms: int
    shared_block_bytes: int
    shared_optin_bytes: int
    shared_sm_bytes: int
    shared_reserved_bytes: int
    registers_block: int
    registers_sm: int
    threads_sm: int
    blocks_sm: int
    l2_bytes: int
    memory_bytes: int
    handle: Any
    context: Any

    @property
    def arch(self) -> str:
        """The architecture that kernels are compiled for here."""
        return arch_of(self.capability)

    @property
    def cuda_version(self) -> str:
        """The newest CUDA version that the driver supports, "13.0"."""
        return f"{self.driver_version // 1000}.{self.driver_version % 1000 // 10}"

    def free_bytes(self) -> int:
        """Device memory that is free now."""
        self.activate()
        return int(driver.call("cuMemGetInfo")[0])

    def activate(self) -> None:
        """Make this device's primary context current on the calling thread."""
        driver.call("cuCtxSetCurrent", self.context)

    def synchronize(self) -> None:
        """Wait for all work on the device; raises DriverError for a kernel that failed on it."""
        driver.call("cuCtxSynchronize", doing=f"waiting for {self.name}")

    def __str__(self) -> str:
        return f"{self.name} ({self.arch}, {self.sms} SMs, CUDA {self.cuda_version})"


_ATTRIBUTES = {
    "sms": "MULTIPROCESSOR_COUNT",
    "shared_block_bytes": "MAX_SHARED_MEMORY_PER_BLOCK",
    "shared_optin_bytes": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "shared_sm_bytes": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "shared_reserved_bytes": "RESERVED_SHARED_MEMORY_PER_BLOCK",
    "registers_block": "MAX_REGISTERS_PER_BLOCK",
    "registers_sm": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "threads_sm": "MAX_THREADS_PER_MULTIPROCESSOR",
    "blocks_sm": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "l2_bytes": "L2_CACHE_SIZE",
}


def _attribute(name: str, handle: Any) -> int:
    attribute = getattr(driver.bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(driver.call("cuDeviceGetAttribute", attribute, handle))


def check_capability(name: str, capability: tuple[int, int]) -> None:
    """Raise NoDevice for a GPU below compute capability 8.0, saying what it lacks."""
    if capability < LEAST_CAPABILITY:
        raise NoDevice(
            f"{name} has compute capability {capability[0]}.{capability[1]}: it lacks cp.async, bf16 and the "
            "m16n8k16 mma.sync that came with 8.0 (Ampere); use an A100, an RTX 30 series or newer"
        )


def open_device(index: int) -> Gpu:
    """The device of this index, its primary context retained and made current.

    Raises:
        NoDevice: as `device`.
    """
    version = driver.initialize()
    count = int(driver.call("cuDeviceGetCount"))
    if not 0 <= index < count:
        raise NoDevice(
            f"there is no GPU {index}, the driver sees {count}: check nvidia-smi and the variable "
            "CUDA_VISIBLE_DEVICES"
        )
    handle = driver.call("cuDeviceGet", index)
    name = driver.call("cuDeviceGetName", 96, handle).split(b"\0")[0].decode()
    capability = (
        _attribute("COMPUTE_CAPABILITY_MAJOR", handle),
        _attribute("COMPUTE_CAPABILITY_MINOR", handle),
    )
    check_capability(name, capability)
    context = driver.call("cuDevicePrimaryCtxRetain", handle, doing=f"opening {name}")
    driver.call("cuCtxSetCurrent", context)
    return Gpu(
        index=index,
        name=name,
        capability=capability,
        driver_version=version,
        memory_bytes=int(driver.call("cuDeviceTotalMem", handle)),
        handle=handle,
        context=context,
        **{field: _attribute(attribute, handle) for field, attribute in _ATTRIBUTES.items()},
    )


@functools.cache
def device() -> Gpu:
    """The GPU in use by this process: the one whose context torch or numba made current, else the first.

    `CUDA_VISIBLE_DEVICES` chooses another.

    Raises:
        NoDevice: no GPU, no driver, a driver too old or a GPU below compute capability 8.0, in one sentence.
    """
    driver.initialize()
    current = driver.call("cuCtxGetCurrent")
    index = int(driver.call("cuCtxGetDevice")) if int(current) else 0
    return open_device(index)


def available() -> bool:
    """Whether there is a GPU to launch on. `device()` says why not."""
    try:
        device()
    except NoDevice:
        return False
    return True


@contextlib.contextmanager
def profiled() -> Iterator[None]:
    """What runs inside is seen by a profiler that was told to wait (`ncu --profile-from-start off`)."""
    opened = device()
    opened.synchronize()
    driver.call("cuProfilerStart")
    try:
        yield
        opened.synchronize()
    finally:
        driver.call("cuProfilerStop")
