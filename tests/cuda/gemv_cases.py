"""Launches of the decode GEMV with their expected outputs."""

import numpy as np

from minfer.cuda import reference
from minfer.cuda.block_dots import DOTS
from minfer.cuda.gemv import (
    GemvConfig,
    GemvStreamConfig,
    GemvTwoConfig,
    gemv,
    gemv_stream,
    gemv_stream_two,
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


CHAIN = {"before": np.array([5], np.uint32), "expected": 5, "after": np.zeros(1, np.uint32)}
"""The last arguments of a chained kernel whose predecessor is through."""


def check_fine(values: np.ndarray, error: float = 0.0):
    """An assertion on fine records of `values` [id], which may be off by `error`."""

    def check(records: np.ndarray) -> None:
        step = np.repeat(np.abs(values.reshape(-1, 16)).max(-1) / 127, 16)
        got = reference.dequantize_fine(records)
        assert np.all(np.abs(got - values) <= 0.51 * step + 1.5 * error)
        rows = records.reshape(-1, 96)
        d, s = (np.ascontiguousarray(rows[:, i : i + 16]).view(np.float32) for i in (64, 80))
        q = np.ascontiguousarray(rows[:, :64]).view(np.int8).reshape(-1, 4, 16)
        np.testing.assert_allclose(s, d * q.sum(-1, dtype=np.int64), rtol=1e-6, atol=1e-12)

    return check


def stream_case(config: GemvStreamConfig, od: int, grid: int | None = None) -> Case:
    """The matrix's bytes are rounded up to 16, as the kernel asks for."""
    rng = np.random.default_rng(od + config.dim)
    rows = 2 * od if config.pairs else od
    raw, values = random_matrix(config.format, rows, config.dim, seed=od)
    x = rng.normal(size=config.dim).astype(np.float32)
    gains = rng.normal(size=config.dim).astype(np.float32)
    addend = rng.normal(size=od).astype(np.float32)
    operand = reference.rmsnorm(x, gains, 1e-6)[1] if config.source == "norm" else x
    records = reference.pack_fine(operand)
    used = reference.dequantize_fine(records)
    products = reference.gemv(values, used, None)
    # f32 sums over blocks; and an activation that is quantized from another f32 may round the other way.
    error = float((np.abs(values) @ np.abs(used).astype(np.float32)).max()) * 1e-6
    if config.source == "norm":
        error += 4 * float(np.abs(values).max() * np.abs(used).max()) / 127
    if config.pairs:
        error *= 2 * float(np.abs(products).max())
        products = reference.swiglu(products[:od], products[od:])
    arguments = {
        "weights": np.concatenate([raw.ravel(), np.zeros(-raw.size % 16, np.uint8)]),
        "x": records if config.source == "records" else x,
        **({"gains": gains, "eps": 1e-6} if config.source == "norm" else {}),
        **({"addend": addend} if config.addend else {}),
        "y": poisoned(od // 64 * 96 if config.records else od, np.uint8 if config.records else np.float32),
        "od": od,
        **(CHAIN if config.chained else {}),
    }
    wanted = products + addend if config.addend else products
    expected = {"y": check_fine(wanted, error) if config.records else wanted}
    blocks = config.grid(od) if grid is None else (grid, 1, 1)
    if config.chained:
        expected["after"] = np.array([blocks[0]], np.uint32)
    return Case(gemv_stream(config), blocks, arguments, expected, 0, error, f"od={od}")


def two_case(config: GemvTwoConfig, od_upper: int, od_lower: int, sms: int) -> Case:
    """Two matrices one above the other."""
    parts = [stream_case(half, od) for half, od in ((config.upper, od_upper), (config.lower, od_lower))]
    upper, lower = (dict(part.arguments) for part in parts)
    rng = np.random.default_rng(od_lower)
    operand = x = rng.normal(size=config.upper.dim).astype(np.float32)
    if config.upper.source == "norm":
        operand = reference.rmsnorm(x, upper["gains"], 1e-6)[1]
    used = reference.dequantize_fine(reference.pack_fine(operand))
    products, error = [], 0.0
    for half, od in ((config.upper, od_upper), (config.lower, od_lower)):
        values = random_matrix(half.format, od, half.dim, seed=od)[1]
        products.append(reference.gemv(values, used, None))
        error = max(error, 4 * float(np.abs(values).max() * np.abs(used).max()) / 127)
    normed = {"gains": upper["gains"], "eps": 1e-6} if config.upper.source == "norm" else {}
    arguments = {
        "upper": upper["weights"],
        "lower": lower["weights"],
        "x": x if normed else reference.pack_fine(x),
        **normed,
        "y": poisoned(od_upper + od_lower, np.float32),
        "od_upper": od_upper,
        "od_lower": od_lower,
        "split": config.split(od_upper, od_lower, sms),
        **(CHAIN if config.upper.chained else {}),
    }
    wanted = {"y": np.concatenate(products)}
    return Case(gemv_stream_two(config), config.grid(sms), arguments, wanted, 0, error)
