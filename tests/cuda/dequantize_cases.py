"""Launches of the dequantize kernel with their expected outputs."""

import numpy as np

from minfer.cuda.dequantize import DequantizeConfig, dequantize
from tests.cuda.block_data import random_matrix
from tests.cuda.parity import Case, poisoned


def dequantize_case(format: str, rows: int, dim: int, threads: int = 128) -> Case:
    raw, values = random_matrix(format, rows, dim, seed=rows)
    config = DequantizeConfig(format, dim, threads)
    arguments = {"blocks": raw, "out": poisoned((rows, dim), np.float16)}
    # One f16 step: the device multiplies and adds in one rounding where the reference takes two.
    expected = {"out": values.astype(np.float16)}
    return Case(dequantize(config), config.grid(rows), arguments, expected, 1e-3, 1e-6, f"{rows} rows")
