"""What the cuda backend refuses, plans and needs, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from minfer.engine.bench import bench
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.compile_ahead import needed_kernels
from minfer.engine.cuda.devices import DryDevice
from minfer.engine.cuda.launches import kernel, origin
from minfer.engine.errors import EngineError, InputError
from minfer.engine.session import Session
from minfer.model.model import Model
from tests.engine.conftest import DATA, ORACLES
from tests.engine.counting_device import CountingDevice
from tests.engine.cuda_models import micro_model

TINY = Path(__file__).parents[2] / "data" / "qwen2-tiny.gguf"


@pytest.fixture(scope="module")
def micro(tmp_path_factory) -> Model:
    return micro_model(tmp_path_factory.mktemp("models") / "micro.gguf")


def dry(device: DryDevice | None = None, route: str = "auto", lines: list[str] | None = None) -> CudaBackend:
    return CudaBackend(route, device or DryDevice(), on_plan=(lines if lines is not None else []).append)


def test_describes_device_and_route():
    assert dry().describe() == "no device (sm_90a, 132 SMs), route f16-wgmma"
    assert dry(DryDevice("sm_89")).settings()["route"] == "f16"
    assert "numba-cuda" in dry().versions()


def test_the_plan_is_told(micro):
    lines = []
    Session(micro, dry(lines=lines), n_ctx=64)
    plan, decode = lines
    assert plan.startswith("memory: weights as blocks 0.07 MB, KV cache of 64 tokens")
    assert decode.startswith("decode takes one kernel an operation; decode_token: ")


def test_loading_is_told(micro):
    """Tensor by tensor, up to the last byte."""
    told = []
    bench(micro, dry(), [8], [], 1, progress=lambda *step: told.append(step))
    total = sum(tensor.nbytes for tensor in micro.file.tensors.values())
    assert told == sorted(told) and len(told) > 20
    assert told[-1] == ("loading", total, total)


def test_weights_that_do_not_exist():
    with pytest.raises(InputError, match="weights 'f8': choose one of auto, resident, scratch, blocks"):
        CudaBackend("auto", DryDevice(), weights="f8")


def test_refusals(micro, tiny):
    with pytest.raises(EngineError, match="keeps its KV cache in f16, not f32: use f16 or the host"):
        Session(micro, dry(), kv_dtype="f32")
    with pytest.raises(EngineError, match=r"does not fit: .* of 0\.00 MB free"):
        Session(micro, dry(DryDevice(memory_bytes=0)))


def test_heads_that_no_kernel_takes(tmp_path, monkeypatch):
    from tests.engine import cuda_models

    monkeypatch.setattr(cuda_models, "HEAD_DIM", 32)
    model = micro_model(tmp_path / "narrow.gguf")
    with pytest.raises(EngineError, match="heads of 32: the cuda backend's attention takes 64 or 128"):
        Session(model, dry())


def names(model: Model, chunk: int, route: str = "auto") -> set[str]:
    backend = dry(route=route)
    plan = backend.plan(model, 256, chunk)
    return {k.name for k in needed_kernels(model, backend.route, plan, "sm_90a", 132)}


def test_needed_kernels(micro):
    """A dry run knows them: loading, a whole chunk, a decode step."""
    common = {"dequantize", "embedding", "rmsnorm", "rope_store", "attention_prefill", "swiglu", "gemv"}
    common |= {"attention_decode", "attention_combine"}
    assert common | {"gemm_hopper"} <= names(micro, 100)
    assert common | {"gemm_f16"} <= names(micro, 100, "f16")
    assert "gemm_hopper" not in names(micro, 100, "f16")


@pytest.mark.parametrize("route", ["f16", "f16-wgmma", "w4a16", "mmq_fast"])
def test_no_length_of_a_prompt_needs_others(route):
    """Or a prompt would wait for the compiler."""
    model, device = Model.load(TINY), DryDevice()
    backend = dry(device, route)
    plan = backend.plan(model, 2048, 2048)
    known = set(needed_kernels(model, backend.route, plan, "sm_90a", 132))
    session = Session(model, backend, n_ctx=2048)
    for n in (*range(1, 2048, 11), 2048):
        device.launches.clear()
        session.reset()
        session.forward([0] * n)
        assert known.issuperset(device.launches), n


LIMITS = {"sm_80": 163, "sm_86": 99, "sm_90a": 227, "sm_120a": 99}  # KiB of shared memory a block


@pytest.mark.parametrize("arch", LIMITS)
@pytest.mark.parametrize("name", ORACLES)
def test_chosen_kernels_run_on_the_architecture(name, arch):
    model = Model.load(DATA / f"{name}.gguf")
    backend = dry(DryDevice(arch, sms=80))
    plan = backend.plan(model, 512, 512)
    for made in needed_kernels(model, backend.route, plan, arch, sms=80):
        assert made.not_applicable(arch) is None
        assert made.shared_bytes <= LIMITS[arch] * 1024, made


def test_kernels_can_be_made_in_another_process(micro):
    import pickle

    backend = dry()
    plan = backend.plan(micro, 256, 100)
    for made in needed_kernels(micro, backend.route, plan, "sm_90a", 132):
        factory, config = pickle.loads(pickle.dumps(origin(made)))
        assert kernel(factory, config) is made


def test_buffers_take_what_was_planned(micro):
    """Every activation buffer has exactly the planned size, and the whole is within the plan."""
    device = CountingDevice()
    session = Session(micro, dry(device), n_ctx=128, chunk=32)
    session.forward(range(32))
    session.forward([1])
    plan = session._runtime.plan
    assert sum(device.taken) <= plan.total
    assert sum(device.taken) > 0.95 * plan.total


@pytest.mark.slow
def test_missing_kernels_are_compiled_ahead(tmp_path, monkeypatch):
    """In other processes, into the cache, once."""
    from minfer.cuda import elementwise as ew
    from minfer.cuda.runtime import cache
    from minfer.engine.cuda.compile_ahead import compile_ahead

    monkeypatch.setenv("MINFER_CACHE", str(tmp_path))
    kernels = [
        kernel(ew.bias_add, ew.AddConfig(threads=64)),
        kernel(ew.residual_add, ew.AddConfig(threads=64)),
        kernel(ew.residual_add, ew.AddConfig(vector=1, threads=64)),
    ]
    lines, steps = [], []
    compile_ahead(kernels, "sm_80", lines.append, lambda *step: steps.append(step))
    assert steps == sorted(steps) and steps[-1] == ("compiling", 3, 3)
    assert lines == [f"compiling 3 kernels; they are kept in {tmp_path}"]
    assert all(cache.holds(made, "sm_80") for made in kernels)
    compile_ahead(kernels, "sm_80", lines.append)
    assert len(lines) == 1
