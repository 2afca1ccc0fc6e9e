"""Copies of kernel functions that see the simulator's `cuda` and `types` instead of numba's.

A copy shares code with the original; its globals are a copy in which the `cuda` module, the `types` module,
numba scalar types under any name and NumPy integers are replaced, and its closure cells likewise. The
copy's globals carry a mark, by which frames of kernel source are told from the simulator's own.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from minfer.cuda.simulator.scalars import SimulatedTypes, scalar_cast
from minfer.cuda.trace.source import SOURCE_MARK


class Rebinder:
    """Rebinds functions for one launch; each function and each module's globals once.

    `fake_cuda` is what the name `cuda` (any reference to the module `numba.cuda`) becomes.
    """

    def __init__(self, fake_cuda: Any) -> None:
        import numba
        import numba.cuda
        import numba.cuda.types

        self._cuda = numba.cuda
        self._modules = {
            id(numba.cuda): fake_cuda,
            id(numba.cuda.types): SimulatedTypes(numba.cuda.types),
            id(numba.types): SimulatedTypes(numba.types),
        }
        self._globals: dict[int, dict[str, Any]] = {}
        self._functions: dict[int, tuple[Callable, Callable]] = {}

    def function(self, original: Callable) -> Callable:
        """The rebound copy of a plain Python function (or of what a dispatcher or partial wraps)."""
        known = self._functions.get(id(original))
        if known is not None:
            return known[1]
        if isinstance(original, functools.partial):
            copy: Callable = functools.partial(
                self.function(original.func), *original.args, **original.keywords
            )
        else:
            plain = getattr(original, "py_func", original)
            if not isinstance(plain, types.FunctionType):
                raise TypeError(f"cannot simulate {original!r}: it is no Python function")
            closure = plain.__closure__ and tuple(map(self._cell, plain.__closure__))
            copy = types.FunctionType(
                plain.__code__,
                self._module_globals(plain.__globals__),
                plain.__name__,
                plain.__defaults__,
                closure,
            )
            copy.__kwdefaults__ = plain.__kwdefaults__
        # the original is kept too: its id must stay taken
        self._functions[id(original)] = (original, copy)
        return copy

    def _module_globals(self, original: dict[str, Any]) -> dict[str, Any]:
        copy = self._globals.get(id(original))
        if copy is None:
            copy = {name: self._value(value) for name, value in original.items()}
            copy[SOURCE_MARK] = True
            self._globals[id(original)] = copy
        return copy

    def _cell(self, cell: types.CellType) -> types.CellType:
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            return cell
        replaced = self._value(value)
        return cell if replaced is value else types.CellType(replaced)

    def _value(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            return self._modules.get(id(value), value)
        if isinstance(value, np.integer):  # numba's typing of a constant, not NumPy's wrap-around
            return int(value)
        return scalar_cast(value)
