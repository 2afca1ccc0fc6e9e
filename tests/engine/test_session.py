"""What a session refuses, and that a refusal changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.engine.errors import InputError
from minfer.engine.session import Session


@pytest.fixture
def session(tiny, host) -> Session:
    return Session(tiny.model, host, n_ctx=16)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "empty"),
        ([0, 288], "288 is out of range.*0 to 287"),
        ([-1], "-1 is out of range"),
        ([1.5], "whole numbers"),
        (list(range(17)), "17 more tokens do not fit: 0 of the context's 16|17 .* 16"),
    ],
)
def test_bad_tokens_are_refused(session, tiny, ids, message):
    with pytest.raises(InputError, match=message):
        session.forward(ids)
    assert session.position == 0
    assert np.isfinite(session.forward(tiny.ids[:3])).all()


def test_a_full_context_is_refused(session, tiny):
    session.forward(tiny.ids[:16])
    with pytest.raises(InputError, match="16 of"):
        session.forward([1])
    session.reset()
    session.forward([1])


@pytest.mark.parametrize(
    "settings",
    [
        {"n_ctx": 0},
        {"n_ctx": 513},
        {"kv_dtype": "q8"},
        {"chunk": 0},
        {"n_ctx": 16.0},
        {"n_ctx": "16"},
        {"chunk": True},
    ],
)
def test_bad_settings_are_refused(tiny, host, settings):
    with pytest.raises(InputError):
        Session(tiny.model, host, **{"n_ctx": 16, **settings})


def test_the_default_context_is_the_models(tiny, host):
    assert Session(tiny.model, host).n_ctx == tiny.model.config.context_length == 512


def test_unknown_logits_are_refused(session):
    with pytest.raises(InputError, match="'last' or 'all'"):
        session.forward([1], "first")


def test_results_are_copies(session, tiny):
    first = session.forward(tiny.ids[:1])
    kept = first.copy()
    session.forward(tiny.ids[1:2])
    np.testing.assert_array_equal(first, kept)


def test_warming_up_changes_nothing(tiny, host):
    ids = [5, 6, 7]
    cold = Session(tiny.model, host, n_ctx=16).forward(ids)
    session = Session(tiny.model, host, n_ctx=16)
    session.warm_up()
    assert session.position == 0
    np.testing.assert_array_equal(session.forward(ids), cold)
    Session(tiny.model, host, n_ctx=1).warm_up()


@pytest.mark.parametrize("count", [1, 5])
def test_an_interrupted_forward_leaves_no_trace(session, tiny, host, monkeypatch, count):
    expected = Session(tiny.model, host, n_ctx=16).forward(tiny.ids[:count])

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(session._runtime), "swiglu", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.forward(tiny.ids[:count])
    assert session.position == 0
    np.testing.assert_array_equal(session.forward(tiny.ids[:count]), expected)
