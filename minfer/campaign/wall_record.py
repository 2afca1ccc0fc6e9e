"""The record of a wall decomposition: every launch of a prefill or decode, charged to a class of work."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any, ClassVar

from minfer.campaign import statistics
from minfer.campaign.record import TIMING_ERROR, Environment, Record, Telemetry, checked_positive

CONSERVATION = 0.02
"""The sum of buckets and gaps agrees with the wall clock to so much, or the decomposition is refused."""

NANOSECOND = 1e-6  # in milliseconds: what rounding may make of a gap of nothing


@dataclass(frozen=True)
class Bucket:
    """The launches of one arithmetic class.

    Attributes:
        name: of the class. ms: device time that only these launches held. launches: how many.
        gmac: multiply-accumulates, 1e9. int8_gmac: those of them that are multiplied as int8.
        nbytes: least bytes that they read and write.
        weight_bits: stored bits a weight of what a product reads; 0: no product.
        kernels: milliseconds by kernel and config.
    """

    name: str
    ms: float
    launches: int
    gmac: float
    nbytes: float
    weight_bits: float
    kernels: dict[str, float]
    int8_gmac: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Wall(Record):
    """One decomposition.

    Attributes:
        phase: "prefill" or "decode". tokens: of the pass. context: tokens in the cache before it.
        route, settings: the kernels. source: how launches were timed.
        wall_ms: samples of the same pass, not observed, host clock.
        buckets: in the order of their first launch.
        gap_ms: what the wall clock has beside all launches (`minfer.campaign.decomposition`).
        ceilings: "read_gb_s", "copy_gb_s": as measured on the device; "f16_tops", "int8_tops": as specified.
        notes: what a reader must know (products that are fused, what timing costs).
        counters: by bucket, shares of peaks that a profiler read of its largest launch
            (`minfer.campaign.counters`); empty: none were read.
    """

    kind: ClassVar[str] = "wall"

    phase: str
    model: str
    tokens: int
    context: int
    route: str
    settings: dict[str, Any]
    source: str
    environment: Environment
    telemetry: Telemetry
    wall_ms: list[float]
    buckets: list[Bucket]
    gap_ms: float
    ceilings: dict[str, float]
    notes: list[str]
    counters: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def ms(self) -> float:
        """The wall clock: the median of its samples."""
        return median(self.wall_ms)

    @property
    def stem(self) -> str:
        """The beginning of its file's name."""
        size = self.tokens if self.phase == "prefill" else self.context
        return f"wall-{self.phase}-{size}-{self.route}"

    @property
    def charged_ms(self) -> float:
        """Buckets and gaps together."""
        return math.fsum(bucket.ms for bucket in self.buckets) + self.gap_ms

    @property
    def conservation(self) -> float:
        """How far buckets and gaps together are from the wall clock: 0.01 is 1 % over it."""
        return self.charged_ms / self.ms - 1

    @property
    def tok_s(self) -> float:
        """Tokens a second of the wall clock."""
        return self.tokens / self.ms * 1e3

    def unquiet(self, busy: float | None = None) -> list[str]:
        """What was not quiet about its samples, by `minfer.campaign.statistics.QUIET_RULE`."""
        dropped = int((~statistics.keep(self.wall_ms)).sum())
        return statistics.unquiet(self.wall_ms, dropped, busy)

    def bucket(self, name: str) -> Bucket:
        """The bucket of that name.

        Raises:
            KeyError: it has no such bucket; the message lists those it has.
        """
        for bucket in self.buckets:
            if bucket.name == name:
                return bucket
        raise KeyError(
            f"{self.file} has no bucket {name!r}; it has {', '.join(b.name for b in self.buckets)}"
        )

    def compute_sol(self, bucket: Bucket) -> float | None:
        """What the tensor cores take at their rates, over the bucket's time; None: no rates or products."""
        ms = 0.0
        for dtype, gmac in (("f16", bucket.gmac - bucket.int8_gmac), ("int8", bucket.int8_gmac)):
            if gmac > 0:
                tops = self.ceilings.get(f"{dtype}_tops")
                if tops is None:
                    return None
                ms += 2 * gmac / tops
        return ms / bucket.ms if ms and bucket.ms else None

    def check(self) -> None:
        super().check()
        if strangers := self.counters.keys() - {bucket.name for bucket in self.buckets}:
            raise ValueError(f"counters: no bucket is called {', '.join(sorted(strangers))}")
        if self.phase not in ("prefill", "decode"):
            raise ValueError(f"phase: {self.phase!r} is neither prefill nor decode")
        if not self.wall_ms or min(self.wall_ms) <= 0:
            raise ValueError("wall_ms: at least one sample, all above 0")
        checked_positive(self, "tokens")
        share = self.settings.get("q_share", 1.0)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise ValueError(f"settings['q_share']: {share!r} is no share above 0 and up to 1")
        if self.gap_ms < -NANOSECOND:
            raise ValueError(f"gap_ms: {self.gap_ms:.3f}: launches hold more time than their pass took")
        for place, bucket in enumerate(self.buckets):
            if bucket.ms < 0 or bucket.launches < 1:
                raise ValueError(f"buckets[{place}]: {bucket.ms} ms in {bucket.launches} launches")
            if not 0 <= bucket.int8_gmac <= bucket.gmac * (1 + 1e-9):
                raise ValueError(f"buckets[{place}].int8_gmac: {bucket.int8_gmac} of {bucket.gmac} GMAC")
            if (sol := self.compute_sol(bucket) or 0.0) > 1 + TIMING_ERROR:
                raise ValueError(f"buckets[{place}]: {sol:.0%} of what the tensor cores can reach")
            if not math.isclose(math.fsum(bucket.kernels.values()), bucket.ms, rel_tol=1e-6, abs_tol=1e-9):
                raise ValueError(
                    f"buckets[{place}].ms: {bucket.ms:.6g}, but its kernels add up to another sum"
                )
        if abs(self.conservation) > CONSERVATION:
            raise ValueError(
                f"buckets: with the gaps {self.charged_ms:.3f} ms, the wall clock is {self.ms:.3f} ms: "
                f"{self.conservation:+.1%}, more than {CONSERVATION:.0%}"
            )


def newest_walls(records: Iterable[Record], device: str = "h200", phase: str = "prefill") -> list[Wall]:
    """The newest decomposition of each route on a device (its key or its driver's name), slowest first.

    All are of one model and size, so that they compare: of those with the most routes, the one whose walls
    are the newest.
    """
    alike: dict[tuple, dict[str, Wall]] = {}
    for record in sorted(records, key=_time):
        if (
            isinstance(record, Wall)
            and record.phase == phase
            and device in (record.device, record.device_key)
        ):
            walls = alike.pop((record.model, record.tokens, record.context), {})
            alike[record.model, record.tokens, record.context] = walls | {record.route: record}
    most = max(reversed(alike.values()), key=len, default={})
    return sorted(most.values(), key=lambda wall: wall.tok_s)


def _time(record: Record) -> datetime:
    return datetime.fromisoformat(record.date)
