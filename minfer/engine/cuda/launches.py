"""From an operation to its launch: what is made once for each shape, and kept.

A forward repeats the same few launches in every layer, with other arrays. Making a config checks all of its
fields, and choosing one compares tiles: that costs more than a launch does, so that a short prompt would wait
for the host. `launch_for` therefore keeps what it has made by what decided it: forms, widths and the number
of tokens. So does `TensorMaps` by arrays and boxes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from minfer.cuda.kernel import Kernel

if TYPE_CHECKING:
    from minfer.engine.cuda.devices import Device

KEPT = 4096
"""Launches, or tensor maps, that are kept: those of some 300 numbers of tokens. About 1 KB each."""


@cache
def kernel(factory: Callable[[Any], Kernel], config: Any) -> Kernel:
    """The kernel of a config, one object for all: what is loaded on the GPU is kept by kernel."""
    made = factory(config)
    _origins[made] = factory, replace(config)  # a fresh copy: what a config computes and keeps may not pickle
    return made


def origin(made: Kernel) -> tuple[Callable[[Any], Kernel], Any]:
    """The factory and config that `kernel` made it from: these two can go to another process."""
    return _origins[made]


_origins: dict[Kernel, tuple[Callable[[Any], Kernel], Any]] = {}


@dataclass(frozen=True, eq=False, slots=True)
class Launch:
    """A kernel and its grid: a launch but for its arguments."""

    kernel: Kernel
    config: Any
    grid: tuple[int, int, int]
    pdl: bool

    def on(self, device: Device, *args: Any) -> None:
        """Enqueue it with these arguments."""
        device.launch(self.kernel, self.grid, *args, pdl=self.pdl)


@lru_cache(KEPT)
def launch_for(
    factory: Callable[[Any], Kernel],
    configure: Callable[..., Any],
    sizes: tuple[int, ...],
    *args: Any,
    **fields: Any,
) -> Launch:
    """The launch of factory(configure(*args, **fields)) on the config's grid for `sizes`.

    Everything given is hashed, so `configure` is a config's class or a function that depends on nothing else.
    Raises what these raise, and keeps nothing then.
    """
    config = configure(*args, **fields)
    return Launch(kernel(factory, config), config, config.grid(*sizes), getattr(config, "pdl", False))


class TensorMaps:
    """Tensor maps of a device's arrays: (array, box) -> the map of boxes (rows, columns) or (rows, columns,
    swizzle). The same buffers come again."""

    def __init__(self, device: Device):
        self._device = device
        self._kept: dict[tuple, Any] = {}

    def __call__(self, array: Any, box: tuple[int, ...]) -> Any:
        address = array.pointer if hasattr(array, "pointer") else array.__array_interface__["data"][0]
        key = (address, array.shape, array.dtype, box)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) == KEPT:
                del self._kept[next(iter(self._kept))]  # the oldest; a launch has its own copy of it
            found = self._kept[key] = self._device.tensor_map(array, box)
        return found
