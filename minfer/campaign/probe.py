"""A probe: a hypothesis with two configs, what the ledger predicts, the gates, and the bar."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
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
    """A probe that cannot be: a bad name or field, an unknown one, or a file that declares none."""


@dataclass(frozen=True)
class Prediction:
    """What arithmetic says before anything runs.

    Attributes:
        gain: of the wall clock, 0.1 for 10 %; None: the ledger gives a direction only.
        text: the arithmetic in a sentence or two.
    """

    gain: float | None
    text: str

    def __post_init__(self) -> None:
        if self.gain is not None and not _is_number(self.gain):
            raise ProbeError(f"a prediction's gain is a number or None, not {self.gain!r}")
        if not isinstance(self.text, str):
            raise ProbeError(f"a prediction's text is a str, not {self.text!r}")

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
        labels: what to call them, (baseline, variant); None: as the configs call themselves, where their
            classes have a `__str__` that tells them apart, else "baseline" and "variant".
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
    labels: tuple[str, str] | None = None
    gates: tuple[Gate, ...] = DEFAULT_GATES
    bar: float = BAR
    mechanism: str = ""
    retry: str = ""
    reason: Callable[[ProbeRun, Sequence[Record]], str] | None = None
    measure: str = "ab"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", self.name):
            raise ProbeError(f"probe {self.name!r}: a name has small letters, digits, dots and hyphens")
        for wrong in self._wrong():
            raise ProbeError(f"probe {self.name}: {wrong}")

    def _wrong(self) -> Iterator[str]:
        """What is wrong with the fields."""
        for field in ("title", "hypothesis", "mechanism", "retry"):
            if not isinstance(getattr(self, field), str):
                yield f"{field}={getattr(self, field)!r} is no text"
        if not (isinstance(self.prediction, Prediction) or callable(self.prediction)):
            yield f"prediction={self.prediction!r} is no Prediction and no function that computes one"
        if self.measure not in ("ab", "wall"):
            yield f"measure={self.measure!r} is neither ab nor wall"
        if not _is_number(self.bar) or not 0 < self.bar < 1:
            yield f"a bar of {self.bar!r} is no gain between 0 and 1"
        if self.labels is not None and (
            not isinstance(self.labels, tuple) or [type(label) for label in self.labels] != [str, str]
        ):
            yield f"labels={self.labels!r}: two texts, for baseline and variant"
        if self.measure == "ab":
            yield from self._wrong_sides()

    def _wrong_sides(self) -> Iterator[str]:
        """What is wrong with the fields of an A/B."""
        if self.workload is None or self.baseline is None or self.variant is None:
            yield "an A/B needs a workload, a baseline and a variant"
        elif not isinstance(self.workload, Workload):
            yield f"workload={self.workload!r} is no Workload (an object, not its class)"
        elif not self.workload.cases or not self.workload.small or not self.workload.compared:
            yield "its workload needs cases to measure, small ones to check, and names of outputs to compare"
        elif self.workload.phase not in ("prefill", "decode"):
            yield f"its workload's phase={self.workload.phase!r} is neither prefill nor decode"
        if not self.gates or not all(hasattr(gate, "check") and hasattr(gate, "name") for gate in self.gates):
            yield f"gates={self.gates!r}: at least one Gate, which has a name and a check"

    @property
    def sides(self) -> tuple[tuple[str, Any], tuple[str, Any]]:
        """(label, config) of baseline and variant."""
        before, after = self.called
        return (before, self.baseline), (after, self.variant)

    @property
    def called(self) -> tuple[str, str]:
        """What baseline and variant are called: `labels`, or what stands for them."""
        if self.labels is not None:
            return self.labels
        configs = (self.baseline, self.variant)
        if all(type(config).__str__ is not object.__str__ for config in configs):
            before, after = map(str, configs)
            if before != after:
                return before, after
        return "baseline", "variant"

    @property
    def seed(self) -> SeedVerdict | None:
        """What the seeds found; None: they did not ask."""
        return verdicts().get(self.name)

    def predicted(self) -> Prediction:
        """The prediction, computed. Raises ProbeError where its function fails."""
        if isinstance(self.prediction, Prediction):
            return self.prediction
        try:
            made = self.prediction()
        except Exception as error:
            raise ProbeError(
                f"probe {self.name}: its prediction fails: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(made, Prediction):
            raise ProbeError(f"probe {self.name}: its prediction gives {made!r}, no Prediction")
        return made


def _is_number(value: object) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
