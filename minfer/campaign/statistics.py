"""What interleaved samples say: outliers, the ratio with its interval, the noise floor, the verdict. Pure.

Every round of an A/B measures the baseline, the variant, and the baseline again (seed 000 section 4: the same
binary, interleaved). The second baseline is the A/A run: what it differs by from the first is noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

VERDICTS = ("LANDED", "REVERTED", "null", "MEAS-ONLY")
OUTLIER_DEVIATIONS = 6.0
OUTLIER_SHARE = 0.05
OUTLIER_RULE = (
    f"a round is dropped if one of its samples is above its side's median by more than "
    f"{OUTLIER_DEVIATIONS:g} scaled median deviations and by more than {OUTLIER_SHARE:.0%}"
)
IDLE = 0.05
MOST_DROPPED = 0.1
MOST_DRIFT = 0.03
QUIET_RULE = (
    f"quiet: the GPU idle before the process began, at most {MOST_DROPPED:.0%} of the rounds dropped, and "
    f"the baseline's medians of the first and the last third within {MOST_DRIFT:.0%}"
)
CONFIDENCE = 0.95
LEAST_ROUNDS = 6
"""Fewer samples have no interval of 95 % around their median: the least and the most of n samples enclose
it with a probability of 1 - 2 ** (1 - n)."""
RESAMPLES = 2000
_MAD = 1.4826  # a normal deviation in median absolute deviations


@dataclass(frozen=True)
class Ratio:
    """Baseline time over variant time: above 1, the variant is faster.

    Attributes:
        value: of the medians. low, high: the 95 % bootstrap interval.
        noise: how far from 1 the same ratio of baseline to baseline reaches, by its own interval.
        dropped: rounds left out as outliers.
    """

    value: float
    low: float
    high: float
    noise: float
    dropped: int


@dataclass(frozen=True)
class Gain:
    """More work a second, 0.03 is 3 %: of a prefill that was timed as a whole, or of kernels.

    Attributes:
        value, low, high: the gain and its 95 % interval. noise: the A/A floor. rounds: that count.
    """

    value: float
    low: float
    high: float
    noise: float
    rounds: int

    @property
    def in_noise(self) -> bool:
        """Whether the interval reaches into the noise."""
        return self.low <= self.noise and self.high >= -self.noise


def keep(*sides: Sequence[float]) -> np.ndarray:
    """Which rounds count: a mask over the rounds, by `OUTLIER_RULE`.

    Raises:
        ValueError: sides of different lengths, no rounds, or a sample that is not above 0.
    """
    if len({len(side) for side in sides}) != 1 or not sides[0]:
        raise ValueError("every side needs the same number of samples, at least one")
    samples = np.array(sides, float)
    if not np.isfinite(samples).all() or samples.min() <= 0:
        raise ValueError("a sample is a time above 0")
    medians = np.median(samples, axis=1, keepdims=True)
    deviation = _MAD * np.median(abs(samples - medians), axis=1, keepdims=True)
    limit = medians + np.maximum(OUTLIER_DEVIATIONS * deviation, OUTLIER_SHARE * medians)
    return (samples <= limit).all(axis=0)


def ratio(baseline: Sequence[float], variant: Sequence[float], again: Sequence[float]) -> Ratio:
    """The ratio of interleaved samples, round i of each side taken together.

    The interval is of the ratio of medians, by resampling whole rounds (percentile bootstrap, fixed seed: the
    same samples give the same interval).
    """
    mask = keep(baseline, variant, again)
    a, b, c = (np.array(side, float)[mask] for side in (baseline, variant, again))
    low, high = _interval(a, b)
    floor_low, floor_high = _interval(a, c)
    return Ratio(
        value=float(np.median(a) / np.median(b)),
        low=low,
        high=high,
        noise=max(abs(floor_low - 1), abs(floor_high - 1)),
        dropped=int((~mask).sum()),
    )


def _interval(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    rounds = np.random.default_rng(0).integers(0, len(a), (RESAMPLES, len(a)))
    ratios = np.median(a[rounds], axis=1) / np.median(b[rounds], axis=1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(low), float(high)


def unquiet(baseline: Sequence[float], dropped: int, busy: float | None) -> list[str]:
    """What was not quiet about a window, by `QUIET_RULE`; nothing if it was.

    Args:
        baseline: its samples in order. dropped: rounds left out. busy: utilisation of the GPU before the
            measurements, 0 to 1; None: not known.
    """
    found = []
    if busy is not None and busy > IDLE:
        found.append(f"the GPU was {busy:.0%} busy before the measurements")
    if dropped > MOST_DROPPED * len(baseline):
        found.append(f"{dropped} of {len(baseline)} rounds are outliers")
    third = len(baseline) // 3
    if third:
        drift = float(np.median(baseline[-third:]) / np.median(baseline[:third]) - 1)
        if abs(drift) > MOST_DRIFT:
            found.append(f"the baseline drifted by {drift:+.1%} from the first third to the last")
    return found


def decide(
    *, gates_passed: bool, quiet: bool, prefill: Gain | None, kernels: Sequence[Gain] = (), bar: float
) -> str:
    """The verdict. Only a whole prefill (or decode) lands. What stays in the noise is "null": it, or, where
    none was timed, every case of the kernels. Fewer rounds than `LEAST_ROUNDS` decide nothing.

    Args:
        prefill: the wall clock's gain; None: it was not measured. kernels: theirs, case by case.
        bar: the gain that the low end of the prefill's interval must reach.
    """
    if not gates_passed:
        return "REVERTED"
    gains = kernels if prefill is None else [prefill]
    if not gains or not quiet or min(gain.rounds for gain in gains) < LEAST_ROUNDS:
        return "MEAS-ONLY"
    if all(gain.in_noise for gain in gains):
        return "null"
    if prefill is None:
        return "MEAS-ONLY"
    return "LANDED" if prefill.low >= bar else "REVERTED"


def upper_bound(share: float, factor: float = 0.0) -> float:
    """The gain of the wall clock if work that has `share` of it takes `factor` of its time.

    upper_bound(0.06) is what making it free would give: 6.4 %.

    Raises:
        ValueError: a share outside 0 to 1, or all of the wall gone.
    """
    if not 0 <= share <= 1 or factor < 0 or share * (1 - factor) >= 1:
        raise ValueError(f"share {share} and factor {factor} leave no wall clock")
    return 1 / (1 - share * (1 - factor)) - 1
