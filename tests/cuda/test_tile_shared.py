"""Shared tiles: no two bytes share a place, and the layouts have the bank conflicts that they are chosen
for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.arithmetic.banks import ldmatrix_request
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.tile.maps import Fragment
from minfer.cuda.tile.shared import SharedTile


@st.composite
def tiles(draw):
    rows = draw(st.integers(1, 40))
    if draw(st.booleans()):
        return SharedTile(rows, 16 * draw(st.integers(1, 24)), padding=16 * draw(st.integers(0, 3)))
    swizzle = draw(st.sampled_from([32, 64, 128]))
    widths = [w for w in (32, 64, 128, 256, 384, 512) if w % swizzle == 0]
    return SharedTile(rows, draw(st.sampled_from(widths)), swizzle=swizzle)


@given(tiles())
def test_addresses_are_distinct_aligned_and_inside(tile):
    chunks = [tile.address(r, c) for r in range(tile.rows) for c in range(0, tile.row_bytes, 16)]
    assert len(set(chunks)) == len(chunks)
    assert all(a % 16 == 0 and 0 <= a <= tile.size_bytes - 16 for a in chunks)


@given(tiles(), st.data())
def test_bytes_of_a_chunk_stay_together(tile, data):
    row = data.draw(st.integers(0, tile.rows - 1))
    chunk = 16 * data.draw(st.integers(0, tile.row_bytes // 16 - 1))
    start = tile.address(row, chunk)
    assert [tile.address(row, chunk + i) for i in range(16)] == list(range(start, start + 16))


@pytest.mark.parametrize("width", [32, 64, 128])
def test_swizzle_is_tma_s(width):
    """TMA XORs address bits 4, 5, 6 (as many as the span has) with bits 7, 8, 9."""
    tile = SharedTile(64, width, swizzle=width)
    for row in range(tile.rows):
        for byte in range(0, width, 16):
            plain = row * width + byte
            assert tile.address(row, byte) == plain ^ ((plain >> 7) & (width // 16 - 1)) << 4


def degree(tile: SharedTile, fragment: Fragment, byte: int = 0) -> int:
    """Conflict degree of an ldmatrix.x4 of the fragment at row 0."""

    def address(lane):
        row, lane_byte = fragment.source(lane)
        return tile.address(row, byte + lane_byte)

    return ldmatrix_request([address(lane) for lane in range(32)]).degree


@pytest.mark.parametrize(
    ("tile", "expected"),
    [
        (SharedTile(64, 256), 8),
        (SharedTile(64, 256, padding=16), 1),
        (SharedTile(64, 256, swizzle=128), 1),
        (SharedTile(64, 128), 8),
        (SharedTile(64, 128, padding=16), 1),
        (SharedTile(64, 128, swizzle=128), 1),
        (SharedTile(64, 64), 4),
        (SharedTile(64, 64, padding=16), 1),
        (SharedTile(64, 64, swizzle=64), 1),
        (SharedTile(64, 32), 2),
        (SharedTile(64, 32, swizzle=32), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("use", ["matrix_a", "matrix_b"])
def test_bank_conflicts_of_ldmatrix(tile, expected, use):
    fragment = Fragment(use, "f16", "row_major" if use == "matrix_a" else "col_major")
    for byte in range(0, tile.row_bytes, 32):
        assert degree(tile, fragment, byte) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        (8, 40),
        (8, 64, 8),
        (0, 64),
        (8, 96, 0, 64),
        (8, 64, 16, 64),
        (8, 256, 0, 256),
        (8, 64, -16),
        ("a", 64),
        (8, 64.0),
    ],
)
def test_tiles_that_cannot_be_addressed_are_refused(arguments):
    with pytest.raises(ConfigRefused, match="shared tile"):
        SharedTile(*arguments)


def test_sizes():
    tile = SharedTile(64, 256, padding=16)
    assert tile.stride == 272
    assert tile.size_bytes == 17_408
    assert [tile.address(r, 0) // 4 % 32 for r in range(8)] == [0, 4, 8, 12, 16, 20, 24, 28]
