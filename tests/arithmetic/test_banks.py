"""Bank conflicts and sectors against the cases that everyone knows, and the seeds' padded rows."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.arithmetic.banks import (
    bank_map,
    bank_of,
    global_request,
    ldmatrix_request,
    ldmatrix_rows,
    padded,
    phase_lanes,
    shared_request,
    tile_is_injective,
)
from minfer.arithmetic.reference import FOLDER

MEASURED = json.loads((FOLDER / "banks-h200.json").read_text())


def swizzled(row_bytes):
    """XOR of the 16-byte chunk with the row: the usual conflict-free layout."""
    return lambda row, column: row * row_bytes + ((column // 16) ^ (row % 8)) * 16 + column % 16


@pytest.mark.parametrize(
    ("stride_words", "degree"), [(0, 1), (1, 1), (2, 2), (3, 1), (4, 4), (8, 8), (16, 16), (32, 32), (33, 1)]
)
def test_word_strides(stride_words, degree):
    request = shared_request(lambda lane: lane * stride_words * 4)
    assert (request.degree, request.wavefronts) == (degree, degree)
    assert request.conflicts == degree - 1


def test_broadcast_is_free():
    assert shared_request([64] * 32).wavefronts == 1
    assert shared_request(lambda lane: lane // 2 * 4).wavefronts == 1


def test_sub_word_accesses_of_one_word_are_free():
    assert shared_request(lambda lane: lane, width=1).wavefronts == 1
    assert shared_request(lambda lane: lane * 2, width=2).wavefronts == 1


def test_phases_by_width():
    assert [len(p) for p in phase_lanes(4)] == [32]
    assert [len(p) for p in phase_lanes(8)] == [16, 16]
    assert [len(p) for p in phase_lanes(16)] == [8, 8, 8, 8]
    assert [lane for p in phase_lanes(16) for lane in p] == list(range(32))


@pytest.mark.parametrize(("width", "phases"), [(4, 1), (8, 2), (16, 4)])
def test_contiguous_lanes_never_conflict(width, phases):
    request = shared_request(lambda lane: lane * width, width)
    assert request.degrees == (1,) * phases
    assert request.conflicts == 0


def test_inactive_lanes_ask_for_nothing():
    request = shared_request(lambda lane: lane * 128, active=[lane < 2 for lane in range(32)])
    assert request.degrees == (2,)
    idle = shared_request(lambda lane: lane * 128, active=[False] * 32)
    assert (idle.wavefronts, idle.conflicts) == (0, 0)


def test_hd128_rows_conflict_eight_ways():
    """hd = 128 f16: rows of 256 B, 0 mod 32 banks (seed 000, section 2.2)."""
    request = ldmatrix_request(ldmatrix_rows(padded(256)))
    assert request.degrees == (8, 8, 8, 8)
    assert request.conflicts == 28


def test_eight_halves_of_padding_shift_each_row_four_banks():
    tile = padded(256, pad_bytes=16)
    assert [bank_of(tile(row, 0)) for row in range(4)] == [0, 4, 8, 12]
    assert ldmatrix_request(ldmatrix_rows(tile)).degrees == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("row_halves", "pad_halves", "degree"),
    [(32, 0, 4), (32, 8, 1), (64, 0, 8), (64, 8, 1), (128, 8, 1), (128, 16, 2), (40, 0, 1)],
)
def test_ldmatrix_of_padded_tiles(row_halves, pad_halves, degree):
    rows = ldmatrix_rows(padded(row_halves * 2, pad_halves * 2))
    assert ldmatrix_request(rows).degree == degree


@pytest.mark.parametrize("row_bytes", [128, 256])
def test_xor_swizzle_needs_no_padding(row_bytes):
    tile = swizzled(row_bytes)
    assert tile_is_injective(tile, 16, row_bytes)
    assert ldmatrix_request(ldmatrix_rows(tile)).degree == 1


def test_bank_map_of_an_unpadded_tile_repeats():
    banks = bank_map(padded(128), rows=4, row_bytes=128)
    assert banks.shape == (4, 32)
    assert (banks == np.arange(32)).all()


def test_load_counts_words_per_bank():
    load = ldmatrix_request(ldmatrix_rows(padded(256), matrices=1), matrices=1).load()
    assert load.shape == (1, 32)
    assert load[0, :4].tolist() == [8, 8, 8, 8] and load[0, 4:].sum() == 0


def test_overlapping_layout_is_found():
    assert not tile_is_injective(padded(128, pad_bytes=-16), 4, 128)


@pytest.mark.parametrize(
    ("stride", "width", "sectors"),
    [(4, 4, 4), (8, 8, 8), (16, 16, 16), (128, 4, 32), (8, 4, 8), (0, 4, 1), (2, 2, 2)],
)
def test_global_sectors(stride, width, sectors):
    assert global_request(lambda lane: lane * stride, width).sectors == sectors


def test_global_efficiency():
    assert global_request(lambda lane: lane * 4).efficiency == 1.0
    assert global_request(lambda lane: lane * 128).efficiency == 1 / 8
    misaligned = global_request(lambda lane: 16 + lane * 4)
    assert (misaligned.sectors, misaligned.lines) == (5, 2)


ADDRESSES = {
    "ldmatrix.x4": lambda stride: ldmatrix_request([row % 16 * stride + row // 16 * 16 for row in range(32)]),
    "ld.shared.u32": lambda stride: shared_request([lane * stride for lane in range(32)], 4),
    "ld.shared.v2.u32": lambda stride: shared_request([lane * stride for lane in range(32)], 8),
    "ld.shared.v4.u32": lambda stride: shared_request([lane * stride for lane in range(32)], 16),
    "st.shared.v4.u32": lambda stride: shared_request(
        [lane // 4 * stride + lane % 4 * 16 for lane in range(32)], 16
    ),
}


@pytest.mark.parametrize("row", MEASURED["requests"], ids=lambda row: f"{row['instruction']}-{row['stride']}")
def test_equals_the_counters_of_an_h200(row):
    request = ADDRESSES[row["instruction"]](row["stride"])
    assert (request.wavefronts, request.conflicts) == (row["wavefronts"], row["conflicts"])


def test_refusals():
    with pytest.raises(ValueError, match="16 bytes a lane, not 12"):
        shared_request([0] * 32, width=12)
    with pytest.raises(ValueError, match="expected 32 addresses, got 31"):
        shared_request([0] * 31)
    with pytest.raises(ValueError, match="address 8 is not a multiple"):
        ldmatrix_request([8] * 32)
    with pytest.raises(ValueError, match="1, 2 or 4 matrices"):
        ldmatrix_request([0] * 24, matrices=3)


@given(st.lists(st.integers(0, 4095), min_size=32, max_size=32), st.sampled_from([4, 8, 16]))
def test_bounds_hold_for_any_addresses(slots, width):
    request = shared_request([s * width for s in slots], width)
    lanes = [len(p) for p in phase_lanes(width)]
    for degree, count, words in zip(request.degrees, lanes, request.words, strict=True):
        assert 1 <= degree <= count
        assert degree >= -(-len(words) // 32)
    assert request.load().sum() == sum(len(w) for w in request.words)
    assert request.conflicts == request.wavefronts - len(lanes)
