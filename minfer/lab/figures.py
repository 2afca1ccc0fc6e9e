"""Figures of the GPU tests by their names, and what stands in for a picture of figures that no record has."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.campaign.records import GpuTests, Record, RecordError, newest_measured
from minfer.lab import style
from minfer.lab.picture import Picture
from minfer.lab.table import Table

DEVICE = "h200"


def newest(records: Sequence[Record], *names: str) -> GpuTests | None:
    """The newest run of the GPU tests on the H200 that measured all these figures; None: there is none."""
    try:
        return newest_measured(records, DEVICE, names)
    except RecordError:
        return None


def newest_like(records: Sequence[Record], beginning: str, end: str = "") -> GpuTests | None:
    """The newest run that measured a figure whose name begins and ends so; None: there is none."""
    runs = [
        record
        for record in records
        if isinstance(record, GpuTests)
        and record.device_key == DEVICE
        and any(name.startswith(beginning) and name.endswith(end) for name in record.measured)
    ]
    return newest(runs)


def origin(*records: GpuTests | None) -> str:
    """Where and when, for a caption, a line a run; a sentence if nothing was measured."""
    runs = dict.fromkeys(record.origin for record in records if record is not None)
    return "\n".join(runs) or "no record holds these figures yet"


def nothing(what: str, how: str = "the GPU tests (tests/gpu) measure that") -> Picture:
    """A picture that says which figures are missing, and what would measure them."""
    fig, (ax,) = style.figure(9.6, 0.6)
    style.bare(ax).set(xticks=[], yticks=[])
    text = f"No record holds {what}: {how}"
    style.title(ax, text)
    return Picture(fig, text, [{"missing": what}])


class Missing:
    """A sentence in the place of a table."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __repr__(self) -> str:
        return f"No record holds {self.what}."


def shown(rows: Sequence[dict], what: str, **formats: str) -> Table | Missing:
    """Rows as a table, or which figures are missing if there are none. Column names may be keywords with
    spaces: pass them as `**{...}`."""
    return Table(rows, formats=formats) if rows else Missing(what)
