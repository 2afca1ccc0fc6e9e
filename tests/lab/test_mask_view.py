"""The mask's two predicates, cell by cell."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.cuda.tile.maps import Fragment
from minfer.lab import mask_view
from minfer.lab.mask_view import MaskCase

CASE = MaskCase(tkv=32, first=64, kv_end=160, position=130)


@settings(max_examples=100)
@given(
    st.sampled_from([16, 32, 64]), st.integers(0, 7), st.integers(1, 256), st.integers(0, 255),
    st.integers(0, 63),
)  # fmt: skip
def test_a_column_counts_when_it_is_in_the_tile_and_seen(tkv, tile, kv_end, position, column):
    state = MaskCase(tkv, tile * tkv, kv_end, position).state(column)
    seen = tile * tkv + column <= min(position, kv_end - 1)
    assert (state == "counts") == (column < tkv and seen)
    assert (state == "leaks") == (column >= tkv and seen)


def test_the_seeds_lanes():
    """Seed 002, 2.3: at TKV=32 lanes 16-31 must be masked by the local bound."""
    pairs, strided, fragments = mask_view.leak_rows(CASE)
    assert (pairs["lanes"], pairs["elements let through"]) == ("16-31", 32)
    assert (strided["lanes"], strided["elements let through"]) == ("0-31", 32)
    assert fragments["lanes"] == "0-31"
    whole = mask_view.leak_rows(MaskCase(64, 64, 160, 130))
    assert {row["lanes"] for row in whole} == {"none"}


def test_lanes_of_one_row_are_named_as_ranges():
    case = MaskCase(16, 0, 19, 200)
    assert mask_view.leak_rows(case)[0]["lanes"] == "8-9"
    assert mask_view.leak_rows(MaskCase(16, 0, 17, 200))[0]["lanes"] == "8"


def test_fragment_cells_are_the_tile_layers():
    cells = mask_view.lane_cells(CASE, "fragments")
    places = {(cell["row"], cell["column"]): cell["lane"] for cell in cells}
    assert len(places) == len(cells) == 16 * 64
    accumulator = Fragment("accumulator", "f32")
    for lane, element in itertools.product(range(32), range(8)):
        row, column = accumulator.position(lane, element)
        assert places[row, column + 48] == lane


def test_rows_of_a_fragment_see_one_more_column_each():
    cells = mask_view.lane_cells(MaskCase(32, 64, 256, 90), "fragments")
    counts = [sum(c["state"] == "counts" for c in cells if c["row"] == row) for row in range(16)]
    assert counts == list(range(12, 28))


@pytest.mark.parametrize("tkv", [16, 32])
def test_one_predicate_is_wrong_and_two_are_right(tkv):
    errors = mask_view.without_local_bound(tkv)
    assert errors["both predicates"] < 1e-6 < 0.1 < errors["global alone"]


def test_at_the_lanes_own_width_one_is_enough():
    assert mask_view.without_local_bound(64)["global alone"] < 1e-6


@pytest.mark.parametrize("case", [CASE, MaskCase(16, 96, 100, 98), MaskCase(64, 0, 1, 0)])
def test_masks_have_pictures(case, sound):
    rows = sound(mask_view.draw_mask(case)).rows
    assert {row["layout"] for row in rows} == set(mask_view.LAYOUTS)
