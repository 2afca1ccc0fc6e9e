"""A plain NumPy float32 forward pass over a model's dequantized tensors: what the names and numbers mean."""

import numpy as np

from minfer.model.model import Model
from minfer.model.rope import frequencies


def forward(model: Model, ids: list[int]) -> np.ndarray:
    """Logits float32 (len(ids), vocab) of a prompt, all positions at once, without a cache."""
    config, weights, n = model.config, model.file.dequantized, len(ids)
    inv_freq, scale = frequencies(config, model.rope_freqs)
    angles = np.arange(n, dtype=np.float32)[:, None, None] * inv_freq
    cos, sin = np.cos(angles) * np.float32(scale), np.sin(angles) * np.float32(scale)
    causal = np.where(np.tril(np.ones((n, n), bool)), np.float32(0), np.float32(-np.inf))

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(config.rms_eps)) * weights(name)

    def heads(x, weight, bias, norm_name, rotate):
        y = x @ weights(weight).T
        y = (y + weights(bias) if bias else y).reshape(n, -1, config.head_dim)
        y = norm(y, norm_name) if norm_name else y
        if not rotate:
            return y
        # View a head as (pairs, 2): neighbours when interleaved, the two halves otherwise.
        pairs = (
            y.reshape(n, y.shape[1], -1, 2) if config.rope.interleaved else np.stack(np.split(y, 2, -1), -1)
        )
        first, second = pairs[..., 0], pairs[..., 1]
        turned = [first * cos - second * sin, first * sin + second * cos]
        return (
            np.stack(turned, -1).reshape(y.shape) if config.rope.interleaved else np.concatenate(turned, -1)
        )

    x = weights(model.embedding)[ids]
    group = config.n_heads // config.n_kv_heads
    for index in range(config.n_layers):
        layer = model.layer(index)
        h = norm(x, layer.attn_norm)
        q = heads(h, layer.q, layer.q_bias, layer.q_norm, rotate=True)
        k = heads(h, layer.k, layer.k_bias, layer.k_norm, rotate=True).repeat(group, axis=1)
        v = heads(h, layer.v, layer.v_bias, None, rotate=False).repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.float32(config.head_dim**0.5) + causal
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", scores, v).reshape(n, -1) @ weights(layer.o).T
        h = norm(x, layer.ffn_norm)
        gate = h @ weights(layer.gate).T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weights(layer.up).T)) @ weights(layer.down).T
    return norm(x, model.output_norm) @ weights(model.output).T
