"""Functions that kernels call: plain Python made of instructions, inlined where it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable


class DeviceFunction:
    """A Python function that kernels call: inlined into them when compiled, run as it is in plain Python.

    In a simulated launch the function runs rebound to the simulator's `cuda` and `types`; pure arithmetic (an
    address function) is ordinary Python everywhere."""

    def __init__(self, function: Callable, fastmath: bool = True):
        self.py_func = function
        self.fastmath = fastmath
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<device function {self.__name__}>"

    @functools.cached_property
    def _plain(self) -> Callable:
        scope = inspect.getclosurevars(self.py_func)
        if all(
            isinstance(value, (int, float)) for value in (*scope.globals.values(), *scope.nonlocals.values())
        ):
            return self.py_func
        from minfer.cuda.simulator import rebind

        return rebind(self.py_func)

    def __call__(self, *args):
        return self._plain(*args)

    @functools.cached_property
    def _dispatcher(self):
        from numba.cuda.dispatcher import CUDADispatcher

        options = {
            "device": True,
            "forceinline": True,
            "inline": "never",
            "fastmath": self.fastmath,
            "opt": True,
            "debug": False,
            "lineinfo": False,
            "lto": False,
            "link": (),
            "extensions": [],
            "launch_bounds": None,
            "shared_memory_carveout": None,
        }
        return CUDADispatcher(self.py_func, targetoptions=options)

    @property
    def _numba_type_(self):
        return self._dispatcher._numba_type_


def device_function(function: Callable | None = None, *, fastmath: bool = True):
    """Decorator: a function for kernels to call (`DeviceFunction`). Local arrays passed to it stay in
    registers."""
    if function is None:
        return functools.partial(device_function, fastmath=fastmath)
    return DeviceFunction(function, fastmath)
