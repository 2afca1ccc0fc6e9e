"""A decode step in five kernels a layer, where the device and the model's formats allow (sm_90; Q4_K, Q6_K).

The forward states its operations one by one; here an operation that a later kernel does itself is only noted:

    rmsnorm           noted; the product that reads it norms, and quantizes, what it multiplies
    linear q, k, v    GEMV
    rotate_and_store  noted
    attention         bias, RoPE, KV store, split-KV attention, combination
    linear o          GEMV + residual
    rmsnorm           noted
    linear gate_up    GEMV + gated activation + quantization
    swiglu            noted
    linear down       GEMV + residual
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from minfer.cuda.attention import AttentionStepConfig, attention_step
from minfer.cuda.attention.splits import MOST_SPLITS
from minfer.cuda.attention.step import ONE_BLOCK, TURN_ROWS
from minfer.cuda.gemv import GemvStreamConfig, GemvTwoConfig, gemv_stream, gemv_stream_two
from minfer.cuda.gemv.fine import fine_record_bytes
from minfer.cuda.gemv.lanes import LANE_DOTS
from minfer.cuda.gemv.stream_config import WEIGHTS
from minfer.cuda.kernel import ConfigRefused, Kernel
from minfer.engine.backend import Weights
from minfer.engine.cuda.activations import Activations
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.weights import Run, Stack, kernel
from minfer.model.config import ModelConfig

CHAINED = False
"""Kernels wait for their predecessor's blocks by a counter in memory, not for its end (see `gemv.stream`)."""
LAUNCHES = 7  # a layer's at most: five, where q, k and v are of at most two formats
NORMED, RECORDS = "to be normed", "records"
"""Forms of buffers: contents that are still elsewhere, and fine records (`minfer.cuda.gemv.fine`)."""


