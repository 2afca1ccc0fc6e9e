"""Whole decodes of two token kernels, and the gate that compares them with the separate kernels."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from minfer.campaign.decodes import Decodes
from minfer.campaign.gates import LikeSeparate, NotRun, SameTokens
from minfer.campaign.precompile import routes_of
from minfer.campaign.prefills import SharedModel
from minfer.campaign.run import run_probe
from minfer.campaign.telemetry import Watch
from minfer.campaign.timing import _Side
from minfer.campaign.trial import Trial
from minfer.campaign.workloads import Rung, Token
from minfer.engine.cuda.devices import DryDevice
from minfer.engine.errors import EngineError
from tests.campaign.fake_gpu import FakeGpu, Prefilled, Routed, ScaleConfig, install
from tests.campaign.test_run import probe
from tests.campaign.test_workloads import LATER
from tests.engine.conftest import DATA


def silent(*_):
    """Says nothing."""


def routes(*rungs: Rung):
    return [Token().route(rung, "sm_90a") for rung in rungs]


@pytest.fixture(scope="module")
def shared():
    return SharedModel(DATA / "qwen2-k.gguf", FakeGpu(), 200, tell=silent)


def test_two_kernels_decode_on_one_copy_of_the_weights(shared):
    found = Decodes(shared, *routes(Rung(), Rung.of(prefetch=False)), tokens=8)
    told = [session.backend.settings()["decode"] for session in found.sessions]
    assert told == ["one kernel a token", "one kernel a token, prefetch=False"]
    assert len({id(session._runtime.loaded[0]) for session in found.sessions}) == 1
    a, b = found.logits(16, seed=3)
    assert a.shape == b.shape == found.separate_logits(16, 3).shape == (shared.model.config.vocab_size,)
    comparison = found.compare(5, Watch(None, "none"))
    assert comparison.case == "decode of 8 tokens after 64" and comparison.flop == found.flop > 0
    assert "differ by at most" in comparison.outputs


def test_what_cannot_be_decoded(shared):
    short = SimpleNamespace(n_ctx=64)
    with pytest.raises(EngineError, match="context of 64: nothing can be decoded after 64 tokens"):
        Decodes(short, *routes(Rung(), Rung()))
    plain = replace(routes(Rung())[0], name="plain", token_kernel=None)
    with pytest.raises(EngineError, match=r"qwen2-k\.gguf: route plain decodes by one kernel an operation"):
        Decodes(shared, plain, plain)


def test_routes_of_decodes_keep_their_token_kernel():
    found = routes_of([LATER["token-prefetch"], LATER["gemv-planes-down"]], "sm_90a")
    assert [route.token_changes for route in found] == [(("prefetch", False),), ()]
    assert None not in {route.token_kernel for route in found}


class Decoded(Prefilled):
    """Decodes on a steady clock."""

    phase = "decode"

    def separate_logits(self, tokens, seed):
        return np.arange(9.0)


class DecodedRoute(Routed):
    """Its routes differ in how a token is decoded."""

    phase = "decode"


def test_a_run_with_a_model_times_decodes(monkeypatch):
    from minfer.campaign import run

    gpu = install(monkeypatch, FakeGpu())
    monkeypatch.setattr(run, "Decodes", Decoded)
    asked = replace(probe(ScaleConfig(0.9), DecodedRoute()), gates=(SameTokens(), LikeSeparate()))
    model = SimpleNamespace(name="7b.gguf")
    found = run_probe(asked, gpu, model=model, rounds=9, prefill_rounds=9, tokens=16, say=silent)
    assert [(gate.name, gate.passed) for gate in found.gates] == [
        ("tokens", True),
        ("separate kernels", True),
    ]
    assert found.gates[1].found.startswith("16 of 16 next tokens agree")
    assert found.settings["decode tokens"] == 16 and found.summary.startswith("decode 800 -> 1,777 tok/s")
    assert found.verdict == "LANDED"


def test_a_model_that_a_kernel_does_not_take_fails_the_gate(monkeypatch):
    from minfer.campaign import run

    class Refused:
        def __init__(self, *_, **__):
            raise EngineError("x decodes by one kernel an operation")

    gpu = install(monkeypatch, FakeGpu())
    monkeypatch.setattr(run, "Decodes", Refused)
    asked = probe(ScaleConfig(0.9), DecodedRoute())
    found = run_probe(asked, gpu, model=SimpleNamespace(name="m"), say=silent)
    assert found.verdict == "REVERTED" and found.gates[0].name == "decode"
    assert "a route cannot run: x decodes by" in found.gates[0].found


class TestLikeSeparate:
    def trial(self, prefills):
        return SimpleNamespace(prefills=prefills)

    def test_another_token_fails(self):
        class Other(Decoded):
            def separate_logits(self, tokens, seed):
                return np.arange(9.0)[::-1]

        found = LikeSeparate(prompts=2).check(self.trial(Other(None, tokens=1)))
        assert not found.passed and found.found.startswith("0 of 4 next tokens agree; tokens that differ lie")

    def test_logits_that_are_no_numbers_fail(self):
        class Broken(Decoded):
            def separate_logits(self, tokens, seed):
                return np.full(9, np.nan)

        found = LikeSeparate().check(self.trial(Broken(None, tokens=1)))
        assert not found.passed and found.found == "pair 0 of logits: no finite numbers"

    def test_what_it_takes(self):
        asked = LATER["token-prefetch"]
        found = LikeSeparate().check(Trial(asked, DryDevice()))
        assert found == NotRun("separate kernels", "takes a GPU and a model (-m)")
        older = LikeSeparate().check(Trial(asked, DryDevice("sm_80")))
        both = "read when needed or brought into L2"
        assert older.why == f"no route of the engine on sm_80 is made with {both}"
        prefill = LikeSeparate().check(self.trial(SimpleNamespace(phase="prefill")))
        assert prefill.why == "a prefill has no token kernel"


def test_what_is_prepared_takes_an_inputs_place_on_its_side_alone(monkeypatch):
    class Prepared(Routed):
        def prepared(self, config, case, inputs):
            return {"x": inputs["x"].copy(), "own": np.zeros(3, np.float32)} if config.ms < 1 else {}

    gpu = install(monkeypatch, FakeGpu())
    trial = Trial(probe(ScaleConfig(0.9), Prepared()), gpu)
    case = trial.cases[0]
    inputs = trial.inputs(case)
    first, second = (_Side(trial, config, case) for _, config in trial.probe.sides)
    first.fill(inputs)
    second.fill(inputs, first)
    assert len(first.inputs) == len(second.inputs) >= 2
    for a, b in zip(first.inputs, second.inputs, strict=True):
        assert set(a) == {"x"} and set(b) == {"x", "own"} and not b["own"].any()
        assert a["x"] is not b["x"] and np.array_equal(a["x"], b["x"])
    assert len({id(b["own"]) for b in second.inputs}) == len(second.inputs)
