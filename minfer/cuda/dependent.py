"""Programmatic dependent launch (sm_90): kernels of a decode step or a prefill that overlap at their seams.

A kernel made with `pdl` lets the next one start as soon as all its own blocks run, and waits for the end of
the one before it before it touches what that one wrote. What does not depend on it (a GEMV's weights) may be
read earlier. Launch it with `pdl=True`; launched without, both instructions do nothing. In a chain of such
launches every kernel must be of this kind, since one that did not wait could overtake its predecessors. What
the kernels of a step write is read by plain loads, never by the read-only path: it is written while the
reader is already there.
"""

from __future__ import annotations

from collections.abc import Callable

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function


@device_function
def _start():
    ptx.griddepcontrol_launch_dependents()
    ptx.griddepcontrol_wait()


@device_function
def _nothing():
    return


def dependent_start(pdl: bool) -> Callable:
    """Device function that a kernel calls before its first access to what earlier kernels wrote."""
    return _start if pdl else _nothing


def least_arch(pdl: bool) -> int:
    """`Kernel.min_arch` of a kernel made with or without `pdl`."""
    return 90 if pdl else 80
