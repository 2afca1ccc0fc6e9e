"""Clocks, power and temperature, and the ceilings that no figure passes."""

from __future__ import annotations

import json

import pytest

from minfer.campaign.ceilings import AboveCeiling, Ceilings, ceilings_of
from minfer.campaign.telemetry import Reading, Watch, reader_of
from minfer.campaign.workload import Work


class Fake:
    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        return Reading(
            1980.0 - 100 * self.count, 300.0, 40.0 + self.count, 0.0, 0x4 if self.count == 2 else 0
        )


def test_readings_become_least_median_most():
    watch = Watch(Fake())
    for _ in range(3):
        watch.look()
    found = watch.summary()
    assert watch.busy == 0.0 and found.samples == 3 and found.source == "NVML"
    assert found.sm_mhz == [1580.0, 1680.0, 1780.0] and found.temperature_c[2] == 44.0
    assert found.limits == ["power cap"] and "held down by power cap" in str(found)


def test_nobody_reads():
    found = Watch(None, "no NVML").summary()
    assert found.samples == 0 and str(found) == "clocks, power and temperature not read: no NVML"


def test_what_nvml_tells_is_read(monkeypatch):
    from minfer.cuda import runtime

    sensors = {"sm_mhz": 1980.0, "power_w": 300.0, "temperature_c": 41.0}
    monkeypatch.setattr(runtime, "read_sensors", lambda gpu: sensors, raising=False)
    monkeypatch.setattr(runtime, "read_load", lambda gpu: (0.07, 4), raising=False)
    read, source = reader_of(None)
    assert source == "NVML" and read() == Reading(1980.0, 300.0, 41.0, 0.07, 4)
    monkeypatch.setattr(runtime, "read_load", lambda gpu: None, raising=False)
    assert reader_of(None) == (None, "NVML does not tell")


def test_measured_ceilings_come_from_the_reference_data(tmp_path):
    h200 = ceilings_of("NVIDIA H200")
    assert (h200.copy, h200.read) == (4280e9, 4240e9) and h200.tensor["f16"] == pytest.approx(
        989.5e12, rel=0.01
    )
    assert ceilings_of("NVIDIA H200", tmp_path).source == "datasheet"
    assert ceilings_of("Matrox Millennium") is None
    assert json.loads(json.dumps(h200.as_dict()))["copy_gb_s"] == 4280


def test_what_is_impossible_raises():
    limits = Ceilings(copy=4e12, read=4e12, tensor={"f16": 1e15}, source="a test")
    limits.check("fine", Work(0.9e15, 3.9e12), 1.0)
    limits.check("not known", None, 1e-9)
    with pytest.raises(AboveCeiling, match=r"copy: 5e\+12 bytes a second, the ceiling is 4e\+12 \(a test\)"):
        limits.check("copy", Work(0.0, 5e12), 1.0)
    with pytest.raises(AboveCeiling, match="f16 operations a second"):
        limits.check("gemm", Work(2e15, 1.0), 1.0)
