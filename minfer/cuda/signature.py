"""A kernel's numba signature from its list of arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minfer.cuda.kernel import Argument


def signature_of(arguments: tuple[Argument, ...]) -> Callable[[], Any]:
    """Zero-argument function that returns `types.void(...)`: a raw pointer for every array, the type itself
    for every scalar. Lazy, so that describing a kernel imports no numba. Tensor maps are not covered."""

    def signature() -> Any:
        from numba.cuda import types

        return types.void(
            *(
                getattr(types, a.dtype) if a.kind == "scalar" else types.CPointer(getattr(types, a.dtype))
                for a in arguments
            )
        )

    return signature
