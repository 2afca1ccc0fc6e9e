"""The whole cuda backend on the simulator: its logits equal the host backend's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from minfer.cuda.gemm_hopper import Heads
from minfer.cuda.token import TokenConfig
from minfer.engine.backend import Backend
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.devices import SimulatedDevice
from minfer.engine.cuda.fused_rope import FusedRope, rotated_heads
from minfer.engine.cuda.plan import RESERVE_BYTES
from minfer.engine.cuda.routes import Route
from minfer.engine.host.runtime import HostBackend
from minfer.engine.session import Session
from minfer.model.model import Model
from tests.engine.cuda_models import K_QUANTS, MIXED, QUANTIZED, VOCAB, micro_model

pytestmark = pytest.mark.slow
IDS = np.random.default_rng(0).integers(0, VOCAB, 16)


def close(a: np.ndarray, b: np.ndarray, bound: float = 0.03) -> None:
    assert a.shape == b.shape
    assert np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)) < bound


def open_session(model: Model, backend: Backend, chunk: int = 16) -> Session:
    return Session(model, backend, n_ctx=32, chunk=chunk)


def simulated(
    device: SimulatedDevice | None = None, route: str | Route = "f16", weights: str = "auto"
) -> CudaBackend:
    return CudaBackend(route, device or SimulatedDevice(), lambda line: None, weights)


def launched(device: SimulatedDevice) -> set[str]:
    return {kernel.name for kernel in device.launches}


def test_prefill_and_decode(tmp_path):
    """One pass with its tail, then a token through the decode kernels."""
    model = micro_model(tmp_path / "micro.gguf")
    device = SimulatedDevice()
    gpu, host = open_session(model, simulated(device)), open_session(model, HostBackend(threads=1))
    device.launches.clear()
    close(gpu.forward(IDS[:7]), host.forward(IDS[:7]), 0.01)
    assert {"gemm_f16", "attention_prefill", "rope_store", "rope", "gemv"} <= launched(device)
    device.launches.clear()
    close(gpu.forward(IDS[7:8]), host.forward(IDS[7:8]))
    assert {"gemv", "attention_decode", "attention_combine"} <= launched(device)
    assert not {"gemm_f16", "attention_prefill", "quantize_q8"} & launched(device)


def test_chunked_prefill_equals_whole(tmp_path):
    """Bit by bit: a tile's size does not change the order of a sum, nor does the chunk of a query."""
    model = micro_model(tmp_path / "micro.gguf")
    whole = open_session(model, simulated()).forward(IDS)
    np.testing.assert_array_equal(open_session(model, simulated(), chunk=11).forward(IDS), whole)


def test_chunks_of_few_tokens(tmp_path):
    """A chunk through the GEMMs without logits, then one so short that it reads the blocks."""
    model = micro_model(tmp_path / "micro.gguf")
    gpu, host = open_session(model, simulated(), chunk=5), open_session(model, HostBackend(threads=1))
    close(gpu.forward(IDS[:8]), host.forward(IDS[:8]))


def test_the_simulators_memory_stays_where_it_is():
    """What was given lies at the same offset for ever: a session's token kernel keeps offsets."""
    device = SimulatedDevice(memory_bytes=1 << 20)
    first = device.empty(100, np.float32)
    before = device.origin(), device.offset(first)
    second = device.empty((1 << 20) - 512, np.uint8)
    assert (device.offset(second), device.free_bytes()) == (512, 0)
    assert device.origin() is before[0] and device.offset(first) == before[1] == 0
    with pytest.raises(MemoryError, match="0 of 1,048,576 bytes left, 1 were asked for"):
        device.empty(1, np.uint8)


def test_mixed_formats_head_norms_and_scratch(tmp_path):
    """A qwen3 with plain weights among quantized ones, in so little memory that prefill dequantizes anew."""
    model = micro_model(tmp_path / "micro.gguf", "qwen3", MIXED)
    resident = open_session(model, simulated())._runtime.plan
    device = SimulatedDevice(memory_bytes=RESERVE_BYTES + resident.total - 1)
    gpu, host = open_session(model, simulated(device)), open_session(model, HostBackend(threads=1))
    assert resident.weights == "resident"
    assert gpu._runtime.plan.weights == "scratch"
    close(gpu.forward(IDS[:6]), host.forward(IDS[:6]), 0.01)
    close(gpu.forward(IDS[6:7]), host.forward(IDS[6:7]))


