"""Launches of the kernel that only multiplies, with their expected outputs."""

import numpy as np

from minfer.cuda import reference
from minfer.cuda.resident import DTYPES, ResidentConfig, resident
from tests.cuda.parity import Case, poisoned


def resident_case(config: ResidentConfig, k_tiles: int, tiles: int = 2, blocks: int = 2) -> Case:
    """Random operands; sums of integers are exact."""
    random, shapes = np.random.default_rng(k_tiles), config.shapes(blocks)
    operand, result, _ = DTYPES[config.dtype]
    if operand == "int8":
        a, b = (random.integers(-128, 128, shapes[name], np.int8) for name in "ab")
    else:
        a, b = (random.normal(size=shapes[name]).astype(operand) for name in "ab")
    sums = np.broadcast_to(reference.resident_sums(a, b, k_tiles), shapes["c"])
    arguments = {"a": a, "b": b, "c": poisoned(shapes["c"], result), "tiles": tiles, "k_tiles": k_tiles}
    exact = {} if operand == "int8" else {"rtol": 1e-5, "atol": 1e-3}
    name = f"{tiles} times {k_tiles} k-tiles"
    return Case(resident(config), config.grid(blocks), arguments, {"c": sums}, name=name, **exact)
