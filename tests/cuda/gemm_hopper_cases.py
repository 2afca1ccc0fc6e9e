"""Launches of the Hopper GEMM with their expected outputs."""

from __future__ import annotations

import numpy as np

from minfer.cuda.gemm_hopper import GemmHopperConfig, make_gemm_hopper
from tests.cuda.parity import Case, poisoned


def hopper_case(config: GemmHopperConfig, nt: int, od: int, depth: int, multiprocessors: int = 4) -> Case:
    """A random product on so many multiprocessors, and the bound that every element must keep."""
    draw = np.random.default_rng([nt, od, depth])
    a, b = (draw.standard_normal((rows, depth)).astype(np.float16) for rows in (nt, od))
    left, right = a.astype(np.float64), b.astype(np.float64)
    wanted, magnitude = left @ right.T, np.abs(left) @ np.abs(right).T

    def check(c: np.ndarray) -> None:
        bound = 2e-6 * magnitude + 2.0**-11 * np.abs(wanted) + 1e-6
        off = np.abs(c.astype(np.float64) - wanted)
        assert (off <= bound).all(), f"{(~(off <= bound)).sum()} of {c.size} off"

    arguments = {"a": a, "b": b, "c": poisoned((nt, od), np.float16)}
    arguments |= {"nt": nt, "od": od, "depth": depth, "group": config.group(nt, od)}
    return Case(
        make_gemm_hopper(config),
        config.grid(nt, od, multiprocessors),
        arguments,
        {"c": check},
        name=f"{nt}x{od}x{depth}",
        boxes=config.boxes,
    )
