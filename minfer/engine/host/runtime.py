"""The host backend: the forward's operations as steps of a thread team, with BLAS for products of many
tokens.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import numba
import numpy as np

from minfer.engine.backend import KvDtype, Progress, Role
from minfer.engine.host import attention, elementwise
from minfer.engine.host.kv_cache import KvCache
from minfer.engine.host.matvec import matvec_kernel, unpack_kernel
from minfer.engine.host.team import Program, Team, default_threads, float_bits, team
from minfer.engine.host.weights import Matrix, address, load_weights
from minfer.model.model import Model
from minfer.model.rope import frequencies

# Up to this many tokens a product reads the blocks once per token; above, unpacking them for BLAS is cheaper.
FEW_TOKENS = 3
PANEL_FLOATS = 1 << 22
SCORE_FLOATS = 1 << 22
QUERY_BLOCK = 128
PART_WEIGHTS = 1 << 16


class HostBackend:
    """Runs models on the CPU."""

    name = "host"

    def __init__(self, threads: int | None = None):
        self.threads = threads or default_threads()

    def describe(self) -> str:
        """The CPU and the number of threads."""
        return f"{_cpu_name()}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def versions(self) -> dict[str, str]:
        """numba and NumPy (whose BLAS does the prefill's products)."""
        return {"numba": numba.__version__, "numpy": np.__version__}

    def open(
        self, model: Model, n_ctx: int, kv_dtype: KvDtype, chunk: int, progress: Progress | None = None
    ) -> HostRuntime:
        """Map a model; see `Backend.open`."""
        return HostRuntime(model, n_ctx, kv_dtype, chunk, team(self.threads))


class HostRuntime:
    """See `minfer.engine.backend.Runtime`. Buffers are float32 NumPy arrays."""

    def __init__(self, model: Model, n_ctx: int, kv_dtype: KvDtype, chunk: int, team: Team):
        self.config = config = model.config
        self.weights, self._embedding = load_weights(model)
        self._team = team
        self._program = Program()
        self._capturing = False
        self._kv = KvCache(config, n_ctx, kv_dtype)
        self._ids = np.zeros(chunk, np.int64)
        self._position = np.zeros(1, np.int64)
        self._pairs = config.head_dim // 2
        self._frequencies, self._rope_scale = frequencies(config, model.rope_freqs)
        self._rotary = np.zeros((chunk, 2 * self._pairs), np.float32)
        few = min(chunk, FEW_TOKENS)
        self._few_scores = np.empty((few, config.n_heads, self._kv.context), np.float32)
        self._panel: np.ndarray | None = None
        self._scratch: dict[str, np.ndarray] = {}

    # --- state ---------------------------------------------------------------------------------------------

    def buffer(self, role: Role, rows: int, columns: int) -> np.ndarray:
        """See Runtime.buffer."""
        return np.empty((rows, columns), np.float32)

    def set_tokens(self, ids: Sequence[int], position: int) -> None:
        """See Runtime.set_tokens."""
        self._ids[: len(ids)] = ids
        self._position[0] = position

    def capture(self, forward: Callable[[], None]) -> Callable[[], None]:
        """See Runtime.capture; only forwards of few tokens can be captured (the others call BLAS)."""
        self._flush()
        self._capturing = True
        try:
            forward()
        finally:
            self._capturing = False
            table, self._program = self._program.table(), Program()
        return lambda: self._team.run(table)

    def read(self, buffer: np.ndarray) -> np.ndarray:
        """See Runtime.read."""
        self._flush()
        return buffer.copy()

    def _flush(self) -> None:
        if self._capturing:
            raise RuntimeError("a forward that calls BLAS cannot be captured")
        if len(self._program):
            table, self._program = self._program.table(), Program()
            self._team.run(table)

    def _parts(self, work: int, grain: int) -> int:
        """Parts for a step of `work` units, none much smaller than `grain`."""
        return max(1, min(4 * self._team.threads, work // grain))

    def _temporary(self, name: str, *shape: int) -> np.ndarray:
        """Float32 scratch, kept from call to call and grown when needed."""
        size = math.prod(shape)
        if name not in self._scratch or self._scratch[name].size < size:
            self._scratch[name] = np.empty(size, np.float32)
        return self._scratch[name][:size].reshape(shape)

    # --- operations ----------------------------------------------------------------------------------------

    def embed(self, out: np.ndarray) -> None:
        """See Runtime.embed. Also prepares the cosines and sines of the tokens' positions."""
        n = len(out)
        table = self._embedding
        self._program.add(
            unpack_kernel(table.type), address(out), table.address, table.row_bytes, n, table.blocks,
            address(self._ids), parts=self._parts(n, 16), wait=False,
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
            self._linear_blas(out, x, matrix, add)
            return
        column = 0
        for i, part in enumerate(matrix):
            parts = self._parts(part.rows * part.columns, PART_WEIGHTS)
            for row in range(len(x)):
                last = i == len(matrix) - 1 and row == len(x) - 1
                self._program.add(
                    matvec_kernel(part.type), address(out[row:, column:]), address(x[row:]), part.address,
                    part.row_bytes, part.rows, part.blocks, part.bias_address, int(add),
                    parts=parts, wait=last,
                )  # fmt: skip
            column += part.rows

    def _linear_blas(self, out: np.ndarray, x: np.ndarray, matrix: tuple[Matrix, ...], add: bool) -> None:
        """Unpack as many rows as fit in the panel, of one matrix or several, multiply, and go on."""
        columns = x.shape[1]
        limit = max(1, PANEL_FLOATS // columns)
        panel = self._temporary("panel", limit, columns)
        filled = done = 0
        for part in matrix:
            start = 0
            while start < part.rows:
                rows = min(part.rows - start, limit - filled)
                self._program.add(
                    unpack_kernel(part.type), address(panel[filled:]), part.address + start * part.row_bytes,
                    part.row_bytes, rows, part.blocks, 0, parts=self._parts(rows * columns, PART_WEIGHTS),
                )  # fmt: skip
                start += rows
                filled += rows
                if filled == limit or (start == part.rows and part is matrix[-1]):
                    self._multiply(out[:, done : done + filled], x, panel[:filled], add)
                    done += filled
                    filled = 0
        column = 0
        for part in matrix:
            if part.bias is not None:
                out[:, column : column + part.rows] += part.bias
            column += part.rows

    def _multiply(self, out: np.ndarray, x: np.ndarray, panel: np.ndarray, add: bool) -> None:
        self._flush()
        if add:
            product = self._temporary("product", *out.shape)
            np.matmul(x, panel.T, out=product)
            np.add(out, product, out=out)
        else:
            np.matmul(x, panel.T, out=out)

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
            self._attention_blas(layer, out, q, first_query)
            return
        position = self._position
        if first_query:  # the tail of a longer forward: never captured, so the position is known now
            position = self._position + first_query
            self._scratch["tail position"] = position  # the program holds its address only
        self._program.add(
            attention.attend, address(out), address(q), q.strides[0], address(self._kv.keys[layer]),
            address(self._kv.values[layer]), self._kv.context, address(position), len(q), config.n_heads,
            config.n_heads // config.n_kv_heads, config.head_dim, address(self._few_scores),
            float_bits(config.head_dim**-0.5), int(self._kv.halves), parts=len(q) * config.n_heads,
        )  # fmt: skip

    def _attention_blas(self, layer: int, out: np.ndarray, q: np.ndarray, first_query: int) -> None:
        """Blocks of queries against all keys that they see: two products a head around a softmax."""
        config, head_dim = self.config, self.config.head_dim
        group = config.n_heads // config.n_kv_heads
        n = len(q)
        start = int(self._position[0]) + first_query
        keys = self._widened("keys", self._kv.keys[layer], start + n)
        values = self._widened("values", self._kv.values[layer], start + n)
        for begin in range(0, n, QUERY_BLOCK):
            queries = min(QUERY_BLOCK, n - begin)
            seen = start + begin + queries
            width = -(-seen // 16) * 16
            together = max(1, min(config.n_heads, SCORE_FLOATS // (queries * width)))
            for head in range(0, config.n_heads, together):
                heads = range(head, min(head + together, config.n_heads))
                scores = self._temporary("scores", len(heads), queries, width)
                self._flush()
                for i, h in enumerate(heads):
                    block = q[begin : begin + queries, h * head_dim : (h + 1) * head_dim]
                    np.matmul(block, keys[h // group, :seen].T, out=scores[i, :, :seen])
                self._program.add(
                    attention.causal_softmax, address(scores), queries, len(heads), width, start + begin,
                    float_bits(head_dim**-0.5), parts=self._parts(scores.size, 1 << 14),
                )  # fmt: skip
                self._flush()
                for i, h in enumerate(heads):
                    target = out[begin : begin + queries, h * head_dim : (h + 1) * head_dim]
                    np.matmul(scores[i, :, :seen], values[h // group, :seen], out=target)

    def _widened(self, name: str, cache: np.ndarray, count: int) -> np.ndarray:
        """The first `count` entries of each head of a layer's cache in f32 (kv heads, count, head_dim)."""
        if not self._kv.halves:
            return cache[:, :count]
        heads, _, head_dim = cache.shape
        wide = self._temporary(name, heads, count, head_dim)
        for head in range(heads):
            self._program.add(
                elementwise.widen, address(wide[head]), address(cache[head]), count * head_dim,
                parts=self._parts(count * head_dim, 1 << 14), wait=head == heads - 1,
            )  # fmt: skip
        return wide

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
