"""A probe: a hypothesis with two configs, what the ledger predicts, the gates, and the bar."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minfer.campaign.gates import DEFAULT_GATES, Gate
from minfer.campaign.seeds import SeedVerdict, verdicts
from minfer.campaign.workload import Workload

if TYPE_CHECKING:
    from minfer.campaign.probe_record import ProbeRun
    from minfer.campaign.record import Record

BAR = 0.03
"""The gain of the wall clock that a probe must reach to land (seed 002)."""


class ProbeError(ValueError):
    """A probe that cannot be: a bad name, an unknown one, or a file that declares none."""


@dataclass(frozen=True)
class Prediction:
    """What arithmetic says before anything runs.

    Attributes:
        gain: of the wall clock, 0.1 for 10 %; None: the ledger gives a direction only.
        text: the arithmetic in a sentence or two.
    """

    gain: float | None
    text: str

    def __str__(self) -> str:
        return self.text if self.gain is None else f"at most {self.gain:+.1%} of the wall clock: {self.text}"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One question about two configs.

    Attributes:
        name: short, for the command line and the record's file name. title: the question in words.
        hypothesis: what should happen, and why.
        prediction: what the ledger says: a `Prediction`, or a function that computes it.
        workload: what runs. baseline, variant: the configs that it turns into launches.
        labels: what to call them, (baseline, variant).
        gates: what must hold before anything is timed.
        bar: the gain of the wall clock that lands it.
        mechanism, retry: why it turned out as it did for the seed, and when to measure again.
        reason: explains a verdict that is not the seed's: given the run and the records beside it, a sentence
            with what was measured, "" where that does not bear the explanation out (see `reasons`).
        measure: "ab": compare the configs; "wall": take the wall apart (`minfer.campaign.decomposition`).
    """

    name: str
    title: str
    hypothesis: str
    prediction: Prediction | Callable[[], Prediction]
    workload: Workload | None = None
    baseline: Any = None
    variant: Any = None
    labels: tuple[str, str] = ("baseline", "variant")
    gates: tuple[Gate, ...] = DEFAULT_GATES
    bar: float = BAR
    mechanism: str = ""
    retry: str = ""
    reason: Callable[[ProbeRun, Sequence[Record]], str] | None = None
    measure: str = "ab"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", self.name):
            raise ProbeError(f"probe {self.name!r}: a name has small letters, digits, dots and hyphens")
        if self.measure not in ("ab", "wall"):
            raise ProbeError(f"probe {self.name}: measure={self.measure!r} is neither ab nor wall")
        if self.measure == "ab" and None in (self.workload, self.baseline, self.variant):
            raise ProbeError(f"probe {self.name}: an A/B needs a workload, a baseline and a variant")
        if not 0 < self.bar < 1:
            raise ProbeError(f"probe {self.name}: a bar of {self.bar} is no gain between 0 and 1")

    @property
    def sides(self) -> tuple[tuple[str, Any], tuple[str, Any]]:
        """(label, config) of baseline and variant."""
        return (self.labels[0], self.baseline), (self.labels[1], self.variant)

    @property
    def seed(self) -> SeedVerdict | None:
        """What the seeds found; None: they did not ask."""
        return verdicts().get(self.name)

    def predicted(self) -> Prediction:
        """The prediction, computed."""
        return self.prediction if isinstance(self.prediction, Prediction) else self.prediction()
