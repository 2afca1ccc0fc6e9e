"""The routes w4a16 and w4a8: what they plan and launch, and their logits on the simulator."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from minfer.cuda.w4a16 import PAIR, split_workspace
from minfer.engine.cuda import weights
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.compile_ahead import needed_kernels
from minfer.engine.cuda.devices import DryDevice, SimulatedDevice
from minfer.engine.cuda.launches import TensorMaps, kernel, origin
from minfer.engine.cuda.plan import RESERVE_BYTES
from minfer.engine.cuda.routes import Route, choose_route
from minfer.engine.cuda.seats import device_parts
from minfer.engine.cuda.w4a16 import W4A16Products, takes
from minfer.engine.cuda.weights import Run, Stack
from minfer.engine.errors import EngineError, InputError
from minfer.engine.host.runtime import HostBackend
from minfer.engine.session import Session
from minfer.model.model import Model
from tests.cuda.block_data import random_matrix
from tests.engine.conftest import DATA
from tests.engine.cuda_models import BLOCKS_K, VOCAB, micro_model

IDS = np.random.default_rng(0).integers(0, VOCAB, 80)


def dry(route: str) -> CudaBackend:
    return CudaBackend(route, DryDevice(), on_plan=lambda line: None)


def test_choice():
    assert choose_route("w4a16", "sm_90a", {}).reads_blocks
    assert "w4a16, tile by shape" in choose_route("w4a16", "sm_90a", {}).settings()["gemm"]
    with pytest.raises(EngineError, match="route w4a16 needs a GPU of sm_90"):
        choose_route("w4a16", "sm_121a", {})
    with pytest.raises(InputError, match="set wgmma"):
        Route("a", w4a16=True)
    assert takes([("Q4_K", 256), ("Q6_K", 256)]) and takes([("Q6_K", 512)])
    assert not takes([("Q4_K", 256), ("Q5_K", 256)]) and not takes([("Q4_K", 288)])


def test_no_f16_copies():
    model = Model.load(DATA / "qwen2-k.gguf")
    f16, plan = (dry(name).plan(model, 256, 128) for name in ("f16", "w4a16"))
    assert "weights as f16" not in plan.parts and plan.saved == f16.parts["weights as f16"]
    assert str(plan).endswith(f"no f16 copy of the weights, {plan.saved / 1e6:.2f} MB saved")
    assert not plan.copies([("Q4_K", 256), ("Q6_K", 256)]) and plan.copies([("Q4_K", 256), ("Q5_K", 256)])
    backend = dry("w4a16")
    session = Session(model, backend, n_ctx=256, chunk=128)
    assert backend.settings()["weights"] == "blocks"
    backend.device.launches.clear()
    session.forward(range(100))
    launches = backend.device.launches
    others = {"gemm_f16", "gemm_hopper", "dequantize", "convert_f32_f16", "swiglu"}
    assert not others & {made.name for made in launches[:-20]}
    configs = [made.config for made in launches if made.name == "w4a16"]
    assert sum(config.gated for config in configs) == model.config.n_layers - 1
    # v and down are Q6_K in half of the layers: v beside q and k in one launch.
    assert {config.format for config in configs} == {"Q4_K", "Q6_K", PAIR}
    needed = needed_kernels(model, backend.route, backend.plan(model, 256, 128), "sm_90a", 132)
    assert {made.name for made in needed} >= {"w4a16", "gemv"}
    for made in needed:  # other processes compile them
        factory, config = pickle.loads(pickle.dumps(origin(made)))
        assert kernel(factory, config) is made


def test_auto_takes_it_where_f16_copies_do_not_fit():
    model, lines = Model.load(DATA / "qwen2-k.gguf"), []
    whole = dry("auto").plan(model, 256, 128)
    device = DryDevice(memory_bytes=RESERVE_BYTES + whole.total - 1)
    backend = CudaBackend("auto", device, on_plan=lines.append)
    Session(model, backend, n_ctx=256, chunk=128)
    assert backend.route.name == "w4a16"
    assert lines[0] == "f16 copies of the weights do not fit: route w4a16 reads the blocks"
    # Asked for, a route and a way are kept.
    for kept in (CudaBackend("f16-wgmma", device), CudaBackend("auto", device, weights="scratch")):
        assert kept.plan(model, 256, 128).weights == "scratch" and kept.route.name == "f16-wgmma"
    # For the next model it is open again.
    device.memory_bytes += 1
    assert backend.plan(model, 256, 128).resident and backend.route.name == "f16-wgmma"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["f16", "f32"])
@pytest.mark.parametrize("formats", ["Q4_K Q6_K", "Q6_K Q4_K", "Q4_K Q6_K Q4_K"])
def test_runs_side_by_side(formats, form):
    """Two runs are one launch, three are three, each over what the one before left behind its own columns."""
    device, draw = SimulatedDevice(arch="sm_90a"), np.random.default_rng(1)
    runs, values = [], []
    for format, rows in zip(formats.split(), (128, 72, 40), strict=False):
        blocks, exact = random_matrix(format, rows, 512)
        runs.append(Run(format, rows, 512, blocks))
        values.append(exact)
    stack = Stack(tuple(runs), sum(run.rows for run in runs), 512)
    a = draw.standard_normal((9, 512)).astype(np.float16)
    c = np.full((9, stack.rows), np.nan, {"f16": np.float16, "f32": np.float32}[form])
    W4A16Products(device, TensorMaps(device)).multiply(c, a, stack, form)
    assert len(device.launches) == (1 if len(runs) == 2 else 3)
    wanted = a.astype(np.float64) @ np.concatenate(values).astype(np.float64).T
    assert np.linalg.norm(c - wanted) < 5e-4 * np.linalg.norm(wanted)


@pytest.mark.slow
def test_few_tokens_of_a_deep_product_share_tiles():
    """Blocks exchange sums through the engine's workspace, and leave its counters as they were."""
    device, draw = SimulatedDevice(sms=4, arch="sm_90a"), np.random.default_rng(2)
    blocks, values = random_matrix("Q4_K", 72, 3072)
    stack = Stack((Run("Q4_K", 72, 3072, blocks),), 72, 3072)
    parts = device_parts(device, split_workspace)
    a = draw.standard_normal((9, 3072)).astype(np.float16)
    c = np.full((9, 72), np.nan, np.float16)
    W4A16Products(device, TensorMaps(device), parts).multiply(c, a, stack, "f16")
    assert [made.config.split_k for made in device.launches] == [4]
    wanted = a.astype(np.float64) @ values.astype(np.float64).T
    assert np.linalg.norm(c - wanted) < 5e-4 * np.linalg.norm(wanted)
    assert not parts[1].any()


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False])
def test_logits(tmp_path, monkeypatch, fused):
    """Formats of all kinds: Q4_K and Q6_K as blocks, also side by side; Q8_0 as a copy or through the
    scratch."""
    from minfer.engine.cuda import products, routes

    monkeypatch.setattr(routes, "SMALL_TOKENS", 1)
    monkeypatch.setattr(products, "SMALL_TOKENS", 8)
    model = micro_model(tmp_path / "micro.gguf", formats=BLOCKS_K, layers=2, hidden=256, ffn=256)
    device = SimulatedDevice(arch="sm_90a")
    route = Route("w4a16", wgmma=True, hopper_attention=True, w4a16=True, fused=fused)
    weights = "resident" if fused else "scratch"
    backend = CudaBackend(route, device, lambda line: None, weights)
    gpu = Session(model, backend, n_ctx=96, chunk=16)
    assert ("weights as f16" in gpu._runtime.plan.parts) == fused
    host = Session(model, HostBackend(threads=1), n_ctx=96, chunk=16)
    for first, last in ((0, 12), (12, 19)):
        device.launches.clear()
        got, wanted = (session.forward(IDS[first:last]) for session in (gpu, host))
        assert np.sqrt(np.mean((got - wanted) ** 2) / np.mean(wanted**2)) < 0.01
        configs = [kernel.config for kernel in device.launches if kernel.name == "w4a16"]
        assert {config.format for config in configs} == {"Q4_K", "Q6_K", PAIR}
        assert any(config.gated for config in configs) == fused
        assert any(config.store == "direct" for config in configs)


