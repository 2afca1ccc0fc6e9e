"""Run a kernel's own source in plain Python, one greenlet a CUDA thread.

`launch(kernel, grid, *args)` takes NumPy arrays where a GPU launch takes device arrays, and modifies them
in place. Warp collectives have real lane semantics, asynchronous copies land when they are waited for, and
every access is checked against the bounds of its array. With a `Trace` everything that lanes do is
recorded.

What is not simulated: time, caches and weak memory order (a lane's writes are visible at once; what a missing
barrier allows is found by `minfer.cuda.trace.check`, or by another order of threads with `seed`), numba's
typing of mixed integers (`uint64 + int64` is a float64 there: compile the kernel), register limits, an
array's own alignment (every array starts at a multiple of 2^40 here), and polling of plain memory (a lane
gives way only where it waits).
"""

from minfer.cuda.simulator.errors import (
    AsyncHazard,
    Deadlock,
    Divergence,
    InvalidInstruction,
    Misaligned,
    OutOfBounds,
    SimulatorError,
    UninitializedLocal,
    UninitializedShared,
)
from minfer.cuda.simulator.launching import launch, rebind
from minfer.cuda.simulator.tensor_map import TensorMap, tensor_map

__all__ = [
    "AsyncHazard",
    "Deadlock",
    "Divergence",
    "InvalidInstruction",
    "Misaligned",
    "OutOfBounds",
    "SimulatorError",
    "TensorMap",
    "UninitializedLocal",
    "UninitializedShared",
    "launch",
    "rebind",
    "tensor_map",
]
