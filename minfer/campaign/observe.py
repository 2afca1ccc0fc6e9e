"""Watching a pass through the engine: every launch, with the operation and the work that it belongs to.

The engine is not changed for it: a backend whose device notes launches, and whose runtime says which
operation they serve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minfer.cuda.kernel import Kernel

ROW_KERNELS = ("rmsnorm", "rope", "bias_add", "residual_add", "embedding", "store_kv", "argmax")
CLASSES = (
    (("convert",), "convert"),
    (("dequantize",), "dequantize"),
    (("quantize",), "quantize"),
    (("attention",), "FA"),
    (("swiglu",), "swiglu"),
    (ROW_KERNELS, "add/rms/rope"),
)
"""Beginnings of kernel names -> their class; every other kernel is a product of its operation's matrix."""
PRODUCTS = ("gate+up", "down", "q+k+v", "o")
TAIL = "tail"
"""The last layer past its K and V, for the last token alone (seed 002)."""
ROLES = {"qkv": "q+k+v", "q": "q+k+v", "kv": "q+k+v", "o": "o", "gate_up": "gate+up", "down": "down"}
F16_WEIGHTS = ("gemm_f16", "gemm_hopper")
"""Kernels that read a matrix's f16 copy; all others read its blocks."""
INT8_KERNELS = ("mmq", "w4a8")
"""Kernels whose tensor cores multiply int8; those of all others multiply f16."""


@dataclass(frozen=True)
class Observed:
    """One launch.

    Attributes:
        kernel: what. grid, args, pdl: how it was launched.
        bucket: its class. gmac: multiply-accumulates, 1e9; of an operation of several launches the first
            product has them all. nbytes: least bytes read and written. weight_bits: stored bits a weight.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    args: tuple
    pdl: bool
    bucket: str
    gmac: float = 0.0
    nbytes: float = 0.0
    weight_bits: float = 0.0


@dataclass
class Operation:
    """What the runtime is at.

    Attributes:
        role: of the matrix of a product, else the operation's name. rows: tokens of it, `tokens` of the pass.
        gmac, nbytes: of the whole operation, given to its first launch; nbytes None: each launch's own
            arrays.
        block_bits: stored bits a weight of the matrix's blocks.
    """

    role: str = ""
    rows: int = 0
    tokens: int = 0
    gmac: float = 0.0
    nbytes: float | None = None
    block_bits: float = 0.0


def bucket_of(kernel: str, operation: Operation) -> str:
    """The class of a launch: by its kernel's name, or by the matrix that it multiplies."""
    if operation.rows == 1 < operation.tokens and operation.role not in ("logits", "norm"):
        return TAIL
    for beginnings, name in CLASSES:
        if kernel.startswith(beginnings):
            return name
    return "lm_head" if operation.role == "logits" else ROLES.get(operation.role, operation.role)


def observing(device_type: type) -> type:
    """A device type (`minfer.engine.cuda.devices`) whose instances keep what they launch in `observed`, and
    call `around_launch`, where it is set, before the first and after every launch."""

    class ObservingDevice(device_type):
        def __init__(self, *args: Any, **rest: Any) -> None:
            super().__init__(*args, **rest)
            self.observed: list[Observed] = []
            self.operation = Operation()
            self.around_launch: Callable[[], None] | None = None
            self._mapped: dict[int, tuple[Any, int]] = {}

        def launch(self, kernel: Kernel, grid: tuple[int, int, int], *args: Any, pdl: bool = False) -> None:
            if self.around_launch is not None and not self.observed:
                self.around_launch()
            super().launch(kernel, grid, *args, pdl=pdl)
            self.observed.append(self._note(kernel, grid, args, pdl))
            if self.around_launch is not None:
                self.around_launch()

        def tensor_map(self, array: Any, box: tuple[int, int]) -> Any:
            made = super().tensor_map(array, box)
            self._mapped[id(made)] = made, array.nbytes  # kept: an id is only unique while its object lives
            return made

        def _note(self, kernel: Kernel, grid: tuple[int, int, int], args: tuple, pdl: bool) -> Observed:
            operation = self.operation
            bucket = bucket_of(kernel.name, operation)
            nbytes = operation.nbytes
            if nbytes is None:
                nbytes = sum(map(self._size, args))
            product = bucket in (*PRODUCTS, "lm_head", TAIL, "FA") and not kernel.name.startswith(
                tuple(name for names, _ in CLASSES if names != ("attention",) for name in names)
            )
            gmac = operation.gmac if product else 0.0
            bits = 0.0
            if product and operation.block_bits:
                bits = 16.0 if kernel.name in F16_WEIGHTS else operation.block_bits
            self.operation = replace(
                operation,
                gmac=0.0 if product else operation.gmac,
                nbytes=None if operation.nbytes is None else 0.0,
            )
            return Observed(kernel, grid, args, pdl, bucket, gmac, float(nbytes), bits)

        def _size(self, argument: Any) -> int:
            if id(argument) in self._mapped:
                return self._mapped[id(argument)][1]
            return int(getattr(argument, "nbytes", 0)) if hasattr(argument, "shape") else 0

    return ObservingDevice


