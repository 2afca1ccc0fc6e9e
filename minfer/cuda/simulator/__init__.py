"""Run a kernel's own source in plain Python, one greenlet a CUDA thread.

`launch(kernel, grid, *args)` takes NumPy arrays where a GPU launch takes device arrays, and modifies them
in place. Warp collectives have real lane semantics, asynchronous copies land when they are waited for, and
every access is checked against the bounds of its array. With a `Trace` everything that lanes do is
recorded.
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
