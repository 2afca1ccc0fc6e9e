"""The sweep over TM and KS: ledger, residency, and the measured steps."""

import pytest

from minfer.arithmetic.devices import GB10, H200
from minfer.arithmetic.ledger import GemmTile
from minfer.campaign.records import load_records
from minfer.campaign.report import newest_sweep
from minfer.lab import speed_view, sweep_view


@pytest.fixture(scope="module")
def rows():
    return {(row["TM"], row["KS"]): row for row in sweep_view.sweep_rows([GB10, H200])}


def test_every_tile_is_there_once(rows):
    assert set(rows) == {(tm, ks) for tm in sweep_view.TMS for ks in sweep_view.KSS}


def test_bytes_fall_with_tm_and_barriers_with_both(rows):
    assert [rows[tm, 32]["B a kFLOP"] for tm in (64, 128, 256)] == [31.25, 23.44, 19.53]
    assert rows[128, 64]["B a kFLOP"] == rows[128, 32]["B a kFLOP"]
    for (tm, ks), row in rows.items():
        assert row["barriers a MFLOP"] == round(GemmTile(tm=tm, ks=ks).barriers_per_mflop, 2)


def test_the_seeds_verdict_on_ks_64_is_shared_memorys(rows):
    """Seed 000 reverted KS=64 on a GB10: three blocks an SM become one. An H200 keeps three."""
    assert (rows[128, 32]["blocks, gb10"], rows[128, 64]["blocks, gb10"]) == (3, 1)
    assert (rows[128, 32]["blocks, h200"], rows[128, 64]["blocks, h200"]) == (3, 3)
    assert rows[128, 128]["blocks, gb10"] == 0


def test_pictures(sound):
    assert sound(sweep_view.draw_sweep([GB10, H200])).rows == sweep_view.sweep_rows([GB10, H200])
    steps = speed_view.step_rows(newest_sweep(load_records()))
    picture = sound(sweep_view.draw_steps(steps, "an H200"))
    assert [row["GB10 (%)"] for row in picture.rows] == [30, -38, -3, -8]
