"""The tokenizer: ids equal llama.cpp's, text survives the way there and back, bad metadata is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.model import pretokenizers
from minfer.model.errors import ModelFileError
from minfer.model.gguf_file import GGUFFile
from minfer.model.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def llamacpp_ids(data_dir, model):
    cases = json.loads((data_dir / "tokens-llamacpp.json").read_text())[model]
    assert len(cases) == 25
    # llama.cpp's command-line tool turns "\n" written as two characters into a newline before it tokenizes.
    return [(case["text"].replace("\\n", "\n"), case["ids"]) for case in cases]


@pytest.fixture(scope="module")
def qwen(data_dir):
    return Tokenizer.from_metadata(GGUFFile.open(data_dir / "vocab-qwen2.5.gguf").metadata)


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    return Tokenizer.from_metadata(GGUFFile.open(smollm2_path).metadata)


def byte_level_metadata(extra=(), **keys):
    """Metadata of a byte-level vocabulary: 256 bytes, then `extra` as (text, type)."""
    tokens = [*pretokenizers.byte_characters(), *(text for text, _ in extra)]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * 256 + [kind for _, kind in extra],
        "tokenizer.ggml.merges": [],
    }
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def test_qwen_ids_equal_llamacpp(qwen, data_dir):
    for text, ids in llamacpp_ids(data_dir, "qwen2.5-coder-0.5b"):
        assert qwen.encode(text) == ids, text
        assert qwen.decode(ids) == text


@pytest.mark.network
def test_smollm2_ids_equal_llamacpp(smollm2, data_dir):
    for text, ids in llamacpp_ids(data_dir, "smollm2-135m"):
        assert smollm2.encode(text) == ids, text
        assert smollm2.decode(ids) == text


@pytest.mark.network
def test_a_byte_without_token_is_dropped_and_keeps_its_neighbours_apart(smollm2):
    # SmolLM2 has no token for byte 4; "th" merges only when nothing stands between the letters.
    assert len(smollm2.encode("th")) == 1
    assert smollm2.encode("t\x04h") == [*smollm2.encode("t"), *smollm2.encode("h")]


def test_qwen_ends_a_generation_at_every_end_token(qwen):
    names = {qwen.token_bytes(i).decode() for i in qwen.eos_ids}
    assert {"<|im_end|>", "<|endoftext|>"} <= names
    assert qwen.eos_id in qwen.eos_ids
    assert qwen.vocab_size == 151936


def test_control_tokens_are_plain_text_when_not_parsed(qwen):
    text = "<|im_start|>user <tool_call>"
    plain = qwen.encode(text, parse_special=False)
    im_start = qwen.encode("<|im_start|>")[0]
    tool_call = qwen.encode("<tool_call>")[0]
    assert qwen.encode(text)[0] == im_start
    assert im_start not in plain
    assert plain[-1] == tool_call, "user-defined tokens are always recognised"
    assert qwen.decode(plain) == text


def test_skip_special_leaves_out_control_tokens_only(qwen):
    ids = qwen.encode("<|im_start|>user<tool_call>x<|im_end|>")
    assert qwen.decode(ids, skip_special=True) == "user<tool_call>x"
    assert qwen.decode(ids) == "<|im_start|>user<tool_call>x<|im_end|>"


def test_unused_tokens_decode_to_nothing(qwen):
    assert qwen.decode([151935]) == ""


@given(text=st.text())
def test_decode_undoes_encode(qwen, text):
    assert qwen.decode(qwen.encode(text)) == text


@given(text=st.text(alphabet=st.sampled_from("ab1 '\n\r\tsS.é日😊ſ<|_>")))
@pytest.mark.parametrize("pre", sorted(pretokenizers.RULES))
def test_every_pre_tokenizer_keeps_the_whole_text(pre, text):
    tokenizer = tiny(pre)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text.encode()), "without merges every byte is a token"


_TINY: dict[str, Tokenizer] = {}


def tiny(pre):
    if pre not in _TINY:
        _TINY[pre] = Tokenizer.from_metadata(byte_level_metadata(pre=pre, add_bos_token=False))
    return _TINY[pre]


@given(data=st.data())
def test_streaming_equals_decoding_at_once(qwen, data):
    ids = data.draw(st.lists(st.integers(0, qwen.vocab_size - 1), max_size=20))
    for skip in (False, True):
        stream = qwen.stream(skip_special=skip)
        pieces = [stream.push(i) for i in ids]
        assert "".join([*pieces, stream.flush()]) == qwen.decode(ids, skip_special=skip)


def test_streaming_never_shows_a_part_of_a_character(qwen):
    ids = qwen.encode("👩‍👩‍👧‍👦 日本")
    stream = qwen.stream()
    pieces = [stream.push(i) for i in ids]
    assert len(ids) > 10, "the text is spread over byte tokens"
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) == "👩‍👩‍👧‍👦 日本"
    assert stream.flush() == ""


def test_an_unfinished_character_is_flushed_as_replacement(qwen):
    stream = qwen.stream()
    first, *others = qwen.encode("𓀀")
    assert others, "the character is spread over several tokens"
    assert stream.push(first) == ""
    assert stream.flush() == "\ufffd"


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "I'LL go  12 miles", ["I", "'", "LL", " go", " ", " 12", " miles"]),
        ("qwen2", "I'LL go  12 miles", ["I", "'LL", " go", " ", " ", "1", "2", " miles"]),
        ("deepseek-r1-qwen", "a\r\n\r\n b", ["a", "\r\n\r\n", " b"]),
        ("llama-bpe", "12345!\n\nx", ["123", "45", "!\n\n", "x"]),
        ("smollm", "a 12", ["a", " ", "1", "2"]),
        ("default", "a$b 1234", ["a", "$", "b", " ", "123", "4"]),
        ("qwen2", "it'ſ", ["it", "'ſ"]),
    ],
)
def test_words_of_each_pre_tokenizer(pre, text, words):
    pieces = pretokenizers.byte_level(pretokenizers.RULES[pre]).pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in pieces] == words


def test_llama_bpe_takes_a_whole_word_that_is_a_token():
    metadata = byte_level_metadata(extra=[("ab", NORMAL), ("abc", NORMAL)], merges=["a b"], pre="llama-bpe")
    metadata["tokenizer.ggml.add_bos_token"] = False
    assert Tokenizer.from_metadata(metadata).encode("abc") == [257]
    metadata["tokenizer.ggml.pre"] = "gpt-2"
    assert Tokenizer.from_metadata(metadata).encode("abc") == [256, ord("c")]


def test_bos_and_eos_are_added_as_the_file_says():
    extra = [("<s>", CONTROL), ("</s>", CONTROL)]
    ids = {"bos_token_id": 256, "eos_token_id": 257}
    tokenizer = Tokenizer.from_metadata(
        byte_level_metadata(extra, add_bos_token=True, add_eos_token=True, **ids)
    )
    assert tokenizer.encode("!") == [256, ord("!"), 257]
    assert tokenizer.encode("!", add_special=False) == [ord("!")]
    assert Tokenizer.from_metadata(byte_level_metadata(extra, pre="llama-bpe", **ids)).add_bos
    assert not Tokenizer.from_metadata(byte_level_metadata(extra, **ids)).add_bos


def test_the_longest_special_token_wins():
    extra = [("<a>", CONTROL), ("<a><a>", CONTROL), ("x<a", USER_DEFINED)]
    tokenizer = Tokenizer.from_metadata(byte_level_metadata(extra))
    assert tokenizer.encode("<a><a><a>") == [257, 256]
    assert tokenizer.encode("x<a><a>") == [ord("x"), 257], "the longest first, not the leftmost"
    assert tokenizer.encode("x<ab") == [258, ord("b")]


def test_lone_surrogates_are_refused(qwen):
    with pytest.raises(ValueError, match="lone surrogate at character 1"):
        qwen.encode("a\ud800")


@pytest.mark.parametrize("token_id", [-1, 151936, 10**9])
def test_ids_outside_the_vocabulary_are_refused(qwen, token_id):
    with pytest.raises(ValueError, match="outside the vocabulary of 151936 tokens"):
        qwen.decode([token_id])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        qwen.stream().push(token_id)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "bert"}, "'bert' is not supported .supported: gpt2, llama"),
        ({"model": 7}, "model is 7, expected str"),
        ({"model": None}, "model is missing"),
        (
            {"pre": "tekken"},
            "'tekken' is not supported .supported: deepseek-r1-qwen, default, gpt-2, .*, qwen2, smollm.",
        ),
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": []}, "tokens is empty"),
        ({"tokens": "abc"}, "tokens is not an array of strings"),
        ({"tokens": [1, 2]}, "tokens is not an array of strings"),
        ({"token_type": [1, 2]}, "token_type: 2 values for 256 tokens"),
        ({"token_type": "x"}, "token_type is not an array of numbers"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["ab"]}, "merges: 'ab' is not two tokens"),
        ({"merges": ["a  b"]}, "is not two tokens"),
        ({"merges": ["a b"]}, "merges does not fit tokenizer.ggml.tokens: .*ab"),
        ({"merges": ["a zz"]}, "merges does not fit tokenizer.ggml.tokens: .*zz"),
        ({"bos_token_id": 256}, "bos_token_id is 256, outside the vocabulary of 256 tokens"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"eos_token_id": "2"}, "eos_token_id is '2', expected int"),
        ({"add_bos_token": True}, "add_bos_token is true, but tokenizer.ggml.bos_token_id is missing"),
        ({"add_bos_token": 1}, "add_bos_token is 1, expected bool"),
    ],
)
def test_bad_metadata_is_refused(keys, message):
    with pytest.raises(ModelFileError, match=message) as caught:
        Tokenizer.from_metadata(byte_level_metadata(**keys))
    assert "\n" not in str(caught.value)


def test_a_token_that_is_there_twice_is_refused():
    with pytest.raises(ModelFileError, match="'a' is there more than once"):
        Tokenizer.from_metadata(byte_level_metadata(extra=[("a", NORMAL)]))
