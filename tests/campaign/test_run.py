"""Running probes on a GPU that only keeps time: gates, A/B, verdict, record."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from minfer.campaign import session
from minfer.campaign.ceilings import AboveCeiling
from minfer.campaign.gates import Parity, SameOutputs
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.probe_record import Bound, ProbeRun
from minfer.campaign.records import RecordError, annotate, read_record, write_record
from minfer.campaign.run import run_gates, run_probe, wall_run
from minfer.campaign.statistics import LEAST_ROUNDS
from minfer.campaign.table import describe_run
from minfer.campaign.trial import Trial, compare
from tests.campaign.fake_gpu import FakeGpu, Prefilled, Routed, Scale, ScaleConfig, install, run_prefilled
from tests.campaign.walls import example_wall

STEADY = (1.0, 1.0004, 0.9997, 1.0002)


@pytest.fixture
def gpu(monkeypatch):
    return install(monkeypatch, FakeGpu(STEADY))


CONVERT = Scale(in_bucket="convert")


def probe(variant: ScaleConfig, workload: Scale = CONVERT, **rest) -> Probe:
    return Probe(
        name="faster",
        title="Is it faster?",
        hypothesis="Because.",
        prediction=Prediction(0.1, "by the ledger"),
        workload=workload,
        baseline=ScaleConfig(2.0),
        variant=variant,
        mechanism="The clock says so.",
        retry="Another clock.",
        **rest,
    )


def walls() -> list:
    return [replace(example_wall(), device="NVIDIA H200", route="f16")]


def measured(gpu, monkeypatch, variant: ScaleConfig, prefill_rounds: int = 9, **rest) -> ProbeRun:
    """A run with whole prefills."""
    asked = probe(variant, Routed(), **rest)
    return run_prefilled(monkeypatch, asked, gpu, prefill_rounds=prefill_rounds)


def begin(gpu, monkeypatch, probes: list[Probe], folder, say, **rest) -> list[str]:
    """A session on this GPU; the names of probes that failed."""
    monkeypatch.setattr(session, "GpuDevice", lambda: gpu)
    monkeypatch.setattr(session, "prepare", lambda *_: None)
    counts = {"rounds": 5, "prefill_rounds": 5, "tokens": 16}
    return session.run(probes, model=None, folder=folder, say=say, **counts, **rest)


def test_a_prefill_that_gains_lands(gpu, monkeypatch):
    run = measured(gpu, monkeypatch, ScaleConfig(1.9))
    assert [gate.name for gate in run.gates] == ["parity", "outputs", "tokens"] and run.gates_passed
    assert run.kernel_ms() == pytest.approx((8.0, 7.6), rel=1e-3)
    assert run.gain.value == pytest.approx(2 / 1.9 - 1, rel=0.01) and run.gain.rounds == 9
    assert run.gain.low <= run.gain.value <= run.gain.high
    assert run.verdict == "LANDED" and run.quiet and run.bound is None
    assert run.telemetry.samples == 0 and "a fake" in str(run.telemetry)


@pytest.mark.parametrize(
    ("ms", "verdict"), [(2.0, "null"), (1.96, "REVERTED"), (2.5, "REVERTED"), (0.5, "LANDED")]
)
def test_verdicts(gpu, monkeypatch, ms, verdict):
    assert measured(gpu, monkeypatch, ScaleConfig(ms)).verdict == verdict


def test_few_rounds_decide_nothing(gpu, monkeypatch):
    run = measured(gpu, monkeypatch, ScaleConfig(0.5), prefill_rounds=LEAST_ROUNDS - 1)
    assert run.gain.value > 2 and run.verdict == "MEAS-ONLY"
    assert measured(gpu, monkeypatch, ScaleConfig(0.5), prefill_rounds=LEAST_ROUNDS).verdict == "LANDED"


def test_without_a_prefill_the_wall_only_bounds_the_gain(gpu):
    run = run_probe(probe(ScaleConfig(1.0)), gpu, rounds=9, records=walls(), say=lambda line: None)
    # The example's wall is 100 ms, of which 6 are the convert class: 94 + 6 -> 94 + 3.
    assert run.bound == Bound("convert", 0.06, "wall.json")
    assert run.most == pytest.approx(100 / 97 - 1, rel=0.01)
    assert run.gain is None and run.verdict == "MEAS-ONLY"
    assert "upper bound of its gain +3.09%, if all of convert, 6.0% of the wall in wall.json" in describe_run(
        run
    )
    slower = run_probe(probe(ScaleConfig(3.0)), gpu, rounds=9, records=walls(), say=lambda line: None)
    assert slower.most == 0 and slower.verdict == "MEAS-ONLY"


def test_kernels_that_stay_in_the_noise_are_null(gpu):
    """An A/A run of one's own kernel, without an engine's route."""
    run = run_probe(probe(ScaleConfig(2.0)), gpu, rounds=9, say=lambda line: None)
    assert run.verdict == "null" and run.gain is None


def test_what_is_interrupted_leaves_no_record(gpu, tmp_path, monkeypatch):
    from minfer.campaign import timing

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(timing, "_replay", stop)
    with pytest.raises(KeyboardInterrupt):
        begin(gpu, monkeypatch, [probe(ScaleConfig(1.0))], tmp_path, [].append)
    assert list(tmp_path.rglob("*")) == []


def test_without_a_decomposition_the_kernels_alone_decide_nothing(gpu):
    run = run_probe(probe(ScaleConfig(1.0)), gpu, rounds=9, say=lambda line: None)
    assert run.gain is None and run.most is None and run.verdict == "MEAS-ONLY"


@pytest.mark.parametrize(
    ("broken", "gate", "words"),
    [
        (ScaleConfig(0.1, wrong=True), "parity", "allowed"),
        (ScaleConfig(0.1, lazy=True), "parity", "error inf"),
        (ScaleConfig(0.1, refused=True), "parity", "135,168 bytes of shared memory"),
    ],
)
def test_a_failed_gate_ends_the_run_and_never_lands(gpu, broken, gate, words):
    said: list[str] = []
    run = run_probe(probe(broken), gpu, rounds=9, records=walls(), say=said.append)
    assert run.verdict == "REVERTED" and not run.gates_passed
    assert run.gates[-1].name == gate and not run.gates[-1].passed and words in run.gates[-1].found
    assert run.kernels == [] and run.wall == [] and run.gain is None
    assert words in run.mechanism and any("FAILED" in line for line in said)


def test_an_unquiet_window_is_measured_only(monkeypatch):
    gpu = install(monkeypatch, FakeGpu((1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0)))
    run = run_probe(probe(ScaleConfig(1.0)), gpu, rounds=30, records=walls(), say=lambda line: None)
    assert not run.quiet and run.verdict == "MEAS-ONLY"
    assert any("outliers" in found for found in run.unquiet)


def test_a_figure_above_the_ceiling_raises(gpu):
    impossible = probe(ScaleConfig(1.0), Scale(nbytes=8e12))
    with pytest.raises(AboveCeiling, match=r"4e\+15 bytes a second, the ceiling is 4\.\d*e\+12"):
        run_probe(impossible, gpu, rounds=5, say=lambda line: None)


def test_a_prefill_above_the_ceiling_raises(gpu, monkeypatch):
    monkeypatch.setattr(Prefilled, "flop", 9.9e14 * 0.019)  # the variant's prefill takes 19 ms
    assert measured(gpu, monkeypatch, ScaleConfig(1.9)).wall[0].flop == Prefilled.flop
    with pytest.raises(AboveCeiling, match=r"prefill of 16 tokens, 1\.8 ms: .* f16 operations a second"):
        measured(gpu, monkeypatch, ScaleConfig(1.8))


def test_outputs_that_change_while_they_are_timed_raise(gpu, monkeypatch):
    from minfer.campaign import timing

    digests = iter(range(100))
    monkeypatch.setattr(timing._Side, "digest", lambda side: (next(digests),))
    with pytest.raises(RuntimeError, match="the outputs changed while they were timed"):
        run_probe(probe(ScaleConfig(1.0)), gpu, rounds=5, say=lambda line: None)


def test_a_replay_that_runs_nothing_is_no_speed(gpu, monkeypatch):
    """The phantom: the clock moves, the kernel does not run."""
    from minfer.campaign import timing

    def phantom(device, graph, watch):
        device.clock += 0.001
        return 0.001

    monkeypatch.setattr(timing, "_replay", phantom)
    with pytest.raises(RuntimeError, match="or were not written"):
        run_probe(probe(ScaleConfig(1.0)), gpu, rounds=5, say=lambda line: None)


def test_the_record_reads_back_and_contradicts_nothing(gpu, tmp_path):
    run = run_probe(probe(ScaleConfig(1.0)), gpu, rounds=9, records=walls(), say=lambda line: None)
    path = write_record(run, tmp_path, stem="probe-faster")
    assert path.parent.name == "h200" and path.name == f"probe-faster-{run.day}.json"
    back = read_record(path)
    assert replace(back, file="") == replace(run, file="")
    assert write_record(run, tmp_path, stem="probe-faster").name == f"probe-faster-{run.day}-2.json"
    assert sorted(p.name for p in path.parent.iterdir()) == [
        f"probe-faster-{run.day}-2.json",
        f"probe-faster-{run.day}.json",
    ]
    text = describe_run(back)
    assert text.startswith("MEAS-ONLY on NVIDIA H200") and "A/A noise" in text and "rule: quiet" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"verdict": "LANDED", "gates": [{"name": "parity", "passed": False, "found": "x"}]},
            "REVERTED follows",
        ),
        ({"verdict": "GREAT"}, "'GREAT' is none of LANDED"),
        ({"quiet": False}, "beside 0 things"),
        ({"bar": 0}, "bar: 0 is not above 0"),
        ({"bound": {"bucket": "convert", "share": 1.5, "wall": "x"}}, "bound.share: 1.5 is no share"),
        ({"gain": {"value": 1.0}}, "gain: no such field"),
    ],
)
def test_a_record_cannot_be_talked_into_a_verdict(gpu, tmp_path, change, words):
    run = run_probe(probe(ScaleConfig(1.0)), gpu, rounds=9, records=walls(), say=lambda line: None)
    path = write_record(run, tmp_path, stem="x")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RecordError, match=words):
        read_record(path)


def test_the_gain_is_that_of_the_samples(gpu, monkeypatch, tmp_path):
    path = write_record(measured(gpu, monkeypatch, ScaleConfig(1.9)), tmp_path, stem="x")
    entry = json.loads(path.read_text())
    assert "gain" not in entry
    entry["wall"][0]["ratio"] = 2.0
    path.write_text(json.dumps(entry))
    with pytest.raises(RecordError, match=r"wall\[0\]\.ratio: 2, but 1\.05\d+ follows from its samples"):
        read_record(path)


def test_a_wall_that_was_not_conserved_fails_its_gate(gpu, monkeypatch, tmp_path):
    from minfer.campaign import run as running

    monkeypatch.setattr(running, "reader_of", lambda gpu: (None, "a fake"))
    asked = replace(probe(ScaleConfig(1.0)), measure="wall")
    good = wall_run(asked, gpu, "7b.gguf", walls(), {})
    assert good.verdict == "MEAS-ONLY" and good.quiet and [g.passed for g in good.gates] == [True]
    reason = "EngineError: buckets: with the gaps 93 ms, the wall clock is 100 ms"
    bad = wall_run(asked, gpu, "7b.gguf", walls(), {"prefill f16-wgmma": reason})
    assert bad.verdict == "REVERTED" and not bad.gates_passed
    assert bad.gates[-1].name == "conservation, prefill f16-wgmma" and bad.gates[-1].found == reason
    assert read_record(write_record(bad, tmp_path, stem="x")).gates == bad.gates
    drifting = replace(walls()[0], wall_ms=[97.0, 97.0, 100.0, 100.0, 101.0, 101.0])
    unquiet = wall_run(asked, gpu, "7b.gguf", [drifting], {})
    assert not unquiet.quiet and "prefill f16: the baseline drifted by +4.1%" in unquiet.unquiet[0]
    nothing = wall_run(asked, gpu, "7b.gguf", [], {"prefill f16": "no memory"})
    assert nothing.verdict == "REVERTED" and nothing.telemetry.samples == 0


def test_samples_and_statistics_belong_together(gpu, tmp_path):
    run = run_probe(probe(ScaleConfig(1.0)), gpu, rounds=9, records=walls(), say=lambda line: None)
    path = write_record(run, tmp_path, stem="x")
    entry = json.loads(path.read_text())
    entry["kernels"][1]["variant"] = [sample / 2 for sample in entry["kernels"][1]["variant"]]
    path.write_text(json.dumps(entry))
    with pytest.raises(RecordError, match=r"kernels\[1\]\.ratio: .* follows from its samples"):
        read_record(path)


def test_an_interrupted_write_leaves_nothing(gpu, tmp_path, monkeypatch):
    run = run_probe(probe(ScaleConfig(1.0)), gpu, rounds=9, records=walls(), say=lambda line: None)

    def interrupt(text):
        assert json.JSONDecoder().decode(text)["kind"] == "probe"  # all of it is in a file by now
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(json, "loads", interrupt)
        write_record(run, tmp_path, stem="x")
    assert list(tmp_path.rglob("*.json")) == [] and list((tmp_path / "h200").iterdir()) == []


def test_a_text_that_no_file_can_hold_is_not_written(gpu, tmp_path):
    run = run_probe(probe(ScaleConfig(1.0)), gpu, rounds=9, records=walls(), say=lambda line: None)
    with pytest.raises(RecordError, match=r"x-.*: not written: '\\udcff' is no Unicode text"):
        write_record(replace(run, title="\udcff"), tmp_path, stem="x")


def test_writers_at_the_same_time_do_not_overwrite_each_other(gpu, tmp_path):
    run = run_probe(probe(ScaleConfig(1.0)), gpu, rounds=9, records=walls(), say=lambda line: None)
    write = partial(write_record, run, tmp_path, stem="x")
    with ThreadPoolExecutor(8) as pool:
        paths = {done.result() for done in [pool.submit(write) for _ in range(24)]}
    assert len(paths) == 24 and sorted((tmp_path / "h200").iterdir()) == sorted(paths)


def test_a_session_goes_on_after_a_probe_that_fails(gpu, tmp_path, monkeypatch):
    said: list[str] = []
    chosen = [
        replace(probe(ScaleConfig(1.0), Scale(nbytes=8e12)), name="impossible"),
        replace(probe(ScaleConfig(1.0, wrong=True)), name="wrong"),
        replace(probe(ScaleConfig(1.0)), name="good"),
    ]
    failed = begin(gpu, monkeypatch, chosen, tmp_path, said.append)
    assert failed == ["impossible", "wrong"]
    assert {path.name.rsplit("-", 3)[0] for path in tmp_path.rglob("*.json")} == {"probe-wrong", "probe-good"}
    assert any("impossible: not recorded: AboveCeiling" in line for line in said)


def test_a_session_begins_nothing_after_its_time(gpu, tmp_path, monkeypatch):
    said: list[str] = []
    chosen = [probe(ScaleConfig(1.0))]
    assert begin(gpu, monkeypatch, chosen, tmp_path, said.append, within_s=-1.0) == []
    assert said == ["faster: not begun: -1 s are over"] and list(tmp_path.rglob("*.json")) == []


def test_gates_in_the_simulator_use_the_small_cases():
    from minfer.campaign.discovery import choose
    from minfer.engine.cuda.devices import SimulatedDevice

    said: list[str] = []
    (passes,) = choose(["p5.1-vectorized-elementwise"])
    gates = run_gates(Trial(passes, SimulatedDevice("sm_90a", 4)), said.append)
    assert [(gate.name, gate.passed) for gate in gates] == [("parity", True), ("outputs", True)]
    assert "gate tokens: not run: takes a GPU and a model (-m)" in said


def test_outputs_that_differ_by_more_than_allowed(gpu):
    wrong = probe(ScaleConfig(1.0, wrong=True), gates=(SameOutputs(0.1),))
    (gate,) = run_gates(Trial(wrong, gpu), lambda line: None)
    assert not gate.passed and "0.5 of the largest value, allowed 0.1" in gate.found
    assert Parity().name == "parity"


def test_what_a_person_made_of_a_run_is_written_afterwards(gpu, tmp_path):
    run = run_probe(probe(ScaleConfig(1.0)), gpu, rounds=9, records=walls(), say=lambda line: None)
    path = write_record(run, tmp_path, stem="x")
    noted = annotate(path, reason="another GPU", mechanism="fewer ms")
    assert read_record(path) == noted and noted.reason == "another GPU"
    assert replace(noted, reason="", mechanism=run.mechanism, file="") == run
    text = describe_run(noted)
    assert "\n  mechanism: fewer ms\n" in text and "\n  reason: another GPU" in text
    text = describe_run(annotate(path, reason="fewer ms"))
    assert "\n  mechanism and reason: fewer ms\n" in text and text.count("fewer ms") == 1
    with pytest.raises(RecordError, match="only a probe's mechanism, retry and reason"):
        annotate(path, verdict="LANDED")
    with pytest.raises(RecordError, match="only a probe's"):
        annotate(write_record(walls()[0], tmp_path, stem="wall"), reason="x")


@pytest.mark.parametrize("side", [0, 1])
def test_a_number_that_is_none_is_no_small_difference(side):
    sides = [np.ones((9, 4), np.float16), np.ones((9, 4), np.float16)]
    assert compare(*sides, lambda part: part.astype(np.float32)) == (0.0, 36)
    sides[side][7, 2] = np.nan
    assert compare(*sides, lambda part: part.astype(np.float32))[0] == float("inf")
    sides = [sides[side], sides[side].copy()]
    assert compare(*sides, lambda part: part.astype(np.float32))[0] == float("inf")
    assert compare(sides[0], sides[0][:3], lambda part: part)[0] == float("inf")
