"""Where in the kernel source execution is: frames of kernel source, told by the mark in their globals."""

from __future__ import annotations

import dis
from typing import Any

#: name in the globals of every function that the simulator runs as kernel source
SOURCE_MARK = "__minfer_simulated__"

# id of a code object -> (the code object, kept so that its id stays taken; instruction of every code unit)
_instructions: dict[int, tuple[Any, list[int]]] = {}


def _instruction_table(code: Any) -> list[int]:
    starts = [instruction.offset for instruction in dis.get_instructions(code)]
    table = []
    for start, end in zip(starts, [*starts[1:], len(code.co_code)], strict=True):
        table += [start] * ((end - start) // 2)
    _instructions[id(code)] = (code, table)
    return table


def call_chain(frame: Any) -> tuple[int, ...]:
    """Identity of the instruction being executed: ids of code objects and instructions, from `frame`
    outwards.

    A frame's last instruction may be reported as one of its cache entries once the interpreter has
    specialised it, so that it is mapped to the instruction proper.
    """
    chain = []
    while frame is not None:
        if SOURCE_MARK in frame.f_globals:
            code = frame.f_code
            key = id(code)
            known = _instructions.get(key)
            table = _instruction_table(code) if known is None else known[1]
            chain.append(key)
            chain.append(table[frame.f_lasti >> 1])
        frame = frame.f_back
    return tuple(chain)
