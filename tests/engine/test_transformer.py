"""The forward on the host backend against logits computed elsewhere, and against itself by another route."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from minfer.engine.errors import EngineError
from minfer.engine.host import weights
from minfer.engine.host.runtime import HostBackend
from minfer.engine.session import Session
from tests.engine.conftest import relative_rms

TOLERANCE = {"f32": 1e-4, "f16": 1e-3}


@pytest.fixture(scope="module", params=["f32", "f16"])
def kv_dtype(request) -> str:
    return request.param


def test_all_at_once_meets_the_oracles(oracle, host, kv_dtype):
    logits = Session(oracle.model, host, n_ctx=64, kv_dtype=kv_dtype).forward(oracle.ids, "all")
    assert logits.dtype == np.float32
    assert relative_rms(logits, oracle.logits_f32) < TOLERANCE[kv_dtype]
    assert relative_rms(logits, oracle.logits_llamacpp) < 0.05


def test_token_by_token_meets_the_oracles(oracle, host, kv_dtype):
    session = Session(oracle.model, host, n_ctx=64, kv_dtype=kv_dtype)
    logits = np.stack([session.forward([token]) for token in oracle.ids])
    assert relative_rms(logits, oracle.logits_f32) < TOLERANCE[kv_dtype]


@pytest.mark.parametrize("chunk", [1, 2, 7, 47, 48])
def test_chunked_equals_whole(oracle, host, chunk):
    session = Session(oracle.model, host, n_ctx=64, kv_dtype="f32", chunk=chunk)
    assert relative_rms(session.forward(oracle.ids, "all"), oracle.logits_f32) < 1e-4


@pytest.mark.parametrize("chunk", [1, 3, 5, 48])
def test_the_tail_gives_the_last_row(oracle, host, chunk):
    """The last layer at the last token only: the same logits, and a KV cache that decoding can go on from."""
    session = Session(oracle.model, host, n_ctx=64, kv_dtype="f32", chunk=chunk)
    last = session.forward(oracle.ids[:40])
    assert last.shape == (oracle.model.config.vocab_size,)
    assert relative_rms(last, oracle.logits_f32[39]) < 1e-4
    assert relative_rms(session.forward(oracle.ids[40:43]), oracle.logits_f32[42]) < 1e-4
    assert relative_rms(session.forward(oracle.ids[43:], "all"), oracle.logits_f32[43:]) < 1e-4


def test_same_result_with_one_thread_and_many(tiny, host):
    one = Session(tiny.model, HostBackend(threads=1), n_ctx=64)
    three = Session(tiny.model, HostBackend(threads=3), n_ctx=64)
    for token in tiny.ids[:8]:  # decode only: BLAS may add up in another order with other threads about
        np.testing.assert_array_equal(one.forward([token]), three.forward([token]))


def test_a_reset_session_repeats_itself(tiny, host):
    session = Session(tiny.model, host, n_ctx=64)
    before = [session.forward([token]) for token in tiny.ids[:6]]
    session.reset()
    for token, logits in zip(tiny.ids, before, strict=False):
        np.testing.assert_array_equal(session.forward([token]), logits)


def test_sessions_of_one_model_are_apart(tiny, host):
    first, second = Session(tiny.model, host, n_ctx=64), Session(tiny.model, host, n_ctx=64)
    expected = first.forward(tiny.ids[:10])
    second.forward(tiny.ids[10:20])
    first.reset()
    for i in range(10):
        second.forward(tiny.ids[20 + i : 21 + i])
        logits = first.forward(tiny.ids[i : i + 1])
    assert relative_rms(logits, expected) < 1e-3


def test_types_without_a_kernel_are_read_as_float32(oracle, host, monkeypatch):
    kinds = {tensor.type for tensor in oracle.model.file.tensors.values()} - {Type.F32}
    monkeypatch.setattr(weights, "SUPPORTED", tuple(set(weights.SUPPORTED) - set(sorted(kinds)[:1])))
    logits = Session(oracle.model, host, n_ctx=64, kv_dtype="f32").forward(oracle.ids, "all")
    assert relative_rms(logits, oracle.logits_f32) < 1e-4


def test_a_width_that_is_no_multiple_of_a_vector_is_refused(tiny, host, monkeypatch):
    monkeypatch.setattr(tiny.model, "config", replace(tiny.model.config, ffn=100))
    with pytest.raises(EngineError, match=r"feed_forward_length is 100.*multiple of 16"):
        Session(tiny.model, host, n_ctx=64)


def test_a_cache_that_memory_cannot_hold_is_refused(tiny, host, monkeypatch):
    monkeypatch.setattr(tiny.model, "config", replace(tiny.model.config, context_length=2**50))
    with pytest.raises(EngineError, match=r"KV cache of 1099511627776 tokens in f16 needs .* GiB"):
        Session(tiny.model, host, n_ctx=2**40)
