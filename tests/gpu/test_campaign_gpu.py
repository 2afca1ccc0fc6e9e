"""The campaign's harness on a GPU: a probe from gates to verdict, and a wall that is conserved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from minfer.campaign.counters import METRICS, NotCounted, read_counters
from minfer.campaign.decodes import Decodes
from minfer.campaign.decompose import decompose
from minfer.campaign.discovery import choose
from minfer.campaign.gates import LikeSeparate
from minfer.campaign.observe import PRODUCTS
from minfer.campaign.prefills import Prefills, SharedModel
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.records import read_record, write_record
from minfer.campaign.run import run_probe
from minfer.campaign.telemetry import Watch, reader_of
from minfer.campaign.trial import Trial
from minfer.campaign.workload import Case
from minfer.campaign.workloads import W4A8, W4A16, Gemm, GemmHopper, Gemv, Passes, Rung, Token
from minfer.cuda.gemm_hopper import GemmHopperConfig
from minfer.cuda.gemv import PLANES_7B, GemvConfig
from minfer.cuda.w4a8 import W4A8Config
from minfer.cuda.w4a16 import PAIR, W4A16Config
from minfer.engine.cuda.devices import GpuDevice
from minfer.engine.cuda.routes import choose_route
from minfer.engine.errors import EngineError

TINY = Path(__file__).parents[2] / "data" / "qwen2-tiny.gguf"
DATA = Path(__file__).parents[1] / "data"


class FewPasses(Passes):
    """A smaller case than the 7B's."""

    @property
    def cases(self):
        return (Case.of("convert 512 x 3584", 81, nt=512, width=3584, store=0),)


@pytest.fixture(scope="module")
def device():
    return GpuDevice()


def test_a_probe_from_gates_to_a_record(device, tmp_path):
    (probe,) = choose(["p5.1-vectorized-elementwise"])
    run = run_probe(replace(probe, workload=FewPasses()), device, rounds=6, say=lambda line: None)
    assert run.gates_passed and len(run.kernels) == 1 and min(run.kernels[0].baseline) > 0
    assert run.verdict == "MEAS-ONLY"  # no decomposition, no model
    assert all(facts["registers"] > 0 for facts in run.baseline.facts.values())
    assert replace(read_record(write_record(run, tmp_path, stem="x")), file="") == run


def test_two_tiles_of_the_hopper_gemm(device):
    if device.arch != "sm_90a":
        pytest.skip(f"{device} is no Hopper")

    class Few(GemmHopper):
        cases = (Case.of("1024 x 512 x 1024", nt=1024, od=512, id=1024),)

    probe = Probe(
        name="tiles", title="Narrow tiles", hypothesis="More of them fill the waves.",
        prediction=Prediction(None, "16 tiles become 32"), workload=Few(),
        baseline=GemmHopperConfig(), variant=GemmHopperConfig(128, 6),
    )  # fmt: skip
    run = run_probe(probe, device, rounds=6, say=lambda line: None)
    assert run.gates_passed and len(run.kernels) == 1 and min(run.kernels[0].variant) > 0


def measured(workload, baseline, variant, device):
    """A run of a few rounds, whose gates have passed."""
    probe = Probe(
        name="few", title="Few", hypothesis="They differ.", prediction=Prediction(None, "not said"),
        workload=workload, baseline=baseline, variant=variant,
    )  # fmt: skip
    run = run_probe(probe, device, rounds=6, say=lambda line: None)
    assert run.gates_passed, run.gates[-1].found
    assert len(run.kernels) == len(workload.cases) and min(run.kernels[0].variant) > 0
    return run


@pytest.mark.parametrize("format", ["Q4_K", "Q8_0", "F16"])
def test_two_rings_of_the_gemv(device, format):
    config = GemvConfig.for_shape(format, 3584, 2049)
    measured(Gemv(format, 2049, 3584, "few"), config, replace(config, slots=1), device)


def on_hopper(device):
    if device.arch != "sm_90a":
        pytest.skip(f"{device} is no Hopper")


def test_the_gemv_from_blocks_and_planes(device):
    on_hopper(device)
    before = GemvConfig.for_shape("Q6_K", 18944, 300, pdl=True)
    run = measured(Gemv("Q6_K", 300, 18944, "few"), before, PLANES_7B[0], device)
    assert [len(side.facts) for side in (run.baseline, run.variant)] == [1, 1]


