"""The seeds' verdicts on a GB10, probe by probe (data/reference/seed-*.json)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from minfer.arithmetic.reference import FOLDER, Figure, figure


@dataclass(frozen=True)
class SeedVerdict:
    """What a seed found.

    Attributes:
        probe: the probe's name here. verdict: LANDED, REVERTED, null or MEAS-ONLY.
        seed, section, device, date: where it stands, and on what it was measured.
        figures: the seed's numbers for it. mechanism, retry: why, and when to try again.
    """

    probe: str
    verdict: str
    seed: str
    section: str
    device: str
    date: str
    figures: tuple[Figure, ...]
    mechanism: str
    retry: str

    @property
    def origin(self) -> str:
        """Where it stands."""
        return f"seed {self.seed} section {self.section}, {self.device.upper()}, {self.date}"

    @property
    def summary(self) -> str:
        """Its figures in one line."""
        return "; ".join(f"{f.what}: {_shown(f)}" for f in self.figures)


@cache
def verdicts(folder: Path = FOLDER) -> dict[str, SeedVerdict]:
    """Every verdict by probe, in the seeds' order.

    Raises:
        FileNotFoundError: the folder holds no seed-*.json (minfer is used outside its repository).
    """
    found = {}
    for path in sorted(folder.glob("seed-*.json")):
        seed = json.loads(path.read_text(encoding="utf-8"))
        for entry in seed["verdicts"]:
            figures = tuple(figure(seed["seed"], key) for key in entry["figures"])
            origin = {name: seed[name] for name in ("seed", "device", "date")}
            found[entry["probe"]] = SeedVerdict(**{**entry, "figures": figures}, **origin)
    if not found:
        raise FileNotFoundError(f"no seed-*.json in {folder}: the seeds' verdicts come with the repository")
    return found


def _shown(found: Figure) -> str:
    values = found.value if isinstance(found.value, tuple) else (found.value,)
    return f"{' to '.join(f'{value:,g}' for value in values)} {found.unit}"
