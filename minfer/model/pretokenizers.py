"""How text is cut into words before byte-level BPE: one entry for each `tokenizer.ggml.pre` value.

BPE merges never cross a word boundary, so these patterns decide the token ids as much as the merges do. The
names and the patterns are those of llama.cpp; each pattern cuts every piece that the pattern before it left.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

# Contractions in any case, spelled out: a case-insensitive group would also take U+017F (long s) for an "s".
_CONTRACTIONS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _contractions_words_numbers(digits: str) -> str:
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


@dataclass(frozen=True)
class PreTokenizerRule:
    """What a `tokenizer.ggml.pre` value stands for.

    Attributes:
        patterns: applied in order, each to the pieces that the one before it left.
        ignore_merges: a word that is itself a token is taken whole, whatever the merges say.
        add_bos: whether a prompt starts with BOS when the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_QWEN2 = PreTokenizerRule((_contractions_words_numbers(r"\p{N}"),))

RULES: dict[str, PreTokenizerRule] = {
    "default": PreTokenizerRule((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "deepseek-r1-qwen": _QWEN2,
    "gpt-2": PreTokenizerRule((_GPT2,)),
    "llama-bpe": PreTokenizerRule(
        (_contractions_words_numbers(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True
    ),
    "qwen2": _QWEN2,
    "smollm": PreTokenizerRule((r"\p{N}", _GPT2)),
}


def byte_level(rule: PreTokenizerRule) -> PreTokenizer:
    """A rule as a `tokenizers` pre-tokenizer: cut by its patterns, then write bytes as `byte_characters`."""
    cuts = [Split(Regex(pattern), behavior="isolated") for pattern in rule.patterns]
    return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_characters() -> list[str]:
    """GPT-2's printable stand-in for each byte value, 256 characters.

    Printable Latin-1 bytes stand for themselves, the other 68 for U+0100, U+0101, ... in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
