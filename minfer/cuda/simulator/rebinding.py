"""Copies of kernel functions that see the simulator's `cuda` and `types` instead of numba's.

A copy shares code with the original; its globals and closure cells are copies in which the `cuda` module, the
`types` module, numba scalar types under any name and NumPy integers are replaced. Instructions and device
functions are replaced by what they run, so that a call costs one Python frame. The copy's globals carry a
mark, by which frames of kernel source are told from the simulator's own.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np

from minfer.cuda.instruction import DeviceFunction, Instruction
from minfer.cuda.simulator.scalars import SimulatedTypes, scalar_cast
from minfer.cuda.simulator.semantics import semantics_of
from minfer.cuda.trace.source import SOURCE_MARK


class _Namespace:
    """Stands for one of our modules (`ptx`, ...) in a kernel: attributes are replaced at first use."""

    def __init__(self, module: types.ModuleType, replace: Callable[[Any], Any]) -> None:
        self._module = module
        self._replace = replace

    def __getattr__(self, name: str) -> Any:
        value = self._replace(getattr(self._module, name))
        setattr(self, name, value)
        return value


class Rebinder:
    """Rebinds functions for one launch; each function and each module's globals once.

    `fake_cuda` is what the name `cuda` (any reference to the module `numba.cuda`) becomes.
    """

    def __init__(self, fake_cuda: Any) -> None:
        import numba
        import numba.cuda
        import numba.cuda.types

        self._modules: dict[int, Any] = {
            id(numba.cuda): fake_cuda,
            id(numba.cuda.types): SimulatedTypes(numba.cuda.types),
            id(numba.types): SimulatedTypes(numba.types),
        }
        self._globals: dict[int, dict[str, Any]] = {}
        self._functions: dict[int, tuple[Callable, Callable]] = {}

    def function(self, original: Callable) -> Callable:
        """The rebound copy of a plain Python function, or of the function of a device function."""
        known = self._functions.get(id(original))
        if known is not None:
            return known[1]
        plain = getattr(original, "py_func", original)
        if not isinstance(plain, types.FunctionType):
            raise TypeError(f"cannot simulate {original!r}: it is no Python function")
        cells = tuple(types.CellType() for _ in plain.__closure__ or ())
        copy = types.FunctionType(
            plain.__code__, self._module_globals(plain.__globals__), plain.__name__, plain.__defaults__, cells
        )
        copy.__kwdefaults__ = plain.__kwdefaults__
        # known before its cells are filled, since it may be in one; the original is kept, so that its id
        # stays taken
        self._functions[id(original)] = (original, copy)
        for cell, source in zip(cells, plain.__closure__ or (), strict=True):
            cell.cell_contents = self._value(source.cell_contents)
        return copy

    def _module_globals(self, original: dict[str, Any]) -> dict[str, Any]:
        copy = self._globals.get(id(original))
        if copy is None:
            copy = self._globals[id(original)] = {SOURCE_MARK: True}
            for name, value in original.items():
                copy[name] = self._value(value)
        return copy

    def _value(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            known = self._modules.get(id(value))
            if known is None:
                ours = value.__name__.startswith("minfer.")
                known = self._modules[id(value)] = _Namespace(value, self._value) if ours else value
            return known
        if isinstance(value, Instruction):
            return semantics_of(value)
        if isinstance(value, DeviceFunction):
            return self.function(value)
        if type(value) is tuple:
            return tuple(map(self._value, value))
        if isinstance(value, np.integer):  # numba's typing of a constant, not NumPy's wrap-around
            return int(value)
        return scalar_cast(value)
