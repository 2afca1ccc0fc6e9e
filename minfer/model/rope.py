"""Rotary position embedding: the angle per position of each rotated pair, under every supported scaling."""

from __future__ import annotations

import math

import numpy as np

from minfer.model.config import ModelConfig, RopeConfig
from minfer.model.errors import ModelFileError


def frequencies(config: ModelConfig, freq_factors: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """Angles of RoPE as llama.cpp computes them.

    freq_factors: float32 [dimension_count / 2], `rope_freqs.weight` (llama 3); they divide the frequencies.
    Returns (inv_freq float32 [dimension_count / 2], radians per position; the factor on cos and sin). Raises
    ModelFileError when the file's settings overflow them.
    """
    rope = config.rope
    pairs = np.arange(rope.dimension_count // 2, dtype=np.float64)
    exact = rope.base ** (-2.0 * pairs / rope.dimension_count)
    if freq_factors is not None:
        exact = exact / freq_factors.astype(np.float64)
    scale = rope.attn_factor
    if rope.scaling == "linear":
        exact = exact / rope.factor
    elif rope.scaling == "yarn":
        exact = _yarn(rope, pairs, exact)
        scale *= 1.0 + 0.1 * math.log(rope.factor)
    with np.errstate(over="ignore"):
        inv_freq = exact.astype(np.float32)
    if not (np.isfinite(inv_freq).all() and math.isfinite(scale)):
        raise ModelFileError(
            "the RoPE frequencies overflow: rope.scaling or rope_freqs.weight is out of range"
        )
    return inv_freq, scale


def _yarn(rope: RopeConfig, pairs: np.ndarray, extrapolated: np.ndarray) -> np.ndarray:
    """arXiv:2309.00071, section 3.2: fast pairs keep their frequency, slow ones are interpolated."""

    def pair_of(turns: float) -> float:
        """The pair that turns so many times in the original context."""
        wavelength = rope.original_context / (turns * 2.0 * math.pi)
        return rope.dimension_count * math.log(wavelength) / (2.0 * math.log(rope.base))

    low = max(0.0, math.floor(pair_of(rope.beta_fast)))
    high = min(rope.dimension_count - 1.0, math.ceil(pair_of(rope.beta_slow)))
    keep = (1.0 - np.clip((pairs - low) / max(0.001, high - low), 0.0, 1.0)) * rope.ext_factor
    return extrapolated / rope.factor * (1.0 - keep) + extrapolated * keep
