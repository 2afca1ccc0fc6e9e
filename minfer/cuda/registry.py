"""Every kernel config that minfer ships.

A kernel module (or package) of minfer.cuda lists its own in a function `shipped() -> list[Kernel]`; this
module finds them all, for `minfer kernels`, for the occupancy check against the driver and for the GPU
tests.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import minfer.cuda
from minfer.cuda.kernel import Kernel

# The floors that kernels stand on hold none.
FLOORS = (
    "ptx",
    "tile",
    "runtime",
    "simulator",
    "trace",
    "registry",
    "report",
    "precompile",
    "kernel",
    "instruction",
    "device_function",
    "unroll",
)


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(minfer.cuda.__path__, "minfer.cuda."):
        if found.name.split(".")[2] not in FLOORS:
            yield importlib.import_module(found.name)


@functools.cache
def shipped_kernels() -> dict[str, tuple[Kernel, ...]]:
    """Kernel name -> its shipped configs, sorted by name. Imports every kernel module (numba: about 1 s).

    Raises:
        ValueError: two different configs of a kernel read the same.
    """
    kernels: dict[str, dict[str, Kernel]] = {}
    for module in _modules():
        for kernel in vars(module).get("shipped", list)():
            first = kernels.setdefault(kernel.name, {}).setdefault(str(kernel.config), kernel)
            if first.config != kernel.config:
                raise ValueError(f"{module.__name__}: {first.config!r} and {kernel.config!r} read the same")
    return {name: tuple(kernels[name].values()) for name in sorted(kernels)}


def all_kernels() -> tuple[Kernel, ...]:
    """Every shipped kernel, in the order of `shipped_kernels`."""
    return tuple(kernel for kernels in shipped_kernels().values() for kernel in kernels)
