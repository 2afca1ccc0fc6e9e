"""The lab's panels and pictures with a GPU."""

import pytest

from minfer.cuda import runtime

pytest.importorskip("ipywidgets")
pytest.importorskip("matplotlib")

from minfer.lab.apart_view import draw_apart, take_apart
from minfer.lab.generate import TINY, Request, stream
from minfer.lab.generate_panel import GeneratePanel


def test_the_panel_generates_in_its_own_thread(capsys):
    """The GPU was opened by another thread, as in a notebook whose cells used it before."""
    report = stream(Request(TINY, "The café", n_predict=8, backend="cuda"))
    assert report.error is None and len(report.ids) == 8
    panel = GeneratePanel([("tiny", TINY)], prompt="The café")
    panel.backend.value, panel.n_predict.value = "cuda", 8
    panel.start()
    assert panel.wait(120)
    assert panel.report is not None, panel.status.value
    assert panel.report.ids == report.ids
    assert capsys.readouterr().err == ""


def test_a_gpu_without_room_is_a_sentence_and_the_next_run_works(monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(type(runtime.device()), "free_bytes", lambda self: 1_000_000)
        report = stream(Request(TINY, "The café", n_predict=8, backend="cuda"))
        assert "the model does not fit" in report.error
    assert stream(Request(TINY, "The café", n_predict=8, backend="cuda")).error is None


def test_prefill_and_decode_are_taken_apart():
    taken = take_apart(Request(TINY, "The café", backend="cuda"))
    assert [one.phase for one in taken.passes] == ["prefill", "decode"], taken.why
    for one in taken.passes:
        assert {"gate+up", "down", "lm_head"} <= {part.name for part in one.parts}
        assert one.wall_ms > 0 and 0 < one.observed_ms < 10 * one.wall_ms
    picture = draw_apart(taken)
    assert picture.rows == taken.rows() and picture.png()
