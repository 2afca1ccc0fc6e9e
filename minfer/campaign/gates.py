"""Gates: what must hold before anything is timed. A failed gate ends a probe's run, and never lands it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from minfer.campaign.probe_record import GateResult
from minfer.campaign.workload import unwritable

if TYPE_CHECKING:
    from minfer.campaign.trial import Trial


class Gate(Protocol):
    """One condition. `trial` runs the probe's configs on a device."""

    @property
    def name(self) -> str:
        """As records and `minfer probe show` call it."""

    def check(self, trial: Trial) -> GateResult | NotRun | None:
        """Run what it takes; `NotRun` (or None, without a reason): it found nothing to check here. Errors of
        kernels that cannot run may be raised: they count as failed."""


NOTHING = "it found nothing to check here"
"""Of a gate that gave no reason."""


@dataclass(frozen=True)
class NotRun:
    """A gate that found nothing to check, and why: what it takes."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"gate {self.name}: not run: {self.why}"


@dataclass(frozen=True)
class Parity:
    """Both sides (one, where they are the same config) against the workload's NumPy reference, on its small
    ragged cases, with poisoned outputs."""

    name: str = "parity"

    def check(self, trial: Trial) -> GateResult:
        workload = trial.workload
        worst, where = 0.0, ""
        both = trial.probe.baseline != trial.probe.variant
        for label, config in trial.probe.sides if both else trial.probe.sides[:1]:
            for case in workload.small:
                inputs = workload.inputs(case, np.random.default_rng(0))
                found = trial.outputs(workload.shrunk(config), case, inputs, checked=True)
                if found is None:
                    return GateResult(self.name, False, f"{label}, {case.label}: nothing was launched")
                reference = workload.reference(case, unwritable(inputs))
                if not isinstance(reference, Mapping):
                    words = f"{type(workload).__name__}.reference gave {reference!r}, no dict of arrays"
                    return GateResult(self.name, False, f"{label}, {case.label}: {words}")
                for name in workload.compared:
                    for source, given in (("outputs", found), ("reference", reference)):
                        if name not in given:
                            words = f"{source} has no {name!r}, which is compared, but: {', '.join(given)}"
                            return GateResult(self.name, False, f"{label}, {case.label}: {words}")
                    if np.shape(reference[name]) != found[name].shape:
                        shapes = f"shape {np.shape(reference[name])}, the output {found[name].shape}"
                        words = f"{label}, {case.label}, {name}: the reference has {shapes}"
                        return GateResult(self.name, False, words)
                    error = relative_error(found[name], reference[name])
                    if not error <= workload.tolerance:
                        words = f"{label}, {case.label}, {name}: error {error:.3g} of the largest value"
                        return GateResult(self.name, False, f"{words}, allowed {workload.tolerance:g}")
                    if error >= worst:
                        worst, where = error, f"{label}, {case.label}"
        checks = f"{len(workload.small)} small case{'s' * (len(workload.small) > 1)}"
        checks += " of both sides" * both
        return GateResult(
            self.name, True, f"{checks}: largest error {worst:.2g} of the largest value ({where})"
        )


@dataclass(frozen=True)
class SameOutputs:
    """The full outputs of both sides on the measured cases (on the small ones in the simulator).

    Attributes:
        takes: what it takes to run on the measured cases.
        tolerance: largest difference relative to the largest value; 0: bit for bit; None: twice the
            workload's.
    """

    tolerance: float | None = None
    name: str = "outputs"
    takes: ClassVar = "all outputs of the measured cases are compared on a GPU"

    def check(self, trial: Trial) -> GateResult:
        allowed = 2 * trial.workload.tolerance if self.tolerance is None else self.tolerance
        worst, where, count = 0.0, "", 0
        for case in trial.cases:
            found = trial.difference(case)
            count += found.elements
            if not found.error <= allowed:
                return GateResult(self.name, False, f"{case.label}: {found}, allowed {allowed:g}")
            if found.error >= worst:
                worst, where = found.error, f"{case.label}: {found}"
        return GateResult(self.name, True, f"all {count:,} elements compared; largest difference at {where}")


@dataclass(frozen=True)
class SameTokens:
    """Both routes choose the same tokens on a model, where there is one. Teacher-forced: each prompt's next
    token by either route, from the same prompt. Where summation order differs, another token may win only if
    both routes give the two tokens logits within the stated margin.

    Attributes:
        prompts, tokens: how many prompts, and their length. margin: in deviations of the logits.
    """

    prompts: int = 8
    tokens: int = 128
    margin: float = 0.1
    name: str = "tokens"

    def check(self, trial: Trial) -> GateResult | NotRun:
        if trial.prefills is None:
            return NotRun(self.name, no_tokens(trial))
        pairs = (trial.prefills.logits(self.tokens, seed=i) for i in range(self.prompts))
        return _agree(self.name, pairs, self.margin)


@dataclass(frozen=True)
class LikeSeparate:
    """Both token kernels choose what the separate kernels do, of a model that is decoded; as `SameTokens`.

    Attributes:
        prompts, tokens: how many prompts, and their length. margin: in deviations of the logits.
    """

    prompts: int = 8
    tokens: int = 128
    margin: float = 0.1
    name: str = "separate kernels"

    def check(self, trial: Trial) -> GateResult | NotRun:
        if trial.prefills is None:
            return NotRun(self.name, no_tokens(trial))
        if trial.prefills.phase != "decode":
            return NotRun(self.name, f"a {trial.prefills.phase} has no token kernel")
        return _agree(self.name, self._pairs(trial.prefills), self.margin)

    def _pairs(self, decodes: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for i in range(self.prompts):
            wanted = decodes.separate_logits(self.tokens, seed=i)
            for found in decodes.logits(self.tokens, seed=i):
                yield wanted, found


def _agree(name: str, pairs: Iterable[tuple[np.ndarray, np.ndarray]], margin: float) -> GateResult:
    """Whether both logits of each pair have the same largest, or two that are within the margin in both."""
    agreed, count, worst = 0, 0, 0.0
    for pair in pairs:
        a, b = (logits.astype(np.float64) for logits in pair)
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return GateResult(name, False, f"pair {count} of logits: no finite numbers")
        first, second = int(a.argmax()), int(b.argmax())
        agreed, count = agreed + (first == second), count + 1
        apart = max(a[first] - a[second], b[second] - b[first]) / a.std()
        worst = max(worst, float(apart))
    found = f"{agreed} of {count} next tokens agree"
    if worst:
        found += f"; tokens that differ lie within {worst:.3f} deviations of the logits"
    return GateResult(name, worst <= margin, f"{found} (allowed {margin:g})")


def no_tokens(trial: Trial) -> str:
    """Why a trial without a model has no tokens to compare."""
    arch = trial.device.arch
    missing = [label for label, config in trial.probe.sides if trial.workload.route(config, arch) is None]
    if missing:
        return f"no route of the engine on {arch} is made with {' or '.join(dict.fromkeys(missing))}"
    return "takes a GPU and a model (-m)"


DEFAULT_GATES: tuple[Gate, ...] = (Parity(), SameOutputs(), SameTokens())


@dataclass(frozen=True)
class Difference:
    """How two outputs compare: the largest difference over the largest value."""

    error: float
    elements: int

    def __str__(self) -> str:
        return "identical" if self.error == 0 else f"{self.error:.2g} of the largest value"


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest |found - wanted| over the largest |wanted|; infinite where `found` is no number or of another
    shape."""
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return float("inf")
    scale = float(abs(wanted).max()) or 1.0
    return float(abs(found - wanted).max()) / scale
