"""From a kernel's config to its launch: made once for each shape, and kept.

A forward repeats the same few launches in every layer, with other arrays. Making a config checks all of its
fields, and choosing one compares tiles: that costs more than a launch does, so that a short prompt would wait
for the host. `launch_for` therefore keeps what it has made by what decided it: forms, widths and the number
of tokens.
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
"""Launches that are kept: those of some 300 numbers of tokens. About 1 KB each."""


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
