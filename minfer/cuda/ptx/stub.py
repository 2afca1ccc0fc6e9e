"""Stubs of instructions whose operands only a factory knows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def stub_of(operands: Mapping[str, Any], documentation: str, returns: tuple = ()) -> Callable:
    """What `minfer.cuda.instruction.instruction` decorates: parameters by name -> their operand types."""

    def stub():
        pass

    stub.__doc__ = documentation
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    stub.__signature__ = inspect.Signature(
        [inspect.Parameter(name, positional, annotation=kind) for name, kind in operands.items()],
        return_annotation=returns or None,
    )
    return stub
