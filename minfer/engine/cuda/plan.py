"""The memory plan: what a model needs on the device, decided before anything is loaded. Pure arithmetic.

Quantized blocks always reside: decoding reads them. Prefill multiplies f16 weights, in the first of three
ways that fits: "resident", an f16 copy of all layers; "scratch", one matrix at a time, dequantized anew
before every product; "blocks", the GEMM dequantizes what it stages, and no weight lies in memory as f16. MMQ
routes and w4a16 multiply the blocks themselves: no copy; for matrices that none of their kernels takes MMQ
routes have a scratch, w4a16 copies. The embedding and the output matrix stay blocks only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from minfer.cuda import gemm_hopper, w4a16
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.gemm import BLOCK_SOURCES
from minfer.cuda.kernel import MAX_SHARED_BYTES
from minfer.cuda.q8 import pad40_bytes, q8_record_bytes
from minfer.cuda.tile.seats import ORDER
from minfer.engine.cuda.mmq import takes, workspace
from minfer.engine.cuda.routes import Route
from minfer.engine.cuda.w4a8 import operand_bytes
from minfer.engine.cuda.w4a16 import takes as w4a16_takes
from minfer.engine.errors import EngineError
from minfer.model.config import ModelConfig

WAYS = ("resident", "scratch", "blocks")
_HOW = {
    "resident": "prefill reads the f16 copies",
    "scratch": "prefill dequantizes every matrix before its product",
    "blocks": "prefill dequantizes within its products",
}
SCRATCH, COPIES = "f16 scratch of one matrix", "weights as f16"
PARTS = "parts of tiles"
FEW_TOKENS = 4
"""Up to so many tokens a product reads the blocks once per token; above, a GEMM on f16 weights is cheaper."""
RESERVE_BYTES = 512 << 20  # kernels, their stacks, graphs, other libraries' contexts
OPERANDS = ("normed", "attended", "activated")
"""The activations that matrices multiply."""
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
        forms: what the kernels of many tokens write each of OPERANDS as.
        saved: bytes of the f16 copy that the route does without.
        w4a16: what W4A16 reads as blocks is not copied.
    """

    weights: str
    n_ctx: int
    chunk: int
    free: int
    parts: dict[str, int]
    activations: dict[str, int]
    forms: dict[str, str]
    saved: int = 0
    w4a16: bool = False

    @property
    def total(self) -> int:
        """Bytes that the model will take."""
        return sum(self.parts.values())

    @property
    def resident(self) -> bool:
        """Whether the layers' matrices are kept as f16 too."""
        return self.weights == "resident"

    @property
    def read(self) -> str:
        """What prefill reads, one of WAYS: the blocks, where the route leaves nothing to copy."""
        return "blocks" if self.resident and COPIES not in self.parts else self.weights

    def copies(self, shapes: Sequence[tuple[str, int]]) -> bool:
        """Whether matrices of a layer of these (format, columns), multiplied at once, are kept as f16 too."""
        return self.resident and not (self.w4a16 and w4a16_takes(shapes))

    def __str__(self) -> str:
        how = _HOW[self.weights]
        if self.saved:
            which = "copies of some" if COPIES in self.parts else "copy of the"
            how = f"{'f16' if COPIES in self.parts else 'no f16'} {which} weights, {_size(self.saved)} saved"
        return f"memory: {_table(self.parts)}: {_size(self.total)} of {_size(self.free)} free; {how}"


def operand_forms(
    layers: Sequence[Sequence[Sequence[MatrixShape]]], output: MatrixShape, route: Route, shared_bytes: int
) -> dict[str, str]:
    """What the kernels of many tokens write each of OPERANDS as.

    On an MMQ route chunks, where all matrices that read them are multiplied so, or f32 where only some are;
    attention writes f16, from which the chunks are made.
    """
    if route.mmq is None:
        return dict.fromkeys(OPERANDS, route.activations)
    readers = {
        "normed": [stack for qkv, _, gate_up, _ in layers for stack in (qkv, gate_up)] + [[output]],
        "activated": [down for _, _, _, down in layers],
    }
    forms = {"attended": "f16"}
    for role, stacks in readers.items():
        taken = {_takes(route, stack, shared_bytes) for stack in stacks}
        forms[role] = "f32" if len(taken) == 2 else "pad40" if taken == {True} else "f16"
    return forms


def _takes(route: Route, stack: Sequence[MatrixShape], shared_bytes: int) -> bool:
    """Whether kernels that read the blocks multiply these matrices."""
    shapes = [(matrix.format, matrix.columns) for matrix in stack]
    return w4a16_takes(shapes) if route.w4a16 else takes(route.mmq, shapes, shared_bytes)


