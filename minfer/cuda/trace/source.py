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


def _instruction(code: Any, last: int) -> int:
    """The instruction that a frame's `f_lasti` belongs to: once the interpreter has specialised an
    instruction, one of its cache entries may be reported."""
    known = _instructions.get(id(code))
    table = _instruction_table(code) if known is None else known[1]
    return table[last >> 1]


def call_site(frame: Any) -> tuple[Any, int, Any, int]:
    """A quick identity of the instruction that `frame` (or the kernel source above it) executes: the place,
    and the place of the call that led to its function. Compare with `same_site`."""
    while SOURCE_MARK not in frame.f_globals:
        frame = frame.f_back
    caller = frame.f_back
    return frame.f_code, frame.f_lasti, caller.f_code, caller.f_lasti


def same_site(a: tuple[Any, int, Any, int], b: tuple[Any, int, Any, int]) -> bool:
    """Whether two results of `call_site` mean the same instruction."""
    return a == b or (
        a[0] is b[0]
        and a[2] is b[2]
        and _instruction(a[0], a[1]) == _instruction(b[0], b[1])
        and _instruction(a[2], a[3]) == _instruction(b[2], b[3])
    )


def call_chain(frame: Any) -> tuple[int, ...]:
    """Identity of the instruction being executed: ids of code objects and instructions, from `frame`
    outwards."""
    chain = []
    while frame is not None:
        if SOURCE_MARK in frame.f_globals:
            code = frame.f_code
            chain.append(id(code))
            chain.append(_instruction(code, frame.f_lasti))
        frame = frame.f_back
    return tuple(chain)
