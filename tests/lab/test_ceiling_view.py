"""The products beside tensor cores alone: shares, and where the rest is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minfer.campaign.against import SHAPES, Against, Comparison
from minfer.campaign.ceilings import Ceilings, ceilings_of
from minfer.campaign.tensor_ceilings import TensorRate
from minfer.lab import ceiling_view

BURST = TensorRate("wgmma", "f16", "128x256", "burst", 800.0, 1500.0)
SUSTAINED = replace(BURST, regime="sustained", tops=750.0, mhz=1400.0, watts=700.0)
INT8 = replace(SUSTAINED, dtype="int8", tops=1500.0)
MEASURED = Ceilings(
    4e12, 4e12, {"f16": 989e12}, "a test", (BURST, replace(BURST, tops=790.0), SUSTAINED, INT8)
)
NOTHING = replace(MEASURED, reached=())


def record(*results: Comparison) -> Against:
    stamp = {"file": "a.json", "date": "2026-11-30T01:00:00+00:00", "commit": "abc", "device": "NVIDIA H200"}
    return Against(**stamp, driver="580", command="a", library="torch", results=list(results))


@pytest.fixture
def records():
    us = 2.0 * 2048 * 3584 * 3584 / 720e12 * 1e6  # 720 TFLOPS
    burst = Comparison(
        "o", 2048, *SHAPES["o"], "a tile", us, us * 720 / 600, "burst", 1550.0, None, "counters"
    )
    long = replace(burst, regime="sustained", ours_mhz=1350.0, theirs_mhz=1380.0)
    blocks = replace(burst, weights="Q4_K")
    alone = replace(long, regime="alone", ours_w=700.0, theirs_w=690.0)
    return [record(burst, blocks), record(long), record(alone)]


def test_tensor_cores_alone():
    rows = ceiling_view.tensor_core_rows(MEASURED)
    assert [row["TOPS"] for row in rows] == [800, 790, 750, 1500]
    assert rows[0]["busy"] == pytest.approx(800e12 / (132 * 4096 * 1500e6), rel=1e-3)
    assert rows[3]["busy"] == pytest.approx(rows[2]["busy"], rel=1e-3)
    assert ceiling_view.tensor_core_rows(NOTHING) == []


def test_shares_are_of_the_fastest_tile_in_the_same_regime(records):
    (row,) = ceiling_view.ceiling_rows(records, "burst", MEASURED)
    assert row["of the ceiling"] == pytest.approx(0.9) and row["cuBLAS"] == pytest.approx(0.75)
    assert row["clock"] == pytest.approx(1550 / 1500) and row["its clock"] is row["its busy"] is None
    for regime in ("sustained", "alone"):
        (row,) = ceiling_view.ceiling_rows(records, regime, MEASURED)
        assert row["of the ceiling"] == pytest.approx(720 / 750)
        own = ceiling_view.tensor_core_rows(MEASURED)[2]["busy"]
        for share, busy, clock in (("of the ceiling", "busy", "clock"), ("cuBLAS", "its busy", "its clock")):
            assert row[share] == pytest.approx(row[busy] * row[clock] / own)


def test_the_picture_takes_what_is_on_record(records, sound):
    picture = sound(ceiling_view.draw_ceiling(records, MEASURED))
    assert [row["regime"] for row in picture.rows] == ["burst", "alone"]
    picture = sound(ceiling_view.draw_ceiling(records[:2], MEASURED))
    assert [row["regime"] for row in picture.rows] == ["burst", "sustained"]
    assert "of the ceiling" in repr(ceiling_view.ceiling_table(records, MEASURED))


def test_missing_figures_are_told(records, sound):
    for known in ((records, NOTHING), ([], MEASURED)):
        assert "No record holds" in sound(ceiling_view.draw_ceiling(*known)).alt
        assert repr(ceiling_view.ceiling_table(*known)).startswith("No record holds")
    assert ceiling_view.alone_rows(records[:2]) == []


def test_each_side_alone(records):
    (row,) = ceiling_view.alone_rows(records)
    assert row["mJ"] == pytest.approx(row["us"] * 0.7) and row["its W"] == 690
    assert row["of cuBLAS"] == pytest.approx(1.2)


def test_the_h200s_own_ceilings_are_below_the_datasheet():
    for rate in ceilings_of("NVIDIA H200").reached:
        assert 0.3 < rate.tops * 1e12 / ceilings_of("NVIDIA H200").tensor[rate.dtype] < 1.0
