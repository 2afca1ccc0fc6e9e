"""How fast the GEMMs, the attention steps and the memory-bound kernels are: measured for the record, never
asserted. Device time, in a captured graph, over operands that do not stay in L2."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from numba import cuda
from numba.cuda.types import uint32, uint64

from minfer.cuda import elementwise as ew
from minfer.cuda import ptx, reference, runtime
from minfer.cuda.attention import (
    DecodeAttentionConfig,
    attention_combine,
    attention_decode,
    attention_prefill,
    seed_steps,
)
from minfer.cuda.convert import ConvertConfig, StoreKvConfig, convert_f32_f16, store_kv_f16
from minfer.cuda.gemv import PLANES_7B, GemvConfig, gemv
from minfer.cuda.gemv_planes import repack_q6_k
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.quantize import FORMS, QuantizePad40Config, quantize_q8_0_pad40
from minfer.cuda.registry import shipped_kernels
from tests.cuda.block_data import random_matrix
from tests.gpu.gemm_cases import DTYPES, LARGEST, MODEL_SHAPES

COLD_BYTES = 200 << 20  # more than any L2
POOL_ROWS = 256  # of random weights that larger matrices repeat
NT = 2048
GEMV_SHAPES = (
    ("Q4_K", 3584, 4608),
    ("Q4_K", 3584, 3584),
    ("Q4_K", 3584, 37888),
    ("Q4_K", 18944, 3584),
    ("Q6_K", 18944, 3584),
    ("Q4_K", 3584, 152064),
    ("Q6_K", 3584, 152064),
)


def milliseconds(launches: list) -> float:
    """Device time of one of the bound launches, run one after another in a graph: the median of 9 replays."""
    with runtime.capture() as graph:
        for launch in launches:
            launch()
    stream = runtime.Stream()
    times = []
    for _ in range(10):
        start = runtime.Event().record(stream)
        graph.replay(stream)
        end = runtime.Event().record(stream)
        end.synchronize()
        times.append(end.since(start) / len(launches))
    return statistics.median(times[1:])


def copies(nbytes: int) -> int:
    """How many operands of this size are cold when their turn comes again; enough launches to time."""
    return max(4, -(-COLD_BYTES // nbytes))


def half(shape, seed=0):
    return runtime.to_device(np.random.default_rng(seed).normal(size=shape).astype(np.float16))


@pytest.mark.parametrize("shape", [LARGEST[1:], *MODEL_SHAPES], ids=str)
def test_gemm(shape, measure):
    """Every shipped config on f16 weights, and torch's own product, on random numbers: zeros would leave the
    clocks higher than a model does."""
    torch = pytest.importorskip("torch")
    od, depth = shape
    a = torch.randn(NT, depth, device="cuda").half()
    sides = {"float16": a, "float32": a.float()}
    weights = [torch.randn(od, depth, device="cuda").half() for _ in range(copies(2 * od * depth))]
    torch.cuda.synchronize()
    times = {}
    for kernel in shipped_kernels()["gemm_f16"]:
        out = runtime.empty((NT, od), DTYPES[kernel.config.out])
        loaded, grid = runtime.load(kernel), kernel.config.grid(NT, od)
        left = sides[kernel.config.sources[0].element]
        launches = [loaded.prepare(grid, left, b, out, NT, od, depth) for b in weights]
        times[str(kernel.config)] = milliseconds(launches)
    product = torch.empty(NT, od, device="cuda", dtype=torch.float16)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for repeats in (3, 30):
        start.record()
        for i in range(repeats):
            torch.matmul(a, weights[i % len(weights)].T, out=product)
        stop.record()
    torch.cuda.synchronize()
    times["torch.matmul, 30 in a row"] = start.elapsed_time(stop) / 30
    speeds = {name: round(2 * NT * od * depth / ms / 1e9, 1) for name, ms in times.items()}
    measure(f"GEMM TFLOPS at {NT}x{od}x{depth}", speeds)


def reader(each: int, threads: int = 512) -> Kernel:
    """Every thread reads `each` times 16 bytes, many in flight, and leaves their XOR: reading alone."""
    batches = each // 4

    def read(words, sums):
        thread = cuda.blockIdx.x * threads + cuda.threadIdx.x
        step = uint64(cuda.gridDim.x * threads * 16)
        address = ptx.global_address(words) + uint64(thread) * uint64(16)
        total = uint32(0)
        for _batch in range(batches):
            for _load in range(4):
                a, b, c, d = ptx.ld_global_stream_v4_u32(address)
                total ^= a ^ b ^ c ^ d
                address += step
        sums[thread] = total

    arguments = (
        Argument("words", "in", "uint32"),
        Argument("sums", "out", "uint32"),
    )
    return Kernel("read", each, read, threads, 0, arguments)


def test_read(measure):
    """What the GEMVs below are compared with; the words that were read are checked."""
    threads, each = runtime.device().sms * 4 * 512, 256
    words = np.random.default_rng(0).integers(0, 2**32, threads * 4 * each, np.uint32)
    first, sums = runtime.to_device(words), runtime.empty(threads, np.uint32)
    second = runtime.empty(words.shape, np.uint32).copy_from(first)
    loaded = runtime.load(reader(each))
    launches = [loaded.prepare((threads // 512, 1, 1), array, sums) for array in (first, second)]
    time = milliseconds(launches * 2)
    assert np.bitwise_xor.reduce(sums.to_host()) == np.bitwise_xor.reduce(words)
    measure("read: GB/s", round(words.nbytes / time / 1e6))


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


@pytest.mark.parametrize("step", seed_steps(28, 4))
@pytest.mark.parametrize("nt", [512, NT])
def test_prefill_attention(step, nt, measure):
    config = seed_steps(28, 4)[step]
    q, out = half((nt, 3584)), runtime.empty((nt, 3584), np.float16)
    k, v = half((nt, 512), 1), half((nt, 512), 2)
    launch = runtime.load(attention_prefill(config)).prepare(
        config.grid(nt), q, k, v, out, nt, 0, nt, 128**-0.5
    )
    time = milliseconds([launch] * 8)
    measure(f"attention {nt} tokens, {step}: ms", round(time, 4))
    measure(f"attention {nt} tokens, {step}: TFLOPS", round(28 * 4 * 128 * nt * (nt + 1) / 2 / time / 1e9, 1))


@pytest.mark.parametrize("length", [257, NT, 8192])
@pytest.mark.parametrize("splits", [16, 33, 66, 132])
def test_decode_attention(length, splits, measure):
    config = DecodeAttentionConfig(28, 4, splits=splits, output="q8")
    q = half(3584)
    partial, statistics_ = (
        runtime.empty(s, np.float32) for s in (config.partial_shape, config.statistics_shape)
    )
    rows, out = runtime.to_device(np.array([length], np.int32)), runtime.empty(4480, np.uint8)
    split, combine = runtime.load(attention_decode(config)), runtime.load(attention_combine(config))
    launches = []
    for i in range(8):
        k, v = half((length, 512), i), half((length, 512), i + 50)
        launches.append(split.prepare(config.grid(), q, k, v, partial, statistics_, rows, 128**-0.5))
    both = [
        part
        for s in launches
        for part in (s, combine.prepare(config.combine_grid(), partial, statistics_, out))
    ]
    measure(f"decode attention {length} rows, {splits} splits: us", round(milliseconds(launches) * 1e3, 2))
    measure(
        f"decode attention {length} rows, {splits} splits, combined: us", round(milliseconds(both) * 2e3, 2)
    )


def _bandwidth(measure, name: str, kernel, grid, sets: list, nbytes: int) -> None:
    loaded = runtime.load(kernel)
    time = milliseconds([loaded.prepare(grid, *arguments) for arguments in sets])
    measure(f"{name}: GB/s", round(nbytes / time / 1e6))


def test_copy(measure):
    """The driver's own copy of the same bytes: what the passes below are compared with."""
    sets = [[runtime.empty((NT, 18944), np.float32) for _ in range(2)] for _ in range(4)]
    stream, times = runtime.Stream(), []
    for _ in range(10):
        start = runtime.Event().record(stream)
        for target, source in sets:
            target.copy_from(source, stream)
        end = runtime.Event().record(stream)
        end.synchronize()
        times.append(end.since(start) / len(sets))
    nbytes = 2 * sets[0][0].nbytes
    measure(f"copy {NT}x18944 f32: GB/s", round(nbytes / statistics.median(times[1:]) / 1e6))


