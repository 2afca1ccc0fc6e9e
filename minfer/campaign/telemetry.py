"""Clocks, power and temperature of the GPU while something is measured, by NVML or nvidia-smi."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
from dataclasses import dataclass
from typing import Any, Protocol

from minfer.campaign.record import Telemetry

LIMITS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of NVML's clocks event reasons that hold a busy GPU's clocks down."""
SMI_FIELDS = "clocks.sm,power.draw,temperature.gpu,utilization.gpu,clocks_event_reasons.active"


@dataclass(frozen=True)
class Reading:
    """One look at the GPU: MHz, W, C, utilisation of the last moments (0 to 1), bits of event reasons."""

    sm_mhz: float
    power_w: float
    temperature_c: float
    busy: float
    reasons: int


class Reader(Protocol):
    """Where readings come from."""

    name: str
    costly: bool
    """A reading takes so long that there should be few."""

    def read(self) -> Reading:
        """The GPU now."""


class Nvml:
    """NVML through `nvidia-ml-py`. Raises ImportError without it, OSError if NVML refuses."""

    name, costly = "NVML", False

    def __init__(self, bus_id: str) -> None:
        import pynvml

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())
            self.read()
        except pynvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error

    def read(self) -> Reading:
        nvml, handle = self._nvml, self._handle
        reasons = 0
        with contextlib.suppress(nvml.NVMLError, AttributeError):  # not every driver tells
            reasons = int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        return Reading(
            sm_mhz=float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            power_w=nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            temperature_c=float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            busy=nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            reasons=reasons,
        )


class Smi:
    """The nvidia-smi command, where the package is missing. Raises OSError without it."""

    name, costly = "nvidia-smi", True

    def __init__(self, bus_id: str) -> None:
        self._command = [
            "nvidia-smi", f"--id={bus_id}", f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader,nounits"
        ]  # fmt: skip
        self.read()

    def read(self) -> Reading:
        try:
            reply = subprocess.run(self._command, capture_output=True, text=True, timeout=20, check=True)
            return parse_smi(reply.stdout)
        except (subprocess.SubprocessError, ValueError) as error:
            raise OSError(f"nvidia-smi: {error}") from error


def parse_smi(line: str) -> Reading:
    """A line of nvidia-smi with `SMI_FIELDS`. Raises ValueError for one that is none."""
    clock, power, temperature, busy, reasons = (part.strip() for part in line.strip().split(","))
    return Reading(float(clock), float(power), float(temperature), float(busy) / 100, int(reasons, 16))


class Watch:
    """Collects readings of a measurement.

    Attributes:
        source: who reads, or why nobody does. busy: utilisation at the start, None: not known.
    """

    def __init__(self, reader: Reader | None, source: str = "") -> None:
        self._reader = reader
        self._readings: list[Reading] = []
        self.source = source if reader is None else reader.name
        self.busy: float | None = None
        if reader is not None:
            self.busy = reader.read().busy

    def look(self) -> None:
        """Take a reading, where it costs little or there is none yet."""
        if self._reader is not None and not (self._reader.costly and self._readings):
            self._readings.append(self._reader.read())

    def summary(self) -> Telemetry:
        """What was read. A costly reader looks once more."""
        if self._reader is not None and self._reader.costly:
            self._readings.append(self._reader.read())
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


def reader_of(gpu: Any) -> tuple[Reader | None, str]:
    """Who can read a GPU (`minfer.cuda.runtime.Device`), and why not NVML where it cannot."""
    from minfer.cuda.runtime import driver

    bus_id = driver.call("cuDeviceGetPCIBusId", 32, gpu.handle).split(b"\0")[0].decode()
    reasons = []
    for kind in (Nvml, Smi):
        try:
            return kind(bus_id), "; ".join(reasons)
        except ImportError:
            reasons.append("nvidia-ml-py is not installed")
        except OSError as error:
            reasons.append(str(error))
    return None, "; ".join(reasons)


def _spread(values: list[float]) -> list[float]:
    return [min(values), statistics.median(values), max(values)]
