"""Every kernel config that minfer ships.

A kernel module lists its own in a function `shipped() -> list[Kernel]`; this module finds them all, for
`minfer kernels`, for the occupancy check against the driver and for the GPU tests.
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
FLOORS = ("ptx", "tile", "runtime", "simulator", "trace", "registry", "kernel", "instruction", "unroll")


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(minfer.cuda.__path__, "minfer.cuda."):
        if found.name.split(".")[2] not in FLOORS:
            yield importlib.import_module(found.name)


@functools.cache
def shipped_kernels() -> dict[str, tuple[Kernel, ...]]:
    """Kernel name -> its shipped configs, sorted by name. Imports every kernel module (numba: about a second).

    Raises:
        ValueError: two shipped kernels have the same name and config.
    """
    kernels: dict[str, list[Kernel]] = {}
    for module in _modules():
        shipped = vars(module).get("shipped")
        if shipped is None or shipped.__module__ != module.__name__:
            continue
        for kernel in shipped():
            same = kernels.setdefault(kernel.name, [])
            if any(str(other.config) == str(kernel.config) for other in same):
                raise ValueError(f"{module.__name__} ships {kernel} twice")
            same.append(kernel)
    return {name: tuple(kernels[name]) for name in sorted(kernels)}


def all_kernels() -> tuple[Kernel, ...]:
    """Every shipped kernel, in the order of `shipped_kernels`."""
    return tuple(kernel for kernels in shipped_kernels().values() for kernel in kernels)
