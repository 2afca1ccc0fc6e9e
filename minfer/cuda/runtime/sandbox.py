"""A launch whose statuses nobody looks at, to show what then happens (seed 003: the phantom).

This is how not to launch: two driver calls report that a block asks for too much shared memory, both reports
are dropped, and the outputs stay as they were. Nothing of the GPU is harmed: a refused launch does not run,
and leaves the context usable. Everything else in this project launches through `minfer.cuda.runtime.launch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minfer.cuda.runtime import driver
from minfer.cuda.runtime.launching import Grid, LaunchFrame, LoadedKernel
from minfer.cuda.runtime.streams import current_stream


@dataclass(frozen=True)
class Unheeded:
    """What the driver said to the two calls of a launch, as CUresult names (CUDA_SUCCESS if it agreed).

    Attributes:
        shared_bytes: dynamic shared memory a block that was asked for.
        opt_in: to setting the kernel's attribute. launch: to the launch.
    """

    shared_bytes: int
    opt_in: str
    launch: str


def launch_unheeded(loaded: LoadedKernel, shared_bytes: int, grid: Grid, *args: Any) -> Unheeded:
    """Ask for `shared_bytes` a block and launch, whatever the driver says; waits for what ran."""
    cu = driver.bindings()
    attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (opt_in,) = cu.cuFuncSetAttribute(loaded.function, attribute, shared_bytes)
    stream, frame = current_stream(), LaunchFrame(loaded)
    frame.set_shape(grid, False)
    frame.pack(args)
    frame.config.shared_bytes = shared_bytes
    status = frame.attempt(stream)
    driver.call("cuStreamSynchronize", stream.handle, doing=f"running {loaded.kernel}")
    return Unheeded(shared_bytes, driver.error_name(int(opt_in)), driver.error_name(status))
