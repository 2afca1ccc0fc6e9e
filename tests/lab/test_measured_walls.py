"""Walls of the notebooks: from records, or measured here, and the reason why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minfer.engine.cuda import backend
from minfer.engine.errors import EngineError
from minfer.lab import measured
from minfer.lab import measured_walls as mw
from tests.campaign.walls import example_wall

H200 = replace(example_wall(), device="NVIDIA H200")
DECODE = replace(H200, phase="decode", tokens=1)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A GPU and the model."""
    model = tmp_path / "qwen2.5-7b-synth.gguf"
    monkeypatch.setattr(backend, "why_unavailable", lambda: None)
    monkeypatch.setattr(measured, "find_model", lambda: model)
    return model


def test_records_say_where_they_are_from_and_why_they_are_shown(monkeypatch):
    monkeypatch.setattr(backend, "why_unavailable", lambda: "no NVIDIA driver on this machine")
    found = mw.walls([H200, DECODE, example_wall()])
    assert found.prefills == [H200] and found.decodes == [DECODE] and not found.live
    assert repr(found) == f"From records: {H200.origin}. Not measured here: no NVIDIA driver on this machine."


def test_a_gpu_without_the_model(here, monkeypatch):
    monkeypatch.setattr(measured, "find_model", lambda: None)
    assert "the 7B is not here" in mw.walls([H200]).why


def test_measured_here(here):
    faster = replace(H200, route="f16-wgmma", wall_ms=[50.0])
    found = mw.walls([], lambda path: ([faster, H200, DECODE], {}))
    assert found.live and found.prefills == [H200, faster] and found.decodes == [DECODE]
    assert repr(found).startswith("Measured just now: NVIDIA H200")


def test_a_wall_that_is_not_recorded_is_told(here):
    found = mw.walls([], lambda path: ([H200], {"prefill w4a16": "buckets and gaps do not add up"}))
    assert found.live and found.prefills == [H200]
    assert found.why == "prefill w4a16: buckets and gaps do not add up"


@pytest.mark.parametrize("error", [EngineError, MemoryError, RuntimeError])
def test_what_goes_wrong_is_the_reason(here, error):
    def fails(path):
        raise error("nothing is recorded")

    found = mw.walls([H200], fails)
    assert found.prefills == [H200] and found.why.endswith("nothing is recorded")
    assert mw.walls([H200], lambda path: ([], {})).why == "no wall was conserved"
