"""A decode step in one kernel, where the device and the model's formats allow (sm_90; Q4_K, Q6_K).

The forward states its operations one by one; all but the embedding are only noted, and then
`minfer.cuda.token` does them all, and the choice of the next token too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.token import TokenConfig, decode_token
from minfer.cuda.token.config import most_blocks
from minfer.cuda.token.schedule import Layer, Matrix, model_schedule, table
from minfer.engine.backend import Weights
from minfer.engine.cuda.activations import Activations
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.launches import kernel
from minfer.engine.cuda.weights import Run, Stack
from minfer.model.config import ModelConfig

FORMATS = ("Q4_K", "Q6_K")


class TokenState(NamedTuple):
    """A token's id, its position, and the length of the context with it, int32 [1] each; what has been chosen
    after positions of both parities, int32 [2]."""

    token: Any
    position: Any
    length: Any
    chosen: Any


class TokenStep:
    """One token through all layers, by a kernel with these fields (`Route.token_fields`). Raises
    ConfigRefused where the kernel has no place for the model, and CompileError or LaunchRefused where it
    cannot run."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        device: Device,
        state: TokenState,
        rope_table: Any,
        keys: list[Any],
        values: list[Any],
        fields: Mapping[str, Any],
    ):
        self.config, self.device = config, device
        _check(weights, device)
        layers = [
            self._layer(layer, *caches) for layer, *caches in zip(weights.layers, keys, values, strict=True)
        ]
        output = self._matrix(weights.output.runs[0])
        entries = model_schedule(layers, device.offset(weights.output_norm), output)
        rope = config.rope
        q_dim, kv_dim = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        self._config = made = TokenConfig(
            config.n_heads, config.n_kv_heads, config.head_dim, rope.dimension_count, config.hidden,
            config.ffn, len(entries), rope.interleaved, weights.layers[0].qkv.bias is not None,
            min(device.sms, most_blocks(config.hidden, q_dim, config.ffn)), **fields,
        )  # fmt: skip
        device.load(kernel(decode_token, made))
        schedule = table(entries, made)
        self._schedule = device.empty(schedule.shape, np.uint32)
        device.write(self._schedule, schedule)
        self._residual = device.empty(made.sums_shape(config.hidden), np.float32) if made.tagged else None
        self._qkv = device.empty(made.sums_shape(q_dim + 2 * kv_dim), np.float32)
        self._records = [device.empty(made.exchanged_bytes(n), np.uint8) for n in (q_dim, config.ffn)]
        self._split_sums = [device.empty(n, np.float32) for n in (made.partial_shape, made.statistics_shape)]
        self._counters = [device.empty(n, np.uint32) for n in (made.groups, 3, 2)]
        exchanged = [self._residual, self._qkv, *self._records] if made.tagged else []
        for cleared in (*self._counters, *exchanged):
            device.write(cleared, np.zeros(cleared.shape, cleared.dtype))
        self._state, self._rope_table = state, rope_table
        self._spare = device.empty(config.vocab_size, np.float32)
        self._x: Any = None
        self._logits: Any = None

    def _matrix(self, run: Run) -> Matrix:
        return Matrix(self.device.offset(run.blocks), run.format, run.rows, run.columns)

    def _layer(self, layer: Any, keys: Any, values: Any) -> Layer:
        offset = self.device.offset
        return Layer(
            attn_norm=offset(layer.attn_norm),
            ffn_norm=offset(layer.ffn_norm),
            bias=0 if layer.qkv.bias is None else offset(layer.qkv.bias),
            qkv=tuple(self._matrix(run) for run in layer.qkv.runs),
            o=self._matrix(layer.o.runs[0]),
            gate_up=self._matrix(layer.gate_up.runs[0]),
            down=self._matrix(layer.down.runs[0]),
            keys=offset(keys),
            values=offset(values),
        )

    def begin(self) -> None:
        """Nothing of the step has been launched, and nobody wants its logits."""
        self._x, self._logits = None, self._spare

    def rmsnorm(self, out: Activations, x: Activations, weights: Any) -> None:
        """The first one's x is the embedded token."""
        if self._x is None:
            self._x = x.matrix("f32")[0]

    def linear(self, out: Activations, x: Activations, matrix: Stack, add: bool) -> None:
        """The last one is that of the logits."""
        if out.storage.role == "logits":
            self._logits = out.matrix("f32")[0]
            out.storage.mark("f32")

    def attention(self, layer: int, out: Activations, q: Activations) -> None:
        """Part of the kernel."""

    def swiglu(self, out: Activations, gate_up: Activations) -> None:
        """Part of the kernel."""

    def settle(self) -> None:
        """Launch what has been stated, if it has not been."""
        if self._x is not None:
            self._launch(choose=False)

    def choose(self) -> None:
        """Launch what has been stated; the state becomes that of the most likely token."""
        self._launch(choose=True)

    def _launch(self, choose: bool) -> None:
        config, origin, state = self._config, self.device.origin(), self._state
        x, self._x = self._x, None
        self.device.launch(
            kernel(decode_token, config), config.grid,
            self._schedule, origin, origin.view(np.float32), origin.view(np.float16), origin.view(np.float16),
            x, x if self._residual is None else self._residual, self._qkv, *self._records, self._logits,
            state.position, self._rope_table, *self._split_sums, *self._counters,
            state.chosen, state.token, state.length,
            self.config.rms_eps, self.config.head_dim**-0.5, int(choose),
        )  # fmt: skip


def _check(weights: Weights, device: Device) -> None:
    """Raise ConfigRefused where a product has no kernel here."""
    if device.arch != "sm_90a":
        raise ConfigRefused(f"decode_token: {device.arch}; it is for sm_90a")

    def check(name: str, stack: Stack, formats: tuple[str, ...], most: int = 1) -> None:
        found = [run.format for run in stack.runs]
        if len(found) > most or any(format not in formats for format in found):
            raise ConfigRefused(f"decode_token: {name} of {', '.join(found)}")
        if any(run.blocks.nbytes % 16 for run in stack.runs):
            raise ConfigRefused(f"decode_token: {name} ends within 16 bytes")

    for layer in weights.layers:
        if layer.q_norm is not None:
            raise ConfigRefused("decode_token: norms of heads")
        check("qkv", layer.qkv, FORMATS, 3)
        check("o", layer.o, FORMATS)
        check("gate and up", layer.gate_up, ("Q4_K",))
        check("down", layer.down, FORMATS)
    check("the output matrix", weights.output, FORMATS)
