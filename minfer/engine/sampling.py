"""Choosing the next token from logits."""

from __future__ import annotations

import math
import secrets
import sys
from collections.abc import Callable, Sequence
from numbers import Real

import numpy as np

from minfer.engine.errors import NOT_NUMBERS, EngineError, InputError, check_whole

PART = 64  # logits whose maximum is looked at first
MARGIN = 1e-3  # of a logit, for the rounding of what it is compared with


class Sampler:
    """Picks a token: greedy when `temperature` is 0, else at random under the usual cuts.

    The cuts apply in llama.cpp's order: repeat penalty, top-k, top-p, min-p, then temperature.

    Attributes:
        temperature: divides the logits; 0 is greedy, where the lowest id wins a tie.
        top_k: keep the k most likely tokens; 0: all.
        top_p: keep the most likely tokens whose probabilities add up to at least p; 1: all.
        min_p: keep tokens at least min_p times as likely as the most likely one; 0: all.
        repeat_penalty: divides (positive) or multiplies (negative) the logits of the last `repeat_last_n`
            tokens; 1: off.
        seed: same seed, same choices; None draws one, found here.
    """

    def __init__(
        self,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        repeat_last_n: int = 64,
        seed: int | None = None,
    ):
        _check("temperature", temperature, lambda value: value >= 0, "at least 0")
        _check("top_p", top_p, lambda value: 0 < value <= 1, "above 0 and at most 1")
        _check("min_p", min_p, lambda value: 0 <= value <= 1, "from 0 to 1")
        _check("repeat_penalty", repeat_penalty, lambda value: value > 0, "above 0")
        counts = {"top_k": top_k, "repeat_last_n": repeat_last_n} | ({} if seed is None else {"seed": seed})
        check_whole(**counts)
        for name, count in counts.items():
            if count < 0:
                raise InputError(f"{name} is {count}: it must be at least 0")
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.min_p = min_p
        self.repeat_penalty = repeat_penalty
        self.repeat_last_n = repeat_last_n
        self.seed = secrets.randbits(32) if seed is None else seed
        self._random = np.random.default_rng(self.seed)

    @classmethod
    def greedy(cls) -> Sampler:
        """Always the most likely token."""
        return cls(temperature=0.0)

    @property
    def takes_best(self) -> bool:
        """Whether the choice is the largest logit, whatever came before."""
        return self.temperature == 0 and (self.repeat_penalty == 1 or self.repeat_last_n == 0)

    def sample(self, logits: np.ndarray, history: Sequence[int] = ()) -> int:
        """The next token id, given float32 logits (vocab,) and the tokens before it.

        Raises EngineError if a logit is not a number.
        """
        if np.isnan(logits.max()):  # which is not a number if any is none
            raise EngineError(NOT_NUMBERS)
        logits = self._penalised(logits, history)
        if self.temperature == 0:
            return int(np.argmax(logits))
        ids, probabilities = self.candidates(logits)
        cumulative = np.cumsum(probabilities)
        drawn = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(ids[min(int(drawn), len(ids) - 1)])

    def candidates(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids left by the cuts, most likely first, and their float64 probabilities."""
        keep, share = self.top_k or len(logits), 1.0
        if keep < len(logits):
            # All from the k-th largest value up, so that ties at the edge are cut by id, not by chance.
            ids = _largest(logits, keep)
        else:
            ids, share = self._likely(logits)
        ids = ids[np.argsort(-logits[ids], kind="stable")][:keep]
        kept = logits[ids].astype(np.float64)
        probabilities = share * _softmax(kept)
        if self.top_p < 1:
            enough = int(np.searchsorted(np.cumsum(probabilities), self.top_p)) + 1
            ids, kept, probabilities = ids[:enough], kept[:enough], probabilities[:enough]
        likely = probabilities >= self.min_p * probabilities[0]
        return ids[likely], _softmax(kept[likely], self.temperature or 1.0)

    def _likely(self, logits: np.ndarray) -> tuple[np.ndarray, float]:
        """The ids that min_p may leave of all, ascending, and their part of all probability: to sort a whole
        vocabulary takes longer than a token."""
        largest = float(logits.max())
        if self.min_p == 0 or math.isinf(largest):
            return np.arange(len(logits)), 1.0
        ids = np.flatnonzero(logits >= largest + math.log(self.min_p) - MARGIN)
        weights = np.exp(logits.astype(np.float64) - largest)
        return ids, float(weights[ids].sum() / weights.sum())

    def _penalised(self, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        if self.repeat_penalty == 1 or self.repeat_last_n == 0 or not len(history):
            return logits
        recent = np.unique(np.asarray(history[-self.repeat_last_n :], np.int64))
        logits = logits.copy()
        values = logits[recent].astype(np.float64)  # where no finite penalty makes a NaN of 0
        with np.errstate(over="ignore"):
            penalised = np.where(values > 0, values / self.repeat_penalty, values * self.repeat_penalty)
            logits[recent] = penalised
        return logits


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """The indices, ascending, of all values from the `count`-th largest up. To look for that among all values
    takes longer than a token; it is at least the `count`-th largest of the maxima of many small parts."""
    parts = len(values) // PART
    ids = np.arange(len(values))
    if parts >= count:
        maxima = values[: parts * PART].reshape(PART, parts).max(axis=0)
        ids = np.flatnonzero(values >= _kth(maxima, count))
    return ids[values[ids] >= _kth(values[ids], count)]


def _kth(values: np.ndarray, count: int) -> np.generic:
    """The `count`-th largest."""
    return np.partition(values, len(values) - count)[len(values) - count]


def _softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    largest = logits[0]
    if math.isinf(largest):  # only infinities compete
        exponentials = (logits == largest).astype(np.float64)
    else:
        with np.errstate(over="ignore"):  # so cold that a quotient is -infinity: its exponential is 0
            exponentials = np.exp((logits - largest) / temperature)
    return exponentials / exponentials.sum()


def _check(name: str, value: float, holds: Callable[[float], bool], wanted: str) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not abs(value) <= sys.float_info.max or not holds(value):
        raise InputError(f"{name} is {value!r}: it must be a number {wanted}, and finite")
