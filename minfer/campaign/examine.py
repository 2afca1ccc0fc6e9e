"""A probe without a GPU: is it right, what do its kernels use, what does each line ask of memory.

Shared memory counts wavefronts, global memory sectors of 32 bytes, from the addresses that every lane asked
for in the simulator. What TMA moves, and what `cp.async` writes into shared memory, is not counted.
"""

from __future__ import annotations

import linecache
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minfer.arithmetic.banks import SECTOR_BYTES
from minfer.arithmetic.devices import DeviceSpec
from minfer.arithmetic.occupancy import LIMITERS
from minfer.campaign.blame import told
from minfer.campaign.gates import NOTHING, NotRun, Parity, SameOutputs
from minfer.campaign.probe import Probe, ProbeError
from minfer.campaign.probe_record import GateResult
from minfer.campaign.trial import Trial, side_kernels
from minfer.campaign.workload import work_of
from minfer.cuda.kernel import Kernel
from minfer.cuda.trace import Op, Place, Trace, check, global_lines, shared_lines
from minfer.engine.cuda.devices import DryDevice, SimulatedDevice

INSTRUCTIONS = {
    Op.LOAD_GLOBAL: "ld.global",
    Op.COPY_READ: "cp.async",
    Op.STORE_GLOBAL: "st.global",
    Op.STORE_SHARED: "st.shared",
    Op.STMATRIX: "stmatrix",
    Op.LOAD_SHARED: "ld.shared",
    Op.LDMATRIX: "ldmatrix",
}
"""The instructions whose requests are counted."""
GLOBAL = (Op.LOAD_GLOBAL, Op.COPY_READ, Op.STORE_GLOBAL)
"""Those that count sectors; the others count wavefronts."""
SMS = 4
"""Multiprocessors of the simulated device."""


RESOURCES = (
    "side", "kernel", "registers", "spilled (B)", "shared (B)", "threads", "blocks an SM", "warps an SM",
    "limited by",
)  # fmt: skip
"""Columns of `Examination.resource_rows`, but for the notes."""


@dataclass(frozen=True)
class Asked:
    """What one instruction at one line of a kernel asked of memory.

    Attributes:
        place: the innermost line in the kernel function's file or one beside it. source: its text.
        instruction: of `INSTRUCTIONS`. requests: executions by a warp.
        unit: "sectors" or "wavefronts". taken: how many; least: how many the same bytes need at least.
    """

    place: Place
    source: str
    instruction: str
    requests: int
    unit: str
    taken: int
    least: int

    def row(self) -> dict:
        """line, source, instruction, requests, unit, units a request, and the least there could be."""
        return {
            "line": f"{self.place.file_name}:{self.place.line}",
            "source": self.source,
            "instruction": self.instruction,
            "requests": self.requests,
            "unit": self.unit,
            "a request": self.taken / self.requests,
            "at best": self.least / self.requests,
        }


