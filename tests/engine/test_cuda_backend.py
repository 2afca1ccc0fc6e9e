"""What the cuda backend refuses, plans and needs, without a GPU."""

from __future__ import annotations

import pytest

from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.compile_ahead import needed_kernels
from minfer.engine.cuda.devices import DryDevice
from minfer.engine.cuda.weights import kernel, origin
from minfer.engine.errors import EngineError
from minfer.engine.session import Session
from minfer.model.model import Model
from tests.engine.cuda_models import micro_model


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
    assert len(lines) == 1 and lines[0].startswith("memory: weights as blocks 0.07 MB, KV cache of 64 tokens")


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


def test_kernels_can_be_made_in_another_process(micro):
    import pickle

    backend = dry()
    plan = backend.plan(micro, 256, 100)
    for made in needed_kernels(micro, backend.route, plan, "sm_90a", 132):
        factory, config = pickle.loads(pickle.dumps(origin(made)))
        assert kernel(factory, config) is made


def test_buffers_take_what_was_planned(micro):
    """Every activation buffer has exactly the planned size, and the whole is within the plan."""
    taken = []

    class Counting(DryDevice):
        def empty(self, shape, dtype):
            array = super().empty(shape, dtype)
            taken.append(array.nbytes)
            return array

    session = Session(micro, dry(Counting()), n_ctx=128, chunk=32)
    session.forward(range(32))
    session.forward([1])
    plan = session._runtime.plan
    assert sum(taken) <= plan.total
    assert sum(taken) > 0.95 * plan.total
