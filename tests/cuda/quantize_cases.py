"""Launches of the activation quantizers with their expected outputs."""

import numpy as np

from minfer.cuda import reference
from minfer.cuda.q8 import PAD40_BYTES, q8_record_bytes
from minfer.cuda.quantize import (
    DequantizePad40Config,
    QuantizePad40Config,
    QuantizeQ8Config,
    dequantize_pad40,
    quantize_q8,
    quantize_q8_0_pad40,
)
from tests.cuda.elementwise_cases import check_records
from tests.cuda.parity import Case, poisoned


def quantize_case(nt: int, dim: int, threads: int = 128) -> Case:
    x = np.random.default_rng(nt + dim).normal(size=(nt, dim)).astype(np.float32)
    x[0, :32] = 0
    x[-1, -32:] *= 1e4
    config = QuantizeQ8Config(threads)
    arguments = {"x": x, "records": poisoned((nt, q8_record_bytes(dim)), np.uint8), "dim": dim}
    return Case(
        quantize_q8(config),
        config.grid(nt, dim),
        arguments,
        {"records": check_records(x)},
        name=f"nt={nt} {dim}",
    )


def awkward(nt: int, dim: int) -> np.ndarray:
    """Activations f32 [nt, dim] whose runs are in turn ordinary, zero, ties between integers, tiny (f16's
    subnormal scales, and scales below them), huge, and of one value."""
    random = np.random.default_rng(nt * 10007 + dim)
    runs = random.normal(size=(nt * dim // 32, 32)).astype(np.float32)
    runs[1::8] = 0
    runs[2::8] = np.round(runs[2::8] * 100) / 2  # with 127 / 2 the scale is 1 / 2: halves everywhere
    runs[2::8, 0] = 63.5
    runs[3::8] *= np.float32(1e-5)
    runs[4::8] *= np.float32(1e-9)
    runs[5::8] *= np.float32(1e6)
    runs[6::8] = runs[6::8, :1]
    runs[7::8, 1:] = np.float32(-0.0)
    return runs.reshape(nt, dim)


def pad40_case(config: QuantizePad40Config, x: np.ndarray) -> Case:
    """Bit for bit what the reference makes of x [nt, dim]."""
    nt, dim = x.shape
    source = x
    if config.source == "f16":
        source = np.where(np.isinf(x), x, x.clip(-6e4, 6e4)).astype(np.float16)
    wanted = reference.pack_pad40(*reference.quantize_pad40(source))
    arguments = {
        "x": source,
        "chunks": poisoned((nt, dim // 32, PAD40_BYTES), np.uint8),
        "count": nt * dim // 32,
    }
    kernel = quantize_q8_0_pad40(config)
    return Case(kernel, config.grid(nt, dim), arguments, {"chunks": wanted}, name=f"nt={nt} {dim}")


def dequantize_pad40_case(nt: int, dim: int) -> Case:
    """d * q of awkward activations, rounded to f16 once."""
    q, d, sums = reference.quantize_pad40(awkward(nt, dim))
    chunks = reference.pack_pad40(q, d, sums)
    values = q.reshape(nt, -1, 32).astype(np.float32) * d.astype(np.float32)[..., None]
    config = DequantizePad40Config()
    arguments = {"chunks": chunks, "x": poisoned((nt, dim), np.float16), "count": nt * dim // 32}
    with np.errstate(over="ignore"):
        wanted = values.reshape(nt, dim).astype(np.float16)
    return Case(
        dequantize_pad40(config), config.grid(nt, dim), arguments, {"x": wanted}, name=f"nt={nt} {dim}"
    )
