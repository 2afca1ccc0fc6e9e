"""The generate panel and what is behind it, without a browser and without an engine."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from minfer.cuda.kernel import NoDevice
from minfer.engine.cuda.backend import why_unavailable
from minfer.engine.errors import EngineError, InputError
from minfer.lab import generate, generate_panel
from minfer.lab.errors import sentence
from minfer.lab.generate import BackgroundRun, Report, Request
from minfer.lab.generate_panel import GeneratePanel
from minfer.lab.phases import arrivals

REPORT = Report(
    text=" Paris.",
    ids=(7, 8, 9),
    prompt_tokens=5,
    prefill_s=0.05,
    decode_s=0.1,
    stop_reason="length",
    backend="host: 2 threads",
    weights_bytes=1000,
)
MODELS = [("one", Path("one.gguf")), ("two", Path("two.gguf"))]


def fake_run(request, on_text, cancelled, on_state):
    for piece in (" Pa", "ris", "."):
        on_text(piece)
    return REPORT


def test_speeds_of_a_report():
    assert REPORT.rows() == [("prefill", 5, 0.05, pytest.approx(100)), ("decode", 2, 0.1, pytest.approx(20))]
    assert REPORT.decode_bandwidth() == pytest.approx(20_000)
    assert REPORT.summary() == (
        "prefill 5 tokens: 100.0 tok/s, decode 2 tokens: 20.0 tok/s (host: 2 threads, length)"
    )
    assert "<td>decode</td><td>2</td><td>0.100</td><td>20.0</td>" in REPORT._repr_html_()


def test_one_token_has_no_decode_speed():
    report = Report("x", (7,), 5, 0.05, 0.0, "length", "host", 1000)
    assert report.rows()[1] == ("decode", 0, 0.0, None)
    assert report.decode_bandwidth() is None
    assert "decode 0 tokens: too few to time" in report.summary()


def test_the_panel_shows_the_text_and_the_speeds():
    panel = GeneratePanel(MODELS, prompt="<France>", run=fake_run)
    panel.start()
    assert panel.wait(30)
    assert panel.report is REPORT
    assert "<b>&lt;France&gt;</b> Paris." in panel.text.value
    assert panel.status.value == REPORT.summary()
    assert not panel.go.disabled and panel.halt.disabled


def test_the_panel_hands_on_what_its_controls_say():
    seen = []
    panel = GeneratePanel(MODELS, run=lambda request, **_: seen.append(request) or REPORT)
    panel.model.value = Path("two.gguf")
    panel.prompt.value, panel.n_predict.value, panel.temperature.value = "hi", 7, 0.5
    panel.chat.value = True
    panel.start()
    assert panel.wait(30)
    (request,) = seen
    assert (request.model, request.prompt, request.n_predict) == (Path("two.gguf"), "hi", 7)
    assert (request.temperature, request.chat) == (0.5, True)


def test_stop_ends_a_run_and_a_second_start_waits_its_turn():
    started, runs = threading.Event(), []

    def endless(request, on_text, cancelled, on_state):
        runs.append(request)
        started.set()
        while not cancelled():
            on_text("x")
        return REPORT

    panel = GeneratePanel(MODELS, run=endless)
    panel.start()
    assert started.wait(30)
    assert panel.go.disabled and not panel.halt.disabled
    panel.start()
    assert len(runs) == 1
    panel.stop()
    assert panel.wait(30)
    assert panel.report is REPORT


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InputError("prompt of 9 tokens + 9 is over the context of 8"), "prompt of 9 tokens + 9 is over"),
        (
            MemoryError("NVIDIA H200 has 1 of 2 bytes free, 8 were asked for"),
            "NVIDIA H200 has 1 of 2 bytes free",
        ),
        (EngineError("the model was planned to fit, and does not: 8"), "the model was planned to fit"),
        (NoDevice("no NVIDIA driver is here"), "no NVIDIA driver is here"),
        (ZeroDivisionError("two\nlines <b>"), "ZeroDivisionError: two lines &lt;b&gt;"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_an_error_is_a_sentence_in_the_panel(error, words):
    def failing(request, on_text, cancelled, on_state):
        on_text("begun")
        raise error

    panel = GeneratePanel(MODELS, run=failing)
    panel.start()
    assert panel.wait(30)
    assert words in panel.status.value
    assert "begun" in panel.text.value
    assert panel.report is None
    assert not panel.go.disabled


def test_a_panel_without_models_says_how_to_get_one():
    panel = GeneratePanel([])
    assert "minfer pull" in panel.status.value
    panel.status.value = ""
    panel.start()
    assert "minfer pull" in panel.status.value and not panel.go.disabled


def test_a_wrong_path_is_a_sentence_and_the_next_run_works(tmp_path):
    panel = GeneratePanel([("tiny", generate.TINY)])
    panel.path.value = str(tmp_path / "nowhere.gguf")
    panel.start()
    assert panel.wait(30)
    assert "nowhere.gguf" in panel.status.value and "Traceback" not in panel.status.value
    wrong = tmp_path / "text.gguf"
    wrong.write_text("not a model")
    panel.path.value = str(wrong)
    panel.start()
    assert panel.wait(30)
    assert "text.gguf" in panel.status.value
    panel.path.value, panel.n_predict.value = "", 2
    panel.start()
    assert panel.wait(60)
    assert panel.report is not None and panel.report.error is None


@pytest.mark.skipif(why_unavailable() is None, reason="there is a GPU")
def test_the_gpu_where_there_is_none_is_a_sentence():
    panel = GeneratePanel([("tiny", generate.TINY)])
    panel.backend.value = "cuda"
    panel.start()
    assert panel.wait(60)
    assert "backend cuda cannot be used" in panel.status.value


class TestStream:
    """`stream` runs in a cell: what goes wrong must not end the notebook."""

    def test_a_wrong_path_becomes_the_report(self, tmp_path):
        report = generate.stream(Request(tmp_path / "nowhere.gguf", "Hello"))
        assert "nowhere.gguf" in report.error == report.summary()
        assert "nowhere.gguf" in report._repr_html_()
        assert report.bandwidth_sentence() == "nothing was decoded"
        assert arrivals(report).rows == []

    def test_a_gpu_without_room_becomes_the_report(self, monkeypatch):
        monkeypatch.setattr(generate, "run", full_gpu)
        report = generate.stream(Request(generate.TINY, "Hello"))
        assert report.error == "the f16 copies need 15.2 GB, the GPU has 3.1 GB free: take a smaller context"

    def test_an_unforeseen_error_is_raised(self, monkeypatch):
        monkeypatch.setattr(generate, "run", fails)
        with pytest.raises(ZeroDivisionError):
            generate.stream(Request(generate.TINY, "Hello"))


def full_gpu(request, on_text, on_state):
    raise EngineError("the f16 copies need 15.2 GB, the GPU has 3.1 GB free: take a smaller context")


def fails(request, on_text, on_state):
    raise ZeroDivisionError


def test_the_panel_tells_how_far_the_opening_of_a_model_is(monkeypatch):
    monkeypatch.setattr(generate_panel, "_LEAST_REFRESH_S", 0.0)
    seen = []

    def opens(request, on_text, cancelled, on_state):
        for step in (("compiling", 3, 68), ("loading", 1, 4)):
            on_state(generate.opening(*step))
            seen.append(panel.status.value)
        return REPORT

    panel = GeneratePanel(MODELS, run=opens)
    panel.start()
    assert panel.wait(30)
    assert seen == [
        "Compiling kernels, which are kept for the next time: 3 of 68 ...",
        "Loading weights: 25% ...",
    ]
    assert panel.status.value == REPORT.summary()


def test_controls_wait_until_they_are_let_go():
    panel = GeneratePanel(MODELS)
    for control in (panel.prompt, panel.n_predict, panel.temperature):
        assert control.continuous_update is False


def test_a_background_run_reports_its_exception():
    ends = []

    def failing(request, on_text, cancelled, on_state):
        raise InputError("no")

    background = BackgroundRun(Request(Path("x"), "y"), print, print, ends.append, failing)
    assert background.wait(30)
    assert sentence(ends[0]) == "no"


def test_models_that_are_here(monkeypatch, tmp_path):
    monkeypatch.setenv("MINFER_MODELS", str(tmp_path))
    assert generate.available_models() == [("qwen2-tiny (random weights)", generate.TINY)]
    from minfer.model.registry import NAMES

    pulled = tmp_path / "smollm2-135m" / NAMES["smollm2-135m"].files[0]
    pulled.parent.mkdir()
    pulled.touch()
    assert generate.available_models()[0] == ("smollm2-135m", pulled)
    other = tmp_path / "qwen2.5-0.5b" / NAMES["qwen2.5-0.5b"].files[0]
    other.parent.mkdir()
    other.touch()
    assert [name for name, _ in generate.available_models()][:2] == ["smollm2-135m", "qwen2.5-0.5b"]
    monkeypatch.setenv("MINFER_MODEL", "qwen2.5-0.5b")
    assert generate.available_models()[0] == ("qwen2.5-0.5b", other)
    made = tmp_path / "qwen2.5-7b-synth.gguf"
    made.touch()
    assert generate.available_models()[-1] == ("qwen2.5-7b-synth (random weights)", made)
