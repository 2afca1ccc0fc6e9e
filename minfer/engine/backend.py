"""What the forward asks of a backend, and the choice of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from minfer.engine.errors import EngineError, InputError
from minfer.model.model import Model

BACKENDS = ("auto", "host", "cuda")
SWITCHES = ("MINFER_GEMM_", "MINFER_MMQ")  # beginnings: see `minfer.engine.cuda.routes`
KV_DTYPES = ("f16", "f32")
KvDtype = Literal["f16", "f32"]
Role = Literal["residual", "normed", "qkv", "attended", "gate_up", "activated", "logits"]
Progress = Callable[[str, int, int], None]
"""Called while a model is opened with (step, done, in all): "compiling" counts kernels, "loading" bytes of
weights."""


class Buffer(Protocol):
    """A matrix of activations (tokens, width) on the backend's device; slices are views, as in NumPy."""

    def __len__(self) -> int:
        """Rows."""

    def __getitem__(self, index: Any) -> Buffer:
        """A view: `buffer[rows]` or `buffer[rows, columns]`, both slices of step 1."""


@dataclass(frozen=True)
class LayerWeights:
    """One layer, prepared by the backend; what each is, the backend alone knows.

    qkv, kv, gate_up stand for matrices one above the other: their outputs lie side by side. qkv, q and kv
    add the biases where there are any; q_norm and k_norm are None where there are none.
    """

    attn_norm: Any
    qkv: Any
    q: Any
    kv: Any
    o: Any
    ffn_norm: Any
    gate_up: Any
    down: Any
    q_norm: Any = None
    k_norm: Any = None


@dataclass(frozen=True)
class Weights:
    """A model's weights, prepared by the backend."""

    layers: Sequence[LayerWeights]
    output_norm: Any
    output: Any


class Runtime(Protocol):
    """A model on a device, with one KV cache: weights, buffers and the operations on them.

    Operations are enqueued in order; only `read` waits for them. The number of tokens of an operation is
    the number of rows of its buffers.
    """

    weights: Weights
    chooses: bool
    """Whether `choose` and `chosen` are there."""

    def buffer(self, role: Role, rows: int, columns: int) -> Buffer:
        """Allocate activations for a role in the forward."""

    def set_tokens(self, ids: Sequence[int], position: int) -> None:
        """The tokens of the next forward; the first of them has index `position` in the context."""

    def embed(self, out: Buffer) -> None:
        """out = the embedding rows of the tokens. The first operation of every forward."""

    def rmsnorm(self, out: Buffer, x: Buffer, *, weights: Any) -> None:
        """out = rmsnorm(x) * weights."""

    def linear(self, out: Buffer, x: Buffer, matrix: Any, add: bool = False) -> None:
        """out = x . matrix^T + bias, or out += that if `add`."""

    def rotate_and_store(self, layer: int, q: Buffer, k: Buffer, v: Buffer, first_query: int) -> None:
        """q and k norms if the model has them, RoPE on q and k in place, append k and v to the layer's cache.

        Row 0 of q is token `first_query` of the tokens set, row 0 of k and v is token 0.
        """

    def attention(self, layer: int, out: Buffer, q: Buffer, first_query: int) -> None:
        """Causal attention of the queries over the layer's cache, all tokens set included."""

    def swiglu(self, out: Buffer, gate_up: Buffer) -> None:
        """out = silu(gate) * up."""

    def choose(self, logits: Buffer) -> None:
        """Make the most likely token of one row of logits, the lowest of equal ones, the next forward's one
        token, behind the last one."""

    def chosen(self, position: int) -> Callable[[], int]:
        """What waits for all operations until now and returns the token chosen behind the one at `position`,
        the last one of a forward; -1 if a logit was no number. The next token may be enqueued before."""

    def capture(self, forward: Callable[[], None]) -> Callable[[], None]:
        """Record the operations that `forward` enqueues, without running them; returns what replays them.

        A replay works on the tokens and position set before it, of the same count.
        """

    def read(self, buffer: Buffer) -> np.ndarray:
        """Wait for all operations and copy a buffer: float32 (rows, columns)."""


class Backend(Protocol):
    """A kind of device that runs models."""

    name: str
    default_chunk: int
    """Most tokens of one pass, where the caller does not say."""

    def describe(self) -> str:
        """The device in a few words."""

    def versions(self) -> dict[str, str]:
        """Versions of the software that the figures depend on, by name."""

    def settings(self) -> dict[str, str]:
        """What was chosen that the figures depend on, by name."""

    def sensors(self) -> dict[str, float]:
        """What the device reports of itself now, such as sm_mhz, power_w, temperature_c; {}: nothing."""

    def open(
        self, model: Model, n_ctx: int, kv_dtype: KvDtype, chunk: int, progress: Progress | None = None
    ) -> Runtime:
        """Prepare a model for contexts of n_ctx tokens and forwards of at most `chunk` tokens.

        Raises EngineError, with the numbers, if it does not fit.
        """


def choose_backend(
    name: str = "auto",
    route: str = "auto",
    weights: str = "auto",
    on_plan: Callable[[str], None] | None = None,
) -> tuple[Backend, str]:
    """The backend of that name, and one line that says why it is this one.

    route: which kernels the cuda backend prefills with (`minfer.engine.cuda.routes`); weights: in which form
    of the weights (`minfer.engine.cuda.plan`); on_plan: as `CudaBackend` takes it. Raises EngineError if
    backend or route are not to be had here, InputError for an unknown name.
    """
    if name not in BACKENDS:
        raise InputError(f"backend {name!r} is unknown: choose one of {', '.join(BACKENDS)}")
    if route != "auto":
        from minfer.engine.cuda.routes import check_route

        check_route(route)
    if name == "host":
        if route != "auto":
            raise InputError(f"route {route!r} is of the cuda backend: the host backend has none")
        if weights != "auto":
            raise InputError(f"weights {weights!r} is of the cuda backend: the host backend has one form")
        return _host(), f"host: asked for{_unused_switches()}"
    reason = _why_no_cuda()
    if reason is None:
        from minfer.engine.cuda.backend import CudaBackend

        backend = CudaBackend(route, on_plan=on_plan, weights=weights)
        return backend, f"cuda: {'asked for' if name == 'cuda' else 'a GPU is here'}: {backend.describe()}"
    if name == "cuda" or route != "auto" or weights != "auto":
        raise EngineError(f"backend cuda cannot be used: {reason}; use --backend host")
    matter, _, _ = reason.partition(": ")  # the remedy is for those who ask for cuda
    return _host(), f"host: {matter}{_unused_switches()}"


def _unused_switches() -> str:
    """What is to be said of switches of the cuda backend's routes that are set."""
    on = sorted(k for k, v in os.environ.items() if k.startswith(SWITCHES) and v not in ("", "0"))
    return f" ({', '.join(on)}: of the cuda backend, without effect here)" if on else ""


def _host() -> Backend:
    from minfer.engine.host.runtime import HostBackend

    return HostBackend()


def _why_no_cuda() -> str | None:
    """Why the cuda backend cannot run here, or None if it can."""
    from minfer.engine.cuda.backend import why_unavailable

    return why_unavailable()
