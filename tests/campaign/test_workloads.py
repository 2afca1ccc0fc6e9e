"""Workloads of the kernels that read quantized blocks, and of the kernel of a token, without a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

from minfer.campaign.discovery import find, later, shipped
from minfer.campaign.examine import asked, simulate_small, traced
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.random_blocks import SCALES, random_rows, values_of
from minfer.campaign.trial import Trial, kernels_of
from minfer.campaign.workload import Case
from minfer.campaign.workloads import W4A8, W4A16, Gemv, Rung, Token
from minfer.campaign.workloads.token import TUNED
from minfer.cuda.block_dots import DOTS
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.gemv import PLANES_7B, GemvConfig
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.token import LAST_STEP, TOKEN_STEPS
from minfer.cuda.w4a8 import W4A8Config
from minfer.cuda.w4a16 import PAIR, W4A16Config

LATER = {probe.name: probe for probe in later()}


def asks(workload, baseline, variant=None) -> Probe:
    return Probe(
        name="x", title="t", hypothesis="h", prediction=Prediction(None, "p"), workload=workload,
        baseline=baseline, variant=variant or baseline,
    )  # fmt: skip


def gates(workload, baseline, variant=None) -> list[tuple[str, bool]]:
    found, _ = simulate_small(asks(workload, baseline, variant))
    return [(gate.name, gate.passed) for gate in found]


RIGHT = [("parity", True), ("races", True)]


@pytest.mark.parametrize("format", BLOCKS)
def test_random_rows_are_rows_of_the_format(format):
    rng = np.random.default_rng(0)
    rows = random_rows(format, 70, 512, rng)
    assert rows.shape == (70, BLOCKS[format].row_bytes(512)) and rows.dtype == np.uint8
    values = values_of(format, rows)
    assert values.shape == (70, 512) and np.isfinite(values).all() and values.std() > 0.01
    assert (rows[0] == rows[64]).all() and (rows[0] != rows[1]).any()  # large matrices repeat 64 rows
    if format in SCALES:
        small = values_of(format, random_rows(format, 70, 512, rng, -1e-3, 1e-3))
        assert small.std() < 0.2 * values.std()


def test_random_rows_are_refused():
    with pytest.raises(ConfigRefused, match="no kernel reads Q3_K"):
        random_rows("Q3_K", 1, 256, np.random.default_rng(0))
    with pytest.raises(ConfigRefused, match="rows of 300 Q4_K weights; take a multiple of 256"):
        random_rows("Q4_K", 1, 300, np.random.default_rng(0))


class TestGemv:
    @pytest.mark.parametrize("format", DOTS)
    def test_every_format(self, format):
        workload = Gemv(format, od=64, dim=512, name="small")
        config = GemvConfig.for_shape(format, 512, 64)
        assert gates(workload, config, replace(config, pdl=True, resident=1)) == RIGHT

    def test_planes_beside_blocks(self):
        workload = Gemv("Q6_K", od=64, dim=1280, name="small")
        config = GemvConfig("Q6_K", 1280, slices=2, warps=2, layout="planes")
        assert gates(workload, replace(config, layout="blocks"), config) == RIGHT
        case = workload.small[0]
        inputs = workload.inputs(case, np.random.default_rng(0))
        packed = workload.prepared(config, case, inputs)["w"]
        assert packed.shape == (7, config.row_bytes) and (packed[:, :64] != inputs["w"][:, :64]).any()
        assert workload.prepared(replace(config, layout="blocks"), case, inputs) == {}

    def test_a_wrong_product_is_caught(self):
        class Wrong(Gemv):
            def reference(self, case, inputs):
                return {"out": super().reference(case, inputs)["out"] * 1.001}

        config = GemvConfig("Q4_K", 512)
        assert gates(Wrong("Q4_K", 64, 512), config) == [("parity", False)]

    def test_products_of_the_7b(self):
        workload = Gemv.of("gate+up", "Q4_K")
        assert (workload.od, workload.dim, workload.count) == (37888, 3584, 28)
        (case,) = workload.cases
        # blocks, an int8 and the scale and sum of runs, outputs
        assert workload.work(case).nbytes == 37888 * 14 * 144 + 14 * 320 + 4 * 37888
        assert Gemv.of("lm_head", "Q6_K").count == 1

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: Gemv.of("q", "Q4_K"), "'q' is no product of a token; there are q"),
            (lambda: Gemv.of("o", "Q3_K"), "no kernel reads Q3_K"),
            (lambda: Gemv("Q9"), "Gemv: no kernel reads Q9"),
            (lambda: Gemv(dim=0), "Gemv: rows of 0 Q4_K weights; take a multiple of 256"),
            (lambda: Gemv(od=0), "Gemv: od=0 rows: give one or more"),
            (lambda: W4A16(format="Q6_K+Q4_K"), r"W4A16: format='Q6_K\+Q4_K' is none of Q4_K, Q6_K, Q4_K\+"),
        ],
    )
    def test_what_is_no_product(self, make, words):
        with pytest.raises(ConfigRefused, match=words):
            make()

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            (
                GemvConfig("Q6_K", 512),
                "rows of 512 Q4_K weights: take Gemv('Q6_K', od, 512)",
            ),
            (GemvConfig("Q4_K", 256), "take Gemv('Q4_K', od, 256)"),
            (GemvConfig("Q4_K", 512, addend=True), "adds nothing: use addend=False"),
        ],
    )
    def test_configs_of_other_matrices(self, config, words):
        found, _ = simulate_small(asks(Gemv("Q4_K", 64, 512), config))
        assert not found[0].passed and words in found[0].found


class TestPacked:
    def test_w4a16(self):
        small = W4A16Config("Q4_K", 64)
        assert gates(W4A16(), small, replace(small, out="f32", store="direct", consumers=3)) == [
            ("parity", False)
        ]  # gated products are stored by TMA
        assert gates(W4A16(), small, replace(small, stages=8)) == RIGHT

    @pytest.mark.parametrize("format", ["Q6_K", PAIR])
    def test_other_formats(self, format):
        assert gates(W4A16(format=format), W4A16Config(format, 64)) == RIGHT

    def test_w4a8(self):
        assert gates(W4A8(), W4A8Config(64, 2), W4A8Config(80, 3)) == RIGHT

    def test_the_work_of_a_gated_product(self):
        case = next(case for case in W4A16().cases if case["gated"])
        work = W4A16().work(case)
        assert work.flop == 2 * 2048 * 37888 * 3584
        assert work.nbytes == 37888 * 14 * 144 + 2 * 2048 * (3584 + 18944)
        assert (W4A16().work(case).dtype, W4A8().work(case).dtype) == ("f16", "int8")

    @pytest.mark.parametrize(
        ("workload", "config", "words"),
        [
            (W4A16(), W4A16Config("Q6_K", 64), "weights are Q4_K: take W4A16(format='Q6_K')"),
            (
                W4A16(format="Q6_K"),
                W4A16Config("Q6_K", 64, bias=True, out="f32", store="direct"),
                "this workload has no bias: take a config without",
            ),
        ],
    )
    def test_configs_of_other_products(self, workload, config, words):
        found, _ = simulate_small(asks(workload, config))
        assert not found[0].passed and words in found[0].found

    def test_requests_are_charged_to_the_lines_of_the_kernels_package(self):
        workload = W4A16()
        lines = asked(traced(asks(workload, W4A16Config("Q4_K", 64)), W4A16Config("Q4_K", 64)))
        assert {"q4_k.py", "formats.py", "consumers.py"} == {line.place.file_name for line in lines}
        assert any("ld_shared_u16" in line.source for line in lines) and len(lines) == 7


class TestToken:
    @pytest.mark.slow
    def test_a_token_of_a_small_model(self):
        """By the engine's step: right, and no block of it races."""

        class One(Token):
            small = (Case.of("one", **dict(Token.small[0].sizes) | {"steps": 1}),)

        found, (before, _) = simulate_small(asks(One(), Rung()))
        assert [(gate.name, gate.passed) for gate in found] == RIGHT, found
        assert [trace.info.kernel for trace in before] == ["embedding", "decode_token"]

    def test_arrays_are_as_they_are_said_to_be(self):
        workload = Token()
        case = workload.small[0]
        inputs = workload.inputs(case, np.random.default_rng(0))
        said = workload.input_shapes(case)
        assert {name: (x.shape, str(x.dtype)) for name, x in inputs.items()} == said
        logits = workload.reference(case, inputs)["logits"]
        assert logits.shape == (2, 70) and 0.5 < logits.std() < 5
        assert np.isnan(inputs["keys"][:, 5:]).all()  # no step before has filled them
        state = workload.prepared(Rung(), case, inputs)
        assert state.keys() > {"schedule", "barriers"} and not any(
            value.any() for name, value in state.items() if name != "schedule"
        )

    def test_a_step_with_changes(self):
        rung = Rung.of("tags", warps=12, early=20)
        assert str(rung) == "tags, warps=12, early=20" and str(Rung()) == LAST_STEP
        route = Token().route(rung, "sm_90a")
        assert route.token_fields == TOKEN_STEPS["tags"] | {"warps": 12, "early": 20}
        assert Token().route(rung, "sm_80") is None
        (kernel,) = [
            kernel
            for kernel in kernels_of(asks(Token(), rung))
            if kernel.name == "decode_token" and kernel.config.hidden == 3584
        ]
        assert (kernel.config.warps, kernel.config.early, kernel.config.exchange) == (12, 20, "tags")

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: Rung("tag"), "no step 'tag': choose one of barriers, "),
            (lambda: Rung.of(hidden=512), f"hidden cannot be changed here: choose among {', '.join(TUNED)}"),
        ],
    )
    def test_rungs_that_are_refused(self, make, words):
        with pytest.raises(ConfigRefused, match=re.escape(words)):
            make()

    def test_the_work_is_the_weights_and_the_caches(self):
        workload = Token(position=1000)
        (case,) = workload.cases
        weights = 2 * (  # layers with Q6_K, then all of Q4_K; 144 and 210 bytes for 256 weights
            (4096 + 3584 + 2 * 18944) * 14 * 144 + (512 * 14 + 3584 * 74) * 210
            + ((4608 + 3584 + 2 * 18944) * 14 + 3584 * 74) * 144
        )  # fmt: skip
        least = weights + 16384 * 14 * 210 + 4 * 1000 * 2 * 512 * 2
        assert workload.work(case).nbytes == pytest.approx(least, rel=1e-4)


