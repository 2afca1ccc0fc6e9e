"""Launches of the decode GEMV with their expected outputs."""

import numpy as np

from minfer.cuda import reference
from minfer.cuda.block_dots import DOTS
from minfer.cuda.gemv import (
    GemvConfig,
    GemvStreamConfig,
    gemv,
    gemv_stream,
)
from tests.cuda.block_data import random_matrix
from tests.cuda.parity import Case, poisoned


def gemv_case(config: GemvConfig, od: int, grid: int | None = None, scale: float = 1.0) -> Case:
    rng = np.random.default_rng(od + config.dim)
    raw, values = random_matrix(config.format, od, config.dim, seed=od)
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


def stream_case(config: GemvStreamConfig, od: int, grid: int | None = None) -> Case:
    """The matrix's bytes are rounded up to 16, as the kernel asks for."""
    rng = np.random.default_rng(od + config.dim)
    rows = 2 * od if config.pairs else od
    raw, values = random_matrix(config.format, rows, config.dim, seed=od)
    x = rng.normal(size=config.dim).astype(np.float32)
    gains = rng.normal(size=config.dim).astype(np.float32)
    addend = rng.normal(size=od).astype(np.float32)
    operand = reference.rmsnorm(x, gains, 1e-6)[1] if config.source == "norm" else x
    records = reference.pack_q8(*reference.quantize_q8(operand))
    used = reference.dequantize_q8(records, config.dim)
    products = reference.gemv(values, used, None)
    # f32 sums over blocks; and an activation that is quantized from another f32 may round the other way.
    error = float((np.abs(values) @ np.abs(used).astype(np.float32)).max()) * 1e-6
    if config.source != "q8":
        error += 4 * float(np.abs(values).max() * np.abs(used).max()) / 127
    if config.pairs:
        error *= 2 * float(np.abs(products).max())
        products = reference.swiglu(products[:od], products[od:])
    arguments = {
        "weights": np.concatenate([raw.ravel(), np.zeros(-raw.size % 16, np.uint8)]),
        "x": records if config.source == "q8" else x,
        **({"gains": gains, "eps": 1e-6} if config.source == "norm" else {}),
        **({"addend": addend} if config.addend else {}),
        "y": poisoned(od, np.float32),
        "od": od,
    }
    wanted = products + addend if config.addend else products
    blocks = config.grid(od) if grid is None else (grid, 1, 1)
    return Case(gemv_stream(config), blocks, arguments, {"y": wanted}, 0, error, f"od={od}")