def step_splits(config: ModelConfig, n_ctx: int, sms: int) -> int:
    """Splits of a step's attention: a block a multiprocessor, none with too few rows."""
    if n_ctx <= ONE_BLOCK:
        return 1
    return max(1, min(sms // config.n_kv_heads, -(-n_ctx // TURN_ROWS), MOST_SPLITS))


def _products(weights: Weights) -> Iterator[tuple[Stack, dict[str, Any]]]:
    """Every product of a step, and how it is fused."""
    for layer in weights.layers:
        yield layer.qkv, _NORMED
        yield layer.o, _ADDED
        yield layer.gate_up, _GATED
        yield layer.down, _ADDED
    yield weights.output, _NORMED


_NORMED = {"source": "norm", "chained": CHAINED}
_ADDED = {"addend": True, "chained": CHAINED}
_GATED = {"source": "norm", "pairs": True, "records": True, "chained": CHAINED}


class DecodeStep:
    """The operations of a step of one token. `fits` says whether there is one for a model's weights."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        device: Device,
        n_ctx: int,
        positions: Any,
        rope_table: Any,
        keys: list[Any],
        values: list[Any],
    ):
        self.config, self.weights, self.device = config, weights, device
        self._positions, self._rope_table, self._keys, self._values = positions, rope_table, keys, values
        layer = weights.layers[0]
        self._attention = AttentionStepConfig(
            config.n_heads,
            config.n_kv_heads,
            config.head_dim,
            config.rope.dimension_count,
            config.rope.interleaved,
            bias=layer.qkv.bias is not None,
            norm=layer.q_norm is not None,
            splits=step_splits(config, n_ctx, device.sms),
            chained=CHAINED,
        )
        self._partial = device.empty(self._attention.partial_shape, np.float32)
        self._statistics = device.empty(self._attention.statistics_shape, np.float32)
        self._counters = device.empty(self._attention.counters, np.uint32)
        device.write(self._counters, np.zeros(self._attention.counters, np.uint32))
        self._chain = device.empty(LAUNCHES * config.n_layers + 2, np.uint32)
        self._done, self._blocks = 0, 0  # launches of the step under way, blocks of the last one
        self._noted: tuple[Any, ...] = ()
        self._gated: Activations | None = None

    @staticmethod
    def fits(config: ModelConfig, weights: Weights, device: Device) -> bool:
        """Whether every product of a step has a kernel here."""
        if device.arch != "sm_90a":
            return False
        for stack, how in _products(weights):
            if any(run.format not in LANE_DOTS or run.blocks.nbytes % 16 for run in stack.runs):
                return False
            if how is _GATED and (len(stack.runs) > 1 or config.ffn % WEIGHTS):
                return False
            try:
                _configs(stack, how, device.sms)
            except ConfigRefused:
                return False
        return True

    def begin(self) -> None:
        """Nothing of the step has been launched."""
        if self._attention.chained:
            self.device.clear(self._chain)
        self._done = self._blocks = 0

    def _launch(self, made: Kernel, grid: tuple[int, int, int], *args: Any) -> None:
        """Launch the next kernel of the chain. The first one waits for what is no part of it."""
        n, chain = self._done, ()
        if self._attention.chained:
            before, after = self._chain[max(n - 1, 0) : max(n, 1)], self._chain[n : n + 1]
            chain = before, self._blocks, after
        self.device.launch(made, grid, *args, *chain, pdl=n > 0)
        self._done, self._blocks = n + 1, grid[0] * grid[1]

    def rmsnorm(self, out: Activations, x: Activations, weights: Any) -> None:
        """The next product norms x."""
        self._noted = x.matrix("f32")[0], weights, self.config.rms_eps
        out.storage.mark(NORMED)

    def linear(self, out: Activations, x: Activations, matrix: Stack, add: bool) -> None:
        """out = (out +) matrix x; for gate and up the records of their gated activation."""
        gated = out.storage.role == "gate_up"
        how = _GATED if gated else _ADDED if add else _NORMED
        operands = self._noted
        if x.storage.form == RECORDS:
            operands = (_records(self._gated if x.storage.role == "activated" else x, matrix.columns),)
        y = _records(out, matrix.rows // 2) if gated else out.matrix("f32")[0]
        sms, first = self.device.sms, 0
        for config, runs in _configs(matrix, how, sms):
            rows = [run.rows // 2 if gated else run.rows for run in runs]
            target = y if gated else y[first : first + sum(rows)]
            split, addend = (), (target,) if add else ()
            if isinstance(config, GemvTwoConfig):
                factory, grid, split = gemv_stream_two, config.grid(sms), (config.split(*rows, sms),)
            else:
                factory, grid = gemv_stream, config.grid(*rows, sms)
            self._launch(
                kernel(factory, config), grid,
                *(run.blocks for run in runs), *operands, *addend, target, *rows, *split,
            )  # fmt: skip
            first += sum(rows)
        out.storage.mark(RECORDS if gated else "f32")

    def attention(self, layer: int, out: Activations, q: Activations) -> None:
        """From the raw projections, the parent of q, to records."""
        weights, config = self.weights.layers[layer], self._attention
        bias = (weights.qkv.bias,) if config.bias else ()
        norms = (weights.q_norm, weights.k_norm, self.config.rms_eps) if config.norm else ()
        self._launch(
            kernel(attention_step, config), config.grid(),
            q.storage.parent.matrix("f32")[0], *bias, *norms, self._positions, self._rope_table,
            self._keys[layer], self._values[layer], self._partial, self._statistics, self._counters,
            _records(out, self.config.n_heads * self.config.head_dim), self.config.head_dim**-0.5,
        )  # fmt: skip
        out.storage.mark(RECORDS)

    def swiglu(self, out: Activations, gate_up: Activations) -> None:
        """`linear` has done it, into the buffer of gate and up."""
        self._gated = gate_up
        out.storage.mark(RECORDS)


def _records(x: Activations, dim: int) -> Any:
    """Room for a token's fine records in a buffer's memory."""
    return x.storage.memory[: fine_record_bytes(dim)]


def _configs(stack: Stack, how: dict[str, Any], sms: int) -> list[tuple[Any, tuple[Run, ...]]]:
    """(config, runs that it takes) of the launches of a product: a pair of runs in one, where that can be."""
    runs, columns = stack.runs, stack.columns
    if len(runs) == 2 and how is _NORMED:
        upper, lower = runs
        config = GemvTwoConfig.for_shapes(
            upper.format, upper.rows, lower.format, lower.rows, columns, how["source"], how["chained"], sms
        )
        return [(config, runs)]
    halved = 2 if how is _GATED else 1
    return [
        (GemvStreamConfig.for_shape(run.format, columns, run.rows // halved, sms=sms, **how), (run,))
        for run in runs
    ]
