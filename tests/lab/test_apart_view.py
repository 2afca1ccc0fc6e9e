"""Where a run's time went, as notebook 0 shows it."""

from types import SimpleNamespace

import pytest

from minfer.campaign import precompile
from minfer.campaign.decomposition import GAP
from minfer.campaign.host_wall import Apart, Part
from minfer.engine import backend
from minfer.engine.cuda import devices
from minfer.lab.apart_view import TakenApart, draw_apart, take_apart
from minfer.lab.generate import TINY, Request
from tests.campaign.fake_gpu import install_observed

PARTS = (Part("gate+up", 6.0, 30, 60_000_000), Part("attention", 3.0, 30), Part("norms", 1.0, 61))


@pytest.fixture
def taken():
    passes = (Apart("prefill", 7, "a CPU", 9.0, PARTS), Apart("decode", 1, "a CPU", 4.0, PARTS))
    return TakenApart(passes)


def test_the_text_tells_both_times(taken):
    assert taken.conserved() == (
        "prefill of 7 tokens: 9.00 ms as it is, 10.00 ms in parts\n"
        "decode of 1 token: 4.00 ms as it is, 10.00 ms in parts"
    )
    assert "60.0%" in repr(taken) and "10.0" in repr(taken)
    assert "<br>decode of 1 token" in taken._repr_html_()


def test_the_picture_holds_its_rows(taken, sound):
    picture = sound(draw_apart(taken))
    assert picture.rows == taken.rows() and len(picture.rows) == 6


def test_a_request_is_taken_apart():
    taken = take_apart(Request(TINY, "The café opens at 8.", backend="host"))
    assert [one.phase for one in taken.passes] == ["prefill", "decode"] and taken.why is None


def test_what_cannot_be_taken_apart_says_why(tmp_path):
    taken = take_apart(Request(tmp_path / "nowhere.gguf", "Hello"))
    assert taken.passes == () and "nowhere.gguf" in taken.why
    assert "nowhere.gguf" in taken._repr_html_() and "nowhere.gguf" in repr(taken)
    assert draw_apart(taken).rows == []


def test_a_gpu_is_timed_class_by_class(monkeypatch):
    gpu = install_observed(monkeypatch)
    monkeypatch.setattr(devices, "GpuDevice", lambda: gpu)
    monkeypatch.setattr(precompile, "compile_ahead", lambda kernels, arch, tell: None)
    monkeypatch.setattr(backend, "choose_backend", lambda name: (SimpleNamespace(name="cuda"), "asked for"))
    taken = take_apart(Request(TINY, "The café", backend="cuda"))
    assert taken.why is None
    prefill, decode = taken.passes
    assert (prefill.phase, decode.phase) == ("prefill", "decode") and prefill.tokens > 1 == decode.tokens
    for one in taken.passes:
        assert one.observed_ms == pytest.approx(one.wall_ms, rel=0.02)
        assert {"gate+up", "down", "q+k+v", "o", "FA", "lm_head", GAP} <= {part.name for part in one.parts}
