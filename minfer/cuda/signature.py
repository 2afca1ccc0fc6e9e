"""A kernel's numba signature from its list of arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minfer.cuda.kernel import Argument


def signature_of(arguments: tuple[Argument, ...]) -> Callable[[], Any]:
    """Zero-argument function that returns `types.void(...)`: a raw pointer for every array and tensor map,
    the type itself for every scalar, an omitted argument (a constant, no parameter of the compiled kernel)
    for what is not present. Lazy, so that describing a kernel imports no numba."""

    def signature() -> Any:
        from numba.cuda import types

        return types.void(*map(_parameter, arguments))

    return signature


def _parameter(argument: Argument) -> Any:
    import numpy as np
    from numba.cuda import types

    if not argument.present:
        return types.Omitted(np.dtype(argument.dtype).type(0) if argument.kind == "scalar" else None)
    if argument.kind == "tensor_map":
        return types.CPointer(types.uint8)
    kind = getattr(types, argument.dtype)
    return kind if argument.kind == "scalar" else types.CPointer(kind)