@pytest.mark.parametrize(
    ("workload", "baseline", "variant"),
    [
        (W4A16(100), W4A16Config("Q4_K", 128, 4, 4), W4A16Config("Q4_K", 64, 8, 3)),
        (W4A16(100, format="Q6_K"), W4A16Config("Q6_K", 128, 4, 4), W4A16Config("Q6_K", 96, 8, 3)),
        (W4A16(300, format=PAIR), W4A16Config(PAIR, 128, 4, 4), W4A16Config(PAIR, 192, 4, 3)),
        (W4A8(100), W4A8Config(128, 5), W4A8Config(96, 6)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_two_tiles_on_blocks(device, workload, baseline, variant):
    on_hopper(device)
    measured(workload, baseline, variant, device)


@pytest.mark.parametrize("step", ["barriers", "tags", "half awaited"])
def test_two_steps_of_the_token_kernel(device, step):
    """One layer of the 7B, with all of its workspaces begun anew for each side."""
    on_hopper(device)

    class Few(Token):
        @property
        def cases(self):
            (whole,) = super().cases
            sizes = dict(whole.sizes) | {"layers": 1, "vocab": 1000, "steps": 2}
            return (Case.of("a layer, two tokens", **sizes),)

    run = measured(Few(), Rung(step), Rung(), device)
    assert "decode_token" in {kernel.split()[0] for kernel in run.variant.facts}


def test_whole_tokens_of_two_steps(device):
    on_hopper(device)
    shared = SharedModel(DATA / "qwen2-k.gguf", device, 128, tell=lambda line: None)
    routes = [Token().route(rung, device.arch) for rung in (Rung.of(prefetch=False), Rung())]
    decodes = Decodes(shared, *routes, tokens=16)
    comparison = decodes.compare(6, Watch(*reader_of(device.gpu)))
    assert comparison.ms[0] > 0 and "differ by at most" in comparison.outputs
    (probe,) = choose(["token-prefetch"])
    found = LikeSeparate(prompts=2, tokens=32).check(Trial(probe, device, decodes))
    assert found.passed, found.found


def test_a_wrong_variant_is_caught(device):
    class Wrong(Gemm):
        cases = (Case.of("128 x 64 x 64", nt=128, od=64, id=64),)

        def reference(self, case, inputs):
            return {"out": 1.5 * super().reference(case, inputs)["out"]}

    (probe,) = choose(["p5.2-tm128"])
    run = run_probe(replace(probe, workload=Wrong()), device, rounds=5, say=lambda line: None)
    assert run.verdict == "REVERTED" and not run.gates_passed and run.kernels == []


def test_routes_agree_and_are_timed_on_one_copy_of_the_weights(device):
    shared = SharedModel(TINY, device, 128, tell=lambda line: None)
    prefills = Prefills(shared, *(choose_route(name, device.arch, {}) for name in ("f16", "mmq_raw")))
    comparison = prefills.compare(5, Watch(*reader_of(device.gpu)))
    assert comparison.ms[0] > 0 and "differ by at most" in comparison.outputs
    (probe,) = choose(["mmq-raw"])
    gate = probe.gates[-1].check(Trial(probe, device, prefills))
    assert gate is not None and gate.found


def test_a_wall_by_events_is_conserved_or_refused(device, measure):
    shared = SharedModel(TINY, device, 128, tell=lambda line: None)
    try:
        wall = decompose(shared, choose_route("f16", device.arch, {}), "prefill", tokens=128, source="events")
    except EngineError as error:  # a tiny model is all gaps: events cost more than its kernels
        assert "nothing is recorded" in str(error)
        return
    wall.check()
    measure("wall of the tiny model by events: off by", round(wall.conservation, 4))


@pytest.mark.parametrize(("phase", "tokens", "context"), [("prefill", 128, 0), ("decode", 1, 16)])
def test_counters_of_every_class(device, phase, tokens, context, measure):
    """ncu, where it is installed and may read counters."""
    try:
        found = read_counters(str(TINY), phase, "f16", tokens, context)
    except NotCounted as error:
        pytest.skip(str(error))
    assert {*PRODUCTS, "FA", "add/rms/rope", "lm_head"} <= found.keys()
    assert all(values.keys() == METRICS.keys() for values in found.values())
    assert all(0 <= share <= 1.03 for values in found.values() for share in values.values())
    measure(f"counters of a {phase} of the tiny model", found)
