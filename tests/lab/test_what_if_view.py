"""Walls as they would be: the sum of the parts is the supposed wall clock."""

from __future__ import annotations

import pytest

from minfer.campaign.decomposition import products_us_per_gmac
from minfer.lab import what_if_view as view
from tests.campaign.walls import F16, RAW

WALLS = [F16, RAW]


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
    assert stops == sorted(stops) and {products_us_per_gmac(wall) for wall in WALLS} < set(stops)
    assert explorer.report.wall is RAW and explorer.report.target == pytest.approx(RAW.tok_s)
    explorer.set(route="f16", no_gaps=True)
    assert explorer.report.wall is F16 and explorer.report.target > F16.tok_s
    explorer.set(us_per_gmac=3.0)
    assert "products at 3 us/GMAC" in explorer.panel.value