@pytest.mark.parametrize(("arch", "formats"), [("qwen2", QUANTIZED), ("qwen3", MIXED)])
def test_blocks_only(tmp_path, monkeypatch, arch, formats):
    """No f16 copy of any weights: one product a run of rows in a format, side by side in one matrix. F32 and
    BF16 rows go through a scratch."""
    from minfer.engine.cuda import products

    monkeypatch.setattr(products, "PANEL_ROWS", 64)
    model = micro_model(tmp_path / "micro.gguf", arch, formats, layers=1)
    device = SimulatedDevice()
    gpu, host = (
        open_session(model, simulated(device, weights="blocks")),
        open_session(model, HostBackend(threads=1)),
    )
    assert gpu.backend.settings()["weights"] == "blocks"
    device.launches.clear()
    close(gpu.forward(IDS[:6], logits="all"), host.forward(IDS[:6], logits="all"), 0.01)
    assert "gemm_blocks" in launched(device)
    assert ("dequantize" in launched(device)) == (formats is MIXED)


def test_logits_of_all_tokens(tmp_path, monkeypatch):
    """Through panels of the output matrix, and for few tokens through the blocks."""
    from minfer.engine.cuda import products

    monkeypatch.setattr(products, "PANEL_ROWS", 64)
    model = micro_model(tmp_path / "micro.gguf", layers=1)
    gpu, host = open_session(model, simulated(), chunk=5), open_session(model, HostBackend(threads=1))
    close(gpu.forward(IDS[:7], logits="all"), host.forward(IDS[:7], logits="all"))


def test_wgmma_without_fused_epilogues(tmp_path, monkeypatch):
    from minfer.engine.cuda import routes

    monkeypatch.setattr(routes, "SMALL_TOKENS", 1)
    model = micro_model(tmp_path / "micro.gguf")
    device = SimulatedDevice(arch="sm_90a")
    gpu = open_session(model, simulated(device, Route("f16-wgmma", wgmma=True, fused=False)))
    host = open_session(model, HostBackend(threads=1))
    close(gpu.forward(IDS[:5]), host.forward(IDS[:5]), 0.01)
    epilogues = {kernel.config.epilogue for kernel in device.launches if kernel.name == "gemm_hopper"}
    assert epilogues == {"store"}
    assert "swiglu" in launched(device)


def test_products_whose_depth_two_blocks_share(tmp_path, monkeypatch):
    from minfer.cuda.gemm_hopper import choice
    from minfer.engine.cuda import fused_rope, routes
    from minfer.engine.cuda.launches import launch_for

    monkeypatch.setattr(routes, "SMALL_TOKENS", 1)
    monkeypatch.setattr(choice, "EXCHANGE_CYCLES", 0)  # or no matrix of a small model is deep enough
    kept = launch_for, fused_rope._chosen
    try:
        for each in kept:
            each.cache_clear()
        model = micro_model(tmp_path / "micro.gguf", ffn=256)
        device = SimulatedDevice(arch="sm_90a", sms=16)
        gpu = open_session(model, simulated(device, Route("f16-wgmma", wgmma=True)))
        host = open_session(model, HostBackend(threads=1))
        for first, last in ((0, 5), (5, 11)):
            close(gpu.forward(IDS[first:last]), host.forward(IDS[first:last]), 0.01)
        products = [kernel.config for kernel in device.launches if kernel.name == "gemm_hopper"]
        assert {made.epilogue for made in products if made.split_k} >= {"add"}
    finally:
        for each in kept:
            each.cache_clear()


def test_rope_in_the_product(tmp_path, monkeypatch):
    """On an empty cache and on a filled one: the bits of the separate kernels."""
    from minfer.engine.cuda import routes

    monkeypatch.setattr(routes, "SMALL_TOKENS", 1)
    model = micro_model(tmp_path / "micro.gguf", layers=1)
    logits, passes = [], []
    for takes in (lambda *_: False, FusedRope.takes):
        monkeypatch.setattr(FusedRope, "takes", takes)
        device = SimulatedDevice(arch="sm_90a")
        gpu = open_session(model, simulated(device, Route("f16-wgmma", wgmma=True)))
        logits.append([gpu.forward(IDS[a:b], logits="all") for a, b in ((0, 5), (5, 11))])
        passes.append([kernel.name for kernel in device.launches].count("rope_store"))
    assert passes == [2, 0]
    for one, other in zip(*logits, strict=True):
        np.testing.assert_array_equal(one, other)


