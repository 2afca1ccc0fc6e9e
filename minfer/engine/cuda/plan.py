"""The memory plan: what a model needs on the device, decided before anything is loaded. Pure arithmetic.

Quantized blocks always reside: decoding reads them. Prefill multiplies f16 weights, in the first of three
ways that fits: "resident", an f16 copy of all layers; "scratch", one matrix at a time, dequantized anew
before every product; "blocks", the GEMM dequantizes what it stages, and no weight lies in memory as f16. The
embedding and the output matrix stay blocks only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minfer.cuda.blocks import BLOCKS
from minfer.cuda.gemm import BLOCK_SOURCES
from minfer.cuda.q8 import q8_record_bytes
from minfer.engine.cuda.routes import Route
from minfer.engine.errors import EngineError
from minfer.model.config import ModelConfig

WAYS = ("resident", "scratch", "blocks")
_HOW = {
    "resident": "prefill reads the f16 copies",
    "scratch": "prefill dequantizes every matrix before its product",
    "blocks": "prefill dequantizes within its products",
}
SCRATCH = "f16 scratch of one matrix"
FEW_TOKENS = 4
"""Up to so many tokens a product reads the blocks once per token; above, a GEMM on f16 weights is cheaper."""
RESERVE_BYTES = 512 << 20  # kernels, their stacks, graphs, other libraries' contexts
SPLIT_ROWS = 64  # cache rows of a split of the decode attention, when the context is full


@dataclass(frozen=True)
class MatrixShape:
    """A weight matrix (rows, columns) in a block format."""

    format: str
    rows: int
    columns: int

    @property
    def block_bytes(self) -> int:
        """As it is in the file."""
        return self.rows * BLOCKS[self.format].row_bytes(self.columns)

    @property
    def half_bytes(self) -> int:
        """As f16."""
        return 2 * self.rows * self.columns


@dataclass(frozen=True)
class MemoryPlan:
    """What goes where.

    Attributes:
        weights: one of WAYS.
        n_ctx, chunk: tokens that the KV cache holds, and of one pass.
        free: bytes that were free on the device.
        parts: bytes by purpose.
        activations: bytes of each activation buffer, by role.
    """

    weights: str
    n_ctx: int
    chunk: int
    free: int
    parts: dict[str, int]
    activations: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes that the model will take."""
        return sum(self.parts.values())

    @property
    def resident(self) -> bool:
        """Whether the layers' matrices are kept as f16 too."""
        return self.weights == "resident"

    def __str__(self) -> str:
        size = f"{_size(self.total)} of {_size(self.free)} free"
        return f"memory: {_table(self.parts)}: {size}; {_HOW[self.weights]}"


def activation_bytes(config: ModelConfig, chunk: int, route: Route) -> dict[str, int]:
    """Bytes of every activation buffer of a pass of `chunk` tokens.

    A buffer holds f16 for the GEMMs, or f32 or q8 records for up to FEW_TOKENS tokens.
    """
    q_dim, kv_dim = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    few, wide = min(chunk, FEW_TOKENS), route.activations == "f32"

    def operand(width: int) -> int:
        records = few * max(4 * width, q8_record_bytes(width))
        return max(chunk * width * (4 if wide else 2), records)

    longest = max(config.hidden, q_dim, config.ffn)
    return {
        "residual": 4 * chunk * config.hidden,
        "normed": operand(config.hidden),
        "qkv": 4 * chunk * (q_dim + 2 * kv_dim),
        "queries": max(2 * chunk, 4) * q_dim,
        "attended": operand(q_dim),
        "gate_up": max(2 * chunk, 4 * few) * 2 * config.ffn * (2 if wide else 1),
        "activated": operand(config.ffn),
        "delta": 4 * chunk * config.hidden,
        "converted": 2 * chunk * longest if wide and not route.keeps_f32 else 0,
        "records": few * q8_record_bytes(longest),
        "logits": 4 * config.vocab_size,
    }


def decode_splits(config: ModelConfig, n_ctx: int, sms: int) -> int:
    """Splits of the decode attention: two blocks a multiprocessor, none with too few rows."""
    return max(1, min(2 * sms // config.n_kv_heads, -(-n_ctx // SPLIT_ROWS), 64))


def plan_memory(
    config: ModelConfig,
    layers: Sequence[Sequence[Sequence[MatrixShape]]],
    tables: Sequence[MatrixShape],
    n_ctx: int,
    chunk: int,
    route: Route,
    free: int,
    sms: int,
    ways: Sequence[str] = WAYS,
) -> MemoryPlan:
    """Decide what fits.

    layers: for each layer its stacks of matrices that are multiplied at once; tables: embedding and output
    matrix (one, if they are tied); ways: those to choose from, the first that fits is taken. Raises
    EngineError, with the numbers, if even the last does not fit.
    """
    stacks = [stack for layer in layers for stack in layer]
    halves = [sum(matrix.half_bytes for matrix in stack) for stack in stacks]
    q_dim, kv_dim = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    vectors = 4 * config.n_layers * (2 * config.hidden + q_dim + 2 * kv_dim + 2 * config.head_dim)
    activations = activation_bytes(config, chunk, route)
    splits = decode_splits(config, n_ctx, sms)
    tables_bytes = 4 * n_ctx * config.rope.dimension_count
    tables_bytes += 4 * config.n_heads * splits * (config.head_dim + 2) + 4 * (2 * chunk + 1)
    needed = {
        "weights as blocks": sum(m.block_bytes for s in stacks for m in s)
        + sum(m.block_bytes for m in tables)
        + vectors,
        f"KV cache of {n_ctx:,} tokens": 4 * config.n_layers * n_ctx * kv_dim,
        f"activations of {chunk:,} tokens": sum(activations.values()) + tables_bytes,
    }
    limit = free - RESERVE_BYTES
    # What no GEMM reads as blocks goes through a scratch even so.
    unread = max(sum(m.half_bytes for m in stack if m.format not in BLOCK_SOURCES) for stack in stacks)
    choices = {
        "resident": needed | {"weights as f16": sum(halves)},
        "scratch": needed | {SCRATCH: max(halves)},
        "blocks": needed | ({SCRATCH: unread} if unread else {}),
    }
    for way in ways:
        parts = choices[way]
        if sum(parts.values()) <= limit:
            return MemoryPlan(way, n_ctx, chunk, free, parts, activations)
    raise EngineError(
        f"the model does not fit: {_table(parts)}, {_size(RESERVE_BYTES)} in reserve: "
        f"{_size(sum(parts.values()) + RESERVE_BYTES)} of {_size(free)} free; use a smaller context or "
        f"prefill chunk,{_remedy(ways[-1])} a smaller model, or the host backend"
    )


def _remedy(way: str) -> str:
    return "" if way == "blocks" else " the weights as blocks,"


def _table(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {_size(size)}" for name, size in parts.items())


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"
