"""Decoded tokens of one model by two token kernels, in one process and on one copy of the weights."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from minfer.arithmetic.work import MATRICES
from minfer.campaign.prefills import REST_S, SharedModel, model_shape
from minfer.campaign.probe_record import Comparison
from minfer.campaign.telemetry import Watch
from minfer.campaign.timing import interleave
from minfer.engine.cuda.routes import Route
from minfer.engine.errors import EngineError
from minfer.engine.session import Session

CONTEXT = 64
"""Tokens before the first that is timed."""
MOST_TOKENS = 128
"""Decoded in a row, greedily, as `minfer bench` does."""


class Decodes:
    """Two routes on a model: logits of a decoded token, and interleaved times of greedy decodes.

    tokens: decoded in a row, at most MOST_TOKENS and what the context leaves.

    Raises:
        EngineError: a model that a route's token kernel does not take, or a context too short.
    """

    phase = "decode"

    def __init__(
        self, shared: SharedModel, baseline: Route, variant: Route, tokens: int = MOST_TOKENS
    ) -> None:
        self.shared, self.tokens = shared, min(tokens, MOST_TOKENS, shared.n_ctx - CONTEXT)
        if self.tokens < 1:
            raise EngineError(f"a context of {shared.n_ctx}: nothing can be decoded after {CONTEXT} tokens")
        self.routes = baseline, variant
        self.sessions = [shared.session(route) for route in self.routes]
        for route, session in zip(self.routes, self.sessions, strict=True):
            told = session.backend.settings()["decode"]
            if not told.startswith("one kernel a token"):
                raise EngineError(f"{shared.name}: route {route.name} decodes by {told}")

    @property
    def flop(self) -> float:
        """The least operations of the tokens' products."""
        shape = model_shape(self.shared.model)
        return 2.0 * self.tokens * (shape.layers * shape.weights(*MATRICES) + shape.weights("lm_head"))

    def logits(self, tokens: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Those of a decoded token behind a random prompt, of `tokens` together, on both routes."""
        a, b = (self._decoded(session, tokens, seed) for session in self.sessions)
        return a, b

    def separate_logits(self, tokens: int, seed: int) -> np.ndarray:
        """The same by one kernel an operation."""
        route = replace(self.routes[0], name="separate kernels", token_kernel=None, token_changes=())
        return self._decoded(self.shared.session(route), tokens, seed)

    def compare(self, rounds: int, watch: Watch) -> Comparison:
        """Time greedy decodes by the host's clock, from a token to the last one chosen."""
        prompt = self.shared.prompt(CONTEXT)
        before = [self._decoded(session, CONTEXT, 0) for session in self.sessions]

        def once(which: int) -> float:
            session = self.sessions[which % 2]
            session.reset()
            first = int(session.forward(prompt).argmax())
            time.sleep(REST_S)
            start = time.perf_counter()
            for _ in session.greedy(first, self.tokens):
                pass
            took = (time.perf_counter() - start) * 1e3
            watch.look()
            return took

        samples = interleave(once, rounds)
        for session, wanted, route in zip(self.sessions, before, self.routes, strict=True):
            if not np.array_equal(self._decoded(session, CONTEXT, 0), wanted):
                raise RuntimeError(f"route {route.name}: the logits changed while they were timed")
        error = float(abs(before[0] - before[1]).max() / before[0].std())
        return Comparison.of(
            f"decode of {self.tokens} tokens after {CONTEXT}", 1, *samples, flop=self.flop,
            outputs=f"logits of a token differ by at most {error:.3f} of their deviation",
        )  # fmt: skip

    def _decoded(self, session: Session, tokens: int, seed: int) -> np.ndarray:
        ids = self.shared.prompt(tokens, seed)
        session.reset()
        session.forward(ids[:-1])
        return session.forward(ids[-1:])
