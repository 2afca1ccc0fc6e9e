"""Walls as pictures and tables: what they say is what the decomposition says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minfer.campaign.decomposition import GAP
from minfer.lab import decomposition_view as view
from tests.campaign.walls import F16, RAW, SHARES, example_wall

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


def test_counters_stand_beside_the_seeds():
    counted = example_wall(counters={"FA": {"memory": 0.5, "SM": 0.4}, "gate+up": {"memory": 0.6, "SM": 0.7}})
    seed, *ours = view.counter_rows([example_wall(), counted])
    assert (seed["class"], seed["memory"], seed["SM"]) == ("gate+up", 0.85, None)
    assert [(row["who"], row["class"], row["memory"]) for row in ours] == [
        ("prefill, f16", "gate+up", 0.6), ("prefill, f16", "FA", 0.5)
    ]  # fmt: skip
    assert len(view.counter_rows([])) == 1


def test_widths_stand_beside_the_seeds(sound):
    rows = sound(view.draw_widths(WALLS)).rows
    assert {row["bits a weight"] for row in rows if row["route"] == "mmq_raw"} == {4.5}
    assert [row["us/GMAC"] for row in rows if row["route"] == view.SEED] == [59.5, 39.5]
