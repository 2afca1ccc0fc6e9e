"""Properties of the sampler."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from minfer.engine.errors import EngineError, InputError
from minfer.engine.sampling import Sampler

logits_strategy = arrays.arrays(
    np.float32, st.integers(1, 60), elements=st.floats(-30, 30, width=16).map(np.float32)
)
ALL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits.astype(np.float64) - logits.max())
    return e / e.sum()


@given(logits=logits_strategy)
def test_greedy_takes_the_lowest_id_of_the_largest(logits):
    token = Sampler.greedy().sample(logits)
    assert logits[token] == logits.max()
    assert (logits[:token] < logits.max()).all()


@given(logits=logits_strategy, seed=st.integers(0, 2**32), temperature=st.floats(0.1, 5))
def test_the_same_seed_makes_the_same_choices(logits, seed, temperature):
    first, second = (Sampler(temperature=temperature, seed=seed) for _ in range(2))
    assert [first.sample(logits) for _ in range(5)] == [second.sample(logits) for _ in range(5)]


def test_a_drawn_seed_can_be_used_again():
    logits = np.zeros(1000, np.float32)
    sampler = Sampler(**ALL)
    drawn = [sampler.sample(logits) for _ in range(10)]
    again = Sampler(**ALL, seed=sampler.seed)
    assert [again.sample(logits) for _ in range(10)] == drawn
    assert Sampler().seed != Sampler().seed


@given(logits=logits_strategy, k=st.integers(1, 70))
def test_top_k_keeps_the_k_largest(logits, k):
    ids, probabilities = Sampler(**{**ALL, "top_k": k}).candidates(logits)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    assert ids.tolist() == order[:k]
    assert probabilities.sum() == pytest.approx(1)


@given(seed=st.integers(0, 2**32), k=st.integers(1, 70), step=st.sampled_from([0.0, 0.01, 1.0]))
def test_top_k_of_a_large_vocabulary(seed, k, step):
    """Many parts, some with several of the largest, and ties."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=4099).astype(np.float32)
    logits[: random.integers(4099)] += np.float32(random.choice([-9, 0, 9]))
    if step:
        logits = np.round(logits / np.float32(step))
    ids, _ = Sampler(**{**ALL, "top_k": k}).candidates(logits)
    assert ids.tolist() == np.argsort(-logits, kind="stable")[:k].tolist()


@given(logits=logits_strategy, p=st.floats(0.05, 0.999))
def test_top_p_keeps_the_smallest_set_that_is_enough(logits, p):
    ids, _ = Sampler(**{**ALL, "top_p": p}).candidates(logits)
    everything = softmax(logits)
    assert everything[ids].sum() >= p - 1e-9
    assert everything[ids[:-1]].sum() < p + 1e-9
    assert (np.diff(logits[ids]) <= 0).all()


@given(logits=logits_strategy, p=st.floats(0, 1))
def test_min_p_keeps_what_is_likely_enough(logits, p):
    ids, _ = Sampler(**{**ALL, "min_p": p}).candidates(logits)
    everything = softmax(logits)
    kept = np.zeros(len(logits), bool)
    kept[ids] = True
    assert (everything[kept] >= p * everything.max() * (1 - 1e-9)).all()
    assert (everything[~kept] < p * everything.max() * (1 + 1e-9)).all()


@given(seed=st.integers(0, 2**32), p=st.floats(0.05, 1), least=st.floats(1e-6, 1), scale=st.floats(0.1, 8))
def test_cuts_of_a_large_vocabulary(seed, p, least, scale):
    """Of all tokens, without top_k: those of the first so many that top_p leaves that are likely enough."""
    logits = (np.random.default_rng(seed).normal(size=4099) * scale).astype(np.float32)
    ids, probabilities = Sampler(**{**ALL, "top_p": p, "min_p": least}).candidates(logits)
    order, everything = np.argsort(-logits, kind="stable"), softmax(logits)
    assert ids.tolist() == order[: len(ids)].tolist()
    np.testing.assert_allclose(probabilities, everything[ids] / everything[ids].sum(), rtol=1e-6)
    assert everything[ids].min() >= least * everything.max() * (1 - 1e-9)
    assert everything[ids[:-1]].sum() < p + 1e-9
    if len(ids) < len(logits):  # the next one is cut by one of the two
        unlikely = everything[order[len(ids)]] < least * everything.max() * (1 + 1e-9)
        assert unlikely or everything[ids].sum() >= p - 1e-9


