"""The table of instruction semantics, filled by the modules of this package."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

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


def semantics_of(instruction: Any) -> Callable:
    """What a `minfer.cuda.instruction.Instruction` does: its semantics with the factory's constants bound."""
    try:
        function = SEMANTICS[instruction.semantics_name]
    except KeyError:
        raise NotImplementedError(f"the simulator has no semantics for {instruction.name}") from None
    return functools.partial(function, **instruction.parameters) if instruction.parameters else function
