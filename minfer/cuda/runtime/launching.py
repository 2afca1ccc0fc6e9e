"""Loading kernels on the device and launching them.

A launch fills structures that were built when the kernel was loaded and makes one foreign call. Limits are
checked when the kernel is loaded (shared memory, threads, registers, cluster size) and at the launch (the
grid), and a limit that does not hold raises `LaunchRefused` with the numbers.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from typing import Any

from minfer.cuda.kernel import Kernel, LaunchRefused, grid_shape
from minfer.cuda.runtime import checking, driver
from minfer.cuda.runtime.arrays import describe
from minfer.cuda.runtime.compiler import CompiledKernel, compile_kernel
from minfer.cuda.runtime.devices import Gpu, device
from minfer.cuda.runtime.parameters import Parameters
from minfer.cuda.runtime.streams import Stream, current_stream

Grid = int | tuple[int, ...]

GRID_LIMITS = (2**31 - 1, 65535, 65535)  # CUDA programming guide, technical specifications
DEFAULT_SHARED_BYTES = 48 * 1024  # more dynamic shared memory than this needs the opt-in
PORTABLE_CLUSTER = 8


class LoadedKernel:
    """A kernel on the device, ready to launch. Made by `load`.

    Attributes:
        kernel, compiled, device: what, from which code, where.
        launches: how often it has been launched (replays of graphs included).
    """

    def __init__(self, kernel: Kernel, compiled: CompiledKernel, device: Gpu) -> None:
        self.kernel, self.compiled, self.device = kernel, compiled, device
        self.launches = 0
        _check_shared(kernel, compiled.resources.static_shared_bytes, device)
        self._module = driver.call(
            "cuModuleLoadData", compiled.cubin, doing=f"loading {kernel} on {device.name}"
        )
        self.function = driver.call("cuModuleGetFunction", self._module, compiled.entry.encode())
        self._opt_in()
        self._check_block()
        self._per_block = [place for place, a in enumerate(kernel.passed) if a.per_block]
        self._own = _ThreadFrame(self)

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

    @functools.cached_property
    def resident(self) -> int:
        """Blocks that the device holds at a time."""
        return self.occupancy() * self.device.sms

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

    def check_grid(self, grid: tuple[int, int, int]) -> None:
        """Raise LaunchRefused for a grid that CUDA does not allow, or that does not split into clusters."""
        x, y, z = grid
        if self.kernel.cooperative and x * y * z > self.resident:
            remedy = "launch as many as are resident at once: they wait for each other"
            raise self._refused(x * y * z, self.resident, "blocks of a cooperative grid", remedy)
        if 0 < x <= GRID_LIMITS[0] and 0 < y <= GRID_LIMITS[1] and 0 < z <= GRID_LIMITS[2]:
            if x % self.kernel.cluster == 0:
                return
            remedy = "round the grid up to whole clusters"
            raise self._refused(x, f"multiples of {self.kernel.cluster}", "blocks along x", remedy)
        for axis, blocks, limit in zip("xyz", grid, GRID_LIMITS, strict=True):
            if not 1 <= blocks <= limit:
                remedy = "an empty launch is a mistake in shapes" if blocks < 1 else "use larger tiles"
                raise self._refused(blocks, f"1 to {limit}", f"blocks along {axis}", remedy)

    def check_sizes(self, grid: Grid, args: tuple) -> None:
        """Raise ValueError for an array that has not as many elements as the grid's blocks need."""
        for place in self._per_block:
            if not isinstance(args[place], int):
                _, shape, _ = describe(args[place])
                self.kernel.passed[place].check_size(
                    self.kernel, math.prod(shape), math.prod(grid_shape(grid))
                )

    def launch(self, grid: Grid, *args: Any, stream: Any = None, pdl: bool = False) -> None:
        """Launch into `stream` (None: the current one).

        Args:
            grid: (x, y, z) blocks; blocks along x alone, or (x, y), leave the rest at 1.
            args: one a kernel argument: device arrays (`DeviceArray`, torch, `__cuda_array_interface__`) or
                raw addresses for pointers, numbers for scalars, `TensorMap`s.
            pdl: programmatic dependent launch: may start while the kernel before it still runs, and waits
                where it says griddepcontrol.wait (sm_90).

        Raises:
            LaunchRefused: a limit; TypeError, ValueError: an argument that does not fit, by name.
            DriverError: the driver refuses the launch for another reason, or an earlier kernel failed.
        """
        self.enqueue(grid, args, stream, pdl)

    def enqueue(self, grid: Grid, args: tuple, stream: Any = None, pdl: bool = False) -> None:
        """`launch` with its arguments as a tuple, for callers that have one."""
        if type(stream) is not Stream:
            stream = current_stream() if stream is None else Stream.of(stream)
        if checking.is_on():
            self._launch_checked(grid, args, stream, pdl)
            return
        frame = self._own.frame
        if grid != frame.grid or pdl != frame.pdl:
            frame.set_shape(grid, pdl)
        frame.pack(args)
        if self._per_block:
            self.check_sizes(grid, args)
        frame.fire(stream)

    def _launch_checked(self, grid: Grid, args: tuple, stream: Stream, pdl: bool) -> None:
        bound = BoundLaunch(self, grid, args, pdl)
        checking.run_checked(self, functools.partial(bound.fire, stream), args, stream)

    def prepare(self, grid: Grid, *args: Any, pdl: bool = False) -> BoundLaunch:
        """The launch with its grid and arguments bound, for fast repeats. The arrays are kept alive."""
        return BoundLaunch(self, grid, args, pdl)

    def _failed(self, code: int, config: driver.LaunchConfig) -> Exception:
        grid, threads = tuple(config.grid), self.kernel.threads
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
    """The structures of one launch: CUlaunchConfig with its attributes, and the parameters."""

    def __init__(self, loaded: LoadedKernel) -> None:
        kernel = loaded.kernel
        self.loaded = loaded
        # The cooperative attribute first, if any: a launch without pdl leaves out the last one.
        ids = [driver.ATTRIBUTE_COOPERATIVE] if kernel.cooperative else []
        ids.append(driver.ATTRIBUTE_PROGRAMMATIC)
        self._fixed = len(ids) - 1
        self._attributes = (driver.LaunchAttribute * len(ids))()
        for attribute, number in zip(self._attributes, ids, strict=True):
            attribute.id, attribute.value[0] = number, 1
        self.config = driver.LaunchConfig(
            block=(kernel.threads, 1, 1),
            shared_bytes=kernel.shared_bytes,
            attributes=ctypes.addressof(self._attributes),
        )
        self.grid: Grid | None = None
        self.pdl = False
        self._stream = 0
        self._parameters = Parameters(kernel)
        self.pack = self._parameters.pack
        self._call = driver.launch_function()
        start = ctypes.addressof(self.config)
        self._addresses = (start, int(loaded.function), self._parameters.address, None)

    def set_shape(self, grid: Grid, pdl: bool) -> None:
        """Set the grid, and whether to launch programmatically. Raises LaunchRefused, and as `grid_shape`."""
        blocks = grid_shape(grid)
        self.loaded.check_grid(blocks)
        driver.GRID.pack_into(self.config, 0, *blocks)
        self.config.count = self._fixed + pdl
        # A list may be changed by its owner: not kept, so that the next launch reads it again.
        self.grid, self.pdl = grid if isinstance(grid, int | tuple) else blocks, pdl

    def fire(self, stream: Stream) -> None:
        """Launch what was set, and count it."""
        if stream.handle != self._stream:
            self.config.stream = self._stream = stream.handle
        if code := self._call(*self._addresses):
            self._recover(code)
        if stream.captured is None:
            self.loaded.launches += 1
        else:
            stream.captured[self.loaded] += 1

    def attempt(self, stream: Stream) -> int:
        """Launch what was set; the driver's status, neither counted nor judged."""
        self.config.stream = self._stream = stream.handle
        return self._call(*self._addresses)

    def _recover(self, code: int) -> None:
        """Launch again on a thread that had not used the GPU before; raise for every other status."""
        if code == driver.INVALID_CONTEXT:
            self.loaded.device.activate()
            code = self._call(*self._addresses)
        if code:
            raise self.loaded._failed(code, self.config)


class _ThreadFrame(threading.local):
    """Each thread's own frame: a lock around a shared one would cost a tenth of the launch."""

    def __init__(self, loaded: LoadedKernel) -> None:
        self.frame = LaunchFrame(loaded)


class BoundLaunch:
    """A launch whose grid and arguments are fixed; call it to launch. Made by `LoadedKernel.prepare`."""

    def __init__(self, loaded: LoadedKernel, grid: Grid, args: tuple, pdl: bool) -> None:
        self.loaded, self.grid, self.args = loaded, grid, args
        frame = LaunchFrame(loaded)
        frame.set_shape(grid, pdl)
        frame.pack(args)
        loaded.check_sizes(grid, args)
        self.fire = frame.fire

    def __call__(self, stream: Any = None) -> None:
        """Launch into `stream` (None: the current one). Errors as `LoadedKernel.launch`."""
        target = current_stream() if stream is None else Stream.of(stream)
        if checking.is_on():
            checking.run_checked(self.loaded, functools.partial(self.fire, target), self.args, target)
        else:
            self.fire(target)


def _check_shared(kernel: Kernel, static: int, device: Gpu) -> None:
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
    load(kernel).enqueue(grid, args, stream, pdl)


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
