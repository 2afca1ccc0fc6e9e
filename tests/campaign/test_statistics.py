"""Outliers, intervals, the noise floor, and the verdict that follows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.campaign.statistics import CONFIDENCE, LEAST_ROUNDS, Gain, decide, keep, ratio, unquiet
from minfer.campaign.timing import interleave


def noisy(center: float, n: int = 30, seed: int = 0, spread: float = 0.002) -> list[float]:
    return list(center * (1 + spread * np.random.default_rng(seed).standard_normal(n)))


def test_a_clear_gain_lies_in_its_interval_and_above_the_noise():
    found = ratio(noisy(10, seed=1), noisy(9, seed=2), noisy(10, seed=3))
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(10 / 9, rel=0.002)
    assert 0 < found.noise < 0.003 < found.low - 1 and found.dropped == 0


def test_the_same_samples_give_the_same_interval():
    sides = noisy(10, seed=1), noisy(9, seed=2), noisy(10, seed=3)
    assert ratio(*sides) == ratio(*sides)


def test_a_round_with_an_outlier_is_dropped_from_all_sides():
    a, b, c = noisy(10, seed=1), noisy(10, seed=2), noisy(10, seed=3)
    b[7] = 15.0
    assert list(np.flatnonzero(~keep(a, b, c))) == [7]
    assert ratio(a, b, c).dropped == 1
    assert ratio(a, b, c).high < 1.01


def test_fast_samples_are_no_outliers_and_equal_ones_neither():
    assert keep([10, 10, 10, 5], [9] * 4).all()
    assert keep([1.0] * 5, [2.0] * 5).all()


@pytest.mark.parametrize("sides", [([1.0, 2.0], [1.0]), ([], []), ([0.0], [1.0]), ([float("nan")], [1.0])])
def test_samples_that_are_none(sides):
    with pytest.raises(ValueError, match="sample"):
        keep(*sides)


def test_what_disturbs_a_window():
    steady = noisy(10)
    assert unquiet(steady, 0, 0.0) == [] == unquiet(steady, 3, None)
    assert unquiet(steady, 4, None) == ["4 of 30 rounds are outliers"]
    assert unquiet(steady, 0, 0.5) == ["the GPU was 50% busy before the measurements"]
    (found,) = unquiet([10.0] * 10 + [10.5] * 20, 0, None)
    assert found == "the baseline drifted by +5.0% from the first third to the last"


def verdict(interval, noise=0.001, rounds=9, passed=True, quiet=True) -> str:
    prefill = None if interval is None else Gain(sum(interval) / 2, *interval, noise, rounds)
    return decide(gates_passed=passed, quiet=quiet, prefill=prefill, bar=0.03)


def test_few_rounds_decide_nothing():
    assert verdict((0.1, 0.2), rounds=LEAST_ROUNDS) == "LANDED"
    assert verdict((0.1, 0.2), rounds=LEAST_ROUNDS - 1) == "MEAS-ONLY"
    # The least and the most of n samples enclose the median with this probability.
    assert 1 - 2 ** (1 - LEAST_ROUNDS) >= CONFIDENCE > 1 - 2 ** (2 - LEAST_ROUNDS)


VERDICTS = [
    (False, True, (0.1, 0.2), 0.001, "REVERTED"),
    (True, True, None, 0.001, "MEAS-ONLY"),
    (True, False, (0.1, 0.2), 0.001, "MEAS-ONLY"),
    (True, True, (-0.001, 0.004), 0.002, "null"),
    (True, True, (0.001, 0.004), 0.002, "null"),
    (True, True, (-0.004, -0.003), 0.002, "REVERTED"),
    (True, True, (0.01, 0.02), 0.002, "REVERTED"),
    (True, True, (0.029, 0.05), 0.002, "REVERTED"),
    (True, True, (0.03, 0.05), 0.002, "LANDED"),
    (True, True, (0.03, 0.05), 0.04, "null"),
]


@pytest.mark.parametrize(("passed", "quiet", "interval", "noise", "wanted"), VERDICTS)
def test_the_verdict(passed, quiet, interval, noise, wanted):
    assert verdict(interval, noise, passed=passed, quiet=quiet) == wanted


def test_kernels_alone_are_null_or_measured_only():
    known = {"gates_passed": True, "prefill": None, "bar": 0.03}
    inside, outside = Gain(0.001, -0.002, 0.004, 0.003, 9), Gain(0.5, 0.49, 0.51, 0.003, 9)
    assert decide(quiet=True, kernels=[inside, inside], **known) == "null"
    assert decide(quiet=True, kernels=[inside, outside], **known) == "MEAS-ONLY"
    assert decide(quiet=False, kernels=[inside], **known) == "MEAS-ONLY"
    few = replace(inside, rounds=LEAST_ROUNDS - 1)
    assert decide(quiet=True, kernels=[inside, few], **known) == "MEAS-ONLY"


@given(
    passed=st.booleans(),
    quiet=st.booleans(),
    ends=st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
    noise=st.floats(0, 0.1),
    rounds=st.integers(0, 30),
)
def test_nothing_lands_without_gates_quiet_rounds_and_a_gain_past_noise_and_bar(
    passed, quiet, ends, noise, rounds
):
    low, high = sorted(ends)
    found = verdict((low, high), noise, rounds, passed, quiet)
    if found == "LANDED":
        assert passed and quiet and low >= 0.03 and low > noise and rounds >= LEAST_ROUNDS


def test_rounds_turn():
    order: list[int] = []

    def once(which: int) -> float:
        order.append(which)
        return float(which)

    samples = interleave(once, 3, warm_up=1)
    assert samples == ([0.0] * 3, [1.0] * 3, [2.0] * 3)
    assert [order[i : i + 3] for i in range(0, 12, 3)] == [[2, 0, 1], [0, 1, 2], [1, 2, 0], [2, 0, 1]]
