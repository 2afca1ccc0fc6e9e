"""Hyper-parameters of a model, read from its metadata and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from minfer.model.errors import ModelFileError
from minfer.model.gguf_header import TensorInfo

# Architecture -> whether RoPE turns neighbouring pairs (interleaved) or the two halves of a head (NEOX).
# llama's converter permutes the rows of q and k so that the interleaved form applies.
ARCHITECTURES = {"llama": True, "qwen2": False, "qwen3": False}
ROPE_SCALINGS = ("none", "linear", "yarn")

# Keys that would change the arithmetic in ways that are not supported: key -> neutral value.
_NEUTRAL = {"expert_count": 0, "attention.scale": 0.0, "logit_scale": 0.0, "residual_scale": 0.0}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding.

    scaling is "none", "linear" (positions divided by `factor`) or "yarn" (arXiv:2309.00071); `ext_factor`,
    `beta_fast`, `beta_slow` and `original_context` (tokens, in training) are YaRN's, as llama.cpp has them.
    `attn_factor` multiplies the cosines and sines.
    """

    dimension_count: int
    base: float
    interleaved: bool
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    ext_factor: float = 1.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a decoder-only transformer. `ffn` is the width of gate and up."""

    architecture: str
    name: str
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    context_length: int
    rms_eps: float
    rope: RopeConfig
    tied_output: bool
    has_qkv_bias: bool
    has_qk_norm: bool

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelConfig:
        """Read and check the hyper-parameters; raises ModelFileError naming the key."""
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
            raise ModelFileError(
                f"general.architecture is {architecture!r} (supported: {', '.join(sorted(ARCHITECTURES))})"
            )
        keys = _Keys(metadata, architecture)
        for key, neutral in _NEUTRAL.items():
            if keys.get(key, neutral) != neutral:
                raise ModelFileError(f"{architecture}.{key} is {keys.get(key)!r}, which is not supported")
        hidden = keys.size("embedding_length")
        n_heads = keys.size("attention.head_count")
        n_kv_heads = keys.size("attention.head_count_kv", n_heads)
        if n_heads % n_kv_heads:
            raise ModelFileError(
                f"{architecture}.attention.head_count is {n_heads}, "
                f"not a multiple of attention.head_count_kv, {n_kv_heads}"
            )
        head_dim = _head_dim(keys, hidden, n_heads)
        context_length = keys.size("context_length")
        name = metadata.get("general.name")
        return cls(
            architecture=architecture,
            name=name if isinstance(name, str) else architecture,
            n_layers=keys.size("block_count"),
            hidden=hidden,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            ffn=keys.size("feed_forward_length"),
            vocab_size=_vocab_size(metadata, tensors),
            context_length=context_length,
            rms_eps=keys.number("attention.layer_norm_rms_epsilon"),
            rope=_rope(keys, ARCHITECTURES[architecture], head_dim, context_length),
            tied_output="output.weight" not in tensors,
            has_qkv_bias="blk.0.attn_q.bias" in tensors,
            has_qk_norm=architecture == "qwen3",
        )


class _Keys:
    """Typed access to `ARCHITECTURE.key` values."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str):
        self.metadata, self.prefix = metadata, architecture + "."

    def get(self, key: str, default: Any = None) -> Any:
        value = self.metadata.get(self.prefix + key, default)
        # Some converters write one value a layer; the engine wants the same one for all.
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            return value[0]
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 to 2**31 - 1."""
        value = self.get(key, default)
        if type(value) is not int or not 0 < value < 2**31:
            raise ModelFileError(
                f"{self.prefix}{key} is {value!r}; it must be a whole number from 1 to 2147483647"
            )
        return value

    def number(self, key: str, default: float | None = None, above: float = 0.0) -> float:
        """A finite number larger than `above`."""
        value = self.get(key, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= above:
            raise ModelFileError(
                f"{self.prefix}{key} is {value!r}; it must be a finite number above {above:g}"
            )
        return float(value)


def _head_dim(keys: _Keys, hidden: int, n_heads: int) -> int:
    if keys.get("attention.key_length") is not None:
        head_dim = keys.size("attention.key_length")
    elif hidden % n_heads:
        raise ModelFileError(
            f"{keys.prefix}embedding_length is {hidden}, not a multiple of attention.head_count, {n_heads}, "
            "and there is no attention.key_length"
        )
    else:
        head_dim = hidden // n_heads
    value_length = keys.size("attention.value_length", head_dim)
    if value_length != head_dim:
        raise ModelFileError(
            f"{keys.prefix}attention.value_length is {value_length}, not the key length {head_dim}"
        )
    if head_dim % 2:
        raise ModelFileError(
            f"{keys.prefix}attention.key_length is {head_dim}; rotary embedding needs an even one"
        )
    return head_dim


def _vocab_size(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> int:
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError("tensor 'token_embd.weight' is missing or not a matrix")
    rows = embedding.shape[0]
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and (not isinstance(tokens, list) or len(tokens) != rows):
        count = len(tokens) if isinstance(tokens, list) else repr(tokens)
        raise ModelFileError(
            f"tokenizer.ggml.tokens has {count} tokens, but token_embd.weight has {rows} rows"
        )
    return rows


def _rope(keys: _Keys, interleaved: bool, head_dim: int, context_length: int) -> RopeConfig:
    dimension_count = keys.size("rope.dimension_count", head_dim)
    if dimension_count != head_dim:
        raise ModelFileError(
            f"{keys.prefix}rope.dimension_count is {dimension_count}, not the head size {head_dim}: "
            "rotating a part of a head is not supported"
        )
    base = keys.number("rope.freq_base", 10000.0, above=1.0)
    scaling = keys.get("rope.scaling.type")
    factor_key = "rope.scaling.factor" if keys.get("rope.scaling.factor") is not None else "rope.scale_linear"
    if scaling is None:  # llama.cpp: a factor without a type scales linearly
        scaling = "linear" if keys.get(factor_key) not in (None, 0, 1) else "none"
    if scaling not in ROPE_SCALINGS:
        raise ModelFileError(
            f"{keys.prefix}rope.scaling.type is {scaling!r} (supported: {', '.join(ROPE_SCALINGS)})"
        )
    attn_factor = keys.number("rope.scaling.attn_factor", 1.0)
    rope = RopeConfig(dimension_count, base, interleaved, attn_factor=attn_factor)
    if scaling == "none":
        return rope
    rope = replace(rope, scaling=scaling, factor=keys.number(factor_key, 1.0))
    if scaling == "linear":
        return rope
    return replace(
        rope,
        original_context=keys.size("rope.scaling.original_context_length", context_length),
        ext_factor=keys.number("rope.scaling.yarn_ext_factor", 1.0),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )
