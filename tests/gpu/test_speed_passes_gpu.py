"""How fast memory and the passes that it bounds are: measured for the record, never asserted. Inputs are
random; what the last timed launch left is checked."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.campaign.ceilings import measure_memory
from minfer.cuda import elementwise as ew
from minfer.cuda import runtime
from minfer.cuda.convert import ConvertConfig, StoreKvConfig, convert_f32_f16, store_kv_f16
from minfer.cuda.quantize import FORMS, QuantizePad40Config
from minfer.engine.cuda.devices import GpuDevice
from tests.cuda.convert_cases import convert_case
from tests.cuda.elementwise_cases import rmsnorm_case, swiglu_case
from tests.cuda.parity import Case
from tests.cuda.quantize_cases import pad40_case
from tests.gpu.device_time import NT, by_turns, milliseconds_of

HIDDEN, FFN = 3584, 18944
ROWS = 64
"""Of random numbers, which whole arrays repeat."""
BYTES = {"f32": 4, "f16": 2, "pad40": 1.25}


def test_memory(measure):
    """What `minfer ceilings` keeps: the figures below are compared with it."""
    for name, rate in measure_memory(GpuDevice()).items():
        measure(f"{name.removesuffix('_gb_s')}: GB/s", rate)


def bandwidth(measure, name: str, case: Case, nbytes: float) -> None:
    measure(f"{name}: GB/s", round(nbytes / milliseconds_of([case], sets=4) / 1e6))


@pytest.mark.parametrize("vector", [1, 8])
def test_convert(vector, measure):
    n, few = NT * FFN, convert_case(ROWS * FFN, vector, ConvertConfig().threads)
    case = few.repeated(NT // ROWS, few.kernel.config.grid(n), n=n)
    bandwidth(measure, f"convert {NT}x{FFN} vector={vector}", case, n * 6)


QUANTIZE = [QuantizePad40Config(form) for form in FORMS]
QUANTIZE += [QuantizePad40Config(unroll=n) for n in (2, 4)]
QUANTIZE += [QuantizePad40Config(source="f16", unroll=n) for n in (1, 2)]


@pytest.mark.parametrize("config", QUANTIZE, ids=str)
def test_quantize(config, measure):
    x = np.random.default_rng(0).normal(size=(ROWS, FFN)).astype(np.float32)
    case = pad40_case(config, x).repeated(NT // ROWS, config.grid(NT, FFN), count=NT * FFN // 32)
    nbytes = NT * FFN * (BYTES[config.source] + BYTES["pad40"])
    bandwidth(measure, f"quantize pad40 {NT}x{FFN} {config}", case, nbytes)


@pytest.mark.parametrize(
    ("output", "source"),
    [("f32", "f32"), ("f16", "f32"), ("f16", "f16"), ("pad40", "f32"), ("pad40", "f16")],
)
def test_swiglu(output, source, measure):
    vector = 8 if (output, source) == ("pad40", "f16") else 4
    few = swiglu_case(ROWS, FFN, output, source, packed=True, vector=vector)
    case = few.repeated(NT // ROWS, few.kernel.config.grid(NT, FFN))
    nbytes = NT * FFN * (2 * BYTES[source] + BYTES[output])
    bandwidth(measure, f"swiglu {NT}x{FFN} {source}->{output}", case, nbytes)


@pytest.mark.parametrize("output", ["f16", "pad40"])
def test_rmsnorm_with_residual(output, measure):
    case = rmsnorm_case(NT, HIDDEN, output, residual=True)
    name = f"rmsnorm {NT}x{HIDDEN}" + (" to pad40" if output == "pad40" else "")
    bandwidth(measure, name, case, NT * HIDDEN * (12 + BYTES[output]))


def normal(shape, dtype) -> runtime.DeviceArray:
    """Random numbers: ROWS rows again and again."""
    rows, *rest = np.atleast_1d(shape)
    some = np.random.default_rng(0).normal(size=(min(rows, ROWS), *rest)).astype(dtype)
    return runtime.to_device(np.resize(some, shape))


def add_and_norm() -> dict[str, list[tuple]]:
    x, added, h = (normal((NT, 3584), np.float32) for _ in range(3))
    weight, out = normal(3584, np.float32), runtime.empty((NT, 3584), np.float16)
    add, norm = ew.AddConfig(), ew.RmsNormConfig("f16")
    fused = ew.RmsNormConfig("f16", residual=True)
    return {
        "apart": [
            (ew.residual_add(add), add.grid(NT, 3584), x, added, h, 3584),
            (ew.rmsnorm(norm), norm.grid(NT), h, weight, out, 3584, 1e-6),
        ],
        "fused": [(ew.rmsnorm(fused), fused.grid(NT), x, added, h, weight, out, 3584, 1e-6)],
    }


def bias_rope_and_store() -> dict[str, list[tuple]]:
    qkv, bias = normal((NT, 4608), np.float32), normal(4608, np.float32)
    positions, table = (
        runtime.to_device(np.arange(NT, dtype=np.int32)),
        normal((NT, 64, 2), np.float32),
    )
    q, k, v = (normal((NT, width), np.float32) for width in (3584, 512, 512))
    half_q, keys, values = (runtime.empty((NT, width), np.float16) for width in (3584, 512, 512))
    add, convert, store = ew.AddConfig(), ConvertConfig(), StoreKvConfig()
    rope_q, rope_k = (ew.RopeConfig(heads, 128, 128) for heads in (28, 4))
    fused = ew.RopeStoreConfig(28, 4, 128, 128, bias=True)
    return {
        "apart": [
            (ew.bias_add(add), add.grid(NT, 4608), qkv, bias, 4608),
            (ew.rope(rope_q), rope_q.grid(NT), q, positions, table, 3584),
            (ew.rope(rope_k), rope_k.grid(NT), k, positions, table, 512),
            (convert_f32_f16(convert), convert.grid(NT * 3584), q, half_q, NT * 3584),
            (store_kv_f16(store), store.grid(NT, 512), k, keys, positions, 512),
            (store_kv_f16(store), store.grid(NT, 512), v, values, positions, 512),
        ],
        "fused": [(ew.rope_store(fused), fused.grid(NT), qkv, bias, positions, table, half_q, keys, values)],
    }


def swiglu_and_convert() -> dict[str, list[tuple]]:
    both, whole = normal((NT, 37888), np.float32), runtime.empty((NT, 18944), np.float32)
    out, n = runtime.empty((NT, 18944), np.float16), NT * 18944
    apart, convert = ew.SwigluConfig(packed=True), ConvertConfig()
    fused = ew.SwigluConfig("f16", packed=True)
    return {
        "apart": [
            (ew.swiglu(apart), apart.grid(NT, 18944), both, whole, 18944),
            (convert_f32_f16(convert), convert.grid(n), whole, out, n),
        ],
        "fused": [(ew.swiglu(fused), fused.grid(NT, 18944), both, out, 18944)],
    }


@pytest.mark.parametrize("passes", [add_and_norm, bias_rope_and_store, swiglu_and_convert])
def test_fused_and_apart(passes, measure):
    """What it saves that one kernel does several passes of a layer of the 7B: both ways by turns."""
    sets, name = [passes() for _ in range(4)], passes.__name__.replace("_", " ")
    launches = {
        way: [
            runtime.load(kernel).prepare(grid, *arguments)
            for operands in sets
            for kernel, grid, *arguments in operands[way]
        ]
        for way in ("apart", "fused")
    }
    for way, ms in by_turns(launches).items():
        us = ms * 1e3 * len(launches[way]) / len(sets)
        measure(f"{name}, {NT} tokens, {way}: us", round(us, 1))
