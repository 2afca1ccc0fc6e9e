"""The campaign's harness on a GPU: a probe from gates to verdict, and a wall that is conserved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from minfer.campaign.counters import METRICS, NotCounted, read_counters
from minfer.campaign.decompose import decompose
from minfer.campaign.discovery import choose
from minfer.campaign.observe import PRODUCTS
from minfer.campaign.prefills import Prefills, SharedModel
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.records import read_record, write_record
from minfer.campaign.run import run_probe
from minfer.campaign.telemetry import Watch, reader_of
from minfer.campaign.trial import Trial
from minfer.campaign.workload import Case
from minfer.campaign.workloads import Gemm, GemmHopper, Passes
from minfer.cuda.gemm_hopper import GemmHopperConfig
from minfer.engine.cuda.devices import GpuDevice
from minfer.engine.cuda.routes import choose_route
from minfer.engine.errors import EngineError

TINY = Path(__file__).parents[2] / "data" / "qwen2-tiny.gguf"


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
