"""Streams, events and CUDA graphs."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from minfer.cuda.runtime import driver
from minfer.cuda.runtime.devices import device


class Stream:
    """An order of work on the device. `Stream()` makes a new one; `Stream.of` wraps one of another library.

    As a context manager it is the calling thread's current stream: where work goes that names none.
    """

    def __init__(self, handle: int | None = None) -> None:
        self._owned = handle is None
        if handle is None:
            device()
            handle = int(driver.call("cuStreamCreate", 0, doing="creating a stream"))
        self.handle = handle
        self.captured: Counter | None = None  # what was launched into the capture under way, else None
        self._outer: list[Stream] = []

    @classmethod
    def of(cls, stream: Any) -> Stream:
        """The stream itself, None (the current stream), a raw handle, or an object of torch, CuPy or numba.

        Raises:
            TypeError: none of these.
        """
        if isinstance(stream, Stream):
            return stream
        if stream is None:
            return current_stream()
        if isinstance(stream, int):
            return cls(stream)
        for name in ("cuda_stream", "ptr", "handle"):
            value = getattr(stream, name, None)
            if value is not None:
                return cls(int(getattr(value, "value", value) or 0))
        raise TypeError(f"{stream!r} is no CUDA stream")

    def synchronize(self) -> None:
        """Wait for the stream's work; raises DriverError for a kernel that failed."""
        driver.call("cuStreamSynchronize", self.handle, doing="waiting for a stream")

    def __enter__(self) -> Stream:
        self._outer.append(current_stream())
        _local.stream = self
        return self

    def __exit__(self, *_: Any) -> None:
        _local.stream = self._outer.pop()

    def __del__(self) -> None:
        if getattr(self, "_owned", False):
            with contextlib.suppress(Exception):  # the driver may be gone at exit
                driver.call("cuStreamDestroy", self.handle)

    def __repr__(self) -> str:
        return f"Stream({self.handle:#x})"


class _Local(threading.local):
    """Per thread: the current stream; at first the legacy default stream, which is torch's too."""

    def __init__(self) -> None:
        self.stream = Stream(0)


_local = _Local()


def current_stream() -> Stream:
    """The calling thread's current stream."""
    return _local.stream


class Event:
    """A point in a stream, with a time."""

    def __init__(self) -> None:
        device()
        self.handle = driver.call("cuEventCreate", 0, doing="creating an event")

    def record(self, stream: Any = None) -> Event:
        """Mark this point of the stream (None: the current one)."""
        driver.call("cuEventRecord", self.handle, Stream.of(stream).handle)
        return self

    def synchronize(self) -> None:
        """Wait until the point has been passed."""
        driver.call("cuEventSynchronize", self.handle, doing="waiting for an event")

    def since(self, start: Event) -> float:
        """Milliseconds from `start` to this event; waits for this one."""
        self.synchronize()
        return float(driver.call("cuEventElapsedTime", start.handle, self.handle))

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            with contextlib.suppress(Exception):  # the driver may be gone at exit
                driver.call("cuEventDestroy", self.handle)


class Graph:
    """Work captured from a stream, to be replayed with one host call.

    `launches` says which kernels it holds, and how often: {LoadedKernel: n}. A replay counts them all.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.launches: Counter = Counter()
        self._graph: Any = None
        self._executable: Any = None

    def replay(self, stream: Any = None) -> None:
        """Launch the graph, into the stream that it was captured from unless another is given.

        Raises:
            RuntimeError: the capture has not ended, or failed.
        """
        if self._executable is None:
            raise RuntimeError("this graph was not captured to its end: replay it after the `with` block")
        target = self.stream if stream is None else Stream.of(stream)
        driver.call("cuGraphLaunch", self._executable, target.handle, doing="replaying a graph")
        for loaded, n in self.launches.items():
            loaded.launches += n

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the driver may be gone at exit
            if self._executable is not None:
                driver.call("cuGraphExecDestroy", self._executable)
            if self._graph is not None:
                driver.call("cuGraphDestroy", self._graph)


class _Captures:
    """Captures under way in this process, and memory whose freeing waits for their end: a free inside a
    capture would break it, and the garbage collector frees when it likes."""

    def __init__(self) -> None:
        self.open = 0
        self.waiting: list[int] = []
        self.lock = threading.Lock()


captures = _Captures()


@contextlib.contextmanager
def capture(stream: Any = None) -> Iterator[Graph]:
    """Capture what the block launches into `stream` (a new one if None), which is current inside it.

    Nothing runs until `graph.replay()`. Compile and load kernels before: loading inside a capture is allowed
    but slow. Arrays used inside must outlive the graph.

        with capture() as graph:
            launch(kernel, grid, a, b)
        graph.replay()

    Raises:
        DriverError: a call inside the block that cannot be captured (a synchronization, a copy that waits).
    """
    target = Stream() if stream is None else Stream.of(stream)
    if target.handle == 0:
        raise ValueError("the default stream cannot be captured: give another, or none")
    graph = Graph(target)
    relaxed = driver.bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    driver.call("cuStreamBeginCapture", target.handle, relaxed, doing="beginning a capture")
    with captures.lock:
        captures.open += 1
    target.captured = graph.launches
    finished = False
    try:
        with target:
            yield graph
        finished = True
    finally:
        target.captured = None
        status, handle = driver.bindings().cuStreamEndCapture(target.handle)
        with captures.lock:
            captures.open -= 1
            waiting = [] if captures.open else captures.waiting[:]
            del captures.waiting[: len(waiting)]
        for pointer in waiting:
            driver.call("cuMemFree", pointer)
        if int(status) == driver.SUCCESS and int(handle):
            graph._graph = handle
        if finished and int(status) != driver.SUCCESS:
            raise driver.DriverError(int(status), "ending a capture")
    graph._executable = driver.call("cuGraphInstantiate", graph._graph, 0, doing="instantiating a graph")
