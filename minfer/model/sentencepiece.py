"""SentencePiece's BPE as llama.cpp runs it: merge by score, fall back to byte tokens.

`tokenizers` cannot express it: there a merge has one rank, while here two ways to build the same token tie
and the leftmost wins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from minfer.model.errors import ModelFileError

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a blank inside tokens
_CACHED_WORDS = 65_536


class ScoreMerger:
    """Turns text into ids by merging the neighbours whose token scores highest, leftmost first.

    Args:
        ids: token text -> id; blanks are written as U+2581.
        scores: one score a token.
        byte_ids: id of the token of each byte value (256), or None when the vocabulary has no byte tokens.
        unknown_id: what stands for a character without token when there are no byte tokens.

    Raises:
        ModelFileError: neither byte tokens nor an unknown token, so some text would have no ids.
    """

    def __init__(
        self, ids: dict[str, int], scores: Sequence[float], byte_ids: list[int] | None, unknown_id: int | None
    ) -> None:
        if byte_ids is None and unknown_id is None:
            raise ModelFileError(
                "tokenizer.ggml.tokens: a llama vocabulary needs all 256 byte tokens (<0x00> to <0xFF>) "
                "or an unknown token"
            )
        self._ids = ids
        self._scores = scores
        self._byte_ids = byte_ids
        self._unknown_id = unknown_id
        # When no token holds a blank after another character, no merge can cross from a word into the next
        # one: words can be merged apart (and cached) with the same result.
        inner_blank = re.compile(f"[^{SPACE}]{SPACE}")
        self._words = (
            None if any(inner_blank.search(text) for text in ids) else re.compile(f"{SPACE}*[^{SPACE}]*")
        )
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of a text whose blanks are already U+2581."""
        if self._words is None:
            return self._merge(text)
        ids: list[int] = []
        for word in self._words.findall(text):
            if word not in self._cache:
                if len(self._cache) >= _CACHED_WORDS:
                    self._cache.clear()
                self._cache[word] = self._merge(word)
            ids += self._cache[word]
        return ids

    def _merge(self, text: str) -> list[int]:
        symbols: list[str] = list(text)  # "" once merged into its left neighbour
        end = len(symbols)
        following = list(range(1, end + 1))
        preceding = list(range(-1, end - 1))
        queue: list[tuple[float, int, int, str]] = []

        def candidate(left: int, right: int) -> tuple[float, int, int, str] | None:
            merged = symbols[left] + symbols[right]
            token = self._ids.get(merged)
            return None if token is None else (-self._scores[token], left, right, merged)

        for left in range(end - 1):
            if found := candidate(left, left + 1):
                queue.append(found)
        heapify(queue)
        while queue:
            _, left, right, merged = heappop(queue)
            # Stale when either side has changed since.
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != merged:
                continue
            symbols[left], symbols[right] = merged, ""
            following[left] = following[right]
            if following[right] < end:
                preceding[following[right]] = left
            if preceding[left] >= 0 and (found := candidate(preceding[left], left)):
                heappush(queue, found)
            if following[left] < end and (found := candidate(left, following[left])):
                heappush(queue, found)

        ids: list[int] = []
        for symbol in filter(None, symbols):
            token = self._ids.get(symbol)
            if token is not None:
                ids.append(token)
            elif self._byte_ids is not None:
                ids.extend(self._byte_ids[byte] for byte in symbol.encode("utf-8"))
            else:
                ids.append(self._unknown_id)
        return ids