def test_models_whose_heads_the_product_rotates(tmp_path):
    config = micro_model(tmp_path / "micro.gguf", layers=1).config
    assert rotated_heads(config) == Heads(2, 1, 64, bias=True)
    assert rotated_heads(replace(config, has_qk_norm=True)) is None
    assert rotated_heads(replace(config, rope=replace(config.rope, dimension_count=32))) is None
    assert rotated_heads(replace(config, head_dim=80, rope=replace(config.rope, dimension_count=80))) is None


def test_wgmma_route(tmp_path, monkeypatch):
    """Hopper's GEMM for every product of several tokens, and its attention, on an empty cache and on a filled
    one; f16 rows go into RoPE."""
    from minfer.engine.cuda import routes

    monkeypatch.setattr(routes, "SMALL_TOKENS", 1)
    model = micro_model(tmp_path / "micro.gguf")
    device = SimulatedDevice(arch="sm_90a")
    gpu, host = (
        open_session(model, simulated(device, "f16-wgmma")),
        open_session(model, HostBackend(threads=1)),
    )
    for first, last in ((0, 5), (5, 11)):
        device.launches.clear()
        close(gpu.forward(IDS[first:last]), host.forward(IDS[first:last]), 0.01)
        assert {"gemm_hopper", "attention_hopper"} <= launched(device)
        assert "attention_prefill" not in launched(device)
    epilogues = {kernel.config.epilogue for kernel in device.launches if kernel.name == "gemm_hopper"}
    assert epilogues == {"store", "add", "swiglu", "rope"}
    device.launches.clear()
    close(gpu.forward(IDS[11:12]), host.forward(IDS[11:12]))
    waiting = {kernel.name for kernel in device.launches if kernel.config.pdl}
    assert waiting == launched(device) - {"embedding"}


def test_f32_activations(tmp_path):
    """The seeds' f32 mirror: nothing is converted before a GEMM."""
    from minfer.engine.cuda.routes import choose_route

    model = micro_model(tmp_path / "micro.gguf")
    device = SimulatedDevice()
    backend = simulated(device, choose_route("f16", "sm_80", {"MINFER_GEMM_AF32": "1"}))
    gpu, host = open_session(model, backend), open_session(model, HostBackend(threads=1))
    close(gpu.forward(IDS[:6], logits="all"), host.forward(IDS[:6], logits="all"), 0.005)
    assert "convert_f32_f16" not in launched(device)


def test_a_token_in_one_kernel(tmp_path, monkeypatch):
    """Q4_K and Q6_K on sm_90. A prompt in chunks of one has tokens whose logits nobody wants: their keys and
    values are stored nevertheless. The kernel chooses the next token, too."""
    from minfer.engine.cuda import token

    monkeypatch.setattr(token, "TokenConfig", partial(TokenConfig, warps=4))
    wide = {"layers": 1, "hidden": 256, "ffn": 256, "heads": 4, "output": "Q6_K"}
    model = micro_model(tmp_path / "micro.gguf", formats=K_QUANTS, **wide)
    device = SimulatedDevice(arch="sm_90a")
    gpu = Session(model, simulated(device, Route("f16")), n_ctx=64, chunk=1)
    host = open_session(model, HostBackend(threads=1))
    device.launches.clear()
    close(gpu.forward(IDS[:2]), host.forward(IDS[:2]))
    step = ["embedding", "decode_token"]
    assert [kernel.name for kernel in device.launches] == 3 * step  # one more for capture
    fed, wanted = IDS[2], []
    for _ in range(2):
        wanted.append(int(host.forward([fed]).argmax()))
        fed = wanted[-1]
    assert list(gpu.greedy(IDS[2], 2)) == wanted
    assert "argmax" not in launched(device)


def test_a_model_that_the_kernel_does_not_take(tmp_path):
    """Other formats: one kernel an operation."""
    device = SimulatedDevice(arch="sm_90a")
    backend = simulated(device, Route("f16"))
    gpu = open_session(micro_model(tmp_path / "micro.gguf"), backend)
    device.launches.clear()
    gpu.forward(IDS[:1])
    assert "decode_token" not in launched(device) and "gemv" in launched(device)