class TestLater:
    def test_they_are_found_beside_the_seeds(self):
        assert not LATER.keys() & {probe.name for probe in shipped()} and LATER.keys() <= find().keys()
        assert all(probe.seed is None for probe in LATER.values())

    @pytest.mark.parametrize("probe", LATER.values(), ids=lambda probe: probe.name)
    def test_a_probe_says_what_it_must(self, probe):
        assert probe.baseline != probe.variant and probe.mechanism and probe.retry
        text = probe.predicted().text
        assert len(text) > 40 and re.search(r"\d", text), "a prediction has numbers"
        kernels = kernels_of(probe)
        assert len({str(kernel) for kernel in kernels}) == len(kernels) >= 2

    def test_predictions(self):
        assert "11.6 us either way" in LATER["gemv-planes-down"].predicted().text
        assert "27 -> 11" in LATER["gemv-planes-lm-head"].predicted().text
        assert LATER["gemv-planes-down"].variant == PLANES_7B[0]
        assert "o: 512 -> 480" in LATER["w4a8-tokens"].predicted().text
        assert LATER["token-prefetch"].predicted().gain == pytest.approx(0.048, abs=1e-3)


@dataclass(frozen=True)
class Pdl:
    """A device that keeps how it was asked to launch."""

    asked: list

    def launch(self, kernel, grid, *args, pdl=False):
        self.asked.append((kernel.name, pdl))


def test_launches_overlap_as_the_engine_launches_them():
    device, case = Pdl([]), Case.of("7", od=7, sms=1)
    workload = Gemv("Q4_K", 64, 512)
    for pdl in (False, True):
        config = GemvConfig("Q4_K", 512, pdl=pdl, resident=1)
        arrays = dict.fromkeys(("w", "x", "out"))
        Trial(asks(workload, config), device).run(workload.launches(config, case, arrays, device))
    assert device.asked == [("gemv", False), ("gemv", True)]
