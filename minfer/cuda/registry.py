"""Every kernel config that minfer ships.

A kernel module (or package) of minfer.cuda lists its own in a function `shipped() -> list[Kernel]`, and their
names in `KERNELS`, so that a few are had without making all. This module finds them for `minfer kernels`, for
the occupancy check against the driver and for the GPU tests.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
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
def _shipped_by(module: ModuleType) -> dict[str, tuple[Kernel, ...]]:
    """The shipped configs of a module by kernel name."""
    kernels: dict[str, dict[str, Kernel]] = {name: {} for name in module.KERNELS}
    for kernel in module.shipped():
        if kernel.name not in kernels:
            raise ValueError(f"{module.__name__}: ships {kernel.name}, which its KERNELS do not name")
        first = kernels[kernel.name].setdefault(str(kernel.config), kernel)
        if first.config != kernel.config:
            raise ValueError(f"{module.__name__}: {first.config!r} and {kernel.config!r} read the same")
    return {name: tuple(configs.values()) for name, configs in kernels.items()}


def shipped_kernels(
    name: str = "", making: Callable[[str], object] = lambda module: None
) -> dict[str, tuple[Kernel, ...]]:
    """Kernel name -> its shipped configs, sorted by name; of the kernels whose name contains `name`.

    Imports every kernel module (numba: about 1 s), and makes the kernels of those modules that have one of
    the name: up to half a minute for all. `making` is called with a module's name before.

    Raises:
        ValueError: two different configs of a kernel read the same, or a module ships what it does not name.
    """
    kernels: dict[str, tuple[Kernel, ...]] = {}
    for module in _modules():
        if wanted := [kernel for kernel in vars(module).get("KERNELS", ()) if name in kernel]:
            making(module.__name__.rpartition(".")[2])
            shipped = _shipped_by(module)
            kernels |= {kernel: shipped[kernel] for kernel in wanted}
    return dict(sorted(kernels.items()))


def all_kernels(name: str = "", making: Callable[[str], object] = lambda module: None) -> tuple[Kernel, ...]:
    """Every shipped kernel whose name contains `name`, in the order of `shipped_kernels`, which says more."""
    return tuple(kernel for kernels in shipped_kernels(name, making).values() for kernel in kernels)
