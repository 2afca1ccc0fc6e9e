"""The tile explorer's report: the ledger's numbers, the config's refusals, the device's limits."""

import pytest

from minfer.arithmetic.devices import DEVICES, GB10, H200
from minfer.cuda.gemm import GemmConfig
from minfer.cuda.kernel import ConfigRefused
from minfer.lab.tile_view import Registers, TileChoice, draw_tile, explore, probe_rows


def test_the_default_is_the_seeds_landed_tile():
    report = explore(TileChoice(), Registers(64, "ptxas, sm_121a"))
    facts = {row["quantity"]: row["value"] for row in report.facts()}
    assert facts["staged a k-step"] == "A 4,096 + B 8,192 B"
    assert facts["bytes a kFLOP"] == "23.44"
    assert facts["registers a thread"] == "64 (ptxas, sm_121a)"
    assert facts["blocks an SM"] == "3, limited by shared memory"
    assert facts["occupancy"] == "50.00%"
    assert report.refusal is None


def test_registers_are_called_an_estimate_until_compiled():
    report = explore(TileChoice())
    assert report.registers == Registers(report.config.registers)
    assert str(report.registers).endswith("(estimate)")
    assert str(Registers(200, "ptxas, sm_90a", 16)) == "200 (ptxas, sm_90a, 16 B spilled)"


@pytest.mark.parametrize(
    "choice",
    [
        TileChoice(stages=1),
        TileChoice(tile_n=256, tile_m=256, warps=2),
        TileChoice(tile_m=256, tile_k=128, stages=6),
    ],
)
def test_the_configs_own_refusal_is_shown(choice, sound):
    with pytest.raises(ConfigRefused) as refused:
        choice.config()
    report = explore(choice)
    assert report.refusal == str(refused.value)
    assert report.config is report.occupancy is report.registers is None
    picture = sound(draw_tile(report))
    assert report.refusal in picture.alt
    assert [row["quantity"] for row in report.facts()][:2] == ["staged a k-step", "bytes a kFLOP"]


def test_a_tile_that_only_another_device_can_run(sound):
    choice = TileChoice(tile_m=256, tile_k=64, stages=3)
    small, large = explore(choice), explore(TileChoice(tile_m=256, tile_k=64, stages=3, device="h200"))
    assert small.refusal.startswith("NVIDIA GB10: ") and "101,376 B" in small.refusal
    assert small.occupancy.blocks == 0 and large.occupancy.blocks >= 1
    assert large.refusal is None
    sound(draw_tile(small))


@pytest.mark.parametrize("key", DEVICES)
def test_every_device_has_a_picture(key, sound):
    picture = sound(draw_tile(explore(TileChoice(device=key))))
    limiting = [row for row in picture.rows if row["panel"] == "limits" and row["limiting"]]
    assert limiting


def test_the_seeds_probes():
    """P5's tiles in our padded layout: a deeper or wider tile leaves room for one block on a GB10."""
    choices = [TileChoice(tile_m=64), TileChoice(), TileChoice(tile_k=64), TileChoice(tile_m=256, warps=16)]
    rows = probe_rows(choices, [GB10, H200])
    assert [row["shared (B)"] for row in rows] == [20_480, 30_720, 55_296, 51_200]
    assert [row["blocks, gb10"] for row in rows] == [4, 3, 1, 1]
    assert [row["blocks, h200"] for row in rows] == [10, 7, 4, 4]
    assert rows[0]["shared (B)"] == GemmConfig().shared_bytes
