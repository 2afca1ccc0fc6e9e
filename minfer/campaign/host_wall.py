"""Where a pass's time goes on the CPU: every operation of the host backend timed by itself, by class of work.

Observed passes run one operation at a time and wait for each; they take longer than the pass as it is. Both
times are told.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minfer.engine.backend import KvDtype, Progress
from minfer.engine.host.runtime import HostBackend, HostRuntime
from minfer.engine.host.team import team
from minfer.engine.session import Session
from minfer.model.model import Model

PASSES = 3


@dataclass
class Part:
    """One class of work in a pass.

    Attributes:
        name: of the class. ms: spent on it. calls: operations. nbytes: of weights that it reads; 0: none.
    """

    name: str
    ms: float = 0.0
    calls: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Apart:
    """A pass taken apart.

    Attributes:
        phase: "prefill", or "decode" of one token. tokens: of the pass. where: the device.
        wall_ms: the pass as it is, not observed. parts: by class, in order of first use.
    """

    phase: str
    tokens: int
    where: str
    wall_ms: float
    parts: tuple[Part, ...]

    @property
    def observed_ms(self) -> float:
        """All parts together."""
        return sum(part.ms for part in self.parts)

    def rows(self) -> list[dict]:
        """Rows of phase, class, ms, share (of the parts), calls, GB/s (of weights), largest first."""
        return [
            {
                "phase": self.phase,
                "class": part.name,
                "ms": part.ms,
                "share": part.ms / self.observed_ms,
                "calls": part.calls,
                "GB/s": part.nbytes / part.ms / 1e6 if part.nbytes else None,
            }
            for part in sorted(self.parts, key=lambda part: -part.ms)
        ]


class ObservedHostBackend(HostBackend):
    """The host backend, with runtimes that time every operation."""

    def open(
        self, model: Model, n_ctx: int, kv_dtype: KvDtype, chunk: int, progress: Progress | None = None
    ) -> ObservedHostRuntime:
        """See `Backend.open`."""
        self.runtime = ObservedHostRuntime(model, n_ctx, kv_dtype, chunk, team(self.threads))
        return self.runtime


class ObservedHostRuntime(HostRuntime):
    """Runs every operation by itself and charges its time to a class; `parts` holds the sums."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.parts: dict[str, Part] = {}
        self._nothing = np.empty((0, 0), np.float32)
        names = {"qkv": "q+k+v", "q": "q+k+v", "kv": "q+k+v", "o": "o", "gate_up": "gate+up", "down": "down"}
        self._classes = {
            id(getattr(layer, role)): name for layer in self.weights.layers for role, name in names.items()
        }
        self._classes[id(self.weights.output)] = "lm_head"

    def capture(self, forward: Callable[[], None]) -> Callable[[], None]:
        """The forward itself: every replay is observed."""
        return forward

    def _charge(self, name: str, operation: Callable[[], None], nbytes: int = 0) -> None:
        start = time.perf_counter_ns()
        operation()
        self.read(self._nothing)  # runs what was enqueued
        part = self.parts.setdefault(name, Part(name))
        part.ms += (time.perf_counter_ns() - start) / 1e6
        part.calls += 1
        part.nbytes += nbytes

    def embed(self, out: np.ndarray) -> None:
        self._charge("embedding", lambda: HostRuntime.embed(self, out))

    def rmsnorm(self, out: np.ndarray, x: np.ndarray, *, weights: np.ndarray) -> None:
        self._charge("norms", lambda: HostRuntime.rmsnorm(self, out, x, weights=weights))

    def linear(self, out: np.ndarray, x: np.ndarray, matrix: Any, add: bool = False) -> None:
        nbytes = sum(part.rows * part.row_bytes for part in matrix)
        name = self._classes[id(matrix)]
        self._charge(name, lambda: HostRuntime.linear(self, out, x, matrix, add), nbytes)

    def rotate_and_store(
        self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray, first_query: int
    ) -> None:
        self._charge(
            "RoPE, KV cache", lambda: HostRuntime.rotate_and_store(self, layer, q, k, v, first_query)
        )

    def attention(self, layer: int, out: np.ndarray, q: np.ndarray, first_query: int) -> None:
        self._charge("attention", lambda: HostRuntime.attention(self, layer, out, q, first_query))

    def swiglu(self, out: np.ndarray, gate_up: np.ndarray) -> None:
        self._charge("swiglu", lambda: HostRuntime.swiglu(self, out, gate_up))


def take_apart(
    model: Model, ids: Sequence[int], decoded: int = 8, threads: int | None = None
) -> tuple[Apart, Apart]:
    """The prefill of these tokens and the decode of one more, by class of work.

    Args:
        decoded: tokens over which a decode is averaged. threads: of the host backend.

    Raises:
        InputError: no tokens, or more than the model's context.
    """
    plain, watched = HostBackend(threads), ObservedHostBackend(threads)
    sessions = [Session(model, backend, n_ctx=len(ids) + decoded) for backend in (plain, watched)]
    for session in sessions:
        session.warm_up()
    runtime = watched.runtime
    walls: dict[str, list[float]] = {"prefill": [], "decode": []}
    seen: dict[str, list[tuple[float, list[Part]]]] = {"prefill": [], "decode": []}
    for _ in range(PASSES):
        for phase, ms in _pass(sessions[0], ids, decoded).items():
            walls[phase].append(ms)
        for phase, parts in _observed(sessions[1], runtime, ids, decoded).items():
            seen[phase].append((sum(part.ms for part in parts), parts))
    where = plain.describe()
    return tuple(
        Apart(
            phase,
            tokens,
            where,
            statistics.median(walls[phase]),
            tuple(sorted(seen[phase], key=lambda one: one[0])[PASSES // 2][1]),
        )
        for phase, tokens in (("prefill", len(ids)), ("decode", 1))
    )


def _pass(session: Session, ids: Sequence[int], decoded: int) -> dict[str, float]:
    """Milliseconds of a prefill, and of a decoded token."""
    session.reset()
    start = time.perf_counter_ns()
    token = int(session.forward(ids).argmax())
    middle = time.perf_counter_ns()
    for _ in range(decoded):
        token = int(session.forward([token]).argmax())
    end = time.perf_counter_ns()
    return {"prefill": (middle - start) / 1e6, "decode": (end - middle) / decoded / 1e6}


def _observed(
    session: Session, runtime: ObservedHostRuntime, ids: Sequence[int], decoded: int
) -> dict[str, list[Part]]:
    session.reset()
    runtime.parts = {}
    token = int(session.forward(ids).argmax())
    prefill, runtime.parts = runtime.parts, {}
    for _ in range(decoded):
        token = int(session.forward([token]).argmax())
    decode = [
        Part(part.name, part.ms / decoded, part.calls // decoded, part.nbytes // decoded)
        for part in runtime.parts.values()
    ]
    return {"prefill": list(prefill.values()), "decode": decode}
