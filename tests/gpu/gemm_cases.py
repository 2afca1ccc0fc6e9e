"""Launches of the GEMM family with their expected outputs."""

from __future__ import annotations

import numpy as np

from minfer.cuda.gemm import GemmConfig, make_gemm, seed_config
from minfer.cuda.kernel import Kernel
from minfer.cuda.registry import shipped_kernels
from tests.cuda.parity import Case, poisoned

NT = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 512, 2048)
LARGEST = (max(NT), 4608, 3584)
MODEL_SHAPES = ((3584, 3584), (37888, 3584), (3584, 18944))
"""(od, id) of a 7B's products: o, gate and up, down; its q, k and v are LARGEST."""
DTYPES = {"f32": np.float32, "f16": np.float16}
# Tensor cores cut what does not fit f32 at every sum of 16 products: relative to the sum of magnitudes.
SUM_ERROR = 2e-6
OUTPUT_ERROR = {"f32": 0.0, "f16": 2.0**-11}


def gemm_case(config: GemmConfig, nt: int, od: int, depth: int) -> Case:
    """A random product, and the bound that every element must keep."""
    rng = np.random.default_rng([nt, od, depth])
    a = rng.standard_normal((nt, depth)).astype(np.dtype(config.sources[0].element))
    b = rng.standard_normal((od, depth)).astype(np.float16)
    exact, size = (x.astype(np.float16).astype(np.float64) for x in (a, b))
    wanted, magnitude = exact @ size.T, np.abs(exact) @ np.abs(size).T

    def check(c: np.ndarray) -> None:
        off = np.abs(c.astype(np.float64) - wanted)
        bound = SUM_ERROR * magnitude + OUTPUT_ERROR[config.out] * np.abs(wanted) + 1e-6
        bad = np.argwhere(~(off <= bound))
        assert not bad.size, f"{len(bad)} of {c.size} off, first {bad[0]}: {off[tuple(bad[0])]}"

    arguments = {
        "a": a,
        "b": b,
        "c": poisoned((nt, od), DTYPES[config.out]),
        "nt": nt,
        "od": od,
        "depth": depth,
    }
    return Case(make_gemm(config), config.grid(nt, od), arguments, {"c": check}, name=f"{nt}x{od}x{depth}")


def variants() -> list[Kernel]:
    """Every shipped GEMM on f16 weights, and every combination of the seed's switches."""
    switched = [
        seed_config({"MINFER_GEMM_TM": tile, "MINFER_GEMM_K64": k64, "MINFER_GEMM_AF32": af32})
        for tile in ("64", "128", "256")
        for k64 in "01"
        for af32 in "01"
    ]
    shipped = list(shipped_kernels()["gemm_f16"])
    held = {kernel.config for kernel in shipped}
    return shipped + [make_gemm(config) for config in switched if config not in held]
