"""A kernel of one's own: the transpose of a matrix, judged by gates and by what it asks of memory.

A kernel here is a plain function `kernel(x, out, rows, columns)` in the kernels' language: `cuda` and `types`
of numba, 256 threads a block, one block for every 32 x 32 tile, `blockIdx.x` counting tiles along a row of x.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from typing import Any, ClassVar

import numpy as np

from minfer.arithmetic.banks import SECTOR_BYTES
from minfer.campaign.examine import INSTRUCTIONS, Asked, asked, simulate_small
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.probe_record import GateResult
from minfer.campaign.workload import Case, Launch, Work, Workload, kernel, pooled_normal
from minfer.cuda.kernel import Argument, CompileError, Kernel
from minfer.cuda.trace import Trace
from minfer.lab import style
from minfer.lab.errors import notice, sentence
from minfer.lab.lane_film import film
from minfer.lab.lane_player import LanePlayer
from minfer.lab.picture import Picture
from minfer.lab.requests_view import draw_requests
from minfer.lab.table import Table

TILE, THREADS = 32, 256
ARGUMENTS = (
    Argument("x", "in", "float32"),
    Argument("out", "out", "float32"),
    Argument("rows", "scalar", "int32"),
    Argument("columns", "scalar", "int32"),
)


@dataclass(frozen=True)
class Own:
    """A config that is a function: the kernel itself."""

    function: Callable[..., None]

    def __str__(self) -> str:
        return self.function.__name__


@cache
def make_own(config: Own) -> Kernel:
    """The kernel of a function (x, out, rows, columns)."""
    return Kernel(
        name="transpose",
        config=config,
        function=config.function,
        threads=THREADS,
        shared_bytes=0,
        arguments=ARGUMENTS,
    )


@dataclass(frozen=True)
class Transpose(Workload):
    """out[columns, rows] = x[rows, columns], transposed, f32."""

    tolerance: float = 0.0

    cases: ClassVar = (Case.of("4096 x 4096", rows=4096, columns=4096),)
    small: ClassVar = (
        Case.of("64 x 64", rows=64, columns=64),
        Case.of("70 x 33, ragged", rows=70, columns=33),
    )

    def input_shapes(self, case: Case) -> dict:
        return {"x": ((case["rows"], case["columns"]), "float32")}

    def outputs(self, config: Own, case: Case) -> dict:
        return {"out": ((case["columns"], case["rows"]), "float32")}

    def launches(self, config: Own, case: Case, arrays: Mapping[str, Any], device: Any) -> list[Launch]:
        rows, columns = case["rows"], case["columns"]
        made, grid = kernel(make_own, config), (-(-columns // TILE), -(-rows // TILE), 1)
        return [Launch.of(made, grid, arrays["x"], arrays["out"], rows, columns)]

    def reference(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"out": inputs["x"].T.copy()}

    def work(self, case: Case) -> Work:
        return Work(0.0, 8.0 * case["rows"] * case["columns"])


@dataclass(frozen=True)
class Judgement:
    """What the gates and the ledger say of a kernel.

    Attributes:
        kernel: its name. gates: in order; after one that failed the ledger is empty.
        ledger: what one 64 x 64 run asks of memory: rows of instruction, requests, and sectors a request (of
            4 at best) or wavefronts a request (of 1 at best).
    """

    kernel: str
    gates: tuple[GateResult, ...]
    ledger: tuple[dict, ...]

    @property
    def right(self) -> bool:
        """Whether every gate passed."""
        return all(gate.passed for gate in self.gates)

    def gate_rows(self) -> list[dict]:
        """Rows of gate, passed, found."""
        return [
            {"gate": gate.name, "passed": "yes" if gate.passed else "NO", "found": gate.found}
            for gate in self.gates
        ]

    def __repr__(self) -> str:
        parts = [f"{self.kernel}: {'right' if self.right else 'WRONG'}", repr(Table(self.gate_rows()))]
        if self.ledger:
            parts.append(repr(Table(self.ledger)))
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        word = "is right" if self.right else "is wrong"
        colour = style.GREEN if self.right else style.RED
        html = notice(f"<b>{escape(self.kernel)}</b> {word}", colour) + Table(self.gate_rows())._repr_html_()
        return html + (Table(self.ledger)._repr_html_() if self.ledger else "")


def judge(function: Callable[..., None]) -> Judgement:
    """Run a kernel in the simulator: parity with poisoned outputs on whole and ragged shapes, races, then its
    ledger. Whatever a kernel in the making raises is a failed gate."""
    own, name = Own(function), function.__name__
    probe = Probe(
        name="own",
        title=name,
        hypothesis="",
        prediction=Prediction(None, "nothing is compared"),
        workload=Transpose(),
        baseline=own,
        variant=own,
        labels=(name, name),
    )
    gates, (traces, _) = simulate_small(probe)
    right = all(gate.passed for gate in gates)
    told = tuple(replace(gate, found=as_in_notebook(gate.found)) for gate in gates)
    return Judgement(name, told, tuple(ledger(asked(traces))) if right else ())


def as_in_notebook(text: str) -> str:
    """With places in the source as a reader of a notebook knows them."""
    text = re.sub(r"\S*/ipykernel_\d+/\d+\.py:(\d+)", r"line \1 of the cell", text)
    return re.sub(r"(?<=\s)/\S*/(\S+\.py:\d+)", r"\1", text)


def traced(function: Callable[..., None], rows: int = 64, columns: int = 64) -> Trace:
    """The trace of a run on random numbers; faults in shared memory are left to the race checker."""
    from minfer.cuda import simulator

    x = pooled_normal((rows, columns), "float32")
    out = np.full((columns, rows), np.nan, np.float32)
    trace = Trace()
    grid = (-(-columns // TILE), -(-rows // TILE), 1)
    simulator.launch(make_own(Own(function)), grid, x, out, rows, columns, trace=trace, strict=False)
    return trace


def ledger(lines: Sequence[Asked]) -> list[dict]:
    """What a run asked of memory by instruction: rows of instruction, requests, unit, units a request, and
    the least there could be."""
    rows = []
    for name in INSTRUCTIONS.values():
        found = [line for line in lines if line.instruction == name]
        if found:
            requests = sum(line.requests for line in found)
            rows.append(
                {
                    "instruction": name,
                    "requests": requests,
                    "unit": found[0].unit,
                    "a request": sum(line.taken for line in found) / requests,
                    "at best": sum(line.least for line in found) / requests,
                }
            )
    return rows


def moved_bytes(judgement: Judgement) -> float:
    """Bytes of sectors that a kernel moves for one element of the matrix."""
    sectors = sum(row["requests"] * row["a request"] for row in judgement.ledger if row["unit"] == "sectors")
    return sectors * SECTOR_BYTES / (64 * 64)


def compiled_rows(functions: Sequence[Callable[..., None]], arch: str = "sm_90a") -> list[dict]:
    """What the assembler makes of kernels: rows of kernel, registers, spill bytes, machine instructions; or
    the reason that one does not compile."""
    from minfer.cuda.runtime import compile_kernel

    rows = []
    for function in functions:
        row = {"kernel": function.__name__, "registers": None, "spilled (B)": None, "instructions": None}
        try:
            used = compile_kernel(make_own(Own(function)), arch).resources
            row |= {"registers": used.registers, "spilled (B)": used.spill_bytes}
            row |= {"instructions": used.instructions["total"], "remark": ""}
        except CompileError as error:
            row["remark"] = sentence(error)
        rows.append(row)
    return rows


def draw_ledgers(judgements: Sequence[Judgement]) -> Picture:
    """Sectors and wavefronts a request of several kernels, beside the best there can be."""
    rows = [{"name": f"{j.kernel}: {row['instruction']}", **row} for j in judgements for row in j.ledger]
    names = ", ".join(j.kernel for j in judgements)
    return draw_requests(rows, f"Sectors and wavefronts a request of {names}")


def player(functions: Sequence[Callable[..., None]]) -> LanePlayer:
    """The lane player over one block of each kernel, on a 32 x 32 matrix."""
    return LanePlayer({f.__name__: film(traced(f, TILE, TILE)) for f in functions})
