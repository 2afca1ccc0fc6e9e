"""Watching a pass: every launch has its class, and the work adds up to the ledger's."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from minfer.arithmetic.work import ModelShape, prefill_gmac
from minfer.campaign import decompose as taking_apart
from minfer.campaign import launch_times
from minfer.campaign.counters import largest
from minfer.campaign.decompose import decompose
from minfer.campaign.launch_times import NotTimed, match, timer
from minfer.campaign.observe import PRODUCTS, TAIL, ObservedRuntime, Operation, bucket_of, observing
from minfer.campaign.precompile import route_kernels, routes_of
from minfer.campaign.prefills import Prefills, SharedModel
from minfer.campaign.telemetry import Watch
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.devices import DryDevice
from minfer.engine.cuda.routes import choose_route
from minfer.engine.cuda.runtime import CudaRuntime
from minfer.engine.errors import EngineError
from minfer.engine.transformer import Buffers, forward
from minfer.model.model import Model
from tests.campaign.fake_gpu import FakeGpu, install_observed

TINY = Path(__file__).parents[2] / "data" / "qwen2-tiny.gguf"
ROUTES = ("f16", "f16-wgmma", "mmq_raw")
SOURCES = {"prefill": "events", "decode": "graphs"}


def quiet(line: str) -> None:
    """Nobody listens."""


@pytest.fixture(scope="module")
def model():
    return Model.load(str(TINY))


def shape_of(config) -> ModelShape:
    return ModelShape(
        config.n_layers, config.hidden, config.n_heads, config.n_kv_heads, config.head_dim, config.ffn,
        config.vocab_size,
    )  # fmt: skip


def observe(model, route: str, tokens: int, position: int = 0, **changes: bool) -> list:
    device = observing(DryDevice)()
    chosen = replace(choose_route(route, "sm_90a", {}), token_kernel=None, **changes)
    backend = CudaBackend(chosen, device, on_plan=lambda line: None)
    runtime = ObservedRuntime(backend.open(model, 256, "f16", 128))
    buffers = Buffers.allocate(runtime, model.config, 128, 1)
    runtime.set_tokens([0] * tokens, position)
    device.observed = []
    forward(runtime, model.config, buffers, tokens, "last")
    return device.observed


@pytest.mark.parametrize("route", ROUTES)
def test_the_work_of_a_prefill_is_the_ledgers(model, route):
    seen = observe(model, route, 100)
    ledger = prefill_gmac(shape_of(model.config), 100)
    assert sum(launch.gmac for launch in seen) == pytest.approx(sum(ledger.values()))
    by_name = {name: sum(o.gmac for o in seen if o.bucket == name) for name in {o.bucket for o in seen}}
    assert by_name["lm_head"] == pytest.approx(ledger["lm_head"])
    assert {*PRODUCTS, TAIL, "FA", "add/rms/rope", "lm_head"} <= by_name.keys()
    assert ("swiglu" in by_name) is (route != "f16-wgmma")  # whose GEMM gates by itself
    assert ("quantize" in by_name) is (route == "mmq_raw")


@pytest.mark.parametrize(("route", "bits"), [("f16", 16.0), ("f16-wgmma", 16.0), ("mmq_raw", 4.5)])
def test_products_tell_what_they_read(model, route, bits):
    seen = observe(model, route, 100)
    assert {o.weight_bits for o in seen if o.bucket == "gate+up"} == {bits}
    assert all(o.nbytes > 0 for o in seen if o.bucket in PRODUCTS)


def test_a_product_that_rotates_is_a_product(model):
    apart, fused = (observe(model, "f16-wgmma", 100, fused=fused) for fused in (False, True))
    for bucket in PRODUCTS:
        work = [sum(o.gmac for o in seen if o.bucket == bucket) for seen in (apart, fused)]
        assert work[0] == pytest.approx(work[1])
    names = [[o.kernel.name for o in seen] for seen in (apart, fused)]
    assert names[0].count("rope_store") - names[1].count("rope_store") == model.config.n_layers - 1
    assert {o.bucket for o in fused if "rope" in str(o.kernel.config)} == {"q+k+v"}


def test_a_decode_has_no_tail(model):
    seen = observe(model, "f16", 1, position=50)
    assert TAIL not in {o.bucket for o in seen}
    products = sum(o.gmac for o in seen if o.bucket in PRODUCTS)
    assert products == pytest.approx(shape_of(model.config).weights() * model.config.n_layers / 1e9)


@pytest.mark.parametrize(
    ("kernel", "operation", "bucket"),
    [
        ("gemm_hopper", Operation("down", 64, 64), "down"),
        ("convert_f32_f16", Operation("down", 64, 64), "convert"),
        ("quantize_q8_0_pad40", Operation("o", 64, 64), "quantize"),
        ("dequantize", Operation("gate_up", 64, 64), "dequantize"),
        ("attention_hopper", Operation("attention", 64, 64), "FA"),
        ("gemv", Operation("logits", 1, 64), "lm_head"),
        ("gemv", Operation("down", 1, 64), TAIL),
        ("rmsnorm", Operation("norm", 1, 64), "add/rms/rope"),
        ("gemv", Operation("kv", 1, 1), "q+k+v"),
        ("something_new", Operation("o", 1, 1), "o"),
    ],
)
def test_classes(kernel, operation, bucket):
    assert bucket_of(kernel, operation) == bucket


def test_records_must_belong_to_the_launches(model):
    seen = observe(model, "f16", 8)[:2]
    names = [launch.kernel.name for launch in seen]
    match(seen, names, lambda launch: launch.kernel.name)
    with pytest.raises(NotTimed, match=r"launch 1 is rmsnorm .* the record there is of gemm"):
        match(seen, [names[0], "gemm"], lambda launch: launch.kernel.name)
    with pytest.raises(NotTimed, match="1 kernel records for 2 launches"):
        match(seen, names[:1], lambda launch: launch.kernel.name)


def test_events_take_the_place_of_cupti_and_say_so():
    made, why = timer("events")
    assert made.source == "CUDA events between launches" and why == "asked for"
    try:
        import cupti  # noqa: F401
    except ImportError:
        made, why = timer()
        assert made.source == "CUDA events between launches" and "cupti-python cannot be used" in why
        with pytest.raises(NotTimed, match="cupti-python cannot be used"):
            timer("cupti")


@pytest.fixture
def shared(monkeypatch, model):
    return SharedModel(TINY, install_observed(monkeypatch), 128, tell=lambda line: None)


@pytest.mark.parametrize("route", ROUTES)
def test_a_prefill_taken_apart_by_events(shared, route):
    said: list[str] = []
    chosen = choose_route(route, "sm_90a", {})
    wall = decompose(shared, chosen, "prefill", tokens=100, source="events", say=said.append)
    assert abs(wall.conservation) < 0.02 and wall.route == route and wall.tokens == 100
    launches = sum(bucket.launches for bucket in wall.buckets)
    assert wall.ms == pytest.approx(0.01 * launches)
    assert said[0] == "launches timed by CUDA events between launches (asked for)"
    assert any("not by CUPTI" in note for note in wall.notes)
    wall.check()


@pytest.fixture
def slow_host(monkeypatch):
    """A pass begins with 4 us, of 250, in which the host prepares it."""
    prepare = CudaRuntime.set_tokens

    def slower(self, ids, position):
        prepare(self, ids, position)
        self.device.clock += 0.004

    monkeypatch.setattr(CudaRuntime, "set_tokens", slower)


def test_the_gap_is_what_launches_in_a_graph_leave_of_the_wall(shared, slow_host):
    route = choose_route("f16", "sm_90a", {})
    wall = decompose(shared, route, "prefill", tokens=100, source="events", say=lambda line: None)
    assert wall.gap_ms == pytest.approx(0.004) and wall.conservation == pytest.approx(0.0, abs=1e-6)


def test_a_pass_that_is_slower_when_observed_is_refused(shared, monkeypatch):
    monkeypatch.setattr(taking_apart.ObservingGpu, "launch", slow_launch(taking_apart.ObservingGpu.launch))
    route = choose_route("f16", "sm_90a", {})
    with pytest.raises(EngineError, match=r"gap_ms: .* the observed pass took .* nothing is recorded"):
        decompose(shared, route, "prefill", tokens=100, source="events", say=lambda line: None)


def test_launches_that_do_not_add_up_to_their_pass_are_refused(shared, monkeypatch):
    monkeypatch.setattr(taking_apart, "event_cost", lambda *_: 0.001)  # of 0.01, where events cost nothing
    route = choose_route("f16", "sm_90a", {})
    with pytest.raises(EngineError, match=r"-\d+\.\d%, more than 2%; the observed pass took"):
        decompose(shared, route, "prefill", tokens=100, source="events", say=lambda line: None)


def test_launches_that_overlap_are_timed_one_by_one(shared, monkeypatch):
    launch = FakeGpu.launch

    def overlapping(self, *args, pdl=False):
        launch(self, *args, pdl=pdl)
        self.clock -= 0.004 if pdl and self.overlaps else 0.0

    monkeypatch.setattr(FakeGpu, "launch", overlapping)
    route = choose_route("f16-wgmma", "sm_90a", {})
    wall = decompose(shared, route, "prefill", tokens=100, source="events", say=lambda line: None)
    assert wall.ms == pytest.approx(0.01 * sum(bucket.launches for bucket in wall.buckets))
    (note,) = (note for note in wall.notes if "events cannot see how launches overlap" in note)
    assert float(re.search(r"the pass takes ([\d.]+) ms", note)[1]) < 0.95 * wall.ms
    assert shared.device.overlaps


def test_what_events_cost_is_no_launch_s(shared, slow_host, monkeypatch):
    from minfer.cuda import runtime

    def costly():
        shared.device.clock += 0.002
        return FakeGpu.event(shared.device)

    monkeypatch.setattr(runtime, "Event", costly)
    route = choose_route("f16", "sm_90a", {})
    wall = decompose(shared, route, "prefill", tokens=100, source="events", say=lambda line: None)
    launches = sum(bucket.launches for bucket in wall.buckets)
    assert wall.ms == pytest.approx(0.01 * launches + 0.004) and abs(wall.conservation) < 0.01
    (note,) = (note for note in wall.notes if "an event between launches costs" in note)
    assert float(re.search(r"costs ([\d.]+) us", note)[1]) == pytest.approx(2.0, abs=0.1)


def slow_launch(launch):
    def slower(self, kernel, *args, **rest):
        launch(self, kernel, *args, **rest)
        self.clock += 0.003 if kernel.name.startswith("gemm") else 0.0

    return slower


def test_a_decode_is_taken_apart_class_by_class(shared):
    route = choose_route("f16", "sm_90a", {})
    wall = decompose(shared, route, "decode", context=20, say=lambda line: None)
    assert wall.source.startswith("CUDA graphs") and wall.tokens == 1 and wall.context == 20
    assert abs(wall.conservation) < 0.02 and TAIL not in {bucket.name for bucket in wall.buckets}
    assert wall.stem == "wall-decode-20-f16"


def test_a_prefill_class_by_class(shared):
    route = choose_route("f16", "sm_90a", {})
    whole = decompose(shared, route, "prefill", tokens=100, source="events", say=lambda line: None)
    wall = decompose(shared, route, "prefill", tokens=100, source="graphs", say=lambda line: None)
    assert wall.source.startswith("CUDA graphs") and abs(wall.conservation) < 0.02
    assert [(b.name, b.launches, b.gmac) for b in wall.buckets] == [
        (b.name, b.launches, b.gmac) for b in whole.buckets
    ]


def test_a_decode_is_not_for_events(shared):
    with pytest.raises(EngineError, match="events see nothing in it: take --source graphs"):
        decompose(shared, choose_route("f16", "sm_90a", {}), "decode", source="events", say=lambda line: None)


@pytest.mark.parametrize(("phase", "tokens", "context"), [("prefill", 100, 0), ("decode", 1, 20)])
def test_what_a_pass_launches_can_be_launched_again(shared, phase, tokens, context):
    route = choose_route("f16", "sm_90a", {})
    wall = decompose(shared, route, phase, tokens=tokens, context=context, source=SOURCES[phase], say=quiet)
    again = SharedModel(TINY, taking_apart.ObservingGpu(), 128, tell=quiet)
    launches = taking_apart.observed_launches(again, route, phase, tokens, context)
    assert len(launches) == sum(bucket.launches for bucket in wall.buckets)
    assert largest(launches).keys() == {bucket.name for bucket in wall.buckets}


def test_a_decode_by_a_timer_is_conserved_or_refused(shared, monkeypatch):
    """Every launch of the replayed graph, by a timer that sees into it."""

    class Seeing(launch_times.EventTimer):
        source = "a timer"

        def observe(self, run, device):
            start = device.clock
            run()
            launches = list(device.observed)
            return launch_times.Pass(launches, [0.01] * len(launches), device.clock - start)

    monkeypatch.setattr(taking_apart, "timer", lambda source: (Seeing(), ""))
    route = choose_route("f16", "sm_90a", {})
    wall = decompose(shared, route, "decode", context=20, source="cupti", say=quiet)
    assert wall.source == "a timer" and wall.conservation == pytest.approx(0.0, abs=1e-6)
    assert wall.ms == pytest.approx(0.01 * sum(bucket.launches for bucket in wall.buckets))


def test_routes_share_one_copy_of_the_weights(shared):
    routes = [choose_route(name, "sm_90a", {}) for name in ("mmq_raw", "f16")]
    found = Prefills(shared, *routes, tokens=64)
    weights = {id(session._runtime.loaded[0]) for session in found.sessions}
    assert len(weights) == 1
    assert found.sessions[0]._runtime.weights.layers[0].o.half is not None
    comparison = found.compare(5, Watch(None, "none"))
    assert comparison.case == "prefill of 64 tokens" and "differ by at most" in comparison.outputs
    a, b = found.logits(16, seed=3)
    assert a.shape == b.shape == (shared.model.config.vocab_size,)


def test_what_routes_need_is_known_without_a_gpu(model):
    from minfer.campaign.discovery import shipped

    routes = routes_of(shipped(), "sm_90a")
    assert len(routes) == len(set(routes)) >= 15
    kernels = route_kernels(model, choose_route("f16-wgmma", "sm_90a", {}), (128, 8))
    assert {"gemm_hopper", "rmsnorm", "dequantize"} <= {kernel.name for kernel in kernels}
