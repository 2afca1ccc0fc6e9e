"""A forward's launches as a driver gets them, a fake one: the same from what is kept, and no more."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from minfer.cuda.kernel import CompileError
from minfer.cuda.runtime import launching
from minfer.engine.cuda import compile_ahead, launches
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.launches import KEPT, TensorMaps, launch_for
from minfer.engine.cuda.routes import HOPPER_ROUTES, MMQ_ROUTES, Route, choose_route
from minfer.engine.session import Session
from minfer.model.model import Model
from tests.cuda import fake_driver
from tests.engine.cuda_models import K_QUANTS, micro_model

IDS = [1, 2, 3, 4] * 60
LENGTHS = (5, 2, 12, 64, 65, 100, 200)
CHUNK = 128
SHAPE = {"hidden": 256, "ffn": 512, "heads": 4, "output": "Q6_K"}


@pytest.fixture
def gpu(monkeypatch):
    """A fake H200, and a compiler that makes no code."""
    fake = fake_driver.install(monkeypatch)
    monkeypatch.setattr(launching, "compile_kernel", fake_driver.compiled)
    monkeypatch.setattr(compile_ahead, "compile_ahead", lambda *_: None)
    monkeypatch.setattr(compile_ahead.cache, "holds", lambda *_: True)
    launch_for.cache_clear()
    yield fake
    gc.collect()  # what lies in its memory goes before it does
    fake_driver.uninstall()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    return micro_model(tmp_path_factory.mktemp("model") / "k.gguf", formats=K_QUANTS, **SHAPE)


def open_session(model: Model, route: str | Route) -> Session:
    return Session(model, CudaBackend(route, on_plan=lambda line: None), n_ctx=256, chunk=CHUNK)


def launched(gpu: fake_driver.FakeDriver, session: Session, ids: Sequence[int], **rest: str) -> list[dict]:
    """What the driver is given for these tokens behind those of the session: functions, grids, parameters."""
    gpu.launched.clear()
    session.forward(ids, **rest)
    return [_but_for_addresses(launch) for launch in gpu.launched]


def _but_for_addresses(launch: SimpleNamespace) -> dict:
    return {name: value for name, value in vars(launch).items() if name != "pointers"}


def passes(
    gpu: fake_driver.FakeDriver, session: Session, lengths: Sequence[int]
) -> dict[int | str, list[dict]]:
    """The launches of prompts of these lengths, and of prompts behind another one."""
    found: dict[Any, list[dict]] = {}
    for n in lengths:
        session.reset()
        found[n] = launched(gpu, session, IDS[:n])
    session.reset()
    found["1, all logits"] = launched(gpu, session, IDS[:1], logits="all")
    found["5 behind 1"] = launched(gpu, session, IDS[:5])
    found["70 behind 6, all logits"] = launched(gpu, session, IDS[:70], logits="all")
    return found


@pytest.mark.parametrize("route", ["f16", *HOPPER_ROUTES, *MMQ_ROUTES])
def test_the_same_from_what_is_kept(gpu, model, monkeypatch, route):
    """Functions, grids and every parameter: made for the first time, kept from before, and made anew after
    everything has been dropped."""
    session = open_session(model, route)
    first = passes(gpu, session, LENGTHS)
    assert all(first.values())
    made = launch_for.cache_info().misses
    assert passes(gpu, session, LENGTHS[::-1]) == first
    assert launch_for.cache_info().misses == made
    launch_for.cache_clear()
    session._runtime._products.tensor_map._kept.clear()
    monkeypatch.setattr(launches, "KEPT", 3)
    assert passes(gpu, session, LENGTHS) == first


@pytest.mark.parametrize(
    ("route", "few", "many"),
    [("f16", 9, 9), ("f16-wgmma", 9, 7), ("w4a16", 8, 8), ("mmq", 11, 11), ("mmq_fast", 11, 11)],
)
def test_launches_of_a_layer(gpu, tmp_path, route, few, many):
    """For 12 and for 100 tokens: norms, q+k+v, RoPE, attention, o, gate and up, swiglu, down, unless a kernel
    does two of them; MMQ takes v on its own, and quantizes what attention writes. What one layer has had made
    the next one finds."""
    counts, made = [], []
    for layers in (3, 4):
        name = f"{layers}.gguf"
        session = open_session(micro_model(tmp_path / name, formats=K_QUANTS, layers=layers, **SHAPE), route)
        session.forward(IDS[:1])
        for n in (12, 100):
            session.reset()
            before = launch_for.cache_info().misses
            counts.append(len(launched(gpu, session, IDS[:n])))
            made.append(launch_for.cache_info().misses - before)
        launch_for.cache_clear()
    assert (counts[2] - counts[0], counts[3] - counts[1]) == (few, many)
    assert made[:2] == made[2:]


@pytest.mark.parametrize("route", ["f16", *HOPPER_ROUTES, *MMQ_ROUTES])
def test_no_prompt_waits_for_a_kernel_to_be_loaded(gpu, model, route):
    session = open_session(model, route)
    gpu.calls.clear()
    for n in (12, 100, 200):
        session.reset()
        session.forward(IDS[:n])
        session.forward(IDS[:1])
    assert not gpu.named("cuModuleLoadData")


def test_a_kernel_that_cannot_be_loaded_is_left_to_its_launch(gpu, model, monkeypatch):
    refused = []

    def refuse(kernel, *_):
        refused.append(kernel)
        raise CompileError(kernel.name, kernel.config, "sm_90a", "spills")

    monkeypatch.setattr(launching, "compile_kernel", refuse)
    with pytest.raises(CompileError, match="dequantize"):
        open_session(model, "f16")
    assert len({kernel.name for kernel in refused}) > 5


@pytest.mark.parametrize("route", ["f16-wgmma", "mmq_fast"])
def test_a_prompt_of_a_known_length_waits_once(gpu, model, route):
    """For its logits: it takes no memory, loads nothing and describes no array anew."""
    session = open_session(model, route)
    for n in (12, 100, 12):
        session.reset()
        session.forward(IDS[:n])
    gpu.calls.clear()
    held, maps = len(gpu.memory), len(gpu.tensor_maps)
    session.reset()
    session.forward(IDS[:12])
    assert len(gpu.named("cuStreamSynchronize")) == 1
    assert {call[0] for call in gpu.calls} <= {"cuStreamSynchronize", "cuEventSynchronize", "cuEventRecord"}
    assert (len(gpu.memory), len(gpu.tensor_maps)) == (held, maps)


def test_the_order_of_attention_s_tiles_is_written_when_it_changes(gpu, model):
    session, written = open_session(model, "f16-wgmma"), []
    device = session._runtime.device
    write = device.write
    device.write = lambda *args: (written.append(args[0]), write(*args))
    for n, writes in ((12, 2), (20, 1), (128, 1), (12, 1)):
        written.clear()
        session.reset()
        session.forward(IDS[:n])
        assert len(written) == writes, n


@pytest.mark.parametrize(("operation", "call"), [("rmsnorm", 2), ("rotate_and_store", 1), ("swiglu", 1)])
def test_a_pass_that_is_interrupted_leaves_no_product_behind(gpu, model, operation, call):
    """One that was to be launched with the operation at which it ended."""
    route = replace(choose_route("f16-wgmma", "sm_90a", {}), fused=operation != "rmsnorm")
    session = open_session(model, route)
    runtime, calls = session._runtime, []
    expected = launched(gpu, session, IDS[:12])
    whole = getattr(runtime, operation)

    def interrupted(*args, **rest):
        calls.append(operation)
        if len(calls) == call:
            raise KeyboardInterrupt
        whole(*args, **rest)

    session.reset()
    setattr(runtime, operation, interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.forward(IDS[:100])
    setattr(runtime, operation, whole)
    assert session.position == 0
    assert launched(gpu, session, IDS[:12]) == expected


def test_what_is_kept_is_bounded():
    """And a map that was dropped is made again."""
    made = []
    device = SimpleNamespace(tensor_map=lambda array, box: made.append(box) or box)
    maps = TensorMaps(device)
    array = SimpleNamespace(pointer=256, shape=(8, 64), dtype="float16")
    for turn in range(2):
        for n in range(KEPT + 1):
            assert maps(array, (n, 64)) == (n, 64)
        assert maps(array, (KEPT, 64)) == (KEPT, 64)
        assert len(made) == (turn + 1) * (KEPT + 1)
    assert len(maps._kept) == launch_for.cache_info().maxsize == KEPT
