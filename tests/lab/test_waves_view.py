"""Waves of tiles: the arithmetic, its pictures, and the sliders over it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.lab import waves_view
from minfer.lab.waves_view import waves


def test_a_product_of_2048_tokens():
    wide, right = waves(2048, 4608, 256), waves(2048, 4608, 192)
    assert (wide.tiles, wide.waves, wide.last) == (288, 3, 24)
    assert wide.idle == pytest.approx(1 - 288 / 396)
    assert (right.tiles, right.waves, right.beyond) == (384, 3, 0)
    assert right.useful == pytest.approx(384 / 396)


@given(st.integers(1, 5000), st.integers(1, 50000), st.integers(8, 256), st.integers(1, 200))
def test_shares_add_up(nt, od, width, sms):
    found = waves(nt, od, width, sms)
    assert 1 <= found.last <= sms and (found.waves - 1) * sms + found.last == found.tiles
    assert min(found.idle, found.useful) >= 0 and found.beyond > -1e-12
    assert found.idle + found.useful + found.beyond == pytest.approx(1)
    assert found.tiles * 128 * width >= nt * od


def test_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match="sizes start at 1, got 0 tokens"):
        waves(0, 1, 1)


def test_the_chosen_tiles_fill_their_waves():
    rows = waves_view.chosen_rows()
    assert len(rows) == 8
    assert all(row["useful"] >= row["useful with 256"] - 1e-9 for row in rows)
    assert all(row["useful"] > 0.95 for row in rows)


def test_the_picture_draws_the_rows(sound):
    picture = sound(waves_view.draw_waves(2048, 4608, 200))
    assert [row["tile"] for row in picture.rows].count("128 x 200") == 1
    assert min(row["time"] for row in picture.rows) == 1


def test_the_explorer_follows_its_sliders():
    explorer = waves_view.wave_explorer()
    assert "72.7% of" in explorer.panel.value
    explorer.set(width=192)
    assert "97.0% of" in explorer.panel.value and explorer.report.tiles == 384
    assert not explorer.controls["nt"].continuous_update
