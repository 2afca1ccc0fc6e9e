"""What a device was measured, or is specified, to reach: a figure above it is wrong, not fast."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from minfer.arithmetic.devices import by_name
from minfer.arithmetic.reference import FOLDER
from minfer.campaign.record import TIMING_ERROR
from minfer.campaign.workload import Work


class AboveCeiling(RuntimeError):
    """A measured rate that the device cannot reach: what ran was not the work that was charged."""


@dataclass(frozen=True)
class Ceilings:
    """Rates per second.

    Attributes:
        copy, read: bytes of a copy (read + write), and of reading. tensor: by dtype, operations.
        source: where the figures come from.
    """

    copy: float
    read: float
    tensor: dict[str, float]
    source: str

    def as_dict(self) -> dict[str, float]:
        """As records keep them."""
        rates = {f"{dtype}_tops": rate / 1e12 for dtype, rate in self.tensor.items()}
        return {"copy_gb_s": self.copy / 1e9, "read_gb_s": self.read / 1e9} | rates

    def check(self, what: str, work: Work | None, seconds: float) -> None:
        """Raise AboveCeiling if this much work in this time is impossible."""
        if work is None:
            return
        limits = [("bytes", work.nbytes, max(self.copy, self.read))]
        if work.flop and work.dtype in self.tensor:
            limits.append((f"{work.dtype} operations", work.flop, self.tensor[work.dtype]))
        for unit, amount, ceiling in limits:
            rate = amount / seconds
            if rate > ceiling * (1 + TIMING_ERROR):
                raise AboveCeiling(
                    f"{what}: {rate:.3g} {unit} a second, the ceiling is {ceiling:.3g} ({self.source}): "
                    "prove that the kernels ran, on cold inputs, and that the work is charged right"
                )


def ceilings_of(device: str, folder: Path = FOLDER) -> Ceilings | None:
    """Of a device by its driver's name: memory as measured (data/reference/ceilings-<key>.json) where that is
    known, else as specified; tensor cores as specified. None: a device that the table does not know."""
    known = by_name(device)
    if known is None:
        return None
    tensor = {"f16": known.tensor_f16, "int8": known.tensor_int8}
    path = folder / f"ceilings-{known.key}.json"
    if not path.exists():
        return Ceilings(known.bandwidth, known.bandwidth, tensor, "datasheet")
    entry = json.loads(path.read_text(encoding="utf-8"))
    return Ceilings(entry["copy_gb_s"] * 1e9, entry["read_gb_s"] * 1e9, tensor, entry["source"])
