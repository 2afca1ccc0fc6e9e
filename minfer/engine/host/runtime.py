"""The host backend: the forward's operations as steps of a thread team, run when a result is read."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import numba
import numpy as np

from minfer.engine.backend import KvDtype, Progress, Role
from minfer.engine.host import attention, elementwise
from minfer.engine.host.blocks import HALVES
from minfer.engine.host.kv_cache import KvCache
from minfer.engine.host.matmul import STRIP_FLOATS, STRIP_ROWS, matmul_kernel
from minfer.engine.host.matvec import matvec_kernel, unpack_kernel
from minfer.engine.host.team import Program, Team, default_threads, float_bits, team
from minfer.engine.host.weights import Matrix, address, load_weights
from minfer.model.model import Model
from minfer.model.rope import frequencies

# Up to this many tokens a product reads the blocks once per token; above, unpacking them first is cheaper.
FEW_TOKENS = 3
PART_WEIGHTS = 1 << 16


class HostBackend:
    """Runs models on the CPU."""

    name = "host"
    default_chunk = 512

    def __init__(self, threads: int | None = None):
        self.threads = threads or default_threads()

    def describe(self) -> str:
        """The CPU and the number of threads."""
        return f"{_cpu_name()}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def versions(self) -> dict[str, str]:
        """numba and NumPy."""
        return {"numba": numba.__version__, "numpy": np.__version__}

    def settings(self) -> dict[str, str]:
        """The number of threads."""
        return {"threads": str(self.threads)}

    def sensors(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def open(
        self, model: Model, n_ctx: int, kv_dtype: KvDtype, chunk: int, progress: Progress | None = None
    ) -> HostRuntime:
        """Map a model; see `Backend.open`."""
        return HostRuntime(model, n_ctx, kv_dtype, chunk, team(self.threads))


class HostRuntime:
    """See `minfer.engine.backend.Runtime`. Buffers are float32 NumPy arrays."""

    chooses = False  # nothing runs ahead of the caller here

    def __init__(self, model: Model, n_ctx: int, kv_dtype: KvDtype, chunk: int, team: Team):
        self.config = config = model.config
        self.weights, self._embedding = load_weights(model)
        self._team = team
        self._program = Program()
        self._kv = KvCache(config, n_ctx, kv_dtype)
        self._ids = np.zeros(chunk, np.int64)
        self._position = np.zeros(1, np.int64)
        self._pairs = config.head_dim // 2
        self._frequencies, self._rope_scale = frequencies(config, model.rope_freqs)
        self._rotary = np.zeros((chunk, 2 * self._pairs), np.float32)
        few = min(chunk, FEW_TOKENS)
        self._few_scores = np.empty((few, config.n_heads, self._kv.context), np.float32)
        self._strips = np.empty(4 * team.threads * STRIP_FLOATS, np.float32)
        self._zeros = np.zeros(
            max(config.vocab_size, config.ffn, config.n_heads * config.head_dim), np.float32
        )
        self._scratch: dict[str, np.ndarray] = {}

    # --- state ---------------------------------------------------------------------------------------------

    def buffer(self, role: Role, rows: int, columns: int) -> np.ndarray:
        """See Runtime.buffer."""
        return np.empty((rows, columns), np.float32)

    def set_tokens(self, ids: Sequence[int], position: int) -> None:
        """See Runtime.set_tokens."""
        self._program = Program()  # without the steps of a forward that was interrupted
        self._ids[: len(ids)] = ids
        self._position[0] = position

    def capture(self, forward: Callable[[], None]) -> Callable[[], None]:
        """See Runtime.capture."""
        before, self._program = self._program, Program()
        try:
            forward()
            table = self._program.table()
        finally:
            self._program = before
        return lambda: self._team.run(table)

    def read(self, buffer: np.ndarray) -> np.ndarray:
        """See Runtime.read."""
        self._run()
        return buffer.copy()

    def _run(self) -> None:
        """Run the steps enqueued so far."""
        table, self._program = self._program.table(), Program()
        self._team.run(table)

    def _parts(self, work: int, grain: int) -> int:
        """Parts for a step of `work` units: as many for each thread, and not much smaller than `grain`."""
        threads = self._team.threads
        return min(4, -(-work // (grain * threads))) * threads if work > grain else 1

    def _temporary(self, name: str, *shape: int) -> np.ndarray:
        """Float32 scratch, kept from call to call and grown when needed."""
        size = math.prod(shape)
        if name not in self._scratch or self._scratch[name].size < size:
            self._run()  # pending steps hold the address of what is given up here
            self._scratch[name] = np.empty(size, np.float32)
        return self._scratch[name][:size].reshape(shape)

    # --- operations ----------------------------------------------------------------------------------------

    def embed(self, out: np.ndarray) -> None:
        """See Runtime.embed. Also prepares the cosines and sines of the tokens' positions."""
        n = len(out)
        table = self._embedding
        self._program.add(
            unpack_kernel(table.type), address(out), table.address, table.row_bytes, n, table.blocks,
            address(self._ids), address(HALVES), parts=self._parts(n, 16), wait=False,
        )  # fmt: skip
        self._program.add(
            elementwise.rotary_table, address(self._rotary), address(self._position),
            address(self._frequencies), self._pairs, n, float_bits(self._rope_scale),
            parts=self._parts(n, 16),
        )  # fmt: skip

    def rmsnorm(self, out: np.ndarray, x: np.ndarray, *, weights: np.ndarray) -> None:
        """See Runtime.rmsnorm."""
        rows, width = x.shape
        self._program.add(
            elementwise.rmsnorm, address(out), address(x), address(weights), rows, width,
            float_bits(self.config.rms_eps), parts=self._parts(rows * width, 1 << 13),
        )  # fmt: skip

    def linear(self, out: np.ndarray, x: np.ndarray, matrix: tuple[Matrix, ...], add: bool = False) -> None:
        """See Runtime.linear."""
        if len(x) > FEW_TOKENS:
            self._matmul(out, x, matrix, add)
            return
        column = 0
        for i, part in enumerate(matrix):
            parts = self._parts(part.rows * part.columns, PART_WEIGHTS)
            for row in range(len(x)):
                last = i == len(matrix) - 1 and row == len(x) - 1
                self._program.add(
                    matvec_kernel(part.type), address(out[row:, column:]), address(x[row:]), part.address,
                    part.row_bytes, part.rows, part.blocks, part.bias_address or address(self._zeros),
                    int(add), address(HALVES), parts=parts, wait=last,
                )  # fmt: skip
            column += part.rows

    def _matmul(self, out: np.ndarray, x: np.ndarray, matrix: tuple[Matrix, ...], add: bool) -> None:
        column = 0
        for part in matrix:
            parts = min(4 * self._team.threads, -(-part.rows // STRIP_ROWS))
            self._program.add(
                matmul_kernel(part.type), address(out[:, column:]), out.strides[0], address(x), x.strides[0],
                len(x), part.address, part.row_bytes, part.rows, part.columns,
                part.bias_address or address(self._zeros), int(add), address(self._strips), address(HALVES),
                parts=parts,
            )  # fmt: skip
            column += part.rows

    def rotate_and_store(
        self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray, first_query: int
    ) -> None:
        """See Runtime.rotate_and_store."""
        config, weights, head_dim = self.config, self.weights.layers[layer], self.config.head_dim
        for x, heads, norm, first in (
            (q, config.n_heads, weights.q_norm, first_query),
            (k, config.n_kv_heads, weights.k_norm, 0),
        ):
            parts = self._parts(x.shape[0] * x.shape[1], 1 << 12)
            if norm is not None:
                self._program.add(
                    elementwise.head_norm, address(x), x.strides[0], address(norm), len(x), heads, head_dim,
                    float_bits(config.rms_eps), parts=parts,
                )  # fmt: skip
            self._program.add(
                elementwise.rotate, address(x), x.strides[0], address(self._rotary[first:]), len(x), heads,
                self._pairs, int(config.rope.interleaved), parts=parts, wait=x is k,
            )  # fmt: skip
        for x, cache in ((k, self._kv.keys[layer]), (v, self._kv.values[layer])):
            self._program.add(
                elementwise.store_kv, address(cache), self._kv.context, address(self._position), address(x),
                x.strides[0], len(x), config.n_kv_heads, head_dim, int(self._kv.halves),
                parts=self._parts(x.shape[0] * x.shape[1], 1 << 12), wait=x is v,
            )  # fmt: skip

    def attention(self, layer: int, out: np.ndarray, q: np.ndarray, first_query: int) -> None:
        """See Runtime.attention."""
        config = self.config
        if len(q) > FEW_TOKENS:
            self._attend_many(layer, out, q, first_query)
            return
        self._program.add(
            attention.attend_few, address(out), address(q), q.strides[0], address(self._kv.keys[layer]),
            address(self._kv.values[layer]), self._kv.context, address(self._position), first_query, len(q),
            config.n_heads, config.n_heads // config.n_kv_heads, config.head_dim, address(self._few_scores),
            float_bits(config.head_dim**-0.5), int(self._kv.halves), parts=len(q) * config.n_heads,
        )  # fmt: skip

    def _attend_many(self, layer: int, out: np.ndarray, q: np.ndarray, first_query: int) -> None:
        config, kv, head_dim = self.config, self._kv, self.config.head_dim
        first = int(self._position[0]) + first_query
        count = first + len(q)
        width = -(-count // 64) * 64
        keys = self._temporary("keys", config.n_kv_heads, head_dim, width)
        self._program.add(
            attention.transpose_keys, address(keys), address(kv.keys[layer]), kv.context, count, width,
            config.n_kv_heads, head_dim, int(kv.halves), parts=self._parts(keys.size, 1 << 14),
            wait=not kv.halves,
        )  # fmt: skip
        values = kv.values[layer]
        if kv.halves:
            values = self._temporary("values", config.n_kv_heads, count, head_dim)
            for head in range(config.n_kv_heads):
                self._program.add(
                    elementwise.widen, address(values[head]), address(kv.values[layer, head]),
                    count * head_dim, parts=self._parts(count * head_dim, 1 << 14),
                    wait=head == config.n_kv_heads - 1,
                )  # fmt: skip
        blocks = config.n_heads * -(-len(q) // attention.QUERY_BLOCK)
        parts = min(4 * self._team.threads, blocks)
        scores = self._temporary("scores", parts, attention.QUERY_BLOCK, width)
        self._program.add(
            attention.attend_many, address(out), address(q), q.strides[0], address(keys), width,
            address(values), values.shape[1], first, len(q), config.n_heads,
            config.n_heads // config.n_kv_heads, head_dim, address(scores), float_bits(head_dim**-0.5),
            parts=parts,
        )  # fmt: skip

    def swiglu(self, out: np.ndarray, gate_up: np.ndarray) -> None:
        """See Runtime.swiglu."""
        rows, width = out.shape
        self._program.add(
            elementwise.swiglu, address(out), address(gate_up), rows, width,
            parts=self._parts(rows * width, 1 << 12),
        )  # fmt: skip


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()
