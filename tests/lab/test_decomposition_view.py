"""Walls as pictures and tables: what they say is what the decomposition says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minfer.campaign.decomposition import GAP
from minfer.lab import decomposition_view as view
from tests.campaign.walls import SHARES, example_wall

F16 = replace(example_wall(), device="NVIDIA H200")
RAW = replace(
    F16,
    route="mmq_raw",
    wall_ms=[50.0],
    gap_ms=F16.gap_ms / 2,
    buckets=[
        replace(b, ms=b.ms / 2, kernels={"k": b.ms / 2}, weight_bits=4.5 if b.gmac else 0.0)
        for b in F16.buckets
    ],
)
WALLS = [F16, RAW]


def test_the_stack_is_the_wall():
    picture = view.draw_walls(WALLS, "somewhere")
    for wall in WALLS:
        assert sum(row["ms"] for row in picture.rows if row["route"] == wall.route) == pytest.approx(wall.ms)
    assert "f16, mmq_raw" in picture.alt and picture.png()
    assert {row["bucket"] for row in picture.rows} == {*SHARES, GAP}


def test_decode_says_so():
    assert "decode" in view.draw_walls([replace(F16, phase="decode", tokens=1)]).alt


def test_shares_add_up_to_one(sound):
    rows = sound(view.draw_shares(WALLS)).rows
    for who in (view.SEED, "f16", "mmq_raw"):
        assert sum(row["share"] for row in rows if row["who"] == who) == pytest.approx(1.0)
    assert {"who": view.SEED, "class": "gate+up", "share": pytest.approx(0.378)} in rows


def test_conservation_is_told():
    (row, _) = view.conservation_rows(WALLS)
    assert row["buckets (ms)"] + row["gaps (ms)"] == pytest.approx(row["wall clock (ms)"])
    assert row["off"] == pytest.approx(0.0) and row["launches"] == 27 * len(SHARES)


def test_bounds_against_the_bar(sound):
    rows = sound(view.draw_bounds(F16)).rows
    assert [row["bucket"] for row in rows[:2]] == ["gate+up", "down"]
    assert rows[0]["gain"] == pytest.approx(1 / (1 - 0.378) - 1)
    assert rows == sorted(rows, key=lambda row: -row["gain"])


def test_widths_stand_beside_the_seeds(sound):
    rows = sound(view.draw_widths(WALLS)).rows
    assert {row["bits a weight"] for row in rows if row["route"] == "mmq_raw"} == {4.5}
    assert [row["us/GMAC"] for row in rows if row["route"] == view.SEED] == [59.5, 39.5]


def test_supposing(sound):
    same = view.suppose(F16)
    assert same.target == pytest.approx(F16.tok_s) and same.supposed == "as measured"
    half = view.suppose(F16, attention=0.5, row_passes=0.0, no_gaps=True)
    left = 100 - 3.6 - 6.0 - 5.6 - F16.gap_ms
    assert half.target == pytest.approx(2000 / left * 1e3)
    assert sum(now for _, now in half.parts.values()) == pytest.approx(left)
    faster = view.suppose(F16, 3.0)
    assert sum(now for _, now in faster.parts.values()) == pytest.approx(2000 / faster.target * 1e3)
    picture = sound(view.draw_what_if(faster))
    assert "products at 3 us/GMAC instead of 6.12" in faster.supposed
    assert sum(row["ms"] for row in picture.rows if row["wall"] == "measured") == pytest.approx(100.0)
    assert "<b>" in view.what_if_html(faster) and "<table" not in view.what_if_html(same)


def test_the_sliders_suppose():
    explorer = view.what_if_explorer(WALLS)
    rates = explorer.controls["us_per_gmac"]
    assert rates.options[rates.index] == ("as measured", 0.0)
    stops = [rate for _, rate in rates.options]
    assert stops == sorted(stops) and {view.products_us_per_gmac(wall) for wall in WALLS} < set(stops)
    assert explorer.report.wall is RAW and explorer.report.target == pytest.approx(RAW.tok_s)
    explorer.set(route="f16", no_gaps=True)
    assert explorer.report.wall is F16 and explorer.report.target > F16.tok_s
    explorer.set(us_per_gmac=3.0)
    assert "products at 3 us/GMAC" in explorer.panel.value
