"""Loading kernels on the device and launching them.

A launch fills structures that were built when the kernel was loaded and makes one foreign call. Limits are
checked when the kernel is loaded (shared memory, threads, registers, cluster size) and at the launch (the
grid), and a limit that does not hold raises `LaunchRefused` with the numbers.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from minfer.cuda.kernel import Argument, Kernel, LaunchRefused
from minfer.cuda.runtime import checking, driver
from minfer.cuda.runtime.arrays import DeviceArray, describe
from minfer.cuda.runtime.compiler import CompiledKernel, compile_kernel
from minfer.cuda.runtime.devices import Device, device
from minfer.cuda.runtime.streams import Stream, current_stream
from minfer.cuda.runtime.tensor_maps import TensorMap

Grid = tuple[int, int, int]

GRID_LIMITS = (2**31 - 1, 65535, 65535)  # CUDA programming guide, technical specifications
DEFAULT_SHARED_BYTES = 48 * 1024  # more dynamic shared memory than this needs the opt-in
PORTABLE_CLUSTER = 8

# Every parameter has an 8-byte slot in one buffer, which the parameter pointers point into.
_SCALARS = {
    "int8": "b7x",
    "uint8": "B7x",
    "int16": "h6x",
    "uint16": "H6x",
    "int32": "i4x",
    "uint32": "I4x",
    "int64": "q",
    "uint64": "Q",
    "float16": "e6x",
    "float32": "f4x",
    "float64": "d",
    "bool": "?7x",
}
# Dtypes that arrays may have under another name; the last is a DeviceArray's.
_SAME_BITS = {"bfloat16": ("bfloat16", "uint16"), "bool": ("uint8", "bool")}
_CONFIG_BYTES = ctypes.sizeof(driver.LaunchConfig)


class LoadedKernel:
    """A kernel on the device, ready to launch. Made by `load`.

    Attributes:
        kernel, compiled, device: what, from which code, where.
        launches: how often it has been launched (replays of graphs included).
    """

    def __init__(self, kernel: Kernel, compiled: CompiledKernel, device: Device) -> None:
        self.kernel, self.compiled, self.device = kernel, compiled, device
        self.launches = 0
        self._lock = threading.Lock()
        _check_shared(kernel, compiled.resources.static_shared_bytes, device)
        self._module = driver.call(
            "cuModuleLoadData", compiled.cubin, doing=f"loading {kernel} on {device.name}"
        )
        self.function = driver.call("cuModuleGetFunction", self._module, compiled.entry.encode())
        self._opt_in()
        self._check_block()
        self.plan = [_slot(kernel, i, argument) for i, argument in enumerate(kernel.arguments)]
        self._frame = LaunchFrame(self)

    def _opt_in(self) -> None:
        wanted = self.kernel.shared_bytes
        if wanted + self.compiled.resources.static_shared_bytes > DEFAULT_SHARED_BYTES:
            self._set_attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES", wanted)
        allowed = self.attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES")
        if allowed < wanted:
            raise self._refused(
                wanted, allowed, "dynamic shared memory bytes a block", "the opt-in did not hold"
            )
        if self.kernel.cluster > PORTABLE_CLUSTER:
            self._set_attribute("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)

    def _check_block(self) -> None:
        allowed = self.attribute("MAX_THREADS_PER_BLOCK")
        if self.kernel.threads > allowed:
            registers = self.attribute("NUM_REGS")
            remedy = f"it uses {registers} registers a thread: use fewer threads, or max_registers"
            raise self._refused(self.kernel.threads, allowed, "threads a block", remedy)
        if self.kernel.cluster > 1 and self.max_clusters() < 1:
            remedy = "use a smaller cluster, or less shared memory a block"
            raise self._refused(self.kernel.cluster, 0, "blocks in one cluster at this size", remedy)

    def _refused(self, asked: Any, allowed: Any, resource: str, remedy: str) -> LaunchRefused:
        return LaunchRefused(
            self.kernel.name, self.kernel.config, asked, allowed, self.device.name, resource, remedy
        )

    def _set_attribute(self, name: str, value: int) -> None:
        attribute = getattr(driver.bindings().CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        doing = f"setting {name} of {self.kernel} to {value} on {self.device.name}"
        driver.call("cuFuncSetAttribute", self.function, attribute, value, doing=doing)

    def attribute(self, name: str) -> int:
        """The driver's CU_FUNC_ATTRIBUTE_<name> of this function, such as NUM_REGS."""
        attribute = getattr(driver.bindings().CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(driver.call("cuFuncGetAttribute", attribute, self.function))

    def occupancy(self) -> int:
        """Blocks that one SM holds at a time, as the driver says."""
        return int(
            driver.call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                self.function,
                self.kernel.threads,
                self.kernel.shared_bytes,
            )
        )

    def max_clusters(self) -> int:
        """Clusters that the device holds at a time, as the driver says."""
        cu = driver.bindings()
        config, attribute = cu.CUlaunchConfig(), cu.CUlaunchAttribute()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.kernel.cluster, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.kernel.threads, 1, 1
        config.sharedMemBytes = self.kernel.shared_bytes
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x = self.kernel.cluster
        attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
        config.attrs, config.numAttrs = [attribute], 1
        return int(driver.call("cuOccupancyMaxActiveClusters", self.function, config))

    def check_grid(self, grid: Grid) -> None:
        """Raise LaunchRefused for a grid that CUDA does not allow, or that does not split into clusters."""
        x, y, z = grid
        if 0 < x <= GRID_LIMITS[0] and 0 < y <= GRID_LIMITS[1] and 0 < z <= GRID_LIMITS[2]:
            if x % self.kernel.cluster == 0:
                return
            remedy = "round the grid up to whole clusters"
            raise self._refused(x, f"multiples of {self.kernel.cluster}", "blocks along x", remedy)
        for axis, blocks, limit in zip("xyz", grid, GRID_LIMITS, strict=True):
            if not 1 <= blocks <= limit:
                remedy = "an empty launch is a mistake in shapes" if blocks < 1 else "use larger tiles"
                raise self._refused(blocks, f"1 to {limit}", f"blocks along {axis}", remedy)

    def launch(self, grid: Grid, *args: Any, stream: Any = None, pdl: bool = False) -> None:
        """Launch into `stream` (None: the current one).

        Args:
            grid: (x, y, z) blocks.
            args: one a kernel argument: device arrays (`DeviceArray`, torch, `__cuda_array_interface__`) or
                raw addresses for pointers, numbers for scalars, `TensorMap`s.
            pdl: programmatic dependent launch: may start while the kernel before it still runs, and waits
                where it says griddepcontrol.wait (sm_90).

        Raises:
            LaunchRefused: a limit; TypeError, ValueError: an argument that does not fit, by name.
            DriverError: the driver refuses the launch for another reason, or an earlier kernel failed.
        """
        self._launch(grid, args, stream, pdl)

    def _launch(self, grid: Grid, args: tuple, stream: Any, pdl: bool) -> None:
        target = current_stream() if stream is None else Stream.of(stream)
        if checking.is_on():
            checking.run_checked(self, lambda: self._fire(grid, args, target, pdl), args, target)
        else:
            self._fire(grid, args, target, pdl)

    def prepare(self, grid: Grid, *args: Any, pdl: bool = False) -> BoundLaunch:
        """The launch with its grid and arguments bound, for fast repeats. The arrays are kept alive."""
        return BoundLaunch(self, grid, args, pdl)

    def _fire(self, grid: Grid, args: tuple, stream: Stream, pdl: bool) -> None:
        self.check_grid(grid)
        with self._lock:
            self._frame.fill(grid, args, pdl)
            self._frame.fire(stream)

    def _failed(self, code: int, frame: LaunchFrame) -> Exception:
        grid, threads = tuple(frame.config.grid), self.kernel.threads
        if code == driver.LAUNCH_OUT_OF_RESOURCES:
            asked = f"{threads} threads x {self.attribute('NUM_REGS')}"
            remedy = "use fewer threads a block, or max_registers"
            return self._refused(asked, self.device.registers_block, "registers a block", remedy)
        if code == driver.INVALID_CLUSTER_SIZE:
            remedy = "use a smaller cluster"
            return self._refused(self.kernel.cluster, "less", "blocks a cluster", remedy)
        what = f"grid {grid}, {threads} threads, {self.kernel.shared_bytes} bytes of shared memory"
        return driver.DriverError(code, f"launching {self.kernel} on {self.device.name} ({what})")

    def __repr__(self) -> str:
        return f"LoadedKernel({self.kernel} on {self.device.name})"


