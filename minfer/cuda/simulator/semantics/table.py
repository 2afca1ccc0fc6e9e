"""The table of instruction semantics, filled by the modules of this package."""

from __future__ import annotations

from collections.abc import Callable

#: instruction name -> function(*operands, **parameters of the instruction's factory)
SEMANTICS: dict[str, Callable] = {}


def semantics(function: Callable) -> Callable:
    """Register `function` under its own name."""
    SEMANTICS[function.__name__] = function
    return function


def register(name: str, function: Callable) -> None:
    """Register a function that was made for `name`."""
    function.__name__ = function.__qualname__ = name
    SEMANTICS[name] = function
