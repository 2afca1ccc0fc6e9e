"""Tensor cores alone: what is measured of them, on a simulated device and a clock of our own."""

from __future__ import annotations

import pytest

from minfer.campaign import tensor_ceilings
from minfer.campaign.stopwatch import Stretch
from minfer.campaign.tensor_ceilings import K_TILES, TensorRate, measure_tensor_cores
from minfer.cuda import resident as module
from minfer.cuda.resident import ResidentConfig, resident
from minfer.engine.cuda.devices import SimulatedDevice

SMALL = ResidentConfig(tile_m=16, stages=2), ResidentConfig(tile_m=32, stages=2, dtype="s8")


class Watch:
    """Says 1.5 ms of every burst and 2 ms of every sustained launch; nothing runs."""

    def once(self, run):
        return 1500.0, 1600.0

    def stretch(self, run, seconds, settle):
        assert seconds > settle
        return Stretch(2000.0, 1400.0, 699.0)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "shipped", lambda: [resident(config) for config in SMALL])
    monkeypatch.setattr(tensor_ceilings, "REST_S", 0)
    monkeypatch.setattr(tensor_ceilings, "K_TILES", 3)


def test_rates_are_of_what_was_multiplied(small):
    said = []
    rates = measure_tensor_cores(SimulatedDevice("sm_90a", 1), Watch(), said.append)
    assert said == rates and [(r.dtype, r.tile, r.regime) for r in rates] == [
        ("f16", "128x16", "burst"),
        ("f16", "128x16", "sustained"),
        ("int8", "128x32", "burst"),
        ("int8", "128x32", "sustained"),
    ]
    burst, long = rates[:2]  # 100 launches' tiles in 1.5 ms: as many as were tried
    operations = 2.0 * 100 * 3 * 128 * 16 * 64
    assert burst.tops == pytest.approx(operations / 1.5e-3 / 1e12) and burst.mhz == 1600
    assert long.tops == pytest.approx(operations / 2e-3 / 1e12)
    assert (burst.watts, long.mhz, long.watts) == (None, 1400.0, 699.0)
    assert str(long).startswith("wgmma f16 128x16, sustained: ") and str(long).endswith("at 1,400 MHz, 699 W")


def test_what_a_device_cannot_run_is_left_out(small):
    assert measure_tensor_cores(SimulatedDevice("sm_80", 1), Watch()) == []


def test_wrong_sums_are_found_out(small, monkeypatch):
    monkeypatch.setattr(SimulatedDevice, "launch", lambda *arguments: None)
    with pytest.raises(RuntimeError, match=r"wgmma f16 128x16 2 stages.*: sums are off by 1"):
        measure_tensor_cores(SimulatedDevice("sm_90a", 1), Watch())


def test_a_sum_is_as_deep_as_a_products():
    assert K_TILES * ResidentConfig().tile_k == 3584
    assert str(TensorRate("mma.sync", "f16", "128x256", "burst", 600.4)) == (
        "mma.sync f16 128x256, burst: 600 TOPS"
    )
