"""A pass of the host backend taken apart: nothing is left out, nothing changes, bytes are the model's."""

import numpy as np
import pytest

from minfer.campaign.host_wall import Apart, ObservedHostBackend, Part, take_apart
from minfer.engine.errors import InputError
from minfer.engine.host.runtime import HostBackend
from minfer.engine.session import Session
from minfer.lab.generate import TINY, weight_bytes
from minfer.model.model import Model

PRODUCTS = {"q+k+v", "o", "gate+up", "down", "lm_head"}
CLASSES = PRODUCTS | {"embedding", "norms", "RoPE, KV cache", "attention", "swiglu"}


@pytest.fixture(scope="module")
def model():
    return Model.load(TINY)


@pytest.fixture(scope="module")
def passes(model):
    return take_apart(model, model.tokenizer.encode("The café opens at 8."), decoded=2)


def test_watching_changes_no_logits(model):
    ids = model.tokenizer.encode("Hello there")
    plain, watched = (Session(model, backend, n_ctx=32) for backend in (HostBackend(), ObservedHostBackend()))
    for feed in (ids, [5], [9]):
        assert np.array_equal(plain.forward(feed), watched.forward(feed))


def test_every_class_is_there(passes, model):
    prefill, decode = passes
    layers = model.config.n_layers
    assert (prefill.phase, decode.phase, decode.tokens) == ("prefill", "decode", 1)
    for one in passes:
        calls = {part.name: part.calls for part in one.parts}
        assert set(calls) == CLASSES
        assert calls["norms"] == 2 * layers + 1 and calls["attention"] == layers
        assert one.wall_ms > 0 and one.observed_ms == pytest.approx(sum(part.ms for part in one.parts))


def test_a_decode_reads_every_weight_once(passes, model):
    read = sum(part.nbytes for part in passes[1].parts)
    biases_and_norms = weight_bytes(model) - read
    assert 0 <= biases_and_norms < 0.03 * read


def test_rows_are_shares(passes):
    rows = passes[0].rows()
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert [row["ms"] for row in rows] == sorted((row["ms"] for row in rows), reverse=True)
    assert {row["class"] for row in rows if row["GB/s"] is not None} == PRODUCTS


def test_rates():
    one = Apart("decode", 1, "here", 3.0, (Part("down", 2.0, 28, 8_000_000), Part("norms", 2.0, 57)))
    assert [row["GB/s"] for row in one.rows()] == [4.0, None]
    assert one.observed_ms == 4.0


def test_no_tokens(model):
    with pytest.raises(InputError):
        take_apart(model, [])
