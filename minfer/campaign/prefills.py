"""Whole prefills of one model on several routes, in one process and on one copy of the weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minfer.campaign.probe_record import Comparison
from minfer.campaign.telemetry import Watch
from minfer.campaign.timing import interleave
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.devices import GpuDevice
from minfer.engine.cuda.routes import Route
from minfer.engine.session import Session
from minfer.model.model import Model


class SharedModel:
    """A model on a GPU. Sessions of different routes share its weights.

    Args:
        path: a GGUF file, or the name of a pulled model. n_ctx: most tokens of a prompt.
        tell: gets the backend's lines (memory, compiling).
    """

    def __init__(
        self, path: str | Path, device: GpuDevice, n_ctx: int = 2048, tell: Callable[[str], None] = print
    ) -> None:
        self.model = Model.load(str(path))
        self.name = self.model.file.paths[0].name
        self.device, self.n_ctx, self.tell = device, min(n_ctx, self.model.config.context_length), tell
        self.loaded: Any = None
        self._sessions: dict[Route, Session] = {}

    def session(self, route: Route) -> Session:
        """A session on a route, made when it is first asked for and warmed up."""
        if route not in self._sessions:
            made = Session(self.model, _Sharing(route, self), self.n_ctx, chunk=self.n_ctx)
            made.warm_up()
            self._sessions[route] = made
        return self._sessions[route]

    def prompt(self, tokens: int, seed: int = 0) -> np.ndarray:
        """Random token ids."""
        return np.random.default_rng(seed).integers(0, self.model.config.vocab_size, tokens)


class _Sharing(CudaBackend):
    """The cuda backend on weights that are loaded once."""

    def __init__(self, route: Route, shared: SharedModel) -> None:
        super().__init__(route, shared.device, on_plan=shared.tell)
        self._shared = shared

    def open(self, *args: Any, **rest: Any) -> Any:
        made = super().open(*args, weights=self._shared.loaded, **rest)
        self._shared.loaded = made.loaded
        return made


class Prefills:
    """Two routes on a model: their logits, and their interleaved times."""

    def __init__(self, shared: SharedModel, baseline: Route, variant: Route, tokens: int = 2048) -> None:
        self.shared, self.tokens = shared, min(tokens, shared.n_ctx)
        self.routes = baseline, variant
        self.sessions = [shared.session(route) for route in self.routes]

    def logits(self, tokens: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The last token's logits of one random prompt, on both routes."""
        ids = self.shared.prompt(tokens, seed)
        a, b = (_prefill(session, ids) for session in self.sessions)
        return a, b

    def compare(self, rounds: int, watch: Watch) -> Comparison:
        """Time a prefill by the host's clock, from the tokens to the last one's logits."""
        ids = self.shared.prompt(self.tokens)
        before = [_prefill(session, ids) for session in self.sessions]

        def once(which: int) -> float:
            start = time.perf_counter()
            _prefill(self.sessions[which % 2], ids)
            took = (time.perf_counter() - start) * 1e3
            watch.look()
            return took

        samples = interleave(once, rounds)
        for session, wanted, route in zip(self.sessions, before, self.routes, strict=True):
            if not np.array_equal(_prefill(session, ids), wanted):
                raise RuntimeError(f"route {route.name}: the logits changed while they were timed")
        error = float(abs(before[0] - before[1]).max() / before[0].std())
        return Comparison.of(
            f"prefill of {self.tokens} tokens", 1, *samples,
            outputs=f"logits of the last token differ by at most {error:.3f} of their deviation",
        )  # fmt: skip


def _prefill(session: Session, ids: np.ndarray) -> np.ndarray:
    session.reset()
    return session.forward(ids)
