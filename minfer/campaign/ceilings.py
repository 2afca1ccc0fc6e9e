"""What a device was measured, or is specified, to reach: a figure above it is wrong, not fast."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minfer.arithmetic.devices import DeviceSpec, by_name
from minfer.arithmetic.reference import FOLDER
from minfer.campaign.environment import now
from minfer.campaign.launch_times import device_ms
from minfer.campaign.record import TIMING_ERROR, RecordError
from minfer.campaign.schema import build, plain
from minfer.campaign.tensor_ceilings import TensorRate
from minfer.campaign.workload import Work
from minfer.model.whole_file import whole_file

ARRAY_BYTES = 1 << 30
"""Of what is read or copied: so many that a launch's beginning and end do not count."""


class AboveCeiling(RuntimeError):
    """A measured rate that the device cannot reach: what ran was not the work that was charged."""


@dataclass(frozen=True)
class Ceilings:
    """Rates per second.

    Attributes:
        copy, read: bytes of a copy (read + write), and of reading. tensor: by dtype, operations as specified:
            the limit. source: where the figures come from.
        reached: what tensor cores alone were measured to reach at the power that the card allows: no limit,
            as a short burst from rest may be faster.
    """

    copy: float
    read: float
    tensor: dict[str, float]
    source: str
    reached: tuple[TensorRate, ...] = ()

    def tensor_cores(self, dtype: str, regime: str, instruction: str = "wgmma") -> TensorRate | None:
        """The fastest tile of tensor cores alone; None: not measured. regime: "burst" or "sustained"."""
        wanted = dtype, regime, instruction
        alike = (rate for rate in self.reached if (rate.dtype, rate.regime, rate.instruction) == wanted)
        return max(alike, key=lambda rate: rate.tops, default=None)

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
    known, else as specified; tensor cores as specified, and what they reached where that is known. None: a
    device that the table does not know.

    Raises:
        RecordError: the file is no JSON, a field is missing or wrong, or no device reaches a rate.
    """
    known = by_name(device)
    if known is None:
        return None
    tensor = {"f16": known.tensor_f16, "int8": known.tensor_int8}
    path = _path(known, folder)
    if not path.exists():
        return Ceilings(known.bandwidth, known.bandwidth, tensor, "datasheet")
    kept = _read(path, known)
    return Ceilings(kept.copy_gb_s * 1e9, kept.read_gb_s * 1e9, tensor, kept.source, tuple(kept.tensor_cores))


@dataclass(frozen=True)
class _Kept:
    """A file of ceilings."""

    device: str
    source: str
    copy_gb_s: float
    read_gb_s: float
    tensor_cores: list[TensorRate] = field(default_factory=list)

    def check(self, known: DeviceSpec) -> None:
        """Raise ValueError for another device's figures, or what no device reaches."""
        if by_name(self.device) != known:
            raise ValueError(f"device: {self.device!r} in the file of {known.name}")
        for name in ("copy_gb_s", "read_gb_s"):
            rate, most = getattr(self, name), known.bandwidth / 1e9 * (1 + TIMING_ERROR)
            if not 0 < rate <= most:
                raise ValueError(f"{name}: {rate:g}, the datasheet's bandwidth is {known.bandwidth / 1e9:g}")
        for place, rate in enumerate(self.tensor_cores):
            rate.check(known, f"tensor_cores[{place}].")


def _read(path: Path, known: DeviceSpec) -> _Kept:
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entry, dict):
            raise ValueError(f"an object is needed, not {type(entry).__name__}")
        kept = build(_Kept, entry)
        kept.check(known)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path.name}: {error}: measure it again with minfer ceilings --record") from None
    return kept


def measure_memory(device: Any, nbytes: int = ARRAY_BYTES, samples: int = 9) -> dict[str, int]:
    """{"copy_gb_s", "read_gb_s"} of a GPU (`minfer.engine.cuda.devices.GpuDevice`), medians of `samples`:
    the driver copies one array of `nbytes` to another (bytes read + written), then a kernel reads both.

    Raises:
        RuntimeError: what was read is not what lay there, or the copy is none.
    """
    import numpy as np

    from minfer.cuda.memory import PIECE_BYTES, ReadMemoryConfig, read_memory
    from minfer.cuda.reference import read_memory as sums_of

    config, pieces = ReadMemoryConfig(), nbytes // PIECE_BYTES
    kernel, grid = read_memory(config), config.grid(device.sms)
    words = np.random.default_rng(0).integers(0, 2**32, (pieces, 4), np.uint32)
    wanted = sums_of(words, grid[0] * config.threads)
    first, second = (device.empty(words.shape, np.uint32) for _ in range(2))
    sums = device.empty(wanted.shape, np.uint32)
    device.write(first, words)
    device.clear(second)
    device.clear(sums)
    device.load(kernel)

    def copy_twice() -> None:
        for _ in range(2):
            second.copy_from(first, device.stream)

    def read_both() -> None:
        for array in (first, second):
            device.launch(kernel, grid, array, sums, pieces)

    copied = 4 * nbytes / device_ms(copy_twice, device, samples=samples, queued=True)
    was_read = 2 * nbytes / device_ms(device.capture(read_both), device, samples=samples, queued=True)
    if not np.array_equal(device.read(sums), wanted):
        raise RuntimeError("what was copied and read while it was timed is not what lay there")
    return {"copy_gb_s": round(copied / 1e6), "read_gb_s": round(was_read / 1e6)}


def write_ceilings(
    device: str, rates: dict[str, int], reached: Sequence[TensorRate], folder: Path = FOLDER
) -> Path:
    """Keep what was measured of memory and of tensor cores as this device's ceilings, for `ceilings_of`;
    gives the file.

    Raises:
        RecordError: the table does not know the device, a rate is none or above its datasheet's, or the file
            cannot be written.
    """
    known = by_name(device)
    if known is None:
        raise RecordError(f"minfer.arithmetic.devices does not know {device}: add it to keep its ceilings")
    source = f"memory: medians measured on one {device}, {now()[:10]}, by minfer ceilings"
    entry = {"device": device, "source": f"{source}; tensor cores' limit: datasheet"} | rates
    try:
        kept = build(_Kept, plain(entry | {"tensor_cores": list(reached)}))
        kept.check(known)
    except ValueError as error:
        raise RecordError(f"ceilings of {device} that are not kept: {error}") from None
    text = json.dumps(plain(kept), indent=1)
    path = _path(known, folder)
    with whole_file(path, len(text), RecordError) as part:
        part.write_text(f"{text}\n", encoding="utf-8")
    return path


def _path(device: DeviceSpec, folder: Path) -> Path:
    return folder / f"ceilings-{device.key}.json"