def test_w4a8_takes_gate_and_up():
    with pytest.raises(InputError, match="set both"):
        Route("a", wgmma=True, w4a8=True)
    assert choose_route("w4a8", "sm_90a", {}).settings()["gemm"].startswith("w4a8 for gate and up -> w4a16")


def test_w4a8_leaves_negative_scales_to_w4a16(tmp_path, monkeypatch):
    blocks = np.zeros((2, 288), np.uint8)
    assert not weights.has_negative_scales(blocks)
    blocks[1, 145] = 0x80  # the sign of the last block's d
    assert weights.has_negative_scales(blocks)
    model = micro_model(tmp_path / "micro.gguf", formats=BLOCKS_K, layers=2, hidden=512, ffn=256)
    for negative in (False, True):
        monkeypatch.setattr(weights, "has_negative_scales", lambda blocks, found=negative: found)
        lines: list[str] = []
        backend = CudaBackend("w4a8", DryDevice(), on_plan=lines.append)
        Session(model, backend, n_ctx=96, chunk=16).forward(IDS[:12])
        names = [kernel.name for kernel in backend.device.launches]
        assert ("w4a8" in names) != negative and "w4a16" in names
        assert sum("left to w4a16" in line for line in lines) == negative


@pytest.mark.slow
def test_w4a8_logits(tmp_path):
    """Rows of 512 weights; gate and up in int8."""
    model = micro_model(tmp_path / "micro.gguf", formats=BLOCKS_K, layers=2, hidden=512, ffn=256)
    device = SimulatedDevice(arch="sm_90a")
    gpu = Session(model, CudaBackend("w4a8", device, lambda line: None), n_ctx=96, chunk=16)
    host = Session(model, HostBackend(threads=1), n_ctx=96, chunk=16)
    device.launches.clear()
    got, wanted = (session.forward(IDS[:12]) for session in (gpu, host))
    assert np.sqrt(np.mean((got - wanted) ** 2) / np.mean(wanted**2)) < 0.03
    names = [kernel.name for kernel in device.launches]
    assert names.count("w4a8") == names.count("quantize_groups") == 1
    assert "w4a16" in names and "swiglu" not in names[: names.index("w4a8") + 2]
