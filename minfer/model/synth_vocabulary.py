"""A toy byte-level BPE vocabulary of any size, with merges that all apply.

Ids 0-255 are the bytes by value. After them come short lower-case words, with and without a space in front,
common letters first, so that English text makes about four characters a token. Any text round-trips. Three
ChatML specials and unused fillers end the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product

from gguf import TokenType

from minfer.model.pretokenizers import byte_characters

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_LETTERS = "etaoinshrdlcumwfgypbvkjxqz"  # by frequency in English
_LONGEST = 4


@dataclass(frozen=True)
class Vocabulary:
    """`tokens`, their `types` and the `merges` ("left right"); `first_special` is the id of <|endoftext|>."""

    tokens: list[str]
    types: list[TokenType]
    merges: list[str]
    first_special: int


def toy_vocabulary(size: int, first_special: int) -> Vocabulary:
    """A vocabulary of `size` tokens with the specials at ids `first_special`, + 1 and + 2."""
    n_merges = max(0, first_special - 256)
    merges = list(islice(_merges(), n_merges))
    if 256 + len(merges) != first_special or size < first_special + len(SPECIALS):
        raise ValueError(f"no toy vocabulary of {size} tokens with specials at {first_special}")
    tokens = [*byte_characters(), *(left + right for left, right in merges), *SPECIALS]
    types = [TokenType.NORMAL] * first_special + [TokenType.CONTROL] * len(SPECIALS)
    fillers = [f"[PAD{index}]" for index in range(len(tokens), size)]
    types += [TokenType.UNUSED] * len(fillers)
    return Vocabulary(tokens + fillers, types, [" ".join(merge) for merge in merges], first_special)


def _merges() -> Iterator[tuple[str, str]]:
    """Words from short to long, each made of the word that is one letter shorter and that letter."""
    space = byte_characters()[ord(" ")]
    for length in range(1, _LONGEST + 1):
        rank = range(len(_LETTERS))
        words = sorted(product(rank, repeat=length), key=lambda word: (sum(word), word))
        spelled = ["".join(_LETTERS[index] for index in word) for word in words]
        for word in spelled:
            yield space + word[:-1], word[-1]
        if length > 1:
            for word in spelled:
                yield word[:-1], word[-1]
