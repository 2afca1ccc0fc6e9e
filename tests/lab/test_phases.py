"""Tokens, costs and phases of the tiny model, and the picture of a run."""

from __future__ import annotations

from itertools import pairwise

import pytest

from minfer.lab.generate import TINY, Report, Request, load, run, stream, weight_bytes
from minfer.lab.generate_panel import GeneratePanel
from minfer.lab.phases import arrivals, one_by_one_difference, token_cost, tokens

TEXT = "The café opens at 8."


@pytest.fixture(scope="module")
def tiny():
    return load(TINY)


def test_tokens_are_shown_with_their_bytes(tiny):
    table = tokens(tiny.tokenizer, "é <b>")
    assert b"".join(piece for _, piece in table.rows) == "é <b>".encode()
    assert [token_id for token_id, _ in table.rows] == tiny.tokenizer.encode("é <b>")
    assert "&lt;" in table._repr_html_() and "\\xc3" in table._repr_html_()
    assert "b'\\xc3'" in repr(table)


def test_both_phases_compute_the_same(tiny):
    assert one_by_one_difference(tiny, tiny.tokenizer.encode(TEXT)) < 1e-5


def test_what_a_token_costs(tiny):
    config, cost = tiny.config, token_cost(tiny)
    q, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    layer = config.hidden * (2 * q + 2 * kv + 3 * config.ffn)
    assert cost.macs == config.n_layers * layer + config.vocab_size * config.hidden
    embedding = tiny.file.tensors[tiny.embedding].nbytes
    assert cost.weight_bytes == sum(t.nbytes for t in tiny.file.tensors.values()) - embedding
    assert 2 < cost.flop_per_byte < 4


def test_a_tied_output_counts(data_dir):
    tied = load(data_dir / "llama-legacy.gguf")
    assert weight_bytes(tied) == sum(tensor.nbytes for tensor in tied.file.tensors.values())


def test_the_picture_of_a_run(sound):
    report = Report("abc", (1, 2, 3), 5, 0.1, 0.2, "length", "host", 1, arrivals=(0.1, 0.2, 0.3))
    picture = sound(arrivals(report))
    assert picture.rows == [
        {"seconds": 0.1, "pieces": 1},
        {"seconds": 0.2, "pieces": 2},
        {"seconds": 0.3, "pieces": 3},
    ]
    (axes,) = picture.figure.axes
    assert axes.get_xlabel().endswith("(s)") and axes.get_ylabel()
    assert picture.png().startswith(b"\x89PNG")


def test_a_run_reports_text_ids_and_arrivals(tiny):
    pieces = []
    report = run(Request(TINY, "Hello", n_predict=6, backend="host"), on_text=pieces.append)
    assert "".join(pieces) == report.text
    assert len(report.arrivals) == len(pieces)
    assert list(report.arrivals) == sorted(report.arrivals)
    assert report.prompt_tokens == len(tiny.tokenizer.encode("Hello"))
    assert report.weights_bytes == weight_bytes(tiny)


def test_a_run_can_be_stopped_between_tokens():
    seen = []
    report = run(
        Request(TINY, "Hello", n_predict=500, backend="host"), seen.append, cancelled=lambda: len(seen) >= 2
    )
    assert report.stop_reason in ("cancelled", "eos")
    assert len(report.ids) < 500


def test_streaming_into_a_cell_shows_the_text_as_it_grows(monkeypatch):
    shown = []

    class Handle:
        def update(self, value):
            shown.append(repr(value))

    def display(value, display_id):
        shown.append(repr(value))
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    report = stream(Request(TINY, "Hello", n_predict=6, backend="host"))
    assert shown[0] == "Hello"
    assert shown[-1] == "Hello" + report.text
    assert all(later.startswith(earlier) for earlier, later in pairwise(shown))


def test_the_panel_runs_the_tiny_model_in_its_thread():
    panel = GeneratePanel([("tiny", TINY)], prompt="Hello")
    panel.n_predict.value = 5
    for _ in range(2):
        panel.start()
        assert panel.wait(120)
        assert panel.report is not None, panel.status.value
        assert "tok/s" in panel.status.value
