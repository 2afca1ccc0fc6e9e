"""Launches of the GEMMs that dequantize B, with their expected outputs."""

from __future__ import annotations

import numpy as np

from minfer.cuda.blocks import BLOCKS
from minfer.cuda.gemm import GemmConfig, make_gemm
from tests.cuda.block_data import random_matrix
from tests.cuda.parity import Case, poisoned


def block_case(config: GemmConfig, nt: int, od: int, blocks: int) -> Case:
    """Rows of B of so many blocks of random bits.

    Expected: the oracle's dequantization rounded to f16, as a resident copy would be, in float64. A fused
    multiply-add may round a weight to the next f16, which moves its product by 2^-10 of itself."""
    depth = blocks * BLOCKS[config.b_source].weights
    draw = np.random.default_rng([nt, od, depth])
    a = draw.standard_normal((nt, depth)).astype(np.dtype(config.sources[0].element))
    packed, values = random_matrix(config.b_source, od, depth)
    weights = values.astype(np.float16).astype(np.float64)
    left = a.astype(np.float16).astype(np.float64)
    wanted, magnitude = left @ weights.T, np.abs(left) @ np.abs(weights).T
    bound = 1e-6 + 2e-6 * magnitude + 2.0**-10 * np.sqrt((left**2) @ (weights**2).T)
    if config.out == "f16":
        bound = bound + 2.0**-11 * np.abs(wanted)

    def check(c: np.ndarray) -> None:
        off = np.abs(c.astype(np.float64) - wanted)
        assert (off <= bound).all(), f"{(~(off <= bound)).sum()} of {c.size} off"

    arguments = {
        "a": a,
        "b": packed,
        "c": poisoned((nt, od), {"f32": np.float32, "f16": np.float16}[config.out]),
        "nt": nt,
        "od": od,
        "depth": depth,
    }
    return Case(make_gemm(config), config.grid(nt, od), arguments, {"c": check}, name=f"{nt}x{od}x{depth}")
