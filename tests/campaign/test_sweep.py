"""A sweep: every variant by turns on one copy of the weights, and what must not be timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minfer.campaign import sweep as sweeping
from minfer.campaign.prefills import SharedModel
from minfer.campaign.records import Sweep, read_record, write_record
from minfer.campaign.sweep import compile_variants, measure, sweep
from minfer.campaign.telemetry import Watch
from minfer.engine.cuda.devices import DryDevice
from minfer.engine.cuda.products import Products
from minfer.engine.cuda.variants import choose
from minfer.engine.errors import EngineError
from minfer.model.model import Model
from tests.campaign.fake_gpu import Clock, FakeGpu, install

TINY = Path(__file__).parents[2] / "data" / "qwen2-tiny.gguf"
NAMES = ("tm64", "fa-p5.0", "convert-scalar", "weights-scratch", "weights-blocks")


@pytest.fixture
def gpu(monkeypatch):
    made = install(monkeypatch, FakeGpu())
    monkeypatch.setattr(sweeping, "time", Clock(made))
    monkeypatch.setattr(sweeping, "GpuDevice", lambda: made)
    monkeypatch.setattr(sweeping, "reader_of", lambda gpu: (None, "a fake"))
    monkeypatch.setattr(
        sweeping, "compile_ahead", lambda kernels, arch, tell: tell(f"{len(kernels)} kernels")
    )
    return made


def run(gpu, names=NAMES, repetitions=3, say=lambda line: None):
    shared = SharedModel(TINY, gpu, 128, tell=lambda line: None)
    return measure(shared, choose(names, gpu.arch), 100, repetitions, Watch(None, "none"), say)


def test_each_variant_runs_what_it_says(gpu):
    results = {result.settings["variant"]: result for result in run(gpu)}
    assert list(results) == ["f16", *NAMES]
    for result in results.values():
        assert result.test == "pp100" and len(result.samples_ns) == 3 and result.regime == "burst"
        assert result.settings["decode"] in ("one kernel a token", "one kernel an operation")
    weights = {name: result.settings["weights"] for name, result in results.items()}
    assert weights == dict.fromkeys(results, "resident") | {
        "weights-scratch": "scratch", "weights-blocks": "blocks"
    }  # fmt: skip
    assert results["tm64"].settings["gemm"].startswith("64x64x32")
    assert results["fa-p5.0"].settings["attention"] == "P5.0"
    assert results["convert-scalar"].settings["convert"] == "scalar"
    # The fake takes as long for every launch: dequantizing and converting are launches of their own.
    ms = {name: result.avg_ns for name, result in results.items()}
    assert ms["weights-scratch"] > ms["f16"] and ms["convert-scalar"] > ms["f16"]
    used = {kernel.name for kernel in gpu.launched}
    assert {"gemm_f16", "gemm_blocks", "convert_f32_f16"} <= used


def test_rounds_are_shuffled(gpu, monkeypatch):
    order = []
    once = sweeping.prefill

    def spy(session, ids):
        order.append(session.backend.route.name)
        return once(session, ids)

    monkeypatch.setattr(sweeping, "prefill", spy)
    run(gpu, ("tm64", "tm128", "tm256"), 4)
    rounds = [tuple(order[i : i + 4]) for i in range(0, len(order), 4)]
    assert len(rounds) == 5 and all(set(one) == set(rounds[0]) for one in rounds)
    assert len(set(rounds[1:])) > 1


def test_what_computes_something_else_is_not_timed(gpu, monkeypatch):
    def run_with(wrong):
        def prefill(session, ids):
            gpu.clock += 1
            good = np.arange(8, dtype=np.float32)
            return wrong(good) if session.backend.route.attention == "P5.0" else good

        monkeypatch.setattr(sweeping, "prefill", prefill)
        return run(gpu, ("fa-p5.0",))

    with pytest.raises(EngineError, match=r"fa-p5\.0: logits differ from those of f16 by 0\.4\d of .* 0\.1"):
        run_with(lambda good: np.where(good == 0, 1, good))
    with pytest.raises(EngineError, match=r"fa-p5\.0: 1 of 8 logits are NaN"):
        run_with(lambda good: np.where(good == 3, np.nan, good))
    drift = iter(range(99))
    with pytest.raises(EngineError, match=r"fa-p5\.0: the logits changed while they were timed"):
        run_with(lambda good: good + np.float32(next(drift) * 1e-4))


def test_what_cannot_run_is_left_out(gpu, monkeypatch):
    multiply = Products.multiply

    def refuse(self, out, operand, stack):
        if self.route.name == "f16 TM=256":
            raise sweeping.ConfigRefused("gemm: 99,000 bytes of shared memory")
        multiply(self, out, operand, stack)

    monkeypatch.setattr(Products, "multiply", refuse)
    said = []
    results = run(gpu, ("tm256", "tm64"), say=said.append)
    assert [result.settings["variant"] for result in results] == ["f16", "tm64"]
    assert said == ["tm256: left out: gemm: 99,000 bytes of shared memory"]


def test_the_record(gpu, tmp_path):
    said = []
    made = sweep(str(TINY), ["tm64"], 64, 2, said.append)
    assert isinstance(made, Sweep) and said[0].endswith(" kernels")
    assert made.command == "minfer bench -m qwen2-tiny.gguf -p 64 -r 2 --variant tm64"
    path = write_record(made, tmp_path, stem=made.stem)
    assert path.name.startswith("sweep-qwen2-tiny-pp64-")
    back = read_record(path)
    assert back.variants.keys() == {"f16", "tm64"} and back.model == "qwen2-tiny"
    assert back.results == made.results


def test_what_to_compile_is_known_without_a_gpu(gpu):
    said = []
    chosen = choose(("tm64", "weights-blocks"), "sm_90a")
    compile_variants(Model.load(str(TINY)), chosen, 100, DryDevice(), said.append)
    assert int(said[0].split()[0]) > 10
