"""Checked mode: every output is poisoned before a launch, and all of it must have been written after.

Floating-point outputs are filled with NaNs of a known pattern, integers with a canary. An element that still
holds the pattern is a suspect; since a kernel may write just that value, the launch is repeated with another
pattern, and what holds the pattern both times was not written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from minfer.cuda.runtime import driver
from minfer.cuda.runtime.arrays import DeviceArray, describe, empty, itemsize
from minfer.cuda.runtime.streams import Stream

if TYPE_CHECKING:
    from minfer.cuda.kernel import Kernel
    from minfer.cuda.runtime.launching import LoadedKernel

# Two bit patterns an element size: NaNs as floats (payloads that arithmetic does not make), canaries as
# integers. float64 repeats the 32-bit pattern, which is a NaN too.
PATTERNS = {
    "float": {2: (0x7EA5, 0x7E5B), 4: (0x7FEDA5A5, 0x7FED5B5B), 8: (0x7FEDA5A5, 0x7FED5B5B)},
    "bfloat": {2: (0x7FA5, 0x7FDB)},
    "int": {1: (0xA5, 0x5B), 2: (0xA5A5, 0x5B5B), 4: (0xA5A5A5A5, 0x5B5B5B5B), 8: (0xA5A5A5A5, 0x5B5B5B5B)},
}


class Unwritten(AssertionError):
    """Checked mode found output elements that a kernel did not write.

    Attributes:
        kernel, config, argument: which.
        index: the first unwritten element's index; count: how many there are.
    """

    def __init__(
        self, loaded: LoadedKernel, argument: str, index: tuple[int, ...], count: int, size: int
    ) -> None:
        self.kernel, self.config = loaded.kernel.name, loaded.kernel.config
        self.argument, self.index, self.count = argument, index, count
        super().__init__(
            f"{loaded.kernel} left {count} of {size} elements of output {argument!r} unwritten, "
            f"first at {index}"
        )


class NotFinite(AssertionError):
    """Checked mode found NaNs or infinities in an input that must be finite.

    Attributes:
        kernel, argument: which.
        index: the first such element's index; count: how many there are.
    """

    def __init__(self, kernel: Kernel, argument: str, values: np.ndarray) -> None:
        bad = np.flatnonzero(~np.isfinite(values))
        self.kernel, self.argument, self.count = kernel.name, argument, len(bad)
        self.index = tuple(int(i) for i in np.unravel_index(bad[0], values.shape))
        super().__init__(
            f"{kernel}: {self.count} of {values.size} elements of input {argument!r} are NaN or infinite, "
            f"first {values[self.index]} at {self.index}"
        )


def check_finite(kernel: Kernel, argument: str, values: np.ndarray) -> None:
    """Raise NotFinite unless all of `values` are finite."""
    if not np.isfinite(values).all():
        raise NotFinite(kernel, argument, values)


_depth = 0


def is_on() -> bool:
    """Whether checked mode is on."""
    return _depth > 0


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """Check every launch of the block: poison its outputs, wait for it, prove that they were written. An
    output that lies over an input of the same launch cannot be poisoned, and is left out.

    Slow (each launch is waited for, outputs are copied to the host; a kernel that seems to leave something
    unwritten runs twice). Launches inside a graph capture are refused.
    """
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


@dataclass
class _Output:
    """A whole output: where it lies, and how to poison it."""

    name: str
    pointer: int
    shape: tuple[int, ...]
    itemsize: int
    patterns: tuple[int, int]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def poison(self, turn: int, stream: Stream) -> None:
        width, count = (self.itemsize, self.size) if self.itemsize < 8 else (4, 2 * self.size)
        if count:
            function = f"cuMemsetD{8 * width}Async"
            driver.call(function, self.pointer, self.patterns[turn], count, stream.handle)

    def untouched(self, turn: int, stream: Stream) -> np.ndarray:
        """Which elements (flat) still hold the pattern."""
        words = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[self.itemsize]
        pattern = self.patterns[turn]
        if self.itemsize == 8:
            pattern |= pattern << 32
        return DeviceArray(None, self.pointer, (self.size,), np.dtype(words)).to_host(stream) == words(
            pattern
        )


def _span(value: object) -> tuple[int, int]:
    """First and last address of an array, the last excluded."""
    pointer, shape, name = describe(value)
    return pointer, pointer + int(np.prod(shape, dtype=np.int64)) * itemsize(name)


def _in_place(loaded: LoadedKernel, args: tuple) -> set[str]:
    """Outputs that lie over an input of the same launch: what is written there is read first."""
    pairs = [
        (argument, _span(value))
        for argument, value in zip(loaded.kernel.passed, args, strict=True)
        if argument.kind in ("in", "out") and not isinstance(value, int)
    ]
    inputs = [span for argument, span in pairs if argument.kind == "in"]
    return {
        argument.name
        for argument, (first, last) in pairs
        if argument.kind == "out" and any(first < end and start < last for start, end in inputs)
    }


def _outputs(loaded: LoadedKernel, args: tuple) -> list[_Output]:
    outputs, in_place = [], _in_place(loaded, args)
    for argument, value in zip(loaded.kernel.passed, args, strict=True):
        if (argument.kind != "out" and not argument.stored) or argument.name in in_place:
            continue
        array = value.array if argument.kind == "tensor_map" else value
        if isinstance(array, int):
            raise TypeError(
                f"{loaded.kernel}: checked mode needs output {argument.name!r} as an array, not an address"
            )
        pointer, shape, name = describe(array)
        name = argument.dtype if argument.dtype == "bfloat16" else name
        kind = name.rstrip("0123456789").removeprefix("u").replace("bool", "int")
        width = itemsize(name)
        outputs.append(_Output(argument.name, pointer, shape, width, PATTERNS[kind][width]))
    return outputs


def run_checked(loaded: LoadedKernel, fire: Callable[[], None], args: tuple, stream: Stream) -> None:
    """Launch by `fire` with poisoned outputs.

    Raises:
        NotFinite: an input that must be finite, and is not.
        ValueError: an array that must be zero between launches, and is not.
        Unwritten: an output that was not written whole.
        DriverError: the kernel failed while it ran.
        RuntimeError: inside a graph capture.
    """
    if stream.captured is not None:
        raise RuntimeError(
            f"{loaded.kernel}: checked mode cannot look into a graph capture: launch it outside of one"
        )
    _check_inputs(loaded, args, stream)
    outputs = _outputs(loaded, args)
    saved = _save(loaded, args, stream)
    suspects = _suspects(loaded, fire, outputs, 0, stream)
    if not any(mask.any() for mask in suspects):
        return
    for original, copy in saved:
        driver.call("cuMemcpyDtoDAsync", original, copy.pointer, copy.nbytes, stream.handle)
    again = _suspects(loaded, fire, outputs, 1, stream)
    for output, first, second in zip(outputs, suspects, again, strict=True):
        unwritten = np.flatnonzero(first & second)
        if len(unwritten):
            index = tuple(int(i) for i in np.unravel_index(unwritten[0], output.shape))
            raise Unwritten(loaded, output.name, index, len(unwritten), output.size)


def _check_inputs(loaded: LoadedKernel, args: tuple, stream: Stream) -> None:
    for argument, value in zip(loaded.kernel.passed, args, strict=True):
        if (argument.finite or argument.cleared) and not isinstance(value, int):
            pointer, shape, name = describe(value)
            values = DeviceArray(None, pointer, shape, np.dtype(name)).to_host(stream)
            argument.check_cleared(loaded.kernel, values[: argument.cleared])
            if argument.finite:
                check_finite(loaded.kernel, argument.name, values)


def _save(loaded: LoadedKernel, args: tuple, stream: Stream) -> list[tuple[int, DeviceArray]]:
    """Copies of what the kernel changes in place, to start the second run from."""
    saved, in_place = [], _in_place(loaded, args)
    for argument, value in zip(loaded.kernel.passed, args, strict=True):
        if (argument.kind != "inout" and argument.name not in in_place) or isinstance(value, int):
            continue
        pointer, shape, name = describe(value)
        copy = empty(int(np.prod(shape, dtype=np.int64)) * itemsize(name), np.uint8)
        if copy.nbytes:
            driver.call("cuMemcpyDtoDAsync", copy.pointer, pointer, copy.nbytes, stream.handle)
            saved.append((pointer, copy))
    return saved


def _suspects(
    loaded: LoadedKernel, fire: Callable[[], None], outputs: list[_Output], turn: int, stream: Stream
) -> list[np.ndarray]:
    for output in outputs:
        output.poison(turn, stream)
    fire()
    driver.call("cuStreamSynchronize", stream.handle, doing=f"running {loaded.kernel} (checked)")
    return [output.untouched(turn, stream) for output in outputs]
