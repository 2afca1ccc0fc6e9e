"""NVML's readings, from a library that is not there."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from minfer.cuda.runtime import sensors


def teller(value, kind):
    """A function of NVML's that writes `value` where its last argument points."""

    def tell(*arguments):
        ctypes.cast(arguments[-1], ctypes.POINTER(kind))[0] = value
        return 0

    return tell


@pytest.fixture
def library(monkeypatch):
    found = SimpleNamespace(
        nvmlDeviceGetUtilizationRates=teller(37, ctypes.c_uint),
        nvmlDeviceGetCurrentClocksThrottleReasons=teller(4, ctypes.c_ulonglong),
        nvmlDeviceGetClockInfo=teller(1980, ctypes.c_uint),
        nvmlDeviceGetPowerUsage=teller(300_500, ctypes.c_uint),
        nvmlDeviceGetTotalEnergyConsumption=teller(2_500, ctypes.c_ulonglong),
        nvmlDeviceGetTemperature=lambda *_: 3,  # not told
    )
    monkeypatch.setattr(sensors, "_library", lambda: found)
    monkeypatch.setattr(sensors, "_handle", lambda device: ctypes.c_void_p(1))
    return found


def test_readings(library):
    assert sensors.read_load(None) == (0.37, 4)
    assert sensors.read_sensors(None) == {"sm_mhz": 1980.0, "power_w": 300.5}
    assert sensors.read_energy(None) == 2.5
    library.nvmlDeviceGetUtilizationRates = library.nvmlDeviceGetTotalEnergyConsumption = lambda *_: 3
    assert sensors.read_load(None) is None and sensors.read_energy(None) is None


def test_without_nvml(monkeypatch):
    monkeypatch.setattr(sensors, "_library", lambda: None)
    assert sensors.read_load(None) is None and sensors.read_sensors(None) == {}
    assert sensors.read_energy(None) is None
