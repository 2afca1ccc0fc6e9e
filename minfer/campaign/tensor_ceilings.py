"""What tensor cores reach with nothing else to do, at the power that the card allows (`minfer ceilings`).

The datasheet's rate is of a clock that a card at its power limit does not have. What `minfer.cuda.resident`
reaches is what a GEMM could at most: in a burst from rest, and sustained, by itself for seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from minfer.arithmetic.devices import DeviceSpec
from minfer.campaign.stopwatch import REST_S, Stopwatch

BURST_S = 1.5e-3
"""Of a launch, about: as long as the bursts of `minfer.campaign.side_by_side`."""
BURSTS = 9
SUSTAINED_S, SETTLE_S = 3.0, 1.0
K_TILES = 56
"""Of a sum: 3584 columns of f16."""
MOST_ERROR = 1e-4
"""Relative, of f32 sums; sums of integers are exact."""

KNOWN = {
    "instruction": ("wgmma", "mma.sync"),
    "dtype": ("f16", "int8"),
    "regime": ("burst", "sustained"),
}
"""What a rate's fields may say."""


@dataclass(frozen=True)
class TensorRate:
    """What one kernel reached that only multiplies.

    Attributes:
        instruction: "wgmma" or "mma.sync". dtype: "f16" or "int8". tile: "128x256". regime: "burst" or
            "sustained". tops: 10^12 operations a second. mhz: mean clock of the multiprocessors while it ran;
            watts: mean power of the board; None: nobody could tell, in a burst nobody can.
    """

    instruction: str
    dtype: str
    tile: str
    regime: str
    tops: float
    mhz: float | None = None
    watts: float | None = None

    def check(self, device: DeviceSpec, where: str = "") -> None:
        """Raise ValueError ("field: what is wrong") for a rate that the device cannot have."""
        for name, allowed in KNOWN.items():
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f"{where}{name}: {value!r} is none of {', '.join(allowed)}")
        most = {"f16": device.tensor_f16, "int8": device.tensor_int8}[self.dtype] / 1e12
        if not 0 < self.tops <= most:
            raise ValueError(f"{where}tops: {self.tops:g}, the datasheet's rate is {most:g}")
        for name in ("mhz", "watts"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{where}{name}: {value:g} is not above zero")

    def __str__(self) -> str:
        text = f"{self.instruction} {self.dtype} {self.tile}, {self.regime}: {self.tops:,.0f} TOPS"
        text += "" if self.mhz is None else f" at {self.mhz:,.0f} MHz"
        return text + ("" if self.watts is None else f", {self.watts:.0f} W")


def measure_tensor_cores(
    device: Any, stopwatch: Stopwatch | None = None, say: Callable[[TensorRate], None] = lambda rate: None
) -> list[TensorRate]:
    """Rates of every kernel of `minfer.cuda.resident` that the device can run, on random operands: f16 of a
    normal distribution, int8 of one with deviation 32. `say` is told each.

    Args:
        device: a `minfer.engine.cuda.devices.GpuDevice`. stopwatch: None: that of the device's stream.

    Raises:
        RuntimeError: sums are wrong, before or after they were timed.
    """
    from minfer.cuda.resident import shipped

    stopwatch = stopwatch or Stopwatch.of(device.stream)
    rates = []
    for kernel in shipped():
        fits = kernel.shared_bytes <= device.shared_bytes
        if fits and kernel.not_applicable(device.arch) is None:
            for rate in _Products(device, kernel).measure(stopwatch):
                rates.append(rate)
                say(rate)
    return rates


class _Products:
    """A kernel with its operands, ready to run."""

    def __init__(self, device: Any, kernel: Any) -> None:
        import numpy as np

        from minfer.cuda.reference import resident_sums
        from minfer.cuda.resident import DTYPES

        self.device, self.kernel = device, kernel
        config, random = kernel.config, np.random.default_rng(0)
        operand, result, _ = DTYPES[config.dtype]
        shapes = config.shapes(device.sms)
        spread = 32 if operand == "int8" else 1
        a, b = (
            np.clip(np.rint(x) if operand == "int8" else x, -127, 127).astype(operand)
            for x in (random.normal(0, spread, shapes[name]) for name in "ab")
        )
        self.wanted = resident_sums(a, b, K_TILES)
        self.arrays = [device.empty(x.shape, operand) for x in (a, b)]
        for target, source in zip(self.arrays, (a, b), strict=True):
            device.write(target, source)
        self.sums = device.empty(shapes["c"], result)
        self.dtype = operand.replace("float16", "f16")
        device.load(kernel)

    def run(self, tiles: int) -> None:
        """Enqueue a launch of so many tiles a block."""
        config = self.kernel.config
        self.device.launch(self.kernel, config.grid(self.device.sms), *self.arrays, self.sums, tiles, K_TILES)

    def measure(self, stopwatch: Any) -> list[TensorRate]:
        """In bursts and sustained."""
        config = self.kernel.config
        self.check()
        hundred = self.device.capture(lambda: self.run(100))
        stopwatch.once(hundred)
        us, _ = stopwatch.once(hundred)
        tiles = max(1, round(100 * BURST_S * 1e6 / us))
        replay = self.device.capture(lambda: self.run(tiles))
        stopwatch.once(replay)
        operations = config.operations(self.device.sms, tiles, K_TILES)
        found = []
        for _ in range(BURSTS):
            time.sleep(REST_S)
            found.append(stopwatch.once(replay))
        us = statistics.median(us for us, _ in found)
        clocks = [mhz for _, mhz in found if mhz is not None]
        tile = f"{config.tile_n}x{config.tile_m}"
        burst = TensorRate(config.instruction, self.dtype, tile, "burst", operations / us / 1e6)
        burst = replace(burst, mhz=statistics.median(clocks) if clocks else None)
        long = stopwatch.stretch(replay, SUSTAINED_S, SETTLE_S)
        rate = operations / long.us / 1e6
        sustained = replace(burst, regime="sustained", tops=rate, mhz=long.mhz, watts=long.watts)
        self.check()
        return [burst, sustained]

    def check(self) -> None:
        """Of a launch that finds no sums there."""
        import numpy as np

        self.device.clear(self.sums)
        self.run(2)
        found = self.device.read(self.sums).astype(np.float64)
        off = max(float(np.linalg.norm(block - self.wanted)) for block in found)
        error = off / float(np.linalg.norm(self.wanted))
        if not error <= (0 if self.dtype == "int8" else MOST_ERROR):
            raise RuntimeError(f"{self.kernel}: sums are off by {error:.1e}, nothing is kept")
