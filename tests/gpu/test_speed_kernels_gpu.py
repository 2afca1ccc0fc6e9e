"""How fast GEMMs, GEMVs and attention are: measured for the record, never asserted."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from minfer.cuda import reference, runtime
from minfer.cuda.attention import DecodeAttentionConfig, attention_prefill, seed_steps
from minfer.cuda.gemv import PLANES_7B, GemvConfig, gemv
from minfer.cuda.gemv_planes import repack_q6_k
from minfer.cuda.registry import shipped_kernels
from tests.cuda.attention_cases import decode_cases
from tests.cuda.block_data import random_matrix
from tests.gpu.device_time import NT, by_turns, copies, milliseconds, milliseconds_of
from tests.gpu.gemm_cases import DTYPES, LARGEST, MODEL_SHAPES

POOL_ROWS = 256  # of random weights that larger matrices repeat
GEMV_SHAPES = (
    ("Q4_K", 3584, 4608),
    ("Q4_K", 3584, 3584),
    ("Q4_K", 3584, 37888),
    ("Q4_K", 18944, 3584),
    ("Q6_K", 18944, 3584),
    ("Q4_K", 3584, 152064),
    ("Q6_K", 3584, 152064),
)


def half(shape, seed=0):
    return runtime.to_device(np.random.default_rng(seed).normal(size=shape).astype(np.float16))


@pytest.mark.parametrize("shape", [LARGEST[1:], *MODEL_SHAPES], ids=str)
def test_gemm(shape, measure):
    """Every shipped config on f16 weights, and torch's own product, by turns, on random numbers: zeros would
    leave the clocks higher than a model does."""
    torch = pytest.importorskip("torch")
    od, depth = shape
    a = torch.randn(NT, depth, device="cuda").half()
    sides = {"float16": a, "float32": a.float()}
    weights = [torch.randn(od, depth, device="cuda").half() for _ in range(copies(2 * od * depth))]
    torch.cuda.synchronize()
    launches = {}
    for kernel in shipped_kernels()["gemm_f16"]:
        out = runtime.empty((NT, od), DTYPES[kernel.config.out])
        loaded, grid = runtime.load(kernel), kernel.config.grid(NT, od)
        left = sides[kernel.config.sources[0].element]
        launches[str(kernel.config)] = [loaded.prepare(grid, left, b, out, NT, od, depth) for b in weights]
    product = torch.empty(NT, od, device="cuda", dtype=torch.float16)

    def multiply(b) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(runtime.current_stream().handle)):
            torch.matmul(a, b.T, out=product)

    launches["torch.matmul"] = [partial(multiply, b) for b in weights]
    times = by_turns(launches)
    speeds = {name: round(2 * NT * od * depth / ms / 1e9, 1) for name, ms in times.items()}
    measure(f"GEMM TFLOPS at {NT}x{od}x{depth}", speeds)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("format", "dim", "od"), GEMV_SHAPES)
def test_gemv(format, dim, od, overlap, measure):
    """As a decode launches it: one after the other, or (where the device can) overlapping."""
    device = runtime.device()
    limits = {"sms": device.sms, "shared": device.shared_optin_bytes}
    config = GemvConfig.for_shape(format, dim, od, pdl=True, **limits)
    if gemv(config).not_applicable(device.arch):
        if overlap:
            pytest.skip(f"launches do not overlap on {device.arch}")
        config = GemvConfig.for_shape(format, dim, od, **limits)
    time_gemv(config, od, measure, f"gemv {format} {od}x{dim}{' pdl' if overlap else ''}", overlap)


@pytest.mark.parametrize(("config", "od"), list(zip(PLANES_7B, (3584, 152064), strict=True)), ids=str)
def test_repacked_gemv(config, od, measure):
    time_gemv(config, od, measure, f"gemv {config.format} {od}x{config.dim} planes pdl", overlap=True)


def time_gemv(config: GemvConfig, od: int, measure, name: str, overlap: bool) -> None:
    """On random weights, dozens of launches a graph (a decode has 300); what the last one left is checked."""
    kernel, dim = gemv(config), config.dim
    if reason := kernel.not_applicable(runtime.device().arch):
        pytest.skip(f"it {reason}")
    loaded = runtime.load(kernel)
    raw, values = random_matrix(config.format, POOL_ROWS, dim)
    if config.layout == "planes":
        raw = repack_q6_k(raw, config.slice_blocks)
    records = reference.pack_q8(
        *reference.quantize_q8(np.random.default_rng(1).normal(size=dim).astype(np.float32))
    )
    activations = reference.dequantize_q8(records, dim)
    first = runtime.to_device(np.resize(raw, (od, config.row_bytes)))
    others = [runtime.empty(first.shape, np.uint8).copy_from(first) for _ in range(copies(first.nbytes) - 1)]
    x, y = runtime.to_device(records), runtime.to_device(np.full(od, np.nan, np.float32))
    grid = config.grid(od, runtime.device().sms)
    launches = [loaded.prepare(grid, weights, x, y, od, pdl=overlap) for weights in (first, *others)]
    time = milliseconds(launches * 12)
    wanted = np.resize(reference.gemv(values, activations, None), od)
    size = (np.abs(values) @ np.abs(activations)).max()
    np.testing.assert_allclose(y.to_host(), wanted, rtol=0, atol=float(size) * 1e-6)
    measure(f"{name}: us", round(time * 1e3, 2))
    measure(f"{name}: GB/s", round(first.nbytes / time / 1e6))


@pytest.mark.parametrize("nt", [512, NT])
def test_prefill_attention(nt, measure):
    """The seed's steps, by turns."""
    q, out = half((nt, 3584)), runtime.empty((nt, 3584), np.float16)
    k, v = half((nt, 512), 1), half((nt, 512), 2)
    launches = {
        step: [
            runtime.load(attention_prefill(config)).prepare(
                config.grid(nt), q, k, v, out, nt, 0, nt, 128**-0.5
            )
        ]
        * 8
        for step, config in seed_steps(28, 4).items()
    }
    for step, ms in by_turns(launches).items():
        measure(f"attention {nt} tokens, {step}: ms", round(ms, 4))
        flop = 28 * 4 * 128 * nt * (nt + 1) / 2
        measure(f"attention {nt} tokens, {step}: TFLOPS", round(flop / ms / 1e9, 1))


@pytest.mark.parametrize("length", [257, NT, 8192])
@pytest.mark.parametrize("splits", [16, 33, 66, 132])
def test_decode_attention(length, splits, measure):
    cases = decode_cases(DecodeAttentionConfig(28, 4, splits=splits, output="q8"), length)
    for what, chosen in (("", cases[:1]), (", combined", cases)):
        time = milliseconds_of(chosen, sets=8)
        measure(f"decode attention {length} rows, {splits} splits{what}: us", round(time * 1e3, 2))
