"""The record of one run of a probe: gates, samples, verdict, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import compress
from statistics import median
from typing import Any, ClassVar

from minfer.campaign.record import Environment, Record, Telemetry, checked_positive
from minfer.campaign.statistics import VERDICTS, Gain, decide, keep, ratio, upper_bound


@dataclass(frozen=True)
class GateResult:
    """What a gate found.

    Attributes:
        found: what was compared and the number, in words.
    """

    name: str
    passed: bool
    found: str


@dataclass(frozen=True)
class Side:
    """One of the two configs.

    Attributes:
        label: as tables show it. config: what was compiled, in words.
        facts: of its kernels: registers, shared memory, blocks an SM, spills.
    """

    label: str
    config: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Interleaved samples of both sides on one case.

    Attributes:
        case: what ran. count: how often a prefill runs it.
        baseline, variant, again: milliseconds by round; `again` is the baseline a second time in each round.
        ratio, low, high, noise, dropped: as `minfer.campaign.statistics.Ratio`.
        flop, nbytes: the least work of one run; 0: not told.
        outputs: how the full outputs of both sides compare.
    """

    case: str
    count: int
    baseline: list[float]
    variant: list[float]
    again: list[float]
    ratio: float
    low: float
    high: float
    noise: float
    dropped: int
    flop: float = 0.0
    nbytes: float = 0.0
    outputs: str = ""

    @classmethod
    def of(
        cls,
        case: str,
        count: int,
        baseline: list[float],
        variant: list[float],
        again: list[float],
        **rest: Any,
    ) -> Comparison:
        """With the statistics of its samples."""
        found = ratio(baseline, variant, again)
        return cls(
            case, count, baseline, variant, again,
            found.value, found.low, found.high, found.noise, found.dropped, **rest,
        )  # fmt: skip

    def check(self) -> None:
        """Raise ValueError if the statistics are not those of the samples."""
        found = ratio(self.baseline, self.variant, self.again)
        for name, follows in (
            ("ratio", found.value), ("low", found.low), ("high", found.high), ("noise", found.noise)
        ):  # fmt: skip
            if not math.isclose(getattr(self, name), follows, rel_tol=1e-6, abs_tol=1e-9):
                raise ValueError(
                    f"{name}: {getattr(self, name):.6g}, but {follows:.6g} follows from its samples"
                )
        if self.dropped != found.dropped:
            raise ValueError(f"dropped: {self.dropped}, but {found.dropped} follows from its samples")

    @property
    def ms(self) -> tuple[float, float]:
        """Median milliseconds of baseline and variant over the rounds that count."""
        mask = keep(self.baseline, self.variant, self.again)

        a, b = (median(compress(side, mask)) for side in (self.baseline, self.variant))
        return a, b

    @property
    def gain(self) -> Gain:
        """What the variant gains."""
        rounds = len(self.baseline) - self.dropped
        return Gain(self.ratio - 1, self.low - 1, self.high - 1, self.noise, rounds)

    def __str__(self) -> str:
        a, b = self.ms
        dropped = f", {self.dropped} of {len(self.baseline)} rounds dropped" if self.dropped else ""
        return (
            f"{self.case}: {a:.4f} -> {b:.4f} ms, {self.ratio - 1:+.2%} speed "
            f"[{self.low - 1:+.2%}, {self.high - 1:+.2%}], A/A noise {self.noise:.2%}{dropped}"
        )


@dataclass(frozen=True)
class Bound:
    """What the kernels could give a prefill at most, where no route of the engine takes the variant.

    Attributes:
        bucket: the class of work that the kernels belong to. share: of the wall clock of the decomposition
            in the record `wall`, which may run other kernels of that class.
    """

    bucket: str
    share: float
    wall: str


@dataclass(frozen=True, kw_only=True)
class ProbeRun(Record):
    """One run of a probe.

    Attributes:
        probe: its name. title, seed, hypothesis, prediction, bar: as declared when it ran.
        model: the file that the prefill was measured on, "" without one.
        settings: of the run: rounds, tokens, route.
        gates: in the order that they ran; a failed one ends the run.
        kernels, wall: the A/B of the kernels by case, and of the whole prefill or decode (or nothing).
        bound: where no whole prefill was timed: the share of a wall that is at stake, if that is known.
        quiet, unquiet: whether the window was quiet, and what was not. rules: what quiet and outliers are.
        mechanism, retry: why it turned out so, and when to measure again.
        reason: why the verdict differs from the seed's; "" where it does not.
    """

    kind: ClassVar[str] = "probe"

    probe: str
    title: str
    seed: str
    model: str
    hypothesis: str
    prediction: str
    bar: float
    settings: dict[str, Any]
    environment: Environment
    telemetry: Telemetry
    baseline: Side
    variant: Side
    gates: list[GateResult]
    kernels: list[Comparison]
    wall: list[Comparison]
    quiet: bool
    unquiet: list[str]
    rules: list[str]
    verdict: str
    mechanism: str
    retry: str
    reason: str = ""
    bound: Bound | None = None

    @property
    def gain(self) -> Gain | None:
        """Of the wall clock; None: no whole prefill was timed, or a gate failed."""
        return self.wall[0].gain if self.wall else None

    @property
    def most(self) -> float | None:
        """The wall clock's gain if all of `bound`'s class gained as the kernels do; 0 where they lose."""
        if self.bound is None or not self.kernels:
            return None
        a, b = self.kernel_ms()
        return max(0.0, upper_bound(self.bound.share, b / a))

    @property
    def gates_passed(self) -> bool:
        """Whether there are gates, and all passed."""
        return bool(self.gates) and all(gate.passed for gate in self.gates)

    def check(self) -> None:
        super().check()
        checked_positive(self, "bar")
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict: {self.verdict!r} is none of {', '.join(VERDICTS)}")
        if self.bound is not None and not 0 < self.bound.share < 1:
            raise ValueError(f"bound.share: {self.bound.share} is no share of a wall")
        if len(self.wall) > 1 or (self.wall and self.bound is not None):
            raise ValueError("wall: one comparison of whole prefills, or none and a bound")
        if self.quiet == bool(self.unquiet):
            raise ValueError(f"quiet: {self.quiet} beside {len(self.unquiet)} things that were not")
        for part in ("kernels", "wall"):
            for place, comparison in enumerate(getattr(self, part)):
                try:
                    comparison.check()
                except ValueError as error:
                    raise ValueError(f"{part}[{place}].{error}") from None
        follows = decide(
            gates_passed=self.gates_passed,
            quiet=self.quiet,
            prefill=self.gain,
            kernels=[comparison.gain for comparison in self.kernels],
            bar=self.bar,
        )
        if self.verdict != follows:
            raise ValueError(f"verdict: {self.verdict}, but {follows} follows from gates and gain")

    @property
    def summary(self) -> str:
        """Its figures in one line; "" where nothing was timed."""
        told = []
        if self.wall:
            phase = "decode" if "decode tokens" in self.settings else "prefill"
            a, b = (self.settings[f"{phase} tokens"] / ms * 1e3 for ms in self.wall[0].ms)
            told.append(f"{phase} {a:,.0f} -> {b:,.0f} tok/s")
        if self.kernels:
            a, b = self.kernel_ms()
            told.append(f"kernels {a:,.2f} -> {b:,.2f} ms")
        return "; ".join(told)

    def kernel_ms(self) -> tuple[float, float]:
        """Milliseconds of a whole prefill's runs of the kernels, baseline and variant."""
        pairs = [(c.count * c.ms[0], c.count * c.ms[1]) for c in self.kernels]
        return sum(a for a, _ in pairs), sum(b for _, b in pairs)
