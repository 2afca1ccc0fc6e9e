"""Random weights made directly as packed blocks: uniform quants under scales that give a wanted deviation."""

from __future__ import annotations

import math

import numpy as np
from gguf.constants import GGMLQuantizationType

from minfer.model.quants import FORMATS
from minfer.model.quants.k_quants import pack_scales

# One draw of random bits serves this many blocks. It is part of what a seed means: do not change it.
CHUNK_BLOCKS = 8192

# Mean square of the integers that a block's scale `d` multiplies, per type; see the functions below.
_Q4_K_SC = np.arange(24, 56)
_Q4_K_SHIFT = np.arange(-7, 8, 2)
_Q6_K_SC = np.arange(64, 128)


def _mean_square(values: np.ndarray) -> float:
    return float(np.mean(np.square(values, dtype=np.float64)))


_MEAN_SQUARE = {
    GGMLQuantizationType.Q4_K: _mean_square(_Q4_K_SC) * _mean_square(np.arange(16) - 7.5)
    + 7.5**2 * _mean_square(_Q4_K_SHIFT),
    GGMLQuantizationType.Q6_K: _mean_square(_Q6_K_SC) * _mean_square(np.arange(64) - 32),
    GGMLQuantizationType.Q5_0: _mean_square(np.arange(32) - 16),
    GGMLQuantizationType.Q8_0: _mean_square(np.arange(256) - 128),
}
_SPREAD = (
    0.5  # scales vary by a quarter either way, so that a kernel which takes another block's scale is caught
)


def random_blocks(kind: GGMLQuantizationType, n_blocks: int, std: float, seed: tuple[int, ...]) -> np.ndarray:
    """`n_blocks` packed blocks, at most CHUNK_BLOCKS, of weights with mean 0 and standard deviation `std`.

    kind is Q4_K, Q6_K, Q5_0 or Q8_0. Returns a structured array [n_blocks] of the format's layout; equal
    seeds give equal blocks, whatever else was drawn before.
    """
    layout = FORMATS[kind].layout
    random = np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed)))
    nbytes = n_blocks * layout.itemsize
    words = random.integers(0, 2**64 - 1, -(-nbytes // 8), np.uint64, endpoint=True)
    blocks = words.view(np.uint8)[:nbytes].view(layout)
    # Every field is random by now; the quants stay so, the scales are put where they belong.
    d_bits = blocks["d"].view(np.uint16).copy()
    spread = 1 - _SPREAD / 2 + _SPREAD / 2**16 * d_bits.astype(np.float32)
    blocks["d"] = d = spread * (std / math.sqrt(_MEAN_SQUARE[kind] * (1 + _SPREAD**2 / 12)))
    if kind == GGMLQuantizationType.Q4_K:
        bits = blocks["scales"][:, :8]
        sc = bits % 32 + np.uint8(_Q4_K_SC[0])
        blocks["dmin"] = 7.5 * d  # with m = sc the sixteen values of a quant are symmetric about zero
        blocks["scales"] = pack_scales(sc, sc + _Q4_K_SHIFT.astype(np.int8).view(np.uint8)[bits >> 5])
    elif kind == GGMLQuantizationType.Q6_K:
        bits = blocks["scales"]
        size = (bits & 63) + np.int8(_Q6_K_SC[0])
        blocks["scales"] = np.where(bits < 0, -size, size)
    elif kind == GGMLQuantizationType.Q5_0:
        blocks["d"] = np.where(d_bits & 1, -d, d)  # -16..15 has mean -1/2; both signs cancel it
    elif kind == GGMLQuantizationType.Q8_0:
        blocks["qs"] = np.maximum(blocks["qs"], -127)  # quantizers never write -128
    return blocks
