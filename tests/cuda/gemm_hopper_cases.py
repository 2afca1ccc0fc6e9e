"""Launches of the Hopper GEMM with their expected outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from minfer.cuda.gemm_hopper import GemmHopperConfig, make_gemm_hopper
from tests.cuda.parity import Case, poisoned

# Tensor cores cut what does not fit f32 at every sum of 16 products: relative to the sum of magnitudes.
SUM_ERROR = 2e-6
ROUNDING = {"f16": 2.0**-11, "f32": 2.0**-24}
DTYPES = {"f16": np.float16, "f32": np.float32}


def expected(config: GemmHopperConfig, products: Any, magnitudes: Any, before: Any, exp: Any) -> tuple:
    """(C, the error that each element may have) from A B^T and the sums of magnitudes, in f64: NumPy arrays
    or torch tensors, `exp` being theirs. `before`: what C held, for "add"."""
    if config.epilogue == "add":
        wanted = before + products
        return wanted, SUM_ERROR * magnitudes + ROUNDING["f32"] * (abs(wanted) + abs(products)) + 1e-7
    if config.epilogue == "store":
        return products, SUM_ERROR * magnitudes + ROUNDING[config.out] * abs(products) + 1e-6
    od = products.shape[1] // 2
    gate, up = products[:, :od], products[:, od:]
    silu = gate / (1 + exp(-gate))
    off_gate, off_up = SUM_ERROR * magnitudes[:, :od], SUM_ERROR * magnitudes[:, od:]
    # silu's slope is at most 1.1; the approximate exponential and reciprocal are good to 2^-20.
    bound = 1.1 * off_gate * abs(up) + abs(silu) * off_up
    return silu * up, bound + (ROUNDING[config.out] + 2.0**-20) * abs(silu * up) + 1e-6


def hopper_case(config: GemmHopperConfig, nt: int, od: int, depth: int, multiprocessors: int = 4) -> Case:
    """A random product on so many multiprocessors, and the bound that every element must keep."""
    draw = np.random.default_rng([nt, od, depth])
    rows = 2 * od if config.epilogue == "swiglu" else od
    a, b = (draw.standard_normal((n, depth)).astype(np.float16) for n in (nt, rows))
    c = poisoned((nt, od), DTYPES[config.out])
    if config.epilogue == "add":
        c = draw.standard_normal((nt, od)).astype(np.float32)
    left, right = a.astype(np.float64), b.astype(np.float64)
    magnitudes = np.abs(left) @ np.abs(right).T
    wanted, bound = expected(config, left @ right.T, magnitudes, c.astype(np.float64), np.exp)

    def check(c: np.ndarray) -> None:
        off = np.abs(c.astype(np.float64) - wanted)
        assert (off <= bound).all(), f"{(~(off <= bound)).sum()} of {c.size} off"

    arguments = {"a": a, "b": b, "c": c}
    arguments |= {"nt": nt, "od": od, "depth": depth, "group": config.group(nt, od)}
    return Case(
        make_gemm_hopper(config),
        config.grid(nt, od, multiprocessors),
        arguments,
        {"c": check},
        name=f"{nt}x{od}x{depth}",
        boxes=config.boxes,
    )