@dataclass(frozen=True)
class Side:
    """What is known of one config.

    Attributes:
        label, config: which; no two labels are equal. kernels: of the measured cases. resources: a row of
            `minfer.cuda.report.describe` for each. traces: of the first small case's launches; none where it
            did not run.
    """

    label: str
    config: str
    kernels: tuple[Kernel, ...]
    resources: tuple[dict, ...]
    traces: tuple[Trace, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What to call the kernels: several of one name by their configs too."""
        names = [kernel.name for kernel in self.kernels]
        return tuple(str(kernel) if names.count(kernel.name) > 1 else kernel.name for kernel in self.kernels)


@dataclass(frozen=True)
class Examination:
    """What is known of a probe before anything is timed.

    Attributes:
        probe: its name. case: the small case whose launches were traced. arch, device: what was compiled for,
            and where blocks are counted. gates: parity, races, the probe's own; then "kernels" and "work",
            where the measured cases have none, fail, or are not for `arch`. sides: baseline and variant.
        least: for each measured case whose work is known, the least time that it can take on the device, by
            its specified rates: rows of case, MB, GFLOP, memory and tensor cores (us), at least (us).
        not_run: gates that are left to a GPU (`minfer probe run`) or found nothing to check here, and why.
    """

    probe: str
    case: str
    arch: str
    device: str
    gates: tuple[GateResult, ...]
    sides: tuple[Side, ...]
    least: tuple[dict, ...]
    not_run: tuple[NotRun, ...] = ()

    @property
    def right(self) -> bool:
        """Whether every gate passed, and each side has kernels, which all compile."""
        return all(gate.passed for gate in self.gates) and all(
            side.kernels and all(found["limiter"] != "does not compile" for found in side.resources)
            for side in self.sides
        )

    def resource_rows(self) -> list[dict]:
        """A row a kernel of each side: registers, spills, shared memory, threads, what an SM holds of it and
        what limits that, notes. None: it does not compile."""
        return [
            _resource_row(side.label, name, kernel, found)
            for side in self.sides
            for name, kernel, found in zip(side.names, side.kernels, side.resources, strict=True)
        ]

    def notes(self) -> list[str]:
        """Gates that did not run, and what the compiler complains of, each complaint once, behind the sides
        and kernels that it is of."""
        kernels: dict[str, list[str]] = {}
        for row in self.resource_rows():
            if row["notes"]:
                kernels.setdefault(row["notes"], []).append(f"{row['side']}, {row['kernel']}")
        return [*map(str, self.not_run), *(f"{'; '.join(of)}: {note}" for note, of in kernels.items())]

    def instruction_rows(self) -> list[dict]:
        """Machine instructions by class, a column a side."""
        counts = [_sums(found["instructions"] for found in side.resources) for side in self.sides]
        names = {name: None for found in counts for name in found if name != "total"}
        if not names:
            return []
        return [
            {
                "class": name,
                **{side.label: found.get(name, 0) for side, found in zip(self.sides, counts, strict=True)},
            }
            for name in (*names, "total")
        ]

    def memory_rows(self, most: int | None = None) -> list[dict]:
        """What each line asked of memory, the most wasteful of a side first, at most so many a side."""
        return [
            {"side": side.label, **line.row()} for side in self.sides for line in asked(side.traces)[:most]
        ]


def _unheard(step: str) -> None:
    pass


def examine(
    probe: Probe,
    arch: str = "sm_90a",
    device: DeviceSpec | None = None,
    on_step: Callable[[str], None] = _unheard,
) -> Examination:
    """Run a probe's small cases in the simulator, trace the first, and compile its kernels for `arch`.

    Args:
        device: whose multiprocessors hold the blocks; None: the usual one of `arch`.
        on_step: is told what begins; some take many seconds.

    Raises:
        ProbeError: the probe takes a wall apart, or no such architecture.
    """
    from minfer.cuda.report import describe, device_for

    if probe.measure != "ab":
        raise ProbeError(f"probe {probe.name} takes a wall apart: it has no configs to examine")
    try:
        device = device or device_for(arch)
    except ValueError as error:
        raise ProbeError(str(error)) from None
    simulated, traces = simulate_small(probe, arch, on_step)
    gates, not_run = list(simulated), ()
    if gates[0].passed:
        on_step("the probe's own gates")
        own, not_run = simulate_own(probe, arch)
        gates += own
    sides = []
    labels = numbered(label for label, _ in probe.sides)
    for label, (_, config), of_side in zip(labels, probe.sides, traces, strict=True):
        on_step(f"compiling: {label}")
        kernels, wrong = _kernels(probe, config, arch)
        if wrong and not any(gate.found == wrong for gate in simulated):
            gates.append(GateResult("kernels", False, f"{label}: {wrong}"))
        rows = tuple(describe(kernel, arch, device) for kernel in kernels)
        sides.append(Side(label, str(config), kernels, rows, of_side))
        named = zip(sides[-1].names, rows, strict=True)
        if foreign := [name for name, row in named if row["limiter"] == "not applicable"]:
            found = f"{label}: no kernel for {arch}: {', '.join(foreign)}: choose another --arch"
            gates.append(GateResult("kernels", False, found))
    try:
        least = tuple(_least_rows(probe, device))
    except Exception as error:
        least = ()
        gates.append(GateResult("work", False, told(error)))
    case = probe.workload.small[0].label
    return Examination(probe.name, case, arch, device.name, tuple(gates), tuple(sides), least, not_run)


def numbered(names: Iterable[str]) -> list[str]:
    """Names of which no two are equal: a repeat gets a number, "a", "a (2)"."""
    found: dict[str, None] = {}
    for name in names:
        unique, count = name, 1
        while unique in found:
            count += 1
            unique = f"{name} ({count})"
        found[unique] = None
    return list(found)


def simulate_own(probe: Probe, arch: str = "sm_90a") -> tuple[list[GateResult], tuple[NotRun, ...]]:
    """The gates that a probe has beside parity, on the small cases in the simulator: results, and those that
    are left to a GPU or found nothing to check there. What one raises fails it."""
    trial, results, not_run = Trial(probe, SimulatedDevice(arch, SMS)), [], []
    for gate in probe.gates:
        if isinstance(gate, Parity):
            continue
        if gate == SameOutputs():  # parity has seen both sides on the small cases
            not_run.append(NotRun(gate.name, gate.takes))
            continue
        try:
            result = gate.check(trial)
        except Exception as error:
            result = GateResult(gate.name, False, told(error))
        if isinstance(result, GateResult):
            results.append(result)
        else:
            not_run.append(result or NotRun(gate.name, NOTHING))
    return results, tuple(not_run)


def simulate_small(
    probe: Probe, arch: str = "sm_90a", on_step: Callable[[str], None] = _unheard
) -> tuple[tuple[GateResult, ...], tuple[tuple[Trace, ...], tuple[Trace, ...]]]:
    """Parity on the small cases, then races in the first of them: the gates, and the traces of both sides;
    behind a failed parity there are none.

    Whatever a kernel in the making raises is a failed gate.
    """
    on_step("small cases in the simulator")
    try:
        parity = Parity().check(Trial(probe, SimulatedDevice(arch, SMS)))
        if not parity.passed:
            return (parity,), ((), ())
        on_step("tracing")
        before = traced(probe, probe.baseline, arch)
        after = before if probe.variant == probe.baseline else traced(probe, probe.variant, arch)
    except Exception as error:
        return (GateResult("parity", False, told(error)),), ((), ())
    on_step("looking for races")
    once = before if after is before else (*before, *after)
    findings = [finding for trace in once for finding in check(trace)]
    blocks = sum(math.prod(trace.info.grid) for trace in once)
    found = str(findings[0]) if findings else f"none in {blocks} block{'s' * (blocks > 1)}"
    return (parity, GateResult("races", not findings, found)), (before, after)


def traced(probe: Probe, config: Any, arch: str = "sm_90a") -> tuple[Trace, ...]:
    """The traces of a config's launches on the first small case."""
    device = TracedDevice(arch, SMS)
    workload, case = probe.workload, probe.workload.small[0]
    Trial(probe, device).outputs(
        workload.shrunk(config), case, workload.inputs(case, np.random.default_rng(0))
    )
    return tuple(device.traces)


class TracedDevice(SimulatedDevice):
    """The simulator, which keeps a trace of every launch in `traces`."""

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.traces: list[Trace] = []

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], *args: Any, pdl: bool = False) -> None:
        from minfer.cuda import simulator

        self.traces.append(Trace())
        simulator.launch(kernel, grid, *args, trace=self.traces[-1])


