"""What every record holds, and what was running when it was made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from minfer.arithmetic.devices import by_name

SCHEMA = 2
"""The newest layout of records: 2 brought the kinds "probe" and "wall", and the time of each bench result."""


TIMING_ERROR = 0.03
"""So much above what a device can reach is let pass: timing's own error."""


class RecordError(ValueError):
    """A record that cannot be used; the message names the file and the field."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What all kinds hold.

    Attributes:
        file: the record's file name.
        date: ISO 8601, with its offset from UTC. commit: of the code that ran.
        device: the GPU's name as its driver reports it, or the host backend's description of the processor.
        driver: the driver package's version.
        schema: the version of the layout.
    """

    kind: ClassVar[str]

    file: str
    date: str
    commit: str
    device: str
    driver: str
    schema: int = SCHEMA

    def check(self) -> None:
        """Raise ValueError("field: what is wrong") for values that contradict each other."""
        try:
            zone = datetime.fromisoformat(self.date).tzinfo
        except ValueError:
            zone = None
        if zone is None:
            raise ValueError(f"date: {self.date!r} is no ISO 8601 date with a time and its offset from UTC")

    @property
    def day(self) -> str:
        """The date without its time."""
        return self.date[:10]

    @property
    def device_key(self) -> str | None:
        """The device's key in `minfer.arithmetic.devices`, None if the table has no such device."""
        known = by_name(self.device)
        return None if known is None else known.key

    @property
    def origin(self) -> str:
        """Where and when, for a caption."""
        return f"{self._place}, commit {self.commit[:7]}"

    @property
    def _place(self) -> str:
        return f"{self.device}, driver {self.driver}, {self.day}"


def origins(records: Iterable[Record]) -> str:
    """Where and when several records were made, for a caption; commits of one device, driver and day stand
    together."""
    commits: dict[str, set[str]] = {}
    for record in records:
        commits.setdefault(record._place, set()).add(record.commit[:7])
    return "; ".join(
        f"{place}, commit{'s' if len(found) > 1 else ''} {', '.join(sorted(found))}"
        for place, found in sorted(commits.items())
    )


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The machine that a record was made on, without what would identify it.

    Attributes:
        arch: what kernels were compiled for. cuda: the newest CUDA of the driver.
        sms, l2_bytes, memory_bytes: of the GPU. versions: of the software that figures depend on.
    """

    arch: str
    cuda: str
    python: str
    sms: int
    l2_bytes: int
    memory_bytes: int
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """The GPU's own readings during a measurement, each as [least, median, most].

    Attributes:
        source: who read them ("NVML"), or why nobody did.
        samples: how many readings.
        sm_mhz, power_w, temperature_c: clock of the multiprocessors, board power, core temperature.
        limits: what held the clocks down at some time ("power cap", ...).
    """

    source: str
    samples: int
    sm_mhz: list[float]
    power_w: list[float]
    temperature_c: list[float]
    limits: list[str]

    def __str__(self) -> str:
        if not self.samples:
            return f"clocks, power and temperature not read: {self.source}"
        parts = [
            f"{name} {values[0]:,.0f} / {values[1]:,.0f} / {values[2]:,.0f} {unit}"
            for name, values, unit in (
                ("SM clock", self.sm_mhz, "MHz"),
                ("power", self.power_w, "W"),
                ("temperature", self.temperature_c, "C"),
            )
        ]
        held = f"; held down by {', '.join(self.limits)}" if self.limits else ""
        return f"{', '.join(parts)} (least / median / most of {self.samples} by {self.source}){held}"


def checked_positive(holder: Any, *names: str) -> None:
    """Raise ValueError for a field of `holder` that is not above 0."""
    for name in names:
        if getattr(holder, name) <= 0:
            raise ValueError(f"{name}: {getattr(holder, name)} is not above 0")
