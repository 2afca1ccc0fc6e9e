"""Clocks, power and temperature of the GPU while something is measured, by NVML."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minfer.campaign.record import Telemetry

LIMITS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of NVML's clocks event reasons that hold a busy GPU's clocks down."""


@dataclass(frozen=True)
class Reading:
    """One look at the GPU: MHz, W, C, utilisation of the last moments (0 to 1), bits of event reasons."""

    sm_mhz: float
    power_w: float
    temperature_c: float
    busy: float
    reasons: int


Reader = Callable[[], Reading]


class Watch:
    """Collects readings of a measurement.

    Args:
        reader: None: nobody reads. source: who reads, or why nobody does.

    Attributes:
        busy: utilisation before this process used the GPU, None: not known.
    """

    def __init__(self, reader: Reader | None, source: str = "NVML") -> None:
        self._reader, self.source = reader, source
        self._readings: list[Reading] = []
        self.busy = None if reader is None else _busy_at_first(reader)

    def look(self) -> None:
        """Take a reading."""
        if self._reader is not None:
            self._readings.append(self._reader())

    def summary(self) -> Telemetry:
        """What was read."""
        seen = self._readings
        if not seen:
            return Telemetry(
                source=self.source, samples=0, sm_mhz=[], power_w=[], temperature_c=[], limits=[]
            )
        reasons = 0
        for reading in seen:
            reasons |= reading.reasons
        return Telemetry(
            source=self.source,
            samples=len(seen),
            sm_mhz=_spread([reading.sm_mhz for reading in seen]),
            power_w=_spread([reading.power_w for reading in seen]),
            temperature_c=_spread([reading.temperature_c for reading in seen]),
            limits=[name for bit, name in LIMITS.items() if reasons & bit],
        )


_first: list[float] = []


def _busy_at_first(reader: Reader) -> float:
    """The GPU's utilisation when this process first asked: later it is its own. Others that come later show
    in the drift and the outliers."""
    if not _first:
        _first.append(reader().busy)
    return _first[0]


def reader_of(gpu: Any) -> tuple[Reader | None, str]:
    """What reads a GPU (`minfer.cuda.runtime.Gpu`), and its name; or None, and why."""
    from minfer.cuda.runtime import read_load, read_sensors

    if read_load(gpu) is None or len(read_sensors(gpu)) < 3:
        return None, "NVML does not tell"

    def read() -> Reading:
        busy, reasons = read_load(gpu) or (0.0, 0)
        return Reading(**read_sensors(gpu), busy=busy, reasons=reasons)

    return read, "NVML"


def _spread(values: list[float]) -> list[float]:
    return [min(values), statistics.median(values), max(values)]
