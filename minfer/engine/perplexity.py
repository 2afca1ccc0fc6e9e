"""Perplexity of a text, as llama.cpp's `perplexity` tool defines it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minfer.engine.errors import EngineError, InputError, check_whole
from minfer.engine.session import Session

_LARGEST_LOSS = 600.0  # exp of it, and its error, are still float64


@dataclass(frozen=True)
class PerplexityResult:
    """perplexity and its standard error; `running`: the value after each chunk."""

    perplexity: float
    error: float
    running: list[float]
    scored_tokens: int


def perplexity(
    session: Session,
    ids: Sequence[int],
    window: int = 512,
    bos_id: int | None = None,
    chunks: int | None = None,
    on_chunk: Callable[[int, int, float], None] | None = None,
) -> PerplexityResult:
    """exp of the mean negative log-likelihood of the text's tokens, window by window.

    The text, `ids`, is cut into windows of `window` tokens, each read from an empty context; a rest is
    dropped. In a window the first half is context only: token j + 1 is scored for window / 2 <= j < window
    - 1. If `bos_id` is given (the tokenizer adds one), it replaces the first token of every window.
    `chunks` limits the windows. on_chunk is called with (windows done, windows in all, value so far).

    Raises InputError if there is not enough text, with the numbers; EngineError if the model's logits are not
    numbers, or beyond all measure.
    """
    check_whole(window=window, chunks=1 if chunks is None else chunks)
    if window < 4:
        raise InputError(f"a window of {window} tokens scores nothing: give at least 4")
    if window > session.n_ctx:
        raise InputError(f"a window of {window} tokens does not fit in the context of {session.n_ctx} tokens")
    if len(ids) < 2 * window:
        raise InputError(
            f"the text has {len(ids)} tokens; a window of {window} needs at least {2 * window}: "
            "give a longer text or a smaller window"
        )
    if chunks is not None and chunks < 1:
        raise InputError(f"{chunks} chunks: give at least 1")
    count = len(ids) // window if chunks is None else min(chunks, len(ids) // window)
    first = window // 2
    losses: list[np.ndarray] = []
    running: list[float] = []
    for chunk in range(count):
        tokens = np.array(ids[chunk * window : (chunk + 1) * window], np.int64)
        inputs = tokens.copy()
        if bos_id is not None:
            inputs[0] = bos_id
        session.reset()
        session.forward(inputs[:first])
        logits = session.forward(inputs[first:], "all")
        losses.append(negative_log_likelihood(logits[:-1], tokens[first + 1 :]))
        running.append(_perplexity(np.concatenate(losses).mean()))
        if on_chunk is not None:
            on_chunk(chunk + 1, count, running[-1])
    session.reset()
    every = np.concatenate(losses)
    spread = math.sqrt(max(0.0, float(every.var())) / max(1, len(every) - 1))
    return PerplexityResult(running[-1], running[-1] * spread, running, len(every))


def _perplexity(loss: float) -> float:
    if not loss < _LARGEST_LOSS:  # a NaN is not smaller either
        raise EngineError(
            f"the mean negative log-likelihood is {loss:g}: "
            "the model's file is damaged or its values overflow"
        )
    return math.exp(loss)


def negative_log_likelihood(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """-log softmax(logits)[target] of each row, in float64: logits float32 (n, vocab), targets int64 (n,)."""
    result = np.empty(len(targets))
    for i, target in enumerate(targets):  # row by row: float64 copies of all rows would be large
        row = logits[i].astype(np.float64)
        largest = row.max()
        result[i] = largest + math.log(np.exp(row - largest).sum()) - row[target]
    return result
