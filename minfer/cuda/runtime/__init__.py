"""The launch protocol: compile, assemble, cache, load, check, launch, capture.

    kernel = gemm(GemmConfig(...))                  # minfer.cuda.kernel.Kernel
    compile_kernel(kernel, "sm_90a").resources      # no GPU needed
    launch(kernel, grid, a, b, c)                   # the GPU in use
    run = load(kernel).prepare(grid, a, b, c); run()    # fast repeats
    with checked(): launch(kernel, grid, a, b, c)   # poisoned outputs, all must be written
    with capture() as graph: run()
    graph.replay()

Importing this package imports neither NumPy nor numba; the names below load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minfer.cuda.runtime.arrays import (
        DeviceArray,
        Pinned,
        download,
        empty,
        mapped,
        send,
        to_device,
        upload,
        zeros,
    )
    from minfer.cuda.runtime.checking import NotFinite, Unwritten, checked
    from minfer.cuda.runtime.compiler import ARCHITECTURES, CompiledKernel, compile_kernel
    from minfer.cuda.runtime.devices import Gpu, available, device, profiled
    from minfer.cuda.runtime.driver import DriverError
    from minfer.cuda.runtime.launching import (
        BoundLaunch,
        LoadedKernel,
        launch,
        launch_counts,
        load,
        reset_launch_counts,
    )
    from minfer.cuda.runtime.resources import Resources
    from minfer.cuda.runtime.sensors import read_energy, read_load, read_sensors
    from minfer.cuda.runtime.streams import Event, Graph, Stream, capture, current_stream
    from minfer.cuda.runtime.tensor_maps import TensorMap, tensor_map

_WHERE = {
    "arrays": (
        "DeviceArray",
        "Pinned",
        "download",
        "empty",
        "mapped",
        "send",
        "to_device",
        "upload",
        "zeros",
    ),
    "checking": ("NotFinite", "Unwritten", "checked"),
    "compiler": ("ARCHITECTURES", "CompiledKernel", "compile_kernel"),
    "devices": ("Gpu", "available", "device", "profiled"),
    "driver": ("DriverError",),
    "launching": ("BoundLaunch", "LoadedKernel", "launch", "launch_counts", "load", "reset_launch_counts"),
    "resources": ("Resources",),
    "sensors": ("read_energy", "read_load", "read_sensors"),
    "streams": ("Event", "Graph", "Stream", "capture", "current_stream"),
    "tensor_maps": ("TensorMap", "tensor_map"),
}
_MODULE = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "ARCHITECTURES",
    "BoundLaunch",
    "CompiledKernel",
    "DeviceArray",
    "DriverError",
    "Event",
    "Gpu",
    "Graph",
    "LoadedKernel",
    "NotFinite",
    "Pinned",
    "Resources",
    "Stream",
    "TensorMap",
    "Unwritten",
    "available",
    "capture",
    "checked",
    "compile_kernel",
    "current_stream",
    "device",
    "download",
    "empty",
    "launch",
    "launch_counts",
    "load",
    "mapped",
    "profiled",
    "read_energy",
    "read_load",
    "read_sensors",
    "reset_launch_counts",
    "send",
    "tensor_map",
    "to_device",
    "upload",
    "zeros",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE[name]}"), name)
    globals()[name] = value
    return value
