"""A session: a model on a backend with one context that grows as tokens are fed to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from minfer.engine.backend import KV_DTYPES, Backend, KvDtype, Progress
from minfer.engine.errors import NOT_NUMBERS, EngineError, InputError, check_whole
from minfer.engine.transformer import Buffers, Wanted, forward
from minfer.model.model import Model

DEFAULT_CONTEXT = 4096
WARM_UP_TOKENS = 8


class Session:
    """Feeds tokens through a model.

    n_ctx: most tokens of a context (None: the model's, at most 4096). kv_dtype: "f16" or "f32". chunk:
    most tokens of one pass (None: what the backend prefers); a longer prompt goes through in several.
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        n_ctx: int | None = None,
        kv_dtype: KvDtype = "f16",
        chunk: int | None = None,
        progress: Progress | None = None,
    ):
        config = model.config
        if n_ctx is None:
            n_ctx = min(config.context_length, DEFAULT_CONTEXT)
        if chunk is None:
            chunk = backend.default_chunk
        check_whole(n_ctx=n_ctx, chunk=chunk)
        if not 1 <= n_ctx <= config.context_length:
            raise InputError(
                f"a context of {n_ctx} tokens is not possible: the model allows 1 to {config.context_length}"
            )
        if kv_dtype not in KV_DTYPES:
            raise InputError(f"KV cache type {kv_dtype!r} is unknown: choose one of {', '.join(KV_DTYPES)}")
        if chunk < 1:
            raise InputError(f"a prefill chunk of {chunk} tokens is not possible: give at least 1")
        self.model = model
        self.config = config
        self.backend = backend
        self.n_ctx = n_ctx
        self.kv_dtype = kv_dtype
        self.chunk = min(chunk, n_ctx)
        self.position = 0
        self._runtime = backend.open(model, n_ctx, kv_dtype, self.chunk, progress)
        self._buffers: dict[bool, Buffers] = {}
        self._decode: Callable[[], None] | None = None
        self._decode_on: Callable[[], None] | None = None

    def reset(self) -> None:
        """Empty the context."""
        self.position = 0

    def warm_up(self) -> None:
        """Have everything compiled and captured that a prompt and a decode need; leaves the context empty.

        Without it the first forward of a process pays for that, and its speed says little.
        """
        self.reset()
        self.forward([0] * min(WARM_UP_TOKENS, self.n_ctx))
        self.reset()
        self.forward([0])
        self.reset()
        if self.chooses:
            list(self.greedy(0, 1))
            self.reset()

    def forward(self, ids: Sequence[int], logits: Literal["last", "all"] = "last") -> np.ndarray:
        """Append tokens to the context; float32 logits (vocab,) of the last one, or (len(ids), vocab) of all.

        Raises InputError, and changes nothing, for no tokens, an id out of range or a full context.
        """
        if logits not in ("last", "all"):
            raise InputError(f"logits={logits!r} is unknown: ask for 'last' or 'all'")
        ids = self._checked(ids, len(ids))
        if logits == "last":
            starts = range(0, len(ids), self.chunk)
            for start in starts:
                wanted: Wanted = "last" if start == starts[-1] else "none"
                result = self._pass(ids[start : start + self.chunk], wanted)
            return result[0]
        rows = [self._pass(ids[i : i + self.chunk], "all") for i in range(0, len(ids), self.chunk)]
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    @property
    def chooses(self) -> bool:
        """Whether there is `greedy`: the device chooses tokens."""
        return self._runtime.chooses

    def greedy(self, token: int, count: int) -> Iterator[int]:
        """Feed `token`, then the most likely token after it, and so on: yields `count` most likely tokens,
        the lowest of equal ones; the last is not fed.

        The device goes on by itself while the caller looks at a token. Whoever stops taking tokens finds a
        context of what was fed for those taken, and feeds nothing else meanwhile. Raises InputError as
        `forward` does, for `count` tokens, and EngineError if a logit is not a number.
        """
        check_whole(count=count)
        return self._greedy(self._checked([token], count), count)

    def _greedy(self, ids: np.ndarray, count: int) -> Iterator[int]:
        if count < 1:
            return
        runtime, first = self._runtime, self.position
        runtime.set_tokens(ids, first)
        if self._decode_on is None:
            buffers = self._buffers_for(False)

            def step() -> None:
                forward(runtime, self.config, buffers, 1, "last")
                runtime.choose(buffers.logits[:1])

            self._decode_on = runtime.capture(step)
            runtime.set_tokens(ids, first)  # capturing has gone on
        self._decode_on()
        following = runtime.chosen(first)
        for position in range(first, first + count):
            chosen = following
            if position + 1 < first + count:
                self._decode_on()
                following = runtime.chosen(position + 1)
            token = chosen()
            self.position = position + 1
            if token < 0:
                raise EngineError(NOT_NUMBERS)
            yield token

    def _checked(self, ids: Sequence[int], count: int) -> np.ndarray:
        checked = np.asarray(ids)
        if checked.ndim != 1 or checked.size == 0:
            raise InputError("the prompt is empty: give at least one token")
        if checked.dtype.kind not in "iu":
            raise InputError(f"token ids must be whole numbers, not {checked.dtype}")
        wrong = checked[(checked < 0) | (checked >= self.config.vocab_size)]
        if wrong.size:
            raise InputError(
                f"token id {wrong[0]} is out of range: the model has ids 0 to {self.config.vocab_size - 1}"
            )
        if self.position + count > self.n_ctx:
            raise InputError(
                f"{count} more tokens do not fit: {self.position} of {self.n_ctx} are taken: "
                "use a shorter prompt or a larger context"
            )
        return checked

    def _pass(self, ids: np.ndarray, wanted: Wanted) -> np.ndarray:
        """One forward of at most `chunk` tokens."""
        runtime, n = self._runtime, len(ids)
        runtime.set_tokens(ids, self.position)
        buffers = self._buffers_for(wanted == "all")
        if n == 1 and wanted == "last":
            if self._decode is None:
                self._decode = runtime.capture(lambda: forward(runtime, self.config, buffers, 1, "last"))
            self._decode()
        else:
            forward(runtime, self.config, buffers, n, wanted)
        result = runtime.read(buffers.logits[: n if wanted == "all" else 1])
        self.position += n
        return result

    def _buffers_for(self, all_logits: bool) -> Buffers:
        """Buffers with one row of logits, or a row a token: those come into being when first asked for."""
        if all_logits not in self._buffers:
            rows = self.chunk if all_logits else 1
            self._buffers[all_logits] = Buffers.allocate(self._runtime, self.config, self.chunk, rows)
        return self._buffers[all_logits]
