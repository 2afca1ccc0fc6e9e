"""What the cuda backend needs of a device, and the three there are: a GPU, the simulator, and none.

The simulator runs the same kernels on NumPy arrays, so that the whole backend can be tested without a GPU. A
dry run finds out which kernels a model will need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from minfer.arithmetic.devices import shared_limit
from minfer.cuda.kernel import Kernel

STAGING_BYTES = 32 << 20
READ_BYTES = 1 << 20  # of a pinned buffer, for a token's logits
WRITE_BYTES = 1 << 16  # of a pinned buffer, for a pass's tokens
Progress = Callable[[int], None]


class Device(Protocol):
    """Memory, launches and copies, all in one order.

    Arrays have shape, dtype, nbytes, row slices, `view` and `reshape` as in NumPy.
    """

    arch: str
    sms: int
    shared_bytes: int
    """Most shared memory of a block."""

    def free_bytes(self) -> int:
        """Free memory."""

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """An array of unset memory."""

    def offset(self, array: Any) -> int:
        """Bytes from where `origin` begins to where `array` does, modulo 2**64."""

    def origin(self) -> Any:
        """An array of bytes that offsets count from."""

    def write(self, target: Any, source: np.ndarray) -> None:
        """Copy a small array in."""

    def clear(self, target: Any) -> None:
        """Fill with zeros; may be captured."""

    def upload(self, target: Any, source: np.ndarray) -> None:
        """Copy a large one in, any dtype of the same number of bytes."""

    def end_uploads(self) -> None:
        """No large copies will follow."""

    def read(self, source: Any) -> np.ndarray:
        """Wait for everything and copy out."""

    def mapped(self, shape: int | tuple[int, ...], dtype: Any) -> tuple[Any, np.ndarray]:
        """A small array in the host's memory that kernels write, zeros at first: as they and as the host see
        it."""

    def mark(self) -> Callable[[], None]:
        """Returns what waits for everything enqueued until now."""

    def load(self, kernel: Kernel) -> None:
        """Compile and load a kernel before its first launch: raises CompileError or LaunchRefused where that
        would."""

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], *args: Any, pdl: bool = False) -> None:
        """Enqueue a kernel."""

    def tensor_map(self, array: Any, box: tuple[int, ...]) -> Any:
        """A tensor map of boxes (rows, columns) with the 128-byte swizzle, or (rows, columns, swizzle)."""

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Record what `enqueue` launches, without running it; returns what replays it."""


class GpuDevice:
    """The GPU in use, current on the calling thread, and its own stream. Raises NoDevice if there is none."""

    def __init__(self) -> None:
        from minfer.cuda import runtime

        self._runtime = runtime
        self.gpu = runtime.device()
        self.gpu.activate()  # another thread may have opened it
        self.arch, self.sms, self.shared_bytes = self.gpu.arch, self.gpu.sms, self.gpu.shared_optin_bytes
        self.stream = runtime.Stream()
        self._staging: tuple[Any, Any] | None = None
        self._results: list[Any] = []
        self.overlaps = True  # dependent launches begin before the one before has ended
        self._outbox: Any = None
        self._sent: Any = None
        self._origin: Any = None

    def __str__(self) -> str:
        return str(self.gpu)

    def free_bytes(self) -> int:
        return self.gpu.free_bytes()

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        return self._runtime.empty(shape, dtype)

    def offset(self, array: Any) -> int:
        return (array.pointer - self.origin().pointer) % (1 << 64)

    def origin(self) -> Any:
        if self._origin is None:
            self._origin = self._runtime.empty(16, np.uint8)
        return self._origin

    def write(self, target: Any, source: np.ndarray) -> None:
        if source.nbytes > WRITE_BYTES or not source.flags.c_contiguous:
            target.copy_from(source, self.stream)
            return
        if self._outbox is None:
            self._outbox, self._sent = self._runtime.Pinned(WRITE_BYTES), self._runtime.Event()
        self._sent.synchronize()
        self._runtime.send(target, source, self._outbox, self.stream)
        self._sent.record(self.stream)

    def clear(self, target: Any) -> None:
        target.fill_bytes(0, self.stream)

    def upload(self, target: Any, source: np.ndarray) -> None:
        if self._staging is None:
            self._staging = (self._runtime.Pinned(STAGING_BYTES), self._runtime.Pinned(STAGING_BYTES))
        self._runtime.upload(target, source, self._staging, self.stream)

    def end_uploads(self) -> None:
        """Give the pinned buffers back."""
        self._staging = None

    def read(self, source: Any) -> np.ndarray:
        if source.nbytes > READ_BYTES:
            return source.to_host(self.stream)
        free = next((buffer for buffer in self._results if not buffer.lent), None)
        if free is None:  # the caller keeps what it has read before
            free = self._runtime.Pinned(READ_BYTES)
            self._results.append(free)
        return self._runtime.download(source, free, self.stream)

    def mapped(self, shape: int | tuple[int, ...], dtype: Any) -> tuple[Any, np.ndarray]:
        return self._runtime.mapped(shape, dtype)

    def mark(self) -> Callable[[], None]:
        return self._runtime.Event().record(self.stream).synchronize

    def load(self, kernel: Kernel) -> None:
        self._runtime.load(kernel)

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], *args: Any, pdl: bool = False) -> None:
        self._runtime.load(kernel).enqueue(grid, args, self.stream, pdl and self.overlaps)

    def tensor_map(self, array: Any, box: tuple[int, ...]) -> Any:
        return self._runtime.tensor_map(array, *box)

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        with self._runtime.capture(self.stream) as graph:
            enqueue()
        return graph.replay


