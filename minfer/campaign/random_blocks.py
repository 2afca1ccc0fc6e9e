"""Random rows of every format that kernels read: each bit random, scales of ordinary size."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType

from minfer.cuda.blocks import block_of
from minfer.model.quants import dequantize

POOL_ROWS = 64
"""Rows of random blocks that larger matrices repeat."""
SCALES = dict.fromkeys(("Q4_0", "Q5_0", "Q8_0"), (0,)) | {"Q6_K": (208,)}
SCALES |= dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))
"""Byte offsets of a block's f16 scales, by the format."""


def random_rows(
    format: str,
    rows: int,
    columns: int,
    rng: np.random.Generator,
    lowest: float = 0.001,
    largest: float = 0.01,
) -> np.ndarray:
    """Rows as they lie in a file, uint8 (rows, bytes): scales from `lowest` to `largest`; weights of F32, F16
    and BF16 are normal numbers.

    Raises:
        ConfigRefused: no kernel reads the format, or rows are no whole blocks of it.
    """
    block = block_of("random rows", format, columns)
    count = min(rows, POOL_ROWS)
    if format in SCALES:
        pool = rng.integers(0, 256, (count, columns // block.weights, block.size), dtype=np.uint8)
        for offset in SCALES[format]:
            scales = rng.uniform(lowest, largest, pool.shape[:2]).astype(np.float16)
            pool[..., offset : offset + 2] = scales[..., None].view(np.uint8)
    else:
        values = rng.standard_normal((count, columns)).astype(np.float32)
        high = (values.view(np.uint32) >> 16).astype(np.uint16)
        pool = {"F32": values, "F16": values.astype(np.float16), "BF16": high}[format].view(np.uint8)
    return np.resize(pool.reshape(count, -1), (rows, block.row_bytes(columns)))


def values_of(format: str, rows: np.ndarray) -> np.ndarray:
    """The weights that rows of a format stand for, f32 (rows, columns)."""
    return dequantize(rows, GGMLQuantizationType[format])
