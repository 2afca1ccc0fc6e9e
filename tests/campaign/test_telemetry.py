"""Clocks, power and temperature."""

from __future__ import annotations

from minfer.campaign.telemetry import Reading, Watch, reader_of


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
