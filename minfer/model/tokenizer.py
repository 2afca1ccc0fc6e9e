"""Text to token ids and back, from a GGUF file's metadata.

Two kinds of vocabulary: `gpt2` (byte-level BPE, run by the `tokenizers` package) and `llama` (SentencePiece
with scores). The ids are llama.cpp's, token for token.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tokenizers
from gguf import TokenType

from minfer.model import pretokenizers
from minfer.model.errors import ModelFileError
from minfer.model.gguf_file import GGUFFile
from minfer.model.sentencepiece import SPACE, ScoreMerger

_KEY = "tokenizer.ggml."

# Tokens that end a reply, whatever `eos_token_id` says: chat models end a turn with one and a document with
# another.
_END_OF_GENERATION = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "<｜end▁of▁sentence｜>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
    }
)


class Tokenizer:
    """Encodes text to ids and decodes ids to text; made by `from_metadata`.

    Attributes:
        kind: "gpt2" or "llama".
        vocab_size: number of tokens.
        bos_id, eos_id: begin- and end-of-sequence ids, or None.
        eos_ids: every id that ends a generation.
        add_bos, add_eos: what `encode` adds around a text.
        add_space_prefix: a blank is put before text that starts a sequence (`llama` only).
    """

    def __init__(
        self,
        kind: str,
        tokens: Sequence[str],
        types: Sequence[int],
        encode_text: Callable[[str], list[int]],
        settings: Mapping[str, Any],
    ) -> None:
        self.kind = kind
        self._tokens = tokens
        self._types = types
        self._encode_text = encode_text
        self.vocab_size = len(tokens)
        self.bos_id: int | None = settings["bos_token_id"]
        self.eos_id: int | None = settings["eos_token_id"]
        self.add_bos: bool = settings["add_bos_token"]
        self.add_eos: bool = settings["add_eos_token"]
        self.add_space_prefix: bool = settings["add_space_prefix"]
        for wanted, token_id, name in (
            (self.add_bos, self.bos_id, "bos"),
            (self.add_eos, self.eos_id, "eos"),
        ):
            if wanted and token_id is None:
                raise ModelFileError(f"{_KEY}add_{name}_token is true, but {_KEY}{name}_token_id is missing")

        special = [i for i, kind in enumerate(types) if kind in _SPLIT_OUT]
        self.eos_ids: set[int] = {i for i in special if tokens[i] in _END_OF_GENERATION}
        self.eos_ids |= {settings[f"{name}_token_id"] for name in ("eos", "eot", "eom")} - {None}
        # Longest first, so that a token which contains another one wins.
        self._special = sorted((i for i in special if tokens[i]), key=lambda i: -len(tokens[i].encode()))
        self._byte_of = {char: byte for byte, char in enumerate(pretokenizers.byte_characters())}
        self._pieces: dict[int, bytes] = {}

    @classmethod
    def from_file(cls, file: GGUFFile) -> Tokenizer:
        """The tokenizer of an opened model file; errors name the file."""
        try:
            return cls.from_metadata(file.metadata)
        except ModelFileError as error:
            path = str(file.paths[0])
            message = str(error)
            raise ModelFileError(message if message.startswith(path) else f"{path}: {message}") from None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that a GGUF file's `tokenizer.ggml.*` keys describe.

        Raises:
            ModelFileError: a key is missing or of the wrong kind, the tokenizer model or pre-tokenizer is not
                supported, or vocabulary, types, scores and merges do not fit each other.
        """
        kind = _get(metadata, "model", str)
        if kind not in ("gpt2", "llama"):
            raise ModelFileError(f"{_KEY}model: {kind!r} is not supported (supported: gpt2, llama)")
        tokens = _string_array(metadata, "tokens")
        if not tokens:
            raise ModelFileError(f"{_KEY}tokens is empty")
        ids = {text: i for i, text in enumerate(tokens)}
        if len(ids) != len(tokens):
            twice = next(text for i, text in enumerate(tokens) if ids[text] != i)
            raise ModelFileError(f"{_KEY}tokens: {twice!r} is there more than once")
        types = _number_array(metadata, "token_type", len(tokens), default=TokenType.NORMAL)
        if kind == "gpt2":
            encode_text, settings = _byte_level_bpe(metadata, tokens, ids)
        else:
            encode_text, settings = _sentencepiece(metadata, tokens, ids, types)
        for name in ("bos", "eos", "eot", "eom"):
            key = f"{name}_token_id"
            settings[key] = _token_id(metadata, key, len(tokens), settings.get(key))
        for key in ("add_bos_token", "add_eos_token", "add_space_prefix"):
            settings[key] = _get(metadata, key, bool, settings.get(key, False))
        return cls(kind, tokens, types, encode_text, settings)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of a text.

        Args:
            text: any text that has a UTF-8 form.
            add_special: add BOS and EOS where the file asks for them.
            parse_special: control tokens such as `<|im_start|>` written in the text become that token;
                otherwise they are plain text. (User-defined tokens are always recognised.)

        Raises:
            ValueError: the text holds a lone surrogate, so it has no UTF-8 form.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text is not valid Unicode: lone surrogate at character {error.start}"
            ) from None
        ids = [self.bos_id] if add_special and self.add_bos else []
        after_special = True
        for fragment in self._split_special(text, parse_special):
            if isinstance(fragment, int):
                ids.append(fragment)
            elif self.kind == "llama":
                prefix = SPACE if self.add_space_prefix and after_special else ""
                ids += self._encode_text(prefix + fragment.replace(" ", SPACE))
            else:
                ids += self._encode_text(fragment)
            after_special = isinstance(fragment, int)
        if add_special and self.add_eos:
            ids.append(self.eos_id)
        return ids

    def _split_special(self, text: str, parse_special: bool) -> list[str | int]:
        """Special tokens found in the text become ids, longest token first; the rest stays text."""
        fragments: list[str | int] = [text] if text else []
        for token_id in self._special:
            if not parse_special and self._types[token_id] != TokenType.USER_DEFINED:
                continue
            token = self._tokens[token_id]
            if token not in text:
                continue
            cut: list[str | int] = []
            for fragment in fragments:
                if isinstance(fragment, int):
                    cut.append(fragment)
                    continue
                first, *others = fragment.split(token)
                cut.append(first)
                for other in others:
                    cut += (token_id, other)
            fragments = [fragment for fragment in cut if fragment != ""]
        return fragments

    def decode(self, ids: Iterable[int], skip_special: bool = False, strip_prefix: bool = False) -> str:
        """Text of some ids; bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: token ids.
            skip_special: leave out control and unknown tokens.
            strip_prefix: drop the blank that `encode` puts before a text (`add_space_prefix`). Leave it False
                for a continuation, where a leading blank is part of the text.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        ids = list(ids)
        if strip_prefix and self.add_space_prefix and ids[:1] == [self.bos_id] and skip_special:
            ids = ids[1:]
        pieces = [self.token_bytes(i) for i in ids if not (skip_special and self.is_special(i))]
        if strip_prefix and self.add_space_prefix and pieces:
            pieces[0] = pieces[0].removeprefix(b" ")
        return b"".join(pieces).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for; control tokens give their name, unused tokens nothing.

        Raises:
            ValueError: the id is outside the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token id {token_id} is outside the vocabulary of {self.vocab_size} tokens")
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self._token_bytes(self._tokens[token_id], self._types[token_id])
        return piece

    def _token_bytes(self, text: str, kind: int) -> bytes:
        if kind in _SPLIT_OUT:
            return text.encode("utf-8")
        if kind == TokenType.BYTE:
            return bytes([_byte_value(text)])
        if kind != TokenType.NORMAL:
            return b""
        if self.kind == "llama":
            return text.replace(SPACE, " ").encode("utf-8")
        return b"".join(
            bytes([self._byte_of[char]]) if char in self._byte_of else char.encode("utf-8") for char in text
        )

    def is_special(self, token_id: int) -> bool:
        """Whether a token is a control or unknown token: no part of the text."""
        return self._types[token_id] in (TokenType.CONTROL, TokenType.UNKNOWN)

    def stream(self, skip_special: bool = True) -> StreamDecoder:
        """A decoder for tokens that come one by one."""
        return StreamDecoder(self, skip_special)


class StreamDecoder:
    """Text of tokens as they come: `push` returns what is complete, never a part of a character.

    All that `push` and `flush` returned, joined, is what `Tokenizer.decode` gives for the same ids.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        piece = self._tokenizer.token_bytes(token_id)
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, else nothing."""
        return self._decoder.decode(b"", final=True)


_SPLIT_OUT = frozenset({TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN})


def _byte_level_bpe(
    metadata: Mapping[str, Any], tokens: Sequence[str], ids: dict[str, int]
) -> tuple[Callable[[str], list[int]], dict[str, Any]]:
    name = _get(metadata, "pre", str, "default")
    rule = pretokenizers.RULES.get(name)
    if rule is None:
        supported = ", ".join(sorted(pretokenizers.RULES))
        raise ModelFileError(f"{_KEY}pre: {name!r} is not supported (supported: {supported})")
    merges = _merges(metadata)
    vocabulary = dict(ids)
    # A byte without token yields no id, but still keeps its neighbours from merging: it gets an id past the
    # end, which is dropped afterwards.
    for char in pretokenizers.byte_characters():
        vocabulary.setdefault(char, len(vocabulary))
    try:
        bpe = tokenizers.models.BPE(vocabulary, merges, ignore_merges=rule.ignore_merges)
    except Exception as error:  # `tokenizers` raises bare Exception
        raise ModelFileError(f"{_KEY}merges does not fit {_KEY}tokens: {str(error).strip()}") from None
    pipeline = tokenizers.Tokenizer(bpe)
    pipeline.pre_tokenizer = pretokenizers.byte_level(rule)
    complete = len(vocabulary) == len(tokens)

    def encode_text(text: str) -> list[int]:
        found = pipeline.encode(text, add_special_tokens=False).ids
        return found if complete else [i for i in found if i < len(tokens)]

    return encode_text, {"add_bos_token": rule.add_bos}


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = _string_array(metadata, "merges")
    pairs = [tuple(line.split(" ")) for line in lines]
    if not set(map(len, pairs)) <= {2}:
        wrong = next(line for line, pair in zip(lines, pairs, strict=True) if len(pair) != 2)
        raise ModelFileError(f"{_KEY}merges: {wrong!r} is not two tokens with a blank between them")
    return pairs


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: Sequence[str], ids: dict[str, int], types: Sequence[int]
) -> tuple[Callable[[str], list[int]], dict[str, Any]]:
    scores = _number_array(metadata, "scores", len(tokens))
    byte_tokens = [ids.get(f"<0x{byte:02X}>") for byte in range(256)]
    for token, kind in zip(tokens, types, strict=True):
        if kind == TokenType.BYTE:
            _byte_value(token)
    named = next((i for i, kind in enumerate(types) if kind == TokenType.UNKNOWN), None)
    unknown = _token_id(metadata, "unknown_token_id", len(tokens), named)
    merger = ScoreMerger(ids, scores, None if None in byte_tokens else byte_tokens, unknown)
    # llama.cpp's defaults for SentencePiece vocabularies
    return merger.encode, {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": True,
        "add_space_prefix": True,
    }


def _byte_value(token: str) -> int:
    try:
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return int(token[3:5], 16)
    except ValueError:
        pass
    raise ModelFileError(f"{_KEY}tokens: byte token {token!r} is not of the form <0xNN>")


_MISSING = object()


def _get(metadata: Mapping[str, Any], name: str, kind: type, default: Any = _MISSING) -> Any:
    value = metadata.get(_KEY + name, _MISSING)
    if value is _MISSING:
        if default is _MISSING:
            raise ModelFileError(f"{_KEY}{name} is missing")
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ModelFileError(f"{_KEY}{name} is {value!r}, expected {kind.__name__}")
    return value


def _token_id(metadata: Mapping[str, Any], name: str, vocab_size: int, default: int | None) -> int | None:
    token_id = _get(metadata, name, int, default)
    if token_id is not None and not 0 <= token_id < vocab_size:
        raise ModelFileError(f"{_KEY}{name} is {token_id}, outside the vocabulary of {vocab_size} tokens")
    return token_id


def _string_array(metadata: Mapping[str, Any], name: str) -> list[str]:
    values = metadata.get(_KEY + name)
    if values is None:
        raise ModelFileError(f"{_KEY}{name} is missing")
    if not isinstance(values, list) or not set(map(type, values)) <= {str}:
        raise ModelFileError(f"{_KEY}{name} is not an array of strings")
    return values


def _number_array(
    metadata: Mapping[str, Any], name: str, length: int, default: int | None = None
) -> Sequence[int] | Sequence[float]:
    values = metadata.get(_KEY + name)
    if values is None:
        if default is None:
            raise ModelFileError(f"{_KEY}{name} is missing")
        return [default] * length
    if not isinstance(values, list) or not set(map(type, values)) <= {int, float}:
        raise ModelFileError(f"{_KEY}{name} is not an array of numbers")
    if len(values) != length:
        raise ModelFileError(f"{_KEY}{name}: {len(values)} values for {length} tokens")
    return values
