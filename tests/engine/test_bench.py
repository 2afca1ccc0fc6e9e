"""Bench: what is run, and the fields. No figure is asserted."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from minfer.engine.bench import bench
from minfer.engine.errors import EngineError, InputError
from minfer.engine.session import Session


def test_fields_and_arithmetic(tiny, host):
    seen = []
    results = bench(
        tiny.model, host, prompts=[24], generations=[6], repetitions=3, on_sample=lambda *a: seen.append(a)
    )
    assert [(r.test, r.n_prompt, r.n_gen) for r in results] == [("pp24", 24, 0), ("tg6", 0, 6)]
    assert seen == [(test, i, 3) for test in ("pp24", "tg6") for i in (1, 2, 3)]
    for result in results:
        n = result.n_prompt + result.n_gen
        assert result.samples_ts == pytest.approx([n * 1e9 / ns for ns in result.samples_ns])
        assert result.avg_ts == pytest.approx(sum(result.samples_ts) / 3)
        assert result.avg_ns == pytest.approx(sum(result.samples_ns) / 3, abs=1)
        assert result.backend == "host" and "2 threads" in result.device
        assert result.settings == {"threads": "2"}
        assert (result.backends, result.regime, result.sensors) == ("host", "burst", {})
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", result.test_time)
        assert {"minfer", "python", "numpy", "numba"} <= result.versions.keys()
        assert json.loads(json.dumps(result.as_dict()))["n_gen"] == result.n_gen


def test_what_is_fed(tiny, host, monkeypatch):
    """pp: the prompt in one go, last logits only. tg: single tokens. Both from an empty context."""
    fed = []
    forward = Session.forward

    def spy(self, ids, logits="last"):
        fed.append((self.position, len(ids), logits))
        return forward(self, ids, logits)

    monkeypatch.setattr(Session, "forward", spy)
    bench(tiny.model, host, prompts=[5], generations=[3], repetitions=2)
    decode = [(i, 1, "last") for i in range(3)]
    assert fed == [(0, 5, "last")] * 3 + decode[:1] + decode * 2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_speed_of_a_forward_that_gives_no_logits(tiny, host, monkeypatch, bad):
    def phantom(self, ids, logits="last"):
        return np.where(np.arange(8) < 6, np.float32(bad), np.float32(0))

    monkeypatch.setattr(Session, "forward", phantom)
    with pytest.raises(EngineError, match=r"pp5: 6 of 8 logits are NaN or infinite: .* no speed is reported"):
        bench(tiny.model, host, prompts=[5], generations=[], repetitions=2)


def test_sustained_runs_until_the_speed_is_steady(tiny, host, monkeypatch):
    """Run after run until the time has passed and a quarter of it was as fast as the one before."""
    import minfer.engine.bench as module

    clock, durations = [0.0], iter([1.0] * 4 + [2.0] * 100)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])

    def run() -> int:
        took = next(durations)
        clock[0] += took
        return int(took * 1e9)

    module._until_steady(run, 4.0)
    assert clock[0] == 4.0
    clock[0], durations = 0.0, iter([1.0, 1.0, 2.0, 1.0, 2.0, 2.0, 2.0])
    module._until_steady(run, 4.0)
    assert clock[0] == 9.0
    clock[0], durations = 0.0, iter([1.0, 2.0] * 10)
    module._until_steady(run, 4.0)
    assert clock[0] == 12.0


def test_sensors_are_the_means_of_what_was_read(tiny, host, monkeypatch):
    readings = iter([{"sm_mhz": 1500.0, "power_w": 600.0}, {"sm_mhz": 1400.0}])
    monkeypatch.setattr(type(host), "sensors", lambda self: next(readings))
    (result,) = bench(tiny.model, host, prompts=[4], generations=[], repetitions=2, sustained=1e-6)
    assert (result.regime, result.sensors) == ("sustained", {"sm_mhz": 1450.0})


def test_zero_leaves_a_test_out(tiny, host):
    (result,) = bench(tiny.model, host, prompts=[0], generations=[2], repetitions=1)
    assert result.test == "tg2" and result.stddev_ts == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"prompts": [0], "generations": [0]},
        {"prompts": [-4]},
        {"prompts": [4], "repetitions": 0},
        {"prompts": [4], "repetitions": 1.5},
        {"prompts": [4.0]},
        {"prompts": [4], "sustained": -1},
        {"prompts": [4], "sustained": float("inf")},
        {"prompts": [4], "sustained": float("nan")},
        {"prompts": [100000]},
    ],
)
def test_bad_settings_are_refused(tiny, host, settings):
    with pytest.raises(InputError):
        bench(tiny.model, host, **{"generations": [], **settings})