class LaunchFrame:
    """The structures of one launch in one buffer: CUlaunchConfig, then an 8-byte slot for every parameter."""

    def __init__(self, loaded: LoadedKernel) -> None:
        kernel, n = loaded.kernel, len(loaded.kernel.arguments)
        self.loaded = loaded
        self._plan = loaded.plan
        self._maps = [i for i, argument in enumerate(kernel.arguments) if argument.kind == "tensor_map"]
        self._storage = ctypes.create_string_buffer(_CONFIG_BYTES + 8 * n)
        start = ctypes.addressof(self._storage)
        self.config = driver.LaunchConfig.from_buffer(self._storage)
        self._pointers = (ctypes.c_void_p * max(n, 1))(*(start + _CONFIG_BYTES + 8 * i for i in range(n)))
        self._programmatic = driver.LaunchAttribute(id=driver.ATTRIBUTE_PROGRAMMATIC)
        self._programmatic.value[0] = 1
        # grid x, y, z | block x, y, z, shared bytes | stream, attributes, their count | parameters
        self._pack = struct.Struct("=3I4I4xQQI4x" + "".join(slot.format for slot in self._plan)).pack_into
        self._fixed = (kernel.threads, 1, 1, kernel.shared_bytes, 0, ctypes.addressof(self._programmatic))
        self._call = driver.launch_function()
        self._addresses = (start, int(loaded.function), ctypes.addressof(self._pointers), None)

    def fill(self, grid: Grid, args: tuple, pdl: bool) -> None:
        """Set the grid and the arguments. Raises TypeError or ValueError with the argument's name."""
        if len(args) != len(self._plan):
            kernel = self.loaded.kernel
            names = ", ".join(a.name for a in kernel.arguments)
            raise TypeError(f"{kernel} takes {len(self._plan)} arguments ({names}), got {len(args)}")
        # Hot: plain numbers and DeviceArrays of the right dtype pass here without a function call each.
        values = [
            value.pointer
            if type(value) is DeviceArray and value.dtype_name == dtype
            else value
            if type(value) is int or type(value) is float
            else convert(value)
            for value, (_, dtype, convert) in zip(args, self._plan, strict=True)
        ]
        try:
            self._pack(self._storage, 0, *grid, *self._fixed, pdl, *values)
        except struct.error:  # a number that the slot does not take: its converter says which
            for value, slot in zip(args, self._plan, strict=True):
                slot.convert(value)
            raise
        for i in self._maps:  # passed by value: the driver reads the map itself
            self._pointers[i] = values[i]

    def fire(self, stream: Stream) -> None:
        """Launch what was filled in, and count it."""
        self.config.stream = stream.handle
        code = self._call(*self._addresses)
        if code:
            if code != driver.INVALID_CONTEXT:
                raise self.loaded._failed(code, self)
            self.loaded.device.activate()  # a thread that has not used the GPU before
            if code := self._call(*self._addresses):
                raise self.loaded._failed(code, self)
        if stream.captured is None:
            self.loaded.launches += 1
        else:
            stream.captured[self.loaded] += 1


