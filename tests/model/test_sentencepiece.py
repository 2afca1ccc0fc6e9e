"""SentencePiece vocabularies: score merges against a slow twin; byte fallback; the blank before a text."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.model.errors import ModelFileError
from minfer.model.sentencepiece import ScoreMerger
from minfer.model.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
PIECES = ["▁", "a", "b", "n", "an", "▁b", "▁ba", "na", "nan", "▁banana", "ana", "▁▁", "aa", "é"]


def metadata(pieces=PIECES, byte_tokens=256, **keys):
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(byte_tokens)), *pieces]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * byte_tokens, *[NORMAL] * len(pieces)]
    scores = [0.0] * (3 + byte_tokens) + [-float(rank) for rank in range(len(pieces))]
    values = {"model": "llama", "tokens": tokens, "token_type": kinds, "scores": scores} | keys
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def texts(tokenizer, ids):
    return [tokenizer.token_bytes(i).decode(errors="backslashreplace") for i in ids]


def slow_merge(ids, scores, text):
    """The definition: again and again, join the neighbours that score highest, the leftmost of a tie."""
    symbols = list(text)
    while True:
        pairs = [
            (-scores[ids[left + right]], i)
            for i, (left, right) in enumerate(pairwise(symbols))
            if left + right in ids
        ]
        if not pairs:
            return symbols
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


@given(
    pieces=st.sets(st.text("ab▁", min_size=2, max_size=4), max_size=14),
    scores=st.lists(st.integers(-3, 0), min_size=14, max_size=14),
    text=st.text("ab▁", max_size=24),
)
def test_merging_equals_its_definition(pieces, scores, text):
    tokens = ["a", "b", "▁", *sorted(pieces)]
    ids = {token: i for i, token in enumerate(tokens)}
    merger = ScoreMerger(ids, [0, 0, 0, *scores], None, 0)
    assert [tokens[i] for i in merger.encode(text)] == slow_merge(ids, [0, 0, 0, *scores], text)


def test_ids_equal_the_sentencepiece_packages(data_dir):
    # An 800-token BPE model with byte fallback, trained on this repository's texts by sentencepiece 0.2.3,
    # and the ids that its own encoder gives.
    reference = json.loads((data_dir / "sentencepiece-bpe.json").read_text(encoding="utf-8"))
    keys = {key: reference[key] for key in ("tokens", "scores", "token_type")}
    tokenizer = Tokenizer.from_metadata(metadata(**keys))
    for case in reference["texts"]:
        ids = tokenizer.encode(case["text"], add_special=False)
        assert ids == case["ids"], case["text"]
        assert tokenizer.decode(ids, strip_prefix=True) == case["text"]


def test_higher_scores_merge_first_and_a_tie_goes_left():
    tokenizer = Tokenizer.from_metadata(metadata(add_space_prefix=False, add_bos_token=False))
    assert texts(tokenizer, tokenizer.encode("banan")) == ["b", "an", "an"]
    assert texts(tokenizer, tokenizer.encode("aaa")) == ["aa", "a"]


def test_a_blank_goes_before_the_text_and_comes_off_again():
    tokenizer = Tokenizer.from_metadata(metadata())
    ids = tokenizer.encode("b")
    assert texts(tokenizer, ids) == ["<s>", " b"]
    assert tokenizer.decode(ids, skip_special=True) == " b"
    assert tokenizer.decode(ids, skip_special=True, strip_prefix=True) == "b"
    plain = Tokenizer.from_metadata(metadata(add_space_prefix=False))
    assert texts(plain, plain.encode("b")) == ["<s>", "b"]


def test_a_blank_goes_before_text_after_a_special_token_only():
    tokenizer = Tokenizer.from_metadata(metadata())
    assert texts(tokenizer, tokenizer.encode("b</s>b")) == ["<s>", " b", "</s>", " b"]
    assert texts(tokenizer, tokenizer.encode("a b")) == ["<s>", " ", "a", " b"]


def test_characters_without_token_become_bytes():
    tokenizer = Tokenizer.from_metadata(metadata(add_bos_token=False))
    ids = tokenizer.encode("é😊\n")
    assert [tokenizer.token_bytes(i) for i in ids] == [
        b" ",
        "é".encode(),
        *(bytes([byte]) for byte in "😊\n".encode()),
    ]
    stream = tokenizer.stream()
    assert [stream.push(i) for i in ids] == [" ", "é", "", "", "", "😊", "\n"]


@given(text=st.text())
def test_decode_undoes_encode(text):
    tokenizer = Tokenizer.from_metadata(METADATA)
    if "▁" in text or any(name in text for name in ("<s>", "</s>", "<unk>")):
        return
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special=True, strip_prefix=True) == text


METADATA = metadata()


def test_an_empty_text_is_bos_alone():
    assert Tokenizer.from_metadata(metadata()).encode("") == [1]
    assert Tokenizer.from_metadata(metadata()).encode("", add_special=False) == []


def test_without_byte_tokens_the_unknown_token_stands_in():
    tokenizer = Tokenizer.from_metadata(metadata(byte_tokens=0, add_bos_token=False, add_space_prefix=False))
    assert tokenizer.encode("a?") == [3 + PIECES.index("a"), 0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scores": None}, "scores is missing"),
        ({"scores": [0.0]}, "scores: 1 values for"),
        ({"tokens": ["a"], "token_type": [NORMAL], "scores": [0.0]}, "needs all 256 byte tokens"),
        ({"tokens": ["a"], "token_type": [BYTE], "scores": [0.0]}, "byte token 'a' is not of the form"),
        ({"unknown_token_id": 9999}, "unknown_token_id is 9999, outside"),
        ({"tokens": ["<unk>"], "token_type": [UNKNOWN], "scores": [0.0]}, "bos_token_id is 1, outside"),
    ],
)
def test_bad_metadata_is_refused(keys, message):
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_metadata(metadata(**keys))