@settings(max_examples=20)
@given(temperature=st.floats(0.2, 3))
def test_temperature_divides_the_logits(temperature):
    logits = np.array([0.5, 2.0, -1.0, 0.0], np.float32)
    ids, probabilities = Sampler(**{**ALL, "temperature": temperature}).candidates(logits)
    np.testing.assert_allclose(probabilities, softmax(logits / np.float32(temperature))[ids], rtol=1e-6)


def test_draws_follow_the_probabilities():
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    sampler = Sampler(**ALL, seed=1)
    counts = np.bincount([sampler.sample(logits) for _ in range(4000)], minlength=3)
    # 5 standard deviations of a binomial
    assert (np.abs(counts / 4000 - [0.5, 0.3, 0.2]) < 5 * np.sqrt(0.25 / 4000)).all()


def test_the_repeat_penalty_spares_what_is_older_than_its_window():
    logits = np.array([2.0, 1.9, -1.0, 1.0], np.float32)
    sampler = Sampler(temperature=0, repeat_penalty=2.0, repeat_last_n=2)
    assert sampler.sample(logits, []) == 0
    assert sampler.sample(logits, [0]) == 1
    assert sampler.sample(logits, [0, 1, 1]) == 0
    assert sampler.sample(logits, [0, 1]) == 0  # 1.0, 0.95, -1, 1.0: the lowest id of the tie
    np.testing.assert_array_equal(logits, np.array([2.0, 1.9, -1.0, 1.0], np.float32))


def test_the_penalty_pushes_negative_logits_down():
    logits = np.array([-1.0, -1.5], np.float32)
    assert Sampler(temperature=0, repeat_penalty=2.0).sample(logits, [0]) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("penalty", [1e300, 1e-300])
def test_an_extreme_penalty_makes_no_nan(penalty):
    logits = np.array([0.0, 5.0, -5.0], np.float32)
    sampler = Sampler(temperature=0, repeat_penalty=penalty)
    assert sampler.sample(logits, [0, 1, 2]) == (0 if penalty > 1 else 1)


def test_infinite_logits_are_certain_or_impossible():
    logits = np.array([0.0, np.inf, -np.inf], np.float32)
    assert {Sampler(**ALL, seed=s).sample(logits) for s in range(20)} == {1}
    assert Sampler.greedy().sample(logits) == 1
    assert Sampler(**ALL, seed=0).sample(np.array([-np.inf, 0.0], np.float32)) == 1


@pytest.mark.parametrize("sampler", [Sampler.greedy(), Sampler(seed=0)])
def test_logits_that_are_no_numbers_are_an_error(sampler):
    with pytest.raises(EngineError, match="not numbers"):
        sampler.sample(np.array([0.0, np.nan], np.float32))


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": -1}, {"temperature": float("nan")}, {"temperature": float("inf")},
        {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}, {"min_p": -0.1}, {"min_p": 2},
        {"repeat_penalty": 0}, {"repeat_last_n": -1}, {"seed": -1},
        {"temperature": "1"}, {"temperature": 10**400}, {"top_p": True}, {"min_p": None}, {"top_k": 1.5},
        {"repeat_last_n": "64"}, {"seed": 1.0},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(setting):
    (name,) = setting
    with pytest.raises(InputError, match=f"{name} is .*: it must be"):
        Sampler(**setting)


@pytest.mark.filterwarnings("error")
def test_next_to_no_temperature_is_greedy():
    sampler = Sampler(**ALL | {"temperature": 1e-320}, seed=0)
    assert {sampler.sample(np.array([1.0, 3.0, 2.0], np.float32)) for _ in range(20)} == {1}
