"""Whole prefills of one model on several routes, in one process and on one copy of the weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minfer.arithmetic.work import ModelShape, prefill_gmac
from minfer.campaign.probe_record import Comparison
from minfer.campaign.telemetry import Watch
from minfer.campaign.timing import interleave
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.devices import GpuDevice
from minfer.engine.cuda.routes import Route, choose_route
from minfer.engine.session import Session
from minfer.model.model import Model

Wrap = Callable[[Any], Any]
REST_S = 0.06
"""Rest before every timed pass: one after the other they meet the power limit, and its clocks are noise."""


def separate(route: Route) -> Route:
    """The route with one kernel an operation of a decoded token. One kernel for all of them has no classes; a
    prefill has no use for it."""
    return replace(route, token_kernel=None)


class SharedModel:
    """A model on a GPU. Sessions of different routes share its weights: blocks, and f16 copies.

    Args:
        path: a GGUF file, or the name of a pulled model. n_ctx: most tokens of a context.
        tell: gets the backend's lines (memory, compiling). chunk: most tokens of a pass, None: `n_ctx`.
    """

    def __init__(
        self,
        path: str | Path,
        device: GpuDevice,
        n_ctx: int = 2048,
        tell: Callable[[str], None] = print,
        chunk: int | None = None,
    ) -> None:
        self.model = Model.load(str(path))
        self.name = self.model.file.paths[0].name
        self.device, self.n_ctx, self.tell = device, min(n_ctx, self.model.config.context_length), tell
        self.chunk = chunk or self.n_ctx
        self.loaded: Any = None
        self._sessions: dict[tuple[Route, str, int], Session] = {}

    def session(
        self,
        route: Route,
        device: GpuDevice | None = None,
        wrap: Wrap | None = None,
        weights: str = "auto",
    ) -> Session:
        """A session on a route, made when it is first asked for.

        Args:
            device: another one on the same GPU, with `wrap`: what to put around its runtimes.
            weights: as `CudaBackend` takes it.
        """
        if self.loaded is None and (route.reads_blocks or weights != "auto"):
            self.session(
                separate(choose_route("f16", self.device.arch, {}))
            )  # with the copies that other routes read
        where = self.device if device is None else device
        key = route, weights, id(where)
        if key not in self._sessions:
            backend = _Sharing(route, where, self, wrap, weights)
            made = Session(self.model, backend, self.n_ctx, chunk=self.chunk)
            self._sessions[key] = made
        return self._sessions[key]

    def forget(self, device: GpuDevice) -> None:
        """Let go of the sessions on a device."""
        for key in [key for key in self._sessions if key[2] == id(device)]:
            del self._sessions[key]

    def prompt(self, tokens: int, seed: int = 0) -> np.ndarray:
        """Random token ids."""
        return np.random.default_rng(seed).integers(0, self.model.config.vocab_size, tokens)


class _Sharing(CudaBackend):
    """The cuda backend on weights that are loaded once."""

    def __init__(
        self, route: Route, device: GpuDevice, shared: SharedModel, wrap: Wrap | None, weights: str
    ) -> None:
        super().__init__(route, device, on_plan=shared.tell, weights=weights)
        self._shared, self._wrap = shared, wrap

    def open(self, model: Model, n_ctx: int, kv_dtype: str, chunk: int, progress: Any = None) -> Any:
        """See Backend.open. Kernels are not compiled ahead: see `minfer.campaign.precompile`."""
        plan = self._plan = self.plan(model, n_ctx, chunk)
        loaded, tell = self._shared.loaded, self._shared.tell
        made = self._runtime(model, plan, progress, tell, loaded)
        if loaded is None:
            tell(f"{self._shared.name}: {plan}")
            self._shared.loaded = made.loaded
        return made if self._wrap is None else self._wrap(made)


def model_shape(model: Model) -> ModelShape:
    """Its dimensions."""
    c = model.config
    return ModelShape(c.n_layers, c.hidden, c.n_heads, c.n_kv_heads, c.head_dim, c.ffn, c.vocab_size)


class Prefills:
    """Two routes on a model: their logits, and their interleaved times."""

    phase = "prefill"

    def __init__(self, shared: SharedModel, baseline: Route, variant: Route, tokens: int = 2048) -> None:
        self.shared, self.tokens = shared, min(tokens, shared.n_ctx)
        self.routes = baseline, variant
        self.sessions = [shared.session(separate(route)) for route in self.routes]

    @property
    def flop(self) -> float:
        """The least operations of a prefill: of its products and attention."""
        return 2e9 * sum(prefill_gmac(model_shape(self.shared.model), self.tokens).values())

    def logits(self, tokens: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The last token's logits of one random prompt, on both routes."""
        ids = self.shared.prompt(tokens, seed)
        a, b = (prefill(session, ids) for session in self.sessions)
        return a, b

    def compare(self, rounds: int, watch: Watch) -> Comparison:
        """Time a prefill by the host's clock, from the tokens to the last one's logits."""
        ids = self.shared.prompt(self.tokens)
        before = [prefill(session, ids) for session in self.sessions]

        def once(which: int) -> float:
            time.sleep(REST_S)
            start = time.perf_counter()
            prefill(self.sessions[which % 2], ids)
            took = (time.perf_counter() - start) * 1e3
            watch.look()
            return took

        samples = interleave(once, rounds, warm_up=0)  # both routes have run just now
        for session, wanted, route in zip(self.sessions, before, self.routes, strict=True):
            if not np.array_equal(prefill(session, ids), wanted):
                raise RuntimeError(f"route {route.name}: the logits changed while they were timed")
        error = float(abs(before[0] - before[1]).max() / before[0].std())
        return Comparison.of(
            f"prefill of {self.tokens} tokens", 1, *samples, flop=self.flop,
            outputs=f"logits of the last token differ by at most {error:.3f} of their deviation",
        )  # fmt: skip


def prefill(session: Session, ids: np.ndarray) -> np.ndarray:
    """The last token's logits of a prompt, from an empty context."""
    session.reset()
    return session.forward(ids)