def activation_bytes(
    config: ModelConfig, chunk: int, route: Route, forms: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Bytes of every activation buffer of a pass of `chunk` tokens. forms: of the operands, None: the
    route's.

    A buffer holds what the products of many tokens read, or f32 or q8 records for up to FEW_TOKENS tokens.
    """
    forms = forms or dict.fromkeys(OPERANDS, route.activations)
    q_dim, kv_dim = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    few = min(chunk, FEW_TOKENS)
    widths = {"normed": config.hidden, "attended": q_dim, "activated": config.ffn}

    def operand(role: str) -> int:
        width = widths[role]
        whole = {"f32": 4 * width, "f16": 2 * width, "pad40": pad40_bytes(width)}[forms[role]]
        return max(chunk * whole, few * max(4 * width, q8_record_bytes(width)))

    def converted(role: str) -> int:
        """A pass between the kernel that writes an operand and the one that reads it."""
        if forms[role] == "f32" and not route.keeps_f32:
            return 2 * chunk * widths[role]
        return chunk * pad40_bytes(widths[role]) if route.mmq and forms[role] == "f16" else 0

    longest = max(widths.values())
    return {
        "residual": 4 * chunk * config.hidden,
        "normed": operand("normed"),
        "qkv": 4 * chunk * (q_dim + 2 * kv_dim),
        "queries": max(2 * chunk, 4) * q_dim,
        "attended": operand("attended"),
        "gate_up": max((4 if route.activations == "f32" else 2) * chunk, 4 * few) * 2 * config.ffn,
        "activated": operand("activated"),
        "delta": 4 * chunk * config.hidden,
        "converted": max(map(converted, OPERANDS)),
        "int8": operand_bytes(chunk, config.hidden) if route.w4a8 else 0,
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
    shared_bytes: int = MAX_SHARED_BYTES,
    ways: Sequence[str] = WAYS,
) -> MemoryPlan:
    """Decide what fits.

    layers: for each layer its stacks of matrices that are multiplied at once (qkv, o, gate_up, down); tables:
    embedding and output matrix (one, if they are tied); shared_bytes: most shared memory of a block; ways:
    those to choose from, the first that fits is taken. Raises EngineError, with the numbers, if even the last
    does not fit.
    """
    stacks = [stack for layer in layers for stack in layer]
    halves = [_half_bytes(stack) for stack in stacks]
    q_dim, kv_dim = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    vectors = 4 * config.n_layers * (2 * config.hidden + q_dim + 2 * kv_dim + 2 * config.head_dim)
    forms = operand_forms(layers, tables[-1], route, shared_bytes)
    activations = activation_bytes(config, chunk, route, forms)
    splits = decode_splits(config, n_ctx, sms)
    tables_bytes = 4 * n_ctx * config.rope.dimension_count
    tables_bytes += 4 * config.n_heads * splits * (config.head_dim + 2) + 4 * (2 * chunk + 1)
    tables_bytes += 4 * (ORDER + sms) if route.wgmma else 0
    needed = {
        "weights as blocks": sum(m.block_bytes for s in stacks for m in s)
        + sum(m.block_bytes for m in tables)
        + vectors,
        f"KV cache of {n_ctx:,} tokens": 4 * config.n_layers * n_ctx * kv_dim,
        f"activations of {chunk:,} tokens": sum(activations.values()) + tables_bytes,
    }
    if words := sum(workspace(route.mmq, sms)) if route.mmq else 0:
        needed[PARTS] = 4 * words
    limit, read, rest, choices = free - RESERVE_BYTES, [], stacks, {}
    if route.reads_blocks:
        read = [stack for stack in stacks if _takes(route, stack, shared_bytes)]
        rest = [stack for stack in stacks if not _takes(route, stack, shared_bytes)]
    split = route.wgmma and any(gemm_hopper.may_split(stack[0].columns) for stack in rest)
    if route.w4a16:
        read += [[table] for table in tables if _takes(route, [table], shared_bytes)]
        split |= any(w4a16.may_split(stack[0].columns) for stack in read)
    if split:
        needed[PARTS] = 4 * sum(split_workspace(route)(sms))
    if route.mmq is None:
        copies = sum(map(_half_bytes, rest))
        choices["resident"] = needed | ({COPIES: copies} if copies else {})
    # What no GEMM reads as blocks goes through a scratch even so.
    unread = [[m for m in stack if m.format not in BLOCK_SOURCES] for stack in rest]
    for way, scratched in (("scratch", rest), ("blocks", unread)):
        size = max(map(_half_bytes, scratched), default=0)
        choices[way] = needed | ({SCRATCH: size} if size else {})
    possible = [way for way in ways if way in choices]
    if not possible:
        raise EngineError(f"route {route.name} reads the blocks themselves: it has no resident f16 weights")
    for way in possible:
        parts = choices[way]
        if sum(parts.values()) <= limit:
            saved = sum(halves) - parts.get(COPIES, 0) - parts.get(SCRATCH, 0) if route.reads_blocks else 0
            return MemoryPlan(way, n_ctx, chunk, free, parts, activations, forms, saved, w4a16=route.w4a16)
    raise EngineError(
        f"the model does not fit: {_table(parts)}, {_size(RESERVE_BYTES)} in reserve: "
        f"{_size(sum(parts.values()) + RESERVE_BYTES)} of {_size(free)} free; use a smaller context or "
        f"prefill chunk,{_remedy(possible[-1])} a smaller model, or the host backend"
    )


def split_workspace(route: Route) -> Callable[[int], tuple[int, int]]:
    """(multiprocessors) -> f32 elements and counters of the workspace that a route's launches with split_k
    share: W4A16's tiles are the larger ones."""
    return w4a16.split_workspace if route.w4a16 else gemm_hopper.split_workspace


def _half_bytes(stack: Sequence[MatrixShape]) -> int:
    return sum(matrix.half_bytes for matrix in stack)


def _remedy(way: str) -> str:
    return "" if way == "blocks" else " the weights as blocks,"


def _table(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {_size(size)}" for name, size in parts.items())


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"