class BoundLaunch:
    """A launch whose grid and arguments are fixed; call it to launch. Made by `LoadedKernel.prepare`."""

    def __init__(self, loaded: LoadedKernel, grid: Grid, args: tuple, pdl: bool) -> None:
        loaded.check_grid(grid)
        self.loaded, self.grid, self.args = loaded, grid, args
        self._frame = LaunchFrame(loaded)
        self._frame.fill(grid, args, pdl)

    def __call__(self, stream: Any = None) -> None:
        """Launch into `stream` (None: the current one). Errors as `LoadedKernel.launch`."""
        target = current_stream() if stream is None else Stream.of(stream)
        if checking.is_on():
            checking.run_checked(self.loaded, lambda: self._frame.fire(target), self.args, target)
        else:
            self._frame.fire(target)


def _check_shared(kernel: Kernel, static: int, device: Device) -> None:
    asked, allowed = kernel.shared_bytes + static, device.shared_optin_bytes
    if asked > allowed:
        raise LaunchRefused(
            kernel.name,
            kernel.config,
            asked,
            allowed,
            device.name,
            "bytes of shared memory a block",
            "use smaller tiles or fewer stages",
        )


class _Slot(NamedTuple):
    """How one argument is passed: its struct format, the dtype name of a DeviceArray that needs no further
    check, and the function that checks and converts everything else."""

    format: str
    dtype: str | None
    convert: Callable[[Any], int | float]