def asked(traces: Sequence[Trace]) -> list[Asked]:
    """What launches asked of memory by line of the kernel's files and instruction, the most wasteful first.
    Its files lie in one folder: what it calls in others (instructions, tiles) counts where it calls them."""
    sums: dict[tuple[Place, Op], list[int]] = {}
    for trace in traces:
        for line in (*global_lines(trace), *shared_lines(trace)):
            folder = os.path.dirname(line.chain[-1].file)
            own = next(place for place in line.chain if os.path.dirname(place.file) == folder)
            total = sums.setdefault((own, line.op), [0, 0, 0])
            if line.op in GLOBAL:
                least = max(line.requests, -(-line.bytes_used // SECTOR_BYTES))
                numbers = (line.requests, line.sectors, least)
            else:
                numbers = (line.requests, line.wavefronts, line.ideal)
            for i, number in enumerate(numbers):
                total[i] += number
    found = [
        Asked(
            place,
            linecache.getline(place.file, place.line).strip(),
            INSTRUCTIONS[op],
            requests,
            "sectors" if op in GLOBAL else "wavefronts",
            taken,
            least,
        )
        for (place, op), (requests, taken, least) in sums.items()
    ]
    return sorted(found, key=lambda line: (line.least - line.taken, -line.taken))


def _kernels(probe: Probe, config: Any, arch: str) -> tuple[tuple[Kernel, ...], str]:
    """Those of the measured cases; and why there are none, or ""."""
    try:
        kernels = tuple(side_kernels(Trial(probe, DryDevice(arch)), config))
    except Exception as error:
        return (), told(error)
    return kernels, "" if kernels else "no measured case launches anything"


def _least_rows(probe: Probe, device: DeviceSpec) -> Iterator[dict]:
    for case in probe.workload.cases:
        work = work_of(probe.workload, case)
        if work is not None:
            memory = 1e6 * work.nbytes / device.bandwidth
            tensor = 1e6 * work.flop / device.tensor_peak(work.dtype) if work.flop else 0.0
            yield {
                "case": case.label,
                "MB": work.nbytes / 1e6,
                "GFLOP": work.flop / 1e9,
                "memory (us)": memory,
                "tensor cores (us)": tensor,
                "at least (us)": max(memory, tensor),
            }


def _resource_row(label: str, name: str, kernel: Kernel, found: dict) -> dict:
    blocks = found["blocks_per_sm"]
    return {
        "side": label,
        "kernel": name,
        "registers": found["registers"],
        "spilled (B)": found["spill_bytes"],
        "shared (B)": None if found["static_smem"] is None else found["static_smem"] + found["dynamic_smem"],
        "threads": kernel.threads,
        "blocks an SM": blocks,
        "warps an SM": None if blocks is None else blocks * -(-kernel.threads // 32),
        "limited by": LIMITERS.get(found["limiter"], found["limiter"]),
        "notes": " ".join("; ".join(found["warnings"]).split()),
    }


def _sums(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for found in counts:
        for name, number in found.items():
            total[name] = total.get(name, 0) + number
    return total
