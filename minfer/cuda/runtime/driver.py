"""The CUDA driver: calls that raise, and the two launch entry points without per-call overhead.

Everything but launching goes through `cuda.bindings.driver`. A launch goes through ctypes straight into
libcuda's cuLaunchKernelEx with structures that are filled in place: cuda.bindings builds Python objects for
every argument of every launch, which costs more than the launch.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from types import ModuleType
from typing import Any

from minfer.cuda.kernel import NoDevice

LEAST_DRIVER = 13000  # CUDA 13.0: cubins of a CUDA 13 ptxas load from here on
_INSTALL = "install NVIDIA driver 580 or newer"
_WITHOUT = "everything but launching on a GPU works without one"

SUCCESS = 0
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NO_DEVICE = 100
INVALID_CONTEXT = 201
LAUNCH_OUT_OF_RESOURCES = 701
INVALID_CLUSTER_SIZE = 912


class DriverError(RuntimeError):
    """A CUDA driver call that failed: `code` is the CUresult, `name` its name."""

    def __init__(self, code: int, doing: str) -> None:
        self.code, self.name = code, error_name(code)
        super().__init__(f"{doing}: {self.name} ({error_text(code)})")


@functools.cache
def bindings() -> ModuleType:
    """`cuda.bindings.driver`. Raises NoDevice where the package is absent."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise NoDevice(
            f"the package cuda-bindings is missing ({error}): pip install 'cuda-bindings>=13'"
        ) from error
    return driver


def error_name(code: int) -> str:
    """CUDA_ERROR_INVALID_VALUE for 1."""
    try:
        return bindings().CUresult(code).name
    except ValueError:
        return f"CUDA error {code}"


def error_text(code: int) -> str:
    """The driver's own sentence about an error."""
    status, text = bindings().cuGetErrorString(bindings().CUresult(code))
    return text.decode() if int(status) == SUCCESS and text else "no description"


def call(function: str, *args: Any, doing: str = "") -> Any:
    """Call a cuda.bindings driver function by name; its result without the status (None, a value or a tuple).

    Raises:
        DriverError: with `doing`, or the function's name, as what was being done.
    """
    status, *values = getattr(bindings(), function)(*args)
    if int(status) != SUCCESS:
        raise DriverError(int(status), doing or function)
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


@functools.cache
def initialize() -> int:
    """Start the driver; the CUDA version that it supports, 13000 for 13.0.

    Raises:
        NoDevice: no driver, no GPU, or a driver too old for the toolchain; says what to install.
    """
    driver = bindings()
    try:
        status = int(driver.cuInit(0)[0])
    except Exception as error:
        what = f"the NVIDIA driver's libcuda is too old or damaged ({error})"
        if type(error).__name__ == "DynamicLibNotFoundError":  # which has moved within cuda.pathfinder
            what = "no NVIDIA driver on this machine (libcuda was not found)"
        raise NoDevice(f"{what}: {_INSTALL}; {_WITHOUT}") from error
    if status == NO_DEVICE:
        raise NoDevice(
            "the NVIDIA driver sees no GPU: check nvidia-smi and the variable CUDA_VISIBLE_DEVICES; "
            + _WITHOUT
        )
    if status != SUCCESS:
        raise NoDevice(
            f"the NVIDIA driver does not start: {error_name(status)} ({error_text(status)}); {_INSTALL}"
        )
    version = int(call("cuDriverGetVersion"))
    if version < LEAST_DRIVER:
        have, need = (f"{v // 1000}.{v % 1000 // 10}" for v in (version, LEAST_DRIVER))
        raise NoDevice(f"the NVIDIA driver supports CUDA {have}, minfer's toolchain needs {need}: {_INSTALL}")
    return version


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id and a 64-byte union, of which three 32-bit words are used here."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


GRID = struct.Struct("3I")  # LaunchConfig.grid, written at once
ATTRIBUTE_COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
ATTRIBUTE_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
ATTRIBUTE_PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


@functools.cache
def launch_function() -> Any:
    """libcuda's cuLaunchKernelEx(config address, function, parameters address, None) -> CUresult.

    Through PyDLL, which keeps the interpreter's lock: a launch takes a few microseconds, and giving the lock
    up and taking it back costs a good part of that.
    """
    library = ctypes.PyDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    function = library.cuLaunchKernelEx
    function.restype = ctypes.c_int
    function.argtypes = (ctypes.c_void_p,) * 4
    return function
