"""Figures that GPU test runs left under data/records/, with the device and the day that belong to them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "data" / "records"
FULL_RUN = "h200/gpu-tests-2026-11-29-full.json"
"""The run of every GPU test that the notebooks quote."""


@dataclass(frozen=True)
class GpuRecord:
    """One run of the GPU tests.

    Attributes:
        device, date: as the driver and the clock gave them; the date is the day alone.
        measured: name of a figure, unit at its end ("convert ...: GB/s") -> its value.
    """

    device: str
    date: str
    measured: dict[str, object]

    @property
    def origin(self) -> str:
        """Device and date, for captions."""
        return f"{self.device}, {self.date}"

    def figure(self, name: str) -> float:
        """One figure.

        Raises:
            KeyError: the run measured no such thing; the message lists names that begin alike.
        """
        if name not in self.measured:
            alike = [known for known in self.measured if known.split(" ")[0] == name.split(" ")[0]]
            raise KeyError(
                f"the record of {self.origin} has no {name!r}; alike: {', '.join(alike) or 'none'}"
            )
        return float(self.measured[name])


@cache
def load(name: str = FULL_RUN) -> GpuRecord:
    """The record in data/records/`name`.

    Raises:
        FileNotFoundError: minfer is used outside its repository, or there is no such record.
    """
    path = FOLDER / name
    if not path.exists():
        raise FileNotFoundError(f"no record {path}: the records come with the repository")
    entry = json.loads(path.read_text())
    return GpuRecord(entry["device"], entry["date"][:10], entry["measured"])
