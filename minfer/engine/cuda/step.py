"""A decode step in five kernels a layer, where the device and the model's formats allow (sm_90; Q4_K, Q6_K).

The forward states its operations one by one; here an operation that a later kernel does itself is only noted:

    rmsnorm           noted; the product that reads it norms, and quantizes, what it multiplies
    linear q, k, v    GEMV
    rotate_and_store  noted
    attention         bias, RoPE, KV store, split-KV attention, combination
    linear o          GEMV + residual
    rmsnorm           noted
    linear gate_up    GEMV + gated activation
    swiglu            noted
    linear down       quantization + GEMV + residual
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from minfer.cuda.attention import AttentionStepConfig, attention_step
from minfer.cuda.attention.step import LEAST_ROWS, MOST_SPLITS
from minfer.cuda.gemv import GemvStreamConfig, gemv_stream
from minfer.cuda.gemv.lanes import LANE_DOTS
from minfer.cuda.kernel import ConfigRefused
from minfer.engine.backend import Weights
from minfer.engine.cuda.activations import Activations
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.weights import Run, Stack, kernel
from minfer.model.config import ModelConfig

NORMED, GATED = "to be normed", "gated"  # forms of buffers whose contents are elsewhere


def step_splits(config: ModelConfig, n_ctx: int, sms: int) -> int:
    """Splits of a step's attention: a block a multiprocessor, none with too few rows."""
    return max(1, min(sms // config.n_kv_heads, -(-n_ctx // LEAST_ROWS), MOST_SPLITS))


def _stacks(weights: Weights) -> Iterator[tuple[Stack, str, bool, bool]]:
    """Every product of a step: (matrix, source, pairs, addend)."""
    for layer in weights.layers:
        yield layer.qkv, "norm", False, False
        yield layer.o, "q8", False, True
        yield layer.gate_up, "norm", True, False
        yield layer.down, "f32", False, True
    yield weights.output, "norm", False, False


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
        )
        self._partial = device.empty(self._attention.partial_shape, np.float32)
        self._statistics = device.empty(self._attention.statistics_shape, np.float32)
        self._counters = device.empty(self._attention.counters, np.uint32)
        device.write(self._counters, np.zeros(self._attention.counters, np.uint32))
        self._noted: tuple[Any, Any] | None = None

    @staticmethod
    def fits(config: ModelConfig, weights: Weights, device: Device) -> bool:
        """Whether every product of a step has a kernel here."""
        if int(device.arch.removeprefix("sm_").rstrip("af")) < 90:
            return False
        for stack, source, pairs, addend in _stacks(weights):
            if pairs and (len(stack.runs) > 1 or stack.rows != 2 * config.ffn):
                return False
            for run in stack.runs:
                if run.format not in LANE_DOTS or run.blocks.nbytes % 16:
                    return False
                try:
                    _config(run, source, pairs, addend, device.sms)
                except ConfigRefused:
                    return False
        return True

    def rmsnorm(self, out: Activations, x: Activations, weights: Any) -> None:
        """The next product norms x."""
        self._noted = x.matrix("f32")[0], weights
        out.storage.mark(NORMED)

    def linear(self, out: Activations, x: Activations, matrix: Stack, add: bool) -> None:
        """out = (out +) matrix x; for gate and up their gated activation, in the first half of out."""
        form, pairs = x.storage.form, out.storage.role == "gate_up"
        source, gains = {NORMED: "norm", GATED: "f32", "q8": "q8"}[form], ()
        if form == "q8":
            operand = x.matrix("q8")[0]
        else:
            operand, norm = self._noted
            gains = () if norm is None else (norm, self.config.rms_eps)
        y, first = out.matrix("f32")[0], 0
        for run in matrix.runs:
            rows = run.rows // 2 if pairs else run.rows
            target = y[first : first + rows]
            config = _config(run, source, pairs, add, self.device.sms)
            addend = (target,) if add else ()
            self.device.launch(
                kernel(gemv_stream, config), config.grid(rows, self.device.sms),
                run.blocks, operand, *gains, *addend, target, rows, pdl=True,
            )  # fmt: skip
            first += rows
        out.storage.mark("f32")

    def attention(self, layer: int, out: Activations, q: Activations) -> None:
        """From the raw projections, the parent of q, to q8 records."""
        weights, config = self.weights.layers[layer], self._attention
        bias = (weights.qkv.bias,) if config.bias else ()
        norms = (weights.q_norm, weights.k_norm, self.config.rms_eps) if config.norm else ()
        self.device.launch(
            kernel(attention_step, config), config.grid(),
            q.storage.parent.matrix("f32")[0], *bias, *norms, self._positions, self._rope_table,
            self._keys[layer], self._values[layer], self._partial, self._statistics, self._counters,
            out.matrix("q8")[0], self.config.head_dim**-0.5, pdl=True,
        )  # fmt: skip
        out.storage.mark("q8")

    def swiglu(self, out: Activations, gate_up: Activations) -> None:
        """`linear` has done it; the next product reads it where it is."""
        self._noted = gate_up.matrix("f32")[0][: self.config.ffn], None
        out.storage.mark(GATED)


def _config(run: Run, source: str, pairs: bool, addend: bool, sms: int) -> GemvStreamConfig:
    rows = run.rows // 2 if pairs else run.rows
    return GemvStreamConfig.for_shape(run.format, run.columns, rows, source, pairs, addend, sms)
