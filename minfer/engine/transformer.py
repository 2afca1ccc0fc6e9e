"""The forward pass of a decoder-only transformer (llama, qwen2, qwen3), written once over a backend's
operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from minfer.engine.backend import Buffer, Runtime
from minfer.model.config import ModelConfig

Wanted = Literal["none", "last", "all"]


@dataclass(frozen=True)
class Buffers:
    """Activations of up to `rows` tokens; each is float32 or what the backend prefers for that role."""

    rows: int
    residual: Buffer  # (rows, hidden)
    normed: Buffer  # (rows, hidden): input of the projections
    qkv: Buffer  # (rows, q_dim + 2 * kv_dim)
    attended: Buffer  # (rows, q_dim)
    gate_up: Buffer  # (rows, 2 * ffn)
    activated: Buffer  # (rows, ffn)
    logits: Buffer  # (rows or 1, vocab)

    @classmethod
    def allocate(cls, runtime: Runtime, config: ModelConfig, rows: int, logits_rows: int) -> Buffers:
        """Ask the backend for buffers of `rows` tokens and `logits_rows` rows of logits."""
        q_dim, kv_dim = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        return cls(
            rows=rows,
            residual=runtime.buffer("residual", rows, config.hidden),
            normed=runtime.buffer("normed", rows, config.hidden),
            qkv=runtime.buffer("qkv", rows, q_dim + 2 * kv_dim),
            attended=runtime.buffer("attended", rows, q_dim),
            gate_up=runtime.buffer("gate_up", rows, 2 * config.ffn),
            activated=runtime.buffer("activated", rows, config.ffn),
            logits=runtime.buffer("logits", logits_rows, config.vocab_size),
        )


def forward(runtime: Runtime, config: ModelConfig, buffers: Buffers, n: int, wanted: Wanted) -> None:
    """Enqueue the forward of the `n` tokens given to `runtime.set_tokens`, appending to its KV cache.

    Logits land in buffers.logits: of the last token in row 0, or of all n tokens. Unless all are wanted,
    the last layer past its K and V, and the output projection, run for the last token only; for "none" not
    at all.
    """
    q_dim = config.n_heads * config.head_dim
    kv_dim = config.n_kv_heads * config.head_dim
    weights = runtime.weights
    x, normed, qkv = buffers.residual[:n], buffers.normed[:n], buffers.qkv[:n]
    attended, gate_up, activated = buffers.attended[:n], buffers.gate_up[:n], buffers.activated[:n]
    q, k, v = qkv[:, :q_dim], qkv[:, q_dim : q_dim + kv_dim], qkv[:, q_dim + kv_dim :]
    first = 0
    runtime.embed(x)
    for index, layer in enumerate(weights.layers):
        tail = wanted != "all" and index == config.n_layers - 1
        runtime.rmsnorm(normed, x, weights=layer.attn_norm)
        if tail and n > 1:
            first = n - 1
            q = q[first:]
            runtime.linear(qkv[:, q_dim:], normed, layer.kv)
            if wanted == "last":
                runtime.linear(q, normed[first:], layer.q)
        else:
            runtime.linear(qkv, normed, layer.qkv)
        runtime.rotate_and_store(index, q, k, v, first)
        if tail and wanted == "none":
            return
        if first:
            x = x[first:]
            normed, attended, gate_up, activated = normed[:1], attended[:1], gate_up[:1], activated[:1]
        runtime.attention(index, attended, q, first)
        runtime.linear(x, attended, layer.o, add=True)
        runtime.rmsnorm(normed, x, weights=layer.ffn_norm)
        runtime.linear(gate_up, normed, layer.gate_up)
        runtime.swiglu(activated, gate_up)
        runtime.linear(x, activated, layer.down, add=True)
    runtime.rmsnorm(normed, x, weights=weights.output_norm)
    runtime.linear(buffers.logits[: len(x)], normed, weights.output)
