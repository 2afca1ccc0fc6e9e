"""Launches of the decode GEMV with their expected outputs."""

import numpy as np

from minfer.cuda import reference
from minfer.cuda.block_dots import DOTS
from minfer.cuda.gemv import GemvConfig, gemv
from minfer.cuda.gemv_planes import repack_q6_k
from tests.cuda.block_data import random_matrix
from tests.cuda.parity import Case, poisoned


def gemv_case(config: GemvConfig, od: int, grid: int | None = None, scale: float = 1.0) -> Case:
    rng = np.random.default_rng(od + config.dim)
    raw, values = random_matrix(config.format, od, config.dim, seed=od)
    if config.layout == "planes":
        raw = repack_q6_k(raw, config.slice_blocks)
    x = (rng.normal(size=config.dim) * scale).astype(np.float32)
    staged = x
    if DOTS[config.format].quantized:
        staged = reference.pack_q8(*reference.quantize_q8(x))
        x = reference.dequantize_q8(staged, config.dim)
    addend = rng.normal(size=od).astype(np.float32)
    wanted = reference.gemv(values, x, addend if config.addend else None)
    arguments = {
        "weights": raw,
        "x": staged,
        **({"addend": addend} if config.addend else {}),
        "y": poisoned(od, np.float32),
        "od": od,
    }
    # f32 sums over blocks: relative to the sum of magnitudes, not to a result that may cancel.
    size = np.abs(values) @ np.abs(x).astype(np.float32)
    blocks = config.grid(od) if grid is None else (grid, 1, 1)
    whole_chunks = ("weights",) if arguments["weights"].dtype == np.uint8 else ()
    return Case(
        gemv(config),
        blocks,
        arguments,
        {"y": wanted},
        0,
        float(size.max()) * 1e-6,
        f"od={od}",
        whole_chunks,
    )
