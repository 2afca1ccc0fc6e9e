"""Numbers in a simulated kernel, as close to numba's typing as plain Python allows.

numba computes integer expressions in 64 bits whatever the operands' width (an int32 plus an int32 is an
int64), and an explicit cast such as `types.uint32(x)` wraps. So integers are Python's, and casts wrap: what
differs from the compiled kernel is only an intermediate value beyond 64 bits, or a negative intermediate of
unsigned operands that is shifted right, divided or compared before it is cast. Floats are NumPy scalars:
every float32 operation rounds to float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

_SIGNED = ("int8", "int16", "int32", "int64")
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")

#: memoryview formats of the integer types
INTEGER_FORMATS = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q",
    "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
}  # fmt: skip


def _signed_cast(bits: int) -> Callable[[Any], int]:
    half, mask = 1 << (bits - 1), (1 << bits) - 1

    def cast(value):
        return ((int(value) + half) & mask) - half

    return cast


def _unsigned_cast(bits: int) -> Callable[[Any], int]:
    mask = (1 << bits) - 1

    def cast(value):
        return int(value) & mask

    return cast


def _float_cast(scalar: type) -> Callable[[Any], Any]:
    def cast(value):
        return value if type(value) is scalar else scalar(value)

    return cast


def _make_casts() -> dict[str, Callable]:
    casts: dict[str, Callable] = {}
    for name in _SIGNED:
        casts[name] = _signed_cast(np.dtype(name).itemsize * 8)
    for name in _UNSIGNED:
        casts[name] = _unsigned_cast(np.dtype(name).itemsize * 8)
    for name in _FLOATS:
        casts[name] = _float_cast(np.dtype(name).type)
    casts["bool"] = lambda value: bool(value)
    for name, cast in casts.items():
        cast.__name__ = cast.__qualname__ = name
        cast.dtype = np.dtype(name)
    return casts


#: dtype name -> function that converts a number as the device does; each carries its NumPy `dtype`
CASTS = _make_casts()

_ALIASES = {"boolean": "bool", "intp": "int64", "uintp": "uint64"}


def dtype_name(dtype: Any) -> str:
    """Name ("uint32") of a dtype given as a cast, a numba scalar type, a NumPy dtype, a NumPy scalar type
    or a name."""
    if getattr(dtype, "dtype", None) is not None and getattr(dtype, "__name__", None) in CASTS:
        return dtype.__name__
    name = str(dtype) if type(dtype).__module__.startswith("numba") or isinstance(dtype, str) else None
    if name is None:
        name = np.dtype(dtype).name
    name = _ALIASES.get(name, name)
    if name not in CASTS:
        raise TypeError(f"the simulator has no element type {dtype!r}; it has {', '.join(CASTS)}")
    return name


class SimulatedTypes:
    """Stands for the `types` module in a simulated kernel: scalar types convert as on the device."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = scalar_cast(getattr(self._module, name))
        setattr(self, name, value)
        return value


@functools.lru_cache(maxsize=256)
def _cast_by_name(name: str) -> Callable | None:
    return CASTS.get(_ALIASES.get(name, name))


def scalar_cast(value: Any) -> Any:
    """The cast that stands for a numba scalar type; anything else unchanged."""
    if type(value).__module__.startswith("numba") and hasattr(value, "mangling_args"):
        return _cast_by_name(str(value)) or value
    return value
