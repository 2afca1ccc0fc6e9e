"""Everything that is known of a probe before it is timed, in a notebook: gates, resources, requests, code."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from minfer.campaign.discovery import from_path, write_new
from minfer.campaign.examine import RESOURCES, Examination, numbered
from minfer.campaign.examine import examine as examine_probe
from minfer.campaign.probe import Probe, ProbeError
from minfer.lab import style
from minfer.lab.errors import notice
from minfer.lab.kernel_view import KernelView, view_of
from minfer.lab.lane_film import film
from minfer.lab.lane_player import LanePlayer
from minfer.lab.own_kernel import as_in_notebook
from minfer.lab.picture import Picture
from minfer.lab.requests_view import draw_requests
from minfer.lab.table import Table

LINES = 8
"""Lines of source shown a side."""


@dataclass(frozen=True)
class Shown:
    """An examination as a notebook shows it, and the views that lead on from it."""

    probe: Probe
    found: Examination

    def gate_rows(self) -> list[dict]:
        """Rows of gate, passed, found."""
        return [
            {
                "gate": gate.name,
                "passed": "yes" if gate.passed else "NO",
                "found": as_in_notebook(gate.found),
            }
            for gate in self.found.gates
        ]

    def tables(self) -> dict[str, Table]:
        """Heading -> table, those that have rows."""
        found = self.found
        memory = f"Sectors of global memory, wavefronts of shared memory (case {found.case})"
        tables = {
            "Right?": Table(self.gate_rows()),
            f"Compiled for {found.arch}; an SM of {found.device} holds": Table(
                found.resource_rows(), {name: name for name in RESOURCES}
            ),
            "Machine instructions": Table(found.instruction_rows()),
            memory: Table(found.memory_rows(LINES)),
            f"The least time of a measured case by the rates of {found.device}": Table(found.least),
        }
        return {heading: table for heading, table in tables.items() if table.rows}

    def worst(self) -> str:
        """The most wasteful line of each side, in a sentence."""
        return "\n".join(
            f"{row['side']}: {row['a request']:g} {row['unit']} a request, at best {row['at best']:g}: "
            f"{row['source']}"
            for row in self.found.memory_rows(1)
        )

    def requests(self) -> Picture:
        """What each line asks of memory, as bars."""
        rows = [
            {"name": f"{row['side']}: {row['line']} {row['instruction']}", **row}
            for row in self.found.memory_rows(LINES)
        ]
        return draw_requests(rows, f"Sectors and wavefronts a request of both sides of {self.found.probe}")

    def code(self) -> KernelView:
        """Source, PTX and SASS of both sides, linked by line and compared.

        Raises:
            ProbeError: there is no kernel. ValueError: the first does not compile.
        """
        kernels = _named(
            (side.label if len(side.kernels) == 1 else f"{side.label}, {kernel.name}", kernel)
            for side in self.found.sides
            for kernel in side.kernels
        )
        if not kernels:
            raise ProbeError(f"probe {self.found.probe}: no config makes a kernel; its gates say why")
        return view_of(kernels, self.found.arch)

    def player(self) -> LanePlayer:
        """The first block of each launch of the traced case, lane by lane.

        Raises:
            ProbeError: nothing was traced, since a gate failed.
        """
        films = _named(
            (side.label if len(side.traces) == 1 else f"{side.label}, {trace.info.kernel}", film(trace))
            for side in self.found.sides
            for trace in side.traces
        )
        if not films:
            raise ProbeError(f"probe {self.found.probe}: nothing was traced: a gate failed")
        return LanePlayer(films)

    def __repr__(self) -> str:
        parts = [f"{heading}\n\n{table}" for heading, table in self.tables().items()]
        return "\n\n".join([f"{self.found.probe}: {self._verdict()}", *parts, *self.found.notes()])

    def _repr_html_(self) -> str:
        colour = style.GREEN if self.found.right else style.RED
        parts = [notice(f"<b>{escape(self.found.probe)}</b>: {self._verdict()}", colour)]
        for heading, table in self.tables().items():
            parts.append(f'<p style="margin:1em 0 .3em"><b>{escape(heading)}</b></p>{table._repr_html_()}')
        return "".join(parts + [notice(escape(note)) for note in self.found.notes()])

    def _verdict(self) -> str:
        return "both sides are right" if self.found.right else "not right yet"


def _named(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of pairs in which repeated names are numbered."""
    pairs = list(pairs)
    return dict(zip(numbered(name for name, _ in pairs), (value for _, value in pairs), strict=True))


def examine(what: Probe | str | Path, name: str | None = None, arch: str = "sm_90a") -> Shown:
    """Examine a probe, or one in a file, which is read anew each time: edit it, run the cell again.

    Args:
        name: which of the file's probes, where it has several.

    Raises:
        ProbeError: no such file, a file that fails, no such probe in it, a probe of a wall, an unknown
            architecture.
    """
    if not isinstance(what, Probe):
        probes = {probe.name: probe for probe in from_path(Path(what))}
        if name is None and len(probes) == 1:
            (name,) = probes
        if name not in probes:
            raise ProbeError(f"{what}: say which probe by name: {', '.join(probes)}")
        what = probes[name]
    return Shown(what, examine_probe(what, arch))


def own_file(name: str) -> Path:
    """A probe's file to begin with, in the folder `own` beside the notebook (or `$MINFER_OWN`); one that is
    there is left as it is.

    Raises:
        ProbeError: the name is none.
    """
    path = Path(os.environ.get("MINFER_OWN", "own")) / f"{name.replace('-', '_')}.py"
    if not path.exists():
        write_new(name, path)
    return path
