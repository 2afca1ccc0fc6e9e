"""Generation: stop strings, streaming, cancelling, limits. A scripted session stands in for the model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.engine.errors import InputError
from minfer.engine.generate import StopWatcher, generate
from minfer.engine.sampling import Sampler
from minfer.engine.session import Session

EOS = 0


class ScriptedSession:
    """Says the characters of a text, then end of sequence: token id = code point."""

    n_ctx = 200
    chooses = False

    def __init__(self, text: str):
        self.script = [*map(ord, text), EOS]
        self.position = 0
        self.fed: list[list[int]] = []

    def forward(self, ids):
        self.fed.append(list(ids))
        self.position += len(ids)
        logits = np.zeros(0x250, np.float32)
        logits[self.script[len(self.fed) - 1]] = 1
        return logits


class ChoosingSession(ScriptedSession):
    """One that chooses by itself after the prompt."""

    chooses = True

    def greedy(self, token, count):
        for _ in range(count):
            token = int(self.forward([token]).argmax())
            yield token


class CharacterTokenizer:
    """One token a character; the stream holds 'é' back until the next token, like half a character."""

    eos_ids = frozenset({EOS})

    def stream(self):
        return CharacterStream()


class CharacterStream:
    def __init__(self):
        self.held = ""

    def push(self, token):
        text, self.held = self.held + chr(token), ""
        if text.endswith("é"):
            text, self.held = text[:-1], "é"
        return text

    def flush(self):
        return self.held


@pytest.fixture(params=[ScriptedSession, ChoosingSession], autouse=True)
def kind(request, monkeypatch):
    """The host chooses, or the device: that makes no difference."""
    monkeypatch.setattr(say, "session", request.param, raising=False)


def say(text: str, n: int = 100, **options):
    pieces: list[str] = []
    session = say.session(text)
    result = generate(
        session, CharacterTokenizer(), [65, 66], n, Sampler.greedy(), on_text=pieces.append, **options
    )
    assert "".join(pieces) == result.text
    assert "" not in pieces
    assert result.prompt_tokens == 2 and result.generated_tokens == len(result.ids)
    return result, pieces, session


def test_eos_ends_it():
    result, _, session = say("hello")
    assert (result.text, result.stop_reason) == ("hello", "eos")
    assert result.ids == [*map(ord, "hello"), EOS]
    assert session.fed == [[65, 66], *([ord(c)] for c in "hello")]


def test_the_length_ends_it():
    result, _, session = say("hello", n=3)
    assert (result.text, result.stop_reason) == ("hel", "length")
    assert session.position == 4  # the last token chosen is not fed


def test_text_held_by_the_tokenizer_comes_at_the_end():
    assert say("café", n=4)[0].text == "café"
    assert say("café")[0].text == "café"


def test_a_stop_string_across_tokens_is_never_shown():
    result, pieces, _ = say("one END two", stop=["END"])
    assert (result.text, result.stop_reason) == ("one ", "stop")
    assert result.ids == [*map(ord, "one END")]
    assert pieces == ["o", "n", "e", " "]


def test_text_held_back_for_a_stop_string_is_shown_when_it_is_none():
    result, pieces, _ = say("xENx ENE", stop=["END"])
    assert result.text == "xENx ENE"
    assert pieces == ["x", "ENx", " ", "EN", "E"] or pieces == ["x", "ENx", " ", "ENE"]


def test_a_stop_string_that_the_last_flush_completes():
    result, _, _ = say("abé", n=3, stop=["bé"])
    assert result.text == "a"


def test_cancel_between_tokens():
    answers = iter([False, False, False, True])
    result, _, session = say("hello", cancelled=lambda: next(answers))
    assert (result.text, result.stop_reason) == ("hel", "cancelled")
    assert len(session.fed) == 3


def test_cancel_before_anything():
    result, _, session = say("hello", cancelled=lambda: True)
    assert (result.ids, result.stop_reason, session.fed) == ([], "cancelled", [])
    assert result.decode_tok_s is None


@pytest.mark.parametrize("n", [0, -1])
def test_nothing_to_generate_is_refused(n):
    with pytest.raises(InputError, match="at least 1"):
        say("hello", n=n)


def test_a_prompt_that_leaves_no_room_is_refused(tiny, host):
    session = Session(tiny.model, host, n_ctx=16)
    with pytest.raises(InputError, match=r"prompt of 10 tokens and 7 to generate.* 16 tokens"):
        generate(session, tiny.model.tokenizer, tiny.ids[:10], 7, Sampler.greedy())
    assert session.position == 0
    result = generate(session, tiny.model.tokenizer, tiny.ids[:10], 6, Sampler.greedy())
    assert result.generated_tokens <= 6
    with pytest.raises(InputError, match=f"after the {session.position} in it"):
        generate(session, tiny.model.tokenizer, tiny.ids[:10], 6, Sampler.greedy())


def test_an_empty_prompt_is_refused(tiny, host):
    with pytest.raises(InputError, match="empty"):
        generate(Session(tiny.model, host, n_ctx=16), tiny.model.tokenizer, [], 4, Sampler.greedy())


def test_greedy_ids_do_not_depend_on_how_the_prompt_was_cut(tiny, host):
    runs = [
        generate(
            Session(tiny.model, host, n_ctx=64, chunk=chunk), tiny.model.tokenizer, tiny.ids[:20], 12,
            Sampler.greedy(),
        ).ids
        for chunk in (20, 7, 1)
    ]  # fmt: skip
    assert runs[0] == runs[1] == runs[2]


@given(
    text=st.text("ab", max_size=30), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(1, 4), max_size=30),
)  # fmt: skip
def test_the_watcher_shows_exactly_what_precedes_the_first_stop(text, stops, cuts):
    """Whatever the pieces are: the stop that is completed first counts, at its earliest place."""
    watcher, shown, rest = StopWatcher(stops), "", text
    for cut in [*cuts, *[1] * len(text)]:
        piece, rest = rest[:cut], rest[cut:]
        if piece and not watcher.found:
            shown += watcher.push(piece)
    if not watcher.found:
        shown += watcher.flush()
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)
    assert watcher.found == any(stop in text for stop in stops)
    if watcher.found:
        assert any(text[len(shown) :].startswith(stop) for stop in stops)
    else:
        assert shown == text


def test_an_empty_stop_string_is_refused():
    with pytest.raises(InputError, match="empty"):
        StopWatcher(["a", ""])
