"""Persistent schedules and rings in plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.cuda.tile.hopper import MbarrierRing, chunk_starts, store_tile
from minfer.cuda.tile.scheduler import MOST_TILES, quotient, reversed_rounds, strip_xy, tile_xy, tiles_of

sizes = st.integers(1, 40)


@pytest.mark.parametrize("xy", [tile_xy, strip_xy])
@given(sizes, sizes, sizes)
def test_every_tile_comes_once(xy, rows, columns, group):
    order = [xy(i, rows, columns, group) for i in range(rows * columns)]
    assert len(set(order)) == rows * columns
    assert all(0 <= row < rows and 0 <= column < columns for row, column in order)


@pytest.mark.parametrize("xy", [tile_xy, strip_xy])
@given(sizes, sizes, sizes)
def test_a_group_is_finished_before_the_next(xy, rows, columns, group):
    groups = [xy(i, rows, columns, group)[0] // group for i in range(rows * columns)]
    assert groups == sorted(groups)


@pytest.mark.parametrize("xy", [tile_xy, strip_xy])
def test_rows_of_a_small_group_go_fastest(xy):
    assert [xy(i, 3, 2, 2) for i in range(6)] == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


def test_larger_groups_go_in_strips_whose_columns_go_fastest():
    order = [strip_xy(i, 12, 6, 6) for i in range(72)]
    assert order[:24] == [(row, column) for row in range(6) for column in range(4)]
    assert order[24:36] == [(row, column) for row in range(6) for column in (4, 5)]
    assert order[36:41] == [(6, 0), (6, 1), (6, 2), (6, 3), (7, 0)]


@given(st.integers(4, 40), st.integers(4, 40), st.integers(4, 40))
def test_sixteen_tiles_that_follow_each_other_share_few_rows_and_columns(rows, columns, group):
    order = [strip_xy(i, rows, columns, group) for i in range(min(rows, group) * 4 // 16 * 16)]
    for first in range(0, len(order), 16):
        seen = order[first : first + 16]
        assert len({row for row, _ in seen}) + len({column for _, column in seen}) <= 9


numbers = st.integers(1, MOST_TILES - 1)


@given(numbers, numbers, st.integers(-2, 2), st.sampled_from([-1, 0, 1]))
def test_quotients_next_to_whole_numbers_are_right(divisor, times, beside, off):
    """Also where the GPU's reciprocal is off by a last bit, as PTX allows."""
    dividend = min(max(0, MOST_TILES // divisor * times // MOST_TILES * divisor + beside), MOST_TILES - 1)

    def reciprocal(x):
        return np.float32(1 / np.float64(x)) * np.float32(1 + off * 2.0**-23)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minfer.cuda.ptx.rcp_approx", reciprocal)
        assert quotient(dividend, divisor) == dividend // divisor


@given(st.integers(1, 10**6), st.integers(1, 256))
def test_tiles_cover_a_size(size, tile):
    assert tiles_of(size, tile) == -(-size // tile)


@given(st.integers(1, 400), sizes)
def test_reversed_rounds_deal_every_tile_once(tiles, blocks):
    blocks = min(tiles, blocks)
    dealt = reversed_rounds(tiles, blocks)
    assert sorted(tile for own in dealt for tile in own) == list(range(tiles))
    assert all(own[0] == block for block, own in enumerate(dealt))


def test_who_began_with_the_slowest_tiles_ends_with_the_quickest_or_none():
    assert reversed_rounds(9, 3) == [[0, 3, 8], [1, 4, 7], [2, 5, 6]]
    assert reversed_rounds(8, 3) == [[0, 3], [1, 4, 7], [2, 5, 6]]
    assert reversed_rounds(3, 3) == [[0], [1], [2]]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_cursor_flips_its_parity_where_it_wraps(stages):
    advance = MbarrierRing(stages, 2).advance
    cursor, seen = (0, 0), []
    for _ in range(3 * stages):
        seen.append(tuple(map(int, cursor)))
        cursor = advance(*cursor)
    assert seen == [(i % stages, i // stages % 2) for i in range(3 * stages)]


def test_chunks_cover_the_columns():
    assert chunk_starts(256) == (0, 64, 128, 192)
    assert chunk_starts(224) == (0, 64, 128, 160)
    assert chunk_starts(64) == (0,)
    assert chunk_starts(72, 32) == (0, 32, 40)


@pytest.mark.parametrize("arguments", [(48, 1), (68, 1), (128, 0), (24, 1, "f32"), (128, 1, "f16", True)])
def test_epilogues_that_cannot_be_are_refused(arguments):
    with pytest.raises(ValueError, match="store_tile"):
        store_tile(*arguments)
