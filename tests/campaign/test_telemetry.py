"""Clocks, power and temperature, and the ceilings that no figure passes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from minfer.campaign import telemetry
from minfer.campaign.ceilings import AboveCeiling, Ceilings, ceilings_of
from minfer.campaign.telemetry import Reading, Watch, parse_smi, reader_of
from minfer.campaign.workload import Work


class Fake:
    name, costly = "fake", False

    def __init__(self, costly=False):
        self.costly, self.count = costly, 0

    def read(self):
        self.count += 1
        return Reading(
            1980.0 - 100 * self.count, 300.0, 40.0 + self.count, 0.0, 0x4 if self.count == 2 else 0
        )


def test_readings_become_least_median_most():
    watch = Watch(Fake())
    for _ in range(3):
        watch.look()
    found = watch.summary()
    assert watch.busy == 0.0 and found.samples == 3 and found.source == "fake"
    assert found.sm_mhz == [1580.0, 1680.0, 1780.0] and found.temperature_c[2] == 44.0
    assert found.limits == ["power cap"] and "held down by power cap" in str(found)


def test_a_costly_reader_looks_at_the_start_and_at_the_end():
    watch = Watch(Fake(costly=True))
    for _ in range(9):
        watch.look()
    assert watch.summary().samples == 2


def test_nobody_reads():
    found = Watch(None, "no NVML").summary()
    assert found.samples == 0 and str(found) == "clocks, power and temperature not read: no NVML"


def test_a_line_of_nvidia_smi():
    assert parse_smi("1980, 112.40, 34, 7, 0x0000000000000004\n") == Reading(1980.0, 112.4, 34.0, 0.07, 4)
    with pytest.raises(ValueError):
        parse_smi("No devices were found")


def test_why_nothing_can_be_read(monkeypatch):
    from minfer.cuda.runtime import driver

    monkeypatch.setattr(driver, "call", lambda *_: b"0000:01:00.0\0\0")
    monkeypatch.setattr(telemetry, "Nvml", lambda bus: (_ for _ in ()).throw(ImportError()))
    monkeypatch.setattr(telemetry, "Smi", lambda bus: (_ for _ in ()).throw(OSError("nvidia-smi: none")))
    assert reader_of(SimpleNamespace(handle=0)) == (None, "nvidia-ml-py is not installed; nvidia-smi: none")


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
