"""The roofline: what a kernel could reach, given its FLOP a byte, and which wall it meets first.

(Williams, Waterman, Patterson: Roofline, CACM 2009.)
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.arithmetic.devices import DeviceSpec


@dataclass(frozen=True)
class RooflinePoint:
    """A kernel on a device's roofline.

    Attributes:
        intensity: FLOP for every DRAM byte.
        attainable: FLOP a second under both roofs.
        wall: "memory" or "compute", the roof that is lower.
        ridge: the intensity at which the roofs meet.
    """

    intensity: float
    attainable: float
    wall: str
    ridge: float

    @property
    def fraction(self) -> float:
        """Attainable rate over the compute roof, 0 to 1."""
        return min(1.0, self.intensity / self.ridge)


def ridge(
    device: DeviceSpec, dtype: str = "f16", *, bandwidth: float | None = None, peak: float | None = None
) -> float:
    """FLOP a byte at which the device turns from memory-bound to compute-bound.

    `bandwidth` and `peak` replace the datasheet's figures by measured ones (bytes and FLOP a second).
    """
    return (peak or device.tensor_peak(dtype)) / (bandwidth or device.bandwidth)


def roofline(
    device: DeviceSpec,
    flop: float,
    dram_bytes: float,
    dtype: str = "f16",
    *,
    bandwidth: float | None = None,
    peak: float | None = None,
) -> RooflinePoint:
    """Where a kernel of `flop` FLOP and `dram_bytes` bytes stands on the roofline of `device`.

    Raises:
        ValueError: no bytes, or a dtype that the device has no tensor instruction for.
    """
    if dram_bytes <= 0:
        raise ValueError(f"a kernel moves at least one byte, got {dram_bytes}")
    top = peak or device.tensor_peak(dtype)
    slope = bandwidth or device.bandwidth
    intensity = flop / dram_bytes
    return RooflinePoint(
        intensity=intensity,
        attainable=min(top, slope * intensity),
        wall="memory" if slope * intensity < top else "compute",
        ridge=top / slope,
    )


def decode_limit(bandwidth: float, token_bytes: float) -> float:
    """Tokens a second that memory allows: `bandwidth` in bytes a second, `token_bytes` read by each."""
    return bandwidth / token_bytes


def least_seconds(device: DeviceSpec, flop: float, dram_bytes: float, dtype: str = "f16") -> float:
    """Seconds below which no kernel of this work can finish: a faster measurement is wrong, not fast."""
    return max(flop / device.tensor_peak(dtype), dram_bytes / device.bandwidth)