def _slot(kernel: Kernel, index: int, argument: Argument) -> _Slot:
    where = f"{kernel}: argument {index}, {argument.name!r},"
    if argument.kind == "scalar":
        dtype = argument.dtype or "int32"
        if dtype not in _SCALARS:
            raise TypeError(f"{where} is a scalar of {dtype}: use one of {', '.join(_SCALARS)}")
        return _Slot(_SCALARS[dtype], None, _scalar_converter(dtype, where))
    if argument.kind == "tensor_map":
        return _Slot("Q", None, _map_converter(where))
    accepted = _SAME_BITS.get(argument.dtype, (argument.dtype,)) if argument.dtype else ()
    return _Slot("Q", accepted[-1] if accepted else None, _pointer_converter(accepted, where))


def _pointer_converter(accepted: tuple[str, ...], where: str) -> Callable[[Any], int]:
    wanted = accepted[0] if accepted else "any dtype"

    def convert(value: Any) -> int:
        if type(value) is int:
            return value
        try:
            pointer, _, name = describe(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where} takes a device array of {wanted}: {error}") from None
        if accepted and name not in accepted:
            raise TypeError(f"{where} takes {wanted}, got an array of {name}: convert or .view() it")
        return pointer

    return convert


def _scalar_converter(dtype: str, where: str) -> Callable[[Any], int | float]:
    if dtype.startswith(("float", "bool")):
        return float if dtype.startswith("float") else bool
    bits = int(dtype.lstrip("uint"))
    low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def convert(value: Any) -> int:
        try:
            number = value.__index__()
        except AttributeError:
            raise TypeError(f"{where} takes an integer ({dtype}), got {value!r}") from None
        if not low <= number <= high:
            raise ValueError(f"{where} is {dtype} ({low} to {high}), got {number}")
        return number

    return convert


def _map_converter(where: str) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if not isinstance(value, TensorMap):
            raise TypeError(f"{where} takes a TensorMap, got {type(value).__name__}: use tensor_map()")
        return value.address

    return convert


_loaded: dict[Kernel, LoadedKernel] = {}
_load_lock = threading.RLock()


def load(kernel: Kernel) -> LoadedKernel:
    """The kernel compiled for the GPU in use and loaded on it; the same object for the same kernel.

    Raises:
        NoDevice: no GPU. ConfigRefused, CompileError, ToolchainError: as `compile_kernel`.
        LaunchRefused: the GPU cannot hold one block of it.
    """
    if (found := _loaded.get(kernel)) is not None:
        return found
    with _load_lock:
        if kernel not in _loaded:
            gpu = device()
            gpu.activate()
            _loaded[kernel] = LoadedKernel(kernel, compile_kernel(kernel, gpu.arch), gpu)
        return _loaded[kernel]


def launch(kernel: Kernel, grid: Grid, *args: Any, stream: Any = None, pdl: bool = False) -> None:
    """`load(kernel).launch(...)`."""
    (_loaded.get(kernel) or load(kernel))._launch(grid, args, stream, pdl)


def launch_counts() -> dict[tuple[str, str], int]:
    """How often each kernel has run since the last reset, by (name, str(config)); kernels that have not are
    left out. Launches into a capture count when the graph is replayed."""
    counts: dict[tuple[str, str], int] = {}
    for kernel, loaded in list(_loaded.items()):
        if loaded.launches:
            key = (kernel.name, str(kernel.config))
            counts[key] = counts.get(key, 0) + loaded.launches
    return counts


def reset_launch_counts() -> None:
    """Start counting from zero."""
    for loaded in list(_loaded.values()):
        loaded.launches = 0
