"""A kernel of one's own: the transpose of a matrix, judged by gates and by what it asks of memory.

A kernel here is a plain function `kernel(x, out, rows, columns)` in the kernels' language: `cuda` and `types`
of numba, 256 threads a block, one block for every 32 x 32 tile, `blockIdx.x` counting tiles along a row of x.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any, ClassVar

import numpy as np

from minfer.campaign.gates import Parity
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.probe_record import GateResult
from minfer.campaign.trial import Trial
from minfer.campaign.workload import Case, Launch, Work, Workload, kernel, pooled_normal
from minfer.cuda.kernel import Argument, CompileError, Kernel
from minfer.cuda.trace import Op, Trace, check, global_lines, shared_lines
from minfer.lab import style
from minfer.lab.errors import notice, sentence
from minfer.lab.lane_film import film
from minfer.lab.lane_player import LanePlayer
from minfer.lab.picture import Picture
from minfer.lab.table import Table

TILE, THREADS = 32, 256
ARGUMENTS = (
    Argument("x", "in", "float32"),
    Argument("out", "out", "float32"),
    Argument("rows", "scalar", "int32"),
    Argument("columns", "scalar", "int32"),
)
SECTOR = 32


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
    from minfer.engine.cuda.devices import SimulatedDevice

    own, name = Own(function), function.__name__
    nothing = Prediction(None, "nothing is compared")
    probe = Probe(
        name="own",
        title=name,
        hypothesis="",
        prediction=nothing,
        workload=Transpose(),
        baseline=own,
        variant=own,
    )
    gates: list[GateResult] = []
    try:
        gates.append(Parity().check(Trial(probe, SimulatedDevice())))
    except Exception as error:
        gates.append(GateResult("parity", False, _placed(sentence(error))))
    if not gates[-1].passed:
        return Judgement(function.__name__, tuple(gates), ())
    trace = traced(function)
    findings = check(trace)
    found = f"{findings[0].kind} ({findings[0].count} times)" if findings else "none in 4 blocks"
    gates.append(GateResult("races", not findings, found))
    return Judgement(function.__name__, tuple(gates), tuple(ledger(trace)) if not findings else ())


def _placed(text: str) -> str:
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


LEDGER = {
    Op.LOAD_GLOBAL: "ld.global",
    Op.STORE_GLOBAL: "st.global",
    Op.STORE_SHARED: "st.shared",
    Op.LOAD_SHARED: "ld.shared",
}


def ledger(trace: Trace) -> list[dict]:
    """What a run asked of memory by instruction: sectors of global, wavefronts of shared memory a request."""
    sums: dict[Op, list[int]] = {}
    for line in (*global_lines(trace), *shared_lines(trace)):
        total = sums.setdefault(line.op, [0, 0])
        total[0] += line.requests
        total[1] += line.sectors if line.op in (Op.LOAD_GLOBAL, Op.STORE_GLOBAL) else line.wavefronts
    rows = []
    for op, name in LEDGER.items():
        if op in sums:
            requests, units = sums[op]
            unit, least = ("sectors", 4) if "global" in name else ("wavefronts", 1)
            rows.append(
                {
                    "instruction": name,
                    "requests": requests,
                    "unit": unit,
                    "a request": units / requests,
                    "at best": least,
                }
            )
    return rows


def moved_bytes(judgement: Judgement) -> float:
    """Bytes of sectors that a kernel moves for one element of the matrix."""
    sectors = sum(row["requests"] * row["a request"] for row in judgement.ledger if row["unit"] == "sectors")
    return sectors * SECTOR / (64 * 64)


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
    rows = [{"kernel": j.kernel, **row} for j in judgements for row in j.ledger]
    fig, axes = style.figure(9.6, 1.4 + 0.5 * len(judgements), columns=2)
    for ax, (unit, colour, least) in zip(
        axes, (("sectors", style.BLUE, 4), ("wavefronts", style.ORANGE, 1)), strict=True
    ):
        mine = [row for row in rows if row["unit"] == unit]
        ax.set_xlim(0, 36)
        bars = ax.barh(
            range(len(mine)),
            [row["a request"] for row in mine],
            color=[colour if row["a request"] <= row["at best"] else style.RED for row in mine],
        )
        ax.bar_label(bars, fmt="%g", padding=3, fontsize=8.5, color=style.INK)
        ax.axvline(least, color=style.INK, linewidth=0.9, linestyle="--")
        ax.set_yticks(range(len(mine)), [f"{row['kernel']}: {row['instruction']}" for row in mine])
        ax.tick_params(axis="y", labelsize=7.5)
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        style.label(ax, f"{unit} a request of a warp")
        style.title(ax, f"{unit.capitalize()} a request", f"dashed: {least}, the least for 128 B")
    names = ", ".join(j.kernel for j in judgements)
    return Picture(fig, f"Sectors and wavefronts a request of {names}", rows)


def player(functions: Sequence[Callable[..., None]]) -> LanePlayer:
    """The lane player over one block of each kernel, on a 32 x 32 matrix."""
    return LanePlayer({f.__name__: film(traced(f, TILE, TILE)) for f in functions})
