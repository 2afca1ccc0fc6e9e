"""The line of a kernel that numba refuses: its message may name a line of numba's own, or none."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from minfer.cuda.kernel import Kernel
from minfer.cuda.trace.layout import Place


def refused_line(kernel: Kernel, error: BaseException) -> Place:
    """The kernel function's line that the error is about: the last of them that the message names, else the
    innermost that numba was at when it raised, else the function's first."""
    code = kernel.function.__code__
    lines = range(code.co_firstlineno, max(line for _, _, line in code.co_lines() if line) + 1)
    name = re.escape(Path(code.co_filename).name)
    told = re.findall(rf'{name}(?:", line | \()(\d+)', str(error))
    found = [int(line) for line in told] + _at(error, code.co_filename)[::-1]
    line = next((line for line in found if line in lines), code.co_firstlineno)
    return Place(code.co_filename, line, code.co_name)


def _at(error: BaseException, file: str) -> list[int]:
    """Lines of a file that numba was at, the outermost first: its frames hold statements and constraints,
    which have a `loc`."""
    found = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            loc = getattr(value, "loc", None)
            if getattr(loc, "filename", None) == file and isinstance(getattr(loc, "line", None), int):
                found.append(loc.line)
    return found