@pytest.mark.parametrize("vector", [1, 8])
def test_convert(vector, measure):
    n = NT * 18944
    config = ConvertConfig(vector=vector)
    sets = [(runtime.zeros(n, np.float32), runtime.empty(n, np.float16), n) for _ in range(4)]
    _bandwidth(
        measure, f"convert {NT}x18944 vector={vector}", convert_f32_f16(config), config.grid(n), sets, n * 6
    )


QUANTIZE = [QuantizePad40Config(form) for form in FORMS]
QUANTIZE += [QuantizePad40Config(unroll=n) for n in (2, 4)]
QUANTIZE += [QuantizePad40Config(source="f16", unroll=n) for n in (1, 2)]


@pytest.mark.parametrize("config", QUANTIZE, ids=str)
def test_quantize(config, measure):
    n, size = NT * 18944, {"f32": 4, "f16": 2}[config.source]
    dtype = {"f32": np.float32, "f16": np.float16}[config.source]
    kernel, grid = quantize_q8_0_pad40(config), config.grid(NT, 18944)
    sets = [(runtime.zeros(n, dtype), runtime.empty(n // 32 * 40, np.uint8), n // 32) for _ in range(4)]
    nbytes = n * size + n // 32 * 40
    _bandwidth(measure, f"quantize pad40 {NT}x18944 {config}", kernel, grid, sets, nbytes)


@pytest.mark.parametrize(
    ("output", "source"),
    [("f32", "f32"), ("f16", "f32"), ("f16", "f16"), ("pad40", "f32"), ("pad40", "f16")],
)
def test_swiglu(output, source, measure):
    size = {"f32": 4, "f16": 2, "pad40": 1.25}
    dtype = {"f32": np.float32, "f16": np.float16, "pad40": np.uint8}
    vector = 8 if (output, source) == ("pad40", "f16") else 4
    config = ew.SwigluConfig(output=output, source=source, packed=True, vector=vector)
    sets = [
        (
            runtime.zeros((NT, 37888), dtype[source]),
            runtime.empty((NT, 18944 // 32 * 40 if output == "pad40" else 18944), dtype[output]),
            18944,
        )
        for _ in range(4)
    ]
    nbytes = NT * 18944 * (2 * size[source] + size[output])
    name = f"swiglu {NT}x18944 {source}->{output}"
    _bandwidth(measure, name, ew.swiglu(config), config.grid(NT, 18944), sets, nbytes)


@pytest.mark.parametrize("output", ["f16", "pad40"])
def test_rmsnorm_with_residual(output, measure):
    config = ew.RmsNormConfig(output=output, residual=True)
    row = (NT, 3584)
    written = {"f16": (row, np.float16), "pad40": ((NT, 3584 // 32 * 40), np.uint8)}[output]
    sets = [
        (
            *(runtime.zeros(row, np.float32) for _ in range(3)),
            runtime.zeros(3584, np.float32),
            runtime.empty(*written),
            3584,
            1e-6,
        )
        for _ in range(4)
    ]
    nbytes = NT * 3584 * (12 + {"f16": 2, "pad40": 1.25}[output])
    name = f"rmsnorm {NT}x3584" + (" to pad40" if output == "pad40" else "")
    _bandwidth(measure, name, ew.rmsnorm(config), config.grid(NT), sets, nbytes)


def add_and_norm() -> dict[str, list[tuple]]:
    x, added, h = (runtime.zeros((NT, 3584), np.float32) for _ in range(3))
    weight, out = runtime.zeros(3584, np.float32), runtime.empty((NT, 3584), np.float16)
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
    qkv, bias = runtime.zeros((NT, 4608), np.float32), runtime.zeros(4608, np.float32)
    positions, table = (
        runtime.to_device(np.arange(NT, dtype=np.int32)),
        runtime.zeros((NT, 64, 2), np.float32),
    )
    q, k, v = (runtime.zeros((NT, width), np.float32) for width in (3584, 512, 512))
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
    both, whole = runtime.zeros((NT, 37888), np.float32), runtime.empty((NT, 18944), np.float32)
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
    """What it saves that one kernel does several passes of a layer of the 7B."""
    sets, name = [passes() for _ in range(4)], passes.__name__.replace("_", " ")
    for way in ("apart", "fused"):
        launches = [
            runtime.load(kernel).prepare(grid, *arguments)
            for operands in sets
            for kernel, grid, *arguments in operands[way]
        ]
        time = milliseconds(launches) * len(launches) / len(sets)
        measure(f"{name}, {NT} tokens, {way}: us", round(time * 1e3, 1))
