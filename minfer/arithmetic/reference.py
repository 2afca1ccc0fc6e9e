"""The seeds' published figures, measured on a GB10 (data/reference/): what ours are compared with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "data" / "reference"


@dataclass(frozen=True)
class Figure:
    """One published figure.

    Attributes:
        key: its name inside the seed, as in "gemm.ms.tm64".
        value: a number, or the (least, greatest) of a published range.
        unit: as printed by the seed. what: the quantity in words.
        seed, file, section, date, device: where and when it was published, and on which device (a key of
            `minfer.arithmetic.devices`).
    """

    key: str
    value: float | tuple[float, float]
    unit: str
    what: str
    seed: str
    file: str
    section: str
    date: str
    device: str

    def __str__(self) -> str:
        shown = (
            "-".join(f"{v:,g}" for v in self.value) if isinstance(self.value, tuple) else f"{self.value:,g}"
        )
        origin = f"{self.device.upper()}, {self.date}, seed {self.seed} section {self.section}"
        return f"{shown} {self.unit} ({origin})"


@cache
def figures(folder: Path = FOLDER) -> dict[tuple[str, str], Figure]:
    """Every figure by (seed, key).

    Raises:
        FileNotFoundError: the folder holds no seed-*.json (minfer is used outside its repository).
    """
    found = {}
    for path in sorted(folder.glob("seed-*.json")):
        seed = json.loads(path.read_text())
        for entry in seed["figures"]:
            value = tuple(entry["value"]) if isinstance(entry["value"], list) else entry["value"]
            origin = {name: seed[name] for name in ("seed", "file", "date", "device")}
            found[seed["seed"], entry["key"]] = Figure(**{**entry, "value": value}, **origin)
    if not found:
        raise FileNotFoundError(f"no seed-*.json in {folder}: the seeds' figures come with the repository")
    return found


def figure(seed: str, key: str) -> Figure:
    """One figure, as in figure("000", "gemm.ms.tm64").

    Raises:
        KeyError: no such figure; the message lists the seed's keys.
    """
    known = figures()
    if (seed, key) not in known:
        keys = ", ".join(k for s, k in known if s == seed) or "none: seeds are 000, 002 and 003"
        raise KeyError(f"seed {seed} has no figure {key!r}; known: {keys}")
    return known[seed, key]