class _WithoutGpu:
    """What devices share on which nothing is compiled and nothing waits. `launches`: the kernels so far."""

    def __init__(self, arch: str, sms: int, memory_bytes: int) -> None:
        self.arch, self.sms, self.memory_bytes = arch, sms, memory_bytes
        self.shared_bytes = shared_limit(arch)
        self.launches: list[Kernel] = []

    def end_uploads(self) -> None:
        pass

    def mark(self) -> Callable[[], None]:
        return lambda: None

    def load(self, kernel: Kernel) -> None:
        pass

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        return enqueue


class SimulatedDevice(_WithoutGpu):
    """The simulator: every launch runs at once, lane by lane, in plain Python."""

    def __init__(self, arch: str = "sm_80", sms: int = 2, memory_bytes: int = 1 << 30) -> None:
        super().__init__(arch, sms, memory_bytes)
        # One block, as a GPU's memory is one space; the system gives pages as they are written.
        self._memory, self._used = np.empty(memory_bytes, np.uint8), 0

    def __str__(self) -> str:
        return f"simulator ({self.arch}, {self.sms} SMs)"

    def free_bytes(self) -> int:
        return max(0, self.memory_bytes - self._used)

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if size > self.free_bytes():
            raise MemoryError(
                f"{self} has {self.free_bytes():,} of {self.memory_bytes:,} bytes left, {size:,} were asked "
                "for, and nothing is given back: open another one, or one of more memory_bytes"
            )
        memory = self._memory[self._used : self._used + size]
        self._used += -(-size // 256) * 256
        memory[:] = 0xFF  # poison: NaN for f16 and f32
        return memory.view(dtype).reshape(shape)

    def offset(self, array: np.ndarray) -> int:
        return array.ctypes.data - self._memory.ctypes.data

    def origin(self) -> np.ndarray:
        return self._memory

    def write(self, target: np.ndarray, source: np.ndarray) -> None:
        target[...] = source

    def clear(self, target: np.ndarray) -> None:
        target[...] = 0

    def upload(self, target: np.ndarray, source: np.ndarray) -> None:
        target.reshape(-1).view(np.uint8)[:] = np.ascontiguousarray(source).reshape(-1).view(np.uint8)

    def read(self, source: np.ndarray) -> np.ndarray:
        return source.copy()

    def mapped(self, shape: int | tuple[int, ...], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        array = self.empty(shape, dtype)
        array[...] = 0
        return array, array

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], *args: Any, pdl: bool = False) -> None:
        from minfer.cuda import simulator

        self.launches.append(kernel)
        simulator.launch(kernel, grid, *args)

    def tensor_map(self, array: np.ndarray, box: tuple[int, ...]) -> Any:
        from minfer.cuda import simulator

        return simulator.tensor_map(array, *box)


class DryDevice(_WithoutGpu):
    """No device at all: remembers which kernels are launched, and runs nothing. Its arrays have no memory."""

    def __init__(self, arch: str = "sm_90a", sms: int = 132, memory_bytes: int = 141_000_000_000) -> None:
        super().__init__(arch, sms, memory_bytes)

    def __str__(self) -> str:
        return f"no device ({self.arch}, {self.sms} SMs)"

    def free_bytes(self) -> int:
        return self.memory_bytes

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        from minfer.cuda.runtime import DeviceArray

        return DeviceArray(None, 256, (shape,) if isinstance(shape, int) else shape, np.dtype(dtype))

    def offset(self, array: Any) -> int:
        return 0

    def origin(self) -> Any:
        return self.empty(16, np.uint8)

    def write(self, target: Any, source: np.ndarray) -> None:
        pass

    def clear(self, target: Any) -> None:
        pass

    def upload(self, target: Any, source: np.ndarray) -> None:
        pass

    def read(self, source: Any) -> np.ndarray:
        return np.zeros(source.shape, source.dtype)

    def mapped(self, shape: int | tuple[int, ...], dtype: Any) -> tuple[Any, np.ndarray]:
        return self.empty(shape, dtype), np.zeros(shape, dtype)

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], *args: Any, pdl: bool = False) -> None:
        self.launches.append(kernel)

    def tensor_map(self, array: Any, box: tuple[int, ...]) -> Any:
        return array, box