class ObservedRuntime:
    """A runtime (`minfer.engine.backend.Runtime`) that tells its device which operation it is at.

    Attributes:
        captured: what the last captured forward launches, once.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.captured: list[Observed] = []
        self._tokens = self._position = 0
        self._roles: dict[int, str] = {}
        for layer in inner.weights.layers:
            for role in ("qkv", "q", "kv", "o", "gate_up", "down"):
                self._roles[id(getattr(layer, role))] = role
        self._roles[id(inner.weights.output)] = "logits"
        self._deferred: Operation | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _at(self, role: str, rows: int, **work: Any) -> None:
        self._inner.device.operation = Operation(role, rows, self._tokens, **work)

    def _behind_product(self, role: str, rows: int, **work: Any) -> None:
        """At an operation, or at the product before it, where that has waited for it."""
        self._at(role, rows, **work)
        if self._deferred is not None:
            self._inner.device.operation, self._deferred = self._deferred, None

    def set_tokens(self, ids: Sequence[int], position: int) -> None:
        """See Runtime.set_tokens."""
        self._tokens, self._position = len(ids), position
        self._inner.set_tokens(ids, position)

    def embed(self, out: Any) -> None:
        """See Runtime.embed."""
        table = self._inner.loaded[1]
        row = table.blocks.nbytes / table.rows
        self._at("embed", len(out), nbytes=len(out) * (row + 4 * table.columns))
        self._inner.embed(out)

    def rmsnorm(self, out: Any, x: Any, *, weights: Any) -> None:
        """See Runtime.rmsnorm."""
        self._at("norm", len(out))
        self._inner.rmsnorm(out, x, weights=weights)

    def linear(self, out: Any, x: Any, matrix: Any, add: bool = False) -> None:
        """See Runtime.linear."""
        weights = matrix.rows * matrix.columns
        blocks = sum(run.blocks.nbytes for run in matrix.runs)
        role = self._roles[id(matrix)]
        self._at(role, len(x), gmac=len(x) * weights / 1e9, block_bits=8 * blocks / weights)
        device = self._inner.device
        before = len(device.observed)
        self._inner.linear(out, x, matrix, add)
        # A product may wait for the operation behind it, which one kernel then does too.
        self._deferred = device.operation if len(device.observed) == before else None

    def rotate_and_store(self, layer: int, q: Any, k: Any, v: Any, first_query: int) -> None:
        """See Runtime.rotate_and_store."""
        query, row = self._widths()
        nbytes = len(k) * (4 * 2 * row + 2 * 2 * row) + len(q) * (4 + 2) * query
        self._behind_product("rope", len(k), nbytes=float(nbytes))
        self._inner.rotate_and_store(layer, q, k, v, first_query)

    def attention(self, layer: int, out: Any, q: Any, first_query: int) -> None:
        """See Runtime.attention."""
        query, row = self._widths()
        first = self._position + first_query
        pairs = sum(first + i + 1 for i in range(len(q)))
        context = self._position + self._tokens
        nbytes = 2.0 * 2 * len(q) * query + 2.0 * 2 * context * row
        self._at("attention", len(q), gmac=2 * query * pairs / 1e9, nbytes=nbytes)
        self._inner.attention(layer, out, q, first_query)

    def swiglu(self, out: Any, gate_up: Any) -> None:
        """See Runtime.swiglu."""
        self._behind_product("swiglu", len(out))
        self._inner.swiglu(out, gate_up)

    def capture(self, forward: Callable[[], None]) -> Callable[[], None]:
        """See Runtime.capture. A replay leaves in the device's `observed` what it launches."""
        device = self._inner.device
        device.observed = []
        replay = self._inner.capture(forward)
        half = len(device.observed) // 2  # the forward runs once before it is captured
        first, self.captured = device.observed[:half], device.observed[half:]
        if [o.kernel for o in first] != [o.kernel for o in self.captured]:
            raise RuntimeError("a captured forward launches other kernels than the one before it")

        def again() -> None:
            device.observed = list(self.captured)
            replay()

        return again

    def _widths(self) -> tuple[int, int]:
        """Elements of a token's queries, and of its keys."""
        config = self._inner.config
        return config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
