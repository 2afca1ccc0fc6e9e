"""Rotary position embedding: the angle per position of each rotated pair, under every supported scaling."""

from __future__ import annotations

import math

import numpy as np

from minfer.model.config import ModelConfig, RopeConfig


def frequencies(config: ModelConfig, freq_factors: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """Angles of RoPE as llama.cpp computes them.

    freq_factors: float32 [dimension_count / 2], `rope_freqs.weight` (llama 3); they divide the frequencies.
    Returns (inv_freq float32 [dimension_count / 2], radians per position; the factor on cos and sin).
    """
    rope = config.rope
    pairs = np.arange(rope.dimension_count // 2, dtype=np.float64)
    extrapolated = rope.base ** (-2.0 * pairs / rope.dimension_count)
    if freq_factors is not None:
        extrapolated = extrapolated / freq_factors.astype(np.float64)
    if rope.scaling == "none":
        return extrapolated.astype(np.float32), rope.attn_factor
    interpolated = extrapolated / rope.factor
    if rope.scaling == "linear":
        return interpolated.astype(np.float32), rope.attn_factor
    # YaRN, arXiv:2309.00071 section 3.2: fast pairs keep their frequency, slow ones are interpolated.
    keep = _yarn_ramp(rope, pairs) * rope.ext_factor
    blended = interpolated * (1.0 - keep) + extrapolated * keep
    scale = rope.attn_factor * (1.0 + 0.1 * math.log(rope.factor))
    return blended.astype(np.float32), scale


def _yarn_ramp(rope: RopeConfig, pairs: np.ndarray) -> np.ndarray:
    """1 for pairs that turn more than beta_fast times in the original context, 0 below beta_slow turns."""

    def pair_of(turns: float) -> float:
        wavelength = rope.original_context / (turns * 2.0 * math.pi)
        return rope.dimension_count * math.log(wavelength) / (2.0 * math.log(rope.base))

    low = max(0.0, math.floor(pair_of(rope.beta_fast)))
    high = min(rope.dimension_count - 1.0, math.ceil(pair_of(rope.beta_slow)))
    return 1.0 - np.clip((pairs - low) / max(0.001, high - low), 0.0, 1.0)
