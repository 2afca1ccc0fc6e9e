"""Predictions of the Hopper GEMM's later steps: the arithmetic, and what stands beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minfer.campaign.records import GpuTests, load_records
from minfer.cuda.gemm_hopper import GemmHopperConfig
from minfer.lab.hopper_refined import LAUNCH_FIGURE, Plan, figure_name, refined_rows, refinements

DOWN = 128, 3584, 18944


def test_a_tile_takes_its_k_tiles_and_some_cycles_besides():
    # 128 x 256: 8 tiles x 28 in two rounds; 56 k-tiles of 128 x 256 x 64 FMA, 4096 FLOP a cycle
    plan = Plan(GemmHopperConfig())
    assert plan.cycles(1024, 7168, 3584) == 2 * (56 * 1024 + 1500)
    assert plan.moved(1024, 7168, 3584) == 8 * 28 * 56 * (128 + 256) * 128


def test_split_k_halves_the_depth_and_exchanges_half_a_tile():
    narrow = GemmHopperConfig(64, 8, pdl=True)
    whole, halved = Plan(narrow), Plan(replace(narrow, split_k=True))
    step = (128 + 64) * 128 / 56  # by the bytes: the wgmmas take 256
    assert whole.cycles(*DOWN) == 296 * step + 1500
    exchanged = 64 * 64 * 4 * 2
    assert halved.cycles(*DOWN) == pytest.approx(148 * step + 1500 + exchanged / 56)
    assert halved.moved(*DOWN) - whole.moved(*DOWN) == 56 * 2 * exchanged


def test_narrow_k_tiles_hide_the_exchange():
    shared = GemmHopperConfig(224, 4, pdl=True, split_k=True)
    assert Plan(shared, 16).k_tiles(3584) == [(20, 224), (16, 112)]
    assert Plan(shared, 16).cycles(512, 3584, 3584) == pytest.approx(20 * 896 + 16 * 240 * 128 / 56 + 1500)
    assert Plan(shared).k_tiles(3584) == [(28, 224)]


def test_a_lead_hides_the_exchange():
    led = Plan(GemmHopperConfig(224, 4, pdl=True, split_k=True, split_lead=6))
    assert led.k_tiles(18944) == [(142, 224)] and led.alone == 12
    alone = 12 * (64 + 224) * 128
    assert led.cycles(512, 3584, 18944) == pytest.approx(142 * 896 + alone / 56 + 1500)
    even = replace(led, config=replace(led.config, split_lead=0))
    assert even.moved(512, 3584, 18944) - led.moved(512, 3584, 18944) == 128 * (6 * 352 * 128 - alone)


def test_every_step_is_predicted_and_measured_where_a_record_has_it():
    records = load_records(device="h200")
    rows = refined_rows(records)
    assert {row["step"] for row in rows} == {
        "256 x 192", "256 x 224", "seats", "split-k", "pairs", "narrow pairs", "lead"
    }  # fmt: skip
    assert all(row["predicted"] > 1 and row["predicted (us)"] > 0 for row in rows)
    assert all(row["measured"] for row in rows if row["tokens"] == 2048 or "pairs" in row["step"])


def test_measured_times_are_of_the_named_configs():
    kept = next(r for r in load_records(device="h200") if isinstance(r, GpuTests))
    (step,) = (s for s in refinements() if s.step == "split-k" and s.sizes == DOWN)
    speeds = {str(step.before.config): 200.0, str(step.after.config): 300.0, "another": 1.0}
    record = replace(kept, measured={figure_name(*DOWN): speeds, LAUNCH_FIGURE: 1.0})
    (row,) = refined_rows([record], [step])
    assert row["measured"] == pytest.approx(1.5)
    assert row["measured (us)"] == pytest.approx(2 * 128 * 3584 * 18944 / 300e6)
    (row,) = refined_rows([], [step])
    assert row["measured"] is None and row["predicted"] == pytest.approx(1.96, abs=0.01)


def test_a_dependent_launch_saves_a_launch_at_most():
    kept = next(r for r in load_records(device="h200") if isinstance(r, GpuTests))
    (step,) = (s for s in refinements() if (s.step, s.product, s.nt) == ("seats", "o", 2048))
    (row,) = refined_rows([replace(kept, measured={LAUNCH_FIGURE: 0.9})], [step])
    assert (row["predicted"] - 1) * row["predicted (us)"] == pytest.approx(0.9)
    (row,) = refined_rows([], [step])
    assert row["predicted"] is None  # nobody has measured a launch
