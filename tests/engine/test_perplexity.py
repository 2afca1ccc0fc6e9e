"""Perplexity against its definition in NumPy, on logits that came from elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.engine.errors import EngineError, InputError
from minfer.engine.perplexity import negative_log_likelihood, perplexity
from minfer.engine.session import Session


@pytest.fixture(scope="module")
def session(tiny, host) -> Session:
    return Session(tiny.model, host, n_ctx=48, kv_dtype="f32")


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


def plain_perplexity(session: Session, ids: list[int], window: int, bos_id: int | None) -> list[float]:
    """llama.cpp's loop, word for word: one forward a window, every row looked at."""
    losses, running = [], []
    for start in range(0, len(ids) // window * window, window):
        tokens = list(ids[start : start + window])
        session.reset()
        logits = session.forward([bos_id if bos_id is not None else tokens[0], *tokens[1:]], "all")
        losses += [-log_softmax(logits[j])[tokens[j + 1]] for j in range(window // 2, window - 1)]
        running.append(float(np.exp(np.mean(losses))))
    return running


@pytest.mark.parametrize("bos_id", [None, 3])
@pytest.mark.parametrize("window", [8, 11, 16])
def test_it_is_what_llama_cpp_defines(session, tiny, window, bos_id):
    ids = tiny.ids.tolist()
    calls = []
    result = perplexity(session, ids, window, bos_id=bos_id, on_chunk=lambda *call: calls.append(call))
    expected = plain_perplexity(session, ids, window, bos_id)
    np.testing.assert_allclose(result.running, expected, rtol=1e-5)
    assert result.perplexity == result.running[-1]
    chunks = len(ids) // window
    assert result.scored_tokens == chunks * (window - 1 - window // 2)
    assert calls == [(i + 1, chunks, value) for i, value in enumerate(result.running)]
    assert 0 < result.error < result.perplexity


def test_chunks_limits_the_windows(session, tiny):
    everything = perplexity(session, tiny.ids, 8)
    two = perplexity(session, tiny.ids, 8, chunks=2)
    assert two.running == everything.running[:2]
    assert perplexity(session, tiny.ids, 8, chunks=99).running == everything.running


def test_the_likelihood_of_the_oracles_logits(tiny):
    losses = negative_log_likelihood(tiny.logits_f32[:-1], tiny.ids[1:])
    expected = [-log_softmax(row)[token] for row, token in zip(tiny.logits_f32, tiny.ids[1:], strict=False)]
    np.testing.assert_allclose(losses, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("window", "chunks", "message"),
    [
        (3, None, "at least 4"),
        (49, None, "49 tokens does not fit .* 48"),
        (30, None, "has 48 tokens.*at least 60"),
        (8, 0, "at least 1"),
    ],
)
def test_bad_settings_are_refused(session, tiny, window, chunks, message):
    with pytest.raises(InputError, match=message):
        perplexity(session, tiny.ids, window, chunks=chunks)


@pytest.mark.parametrize("scale", [np.nan, np.float32(1e6)])
def test_logits_that_mean_nothing_are_an_error(session, tiny, monkeypatch, scale):
    forward = session.forward
    monkeypatch.setattr(session, "forward", lambda *request: forward(*request) * scale)
    with pytest.raises(EngineError, match=r"the mean negative log-likelihood is .* is damaged"):
        perplexity(session, tiny.ids, 8)
