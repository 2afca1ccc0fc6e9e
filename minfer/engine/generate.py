"""Generating text: prompt in, tokens out one by one, until something says stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from minfer.engine.errors import InputError, check_whole
from minfer.engine.sampling import Sampler
from minfer.engine.session import Session
from minfer.model.tokenizer import Tokenizer

StopReason = Literal["length", "eos", "stop", "cancelled"]


@dataclass(frozen=True)
class GenerateResult:
    """What was generated.

    ids: every token chosen, an end-of-sequence token or the tokens of a stop string included; text:
    without those. prefill_s: seconds for the prompt, first choice included; decode_s: from then to the
    last choice.
    """

    ids: list[int]
    text: str
    prompt_tokens: int
    generated_tokens: int
    prefill_s: float
    decode_s: float
    stop_reason: StopReason

    @property
    def prefill_tok_s(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prefill_s

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens per second after the first; None if there was only one."""
        return (self.generated_tokens - 1) / self.decode_s if self.generated_tokens > 1 else None


class StopWatcher:
    """Finds stop strings in streamed text, also across the borders of its pieces.

    Text that may be the beginning of a stop string is held back until that is decided.
    """

    def __init__(self, stop: Sequence[str]):
        if any(not s for s in stop):
            raise InputError("a stop string is empty")
        self._stop = tuple(stop)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that may be shown now. Sets `found` at the first stop string and drops the rest."""
        held = self._held + text
        hits = [at for at in (held.find(s) for s in self._stop) if at >= 0]
        if hits:
            self.found, self._held = True, ""
            return held[: min(hits)]
        keep = max((_overlap(held, s) for s in self._stop), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """The text held back, at the end."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def generate(
    session: Session,
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    n_predict: int,
    sampler: Sampler,
    stop: Sequence[str] = (),
    on_text: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> GenerateResult:
    """Append the prompt to the session's context, then choose up to n_predict tokens.

    on_text is called with each piece of text as it is certain; `cancelled` is asked before every forward,
    and a true answer ends the generation. The last token chosen is not fed to the session. Raises
    InputError for an empty prompt, an id out of range, or a prompt + n_predict past the context.
    """
    check_whole(n_predict=n_predict)
    if n_predict < 1:
        raise InputError(f"{n_predict} tokens to generate: give at least 1")
    prompt = list(prompt_ids)
    if session.position + len(prompt) + n_predict > session.n_ctx:
        taken = f" after the {session.position} in it" if session.position else ""
        raise InputError(
            f"a prompt of {len(prompt)} tokens and {n_predict} to generate{taken} do not fit in the context "
            f"of {session.n_ctx} tokens: generate fewer, shorten the prompt or enlarge the context"
        )
    watcher, decoder = StopWatcher(stop), tokenizer.stream()
    ids: list[int] = []
    pieces: list[str] = []

    def emit(text: str) -> None:
        if text:
            pieces.append(text)
            if on_text is not None:
                on_text(text)

    ahead = sampler.takes_best and session.chooses
    best: Iterator[int] | None = None
    reason: StopReason = "length"
    start = first = last = time.perf_counter()
    feed = prompt
    while len(ids) < n_predict:
        if cancelled is not None and cancelled():
            reason = "cancelled"
            break
        if best is None:
            token = sampler.sample(session.forward(feed), prompt + ids)
            if ahead:
                best = session.greedy(token, n_predict - 1)
        else:
            token = next(best)
        last = time.perf_counter()
        if not ids:
            first = last
        ids.append(token)
        feed = [token]
        if token in tokenizer.eos_ids:
            reason = "eos"
            break
        emit(watcher.push(decoder.push(token)))
        if watcher.found:
            reason = "stop"
            break
    if not watcher.found:
        emit(watcher.push(decoder.flush()))
        emit(watcher.flush())
    return GenerateResult(
        ids=ids,
        text="".join(pieces),
        prompt_tokens=len(prompt),
        generated_tokens=len(ids),
        prefill_s=first - start,
        decode_s=last - first,
        stop_reason=reason,
    )
