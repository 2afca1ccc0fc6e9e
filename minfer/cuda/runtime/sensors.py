"""Clock, power and temperature of the GPU by NVML, the driver's management library, where it is installed.

A GPU at its power limit lowers its clock: a figure says little without the clock that it was measured at.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

from minfer.cuda.runtime import driver
from minfer.cuda.runtime.devices import Gpu

_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""The call's name, and the older one."""
_CLOCK_SM, _TEMPERATURE_GPU = 1, 0  # nvmlClockType_t, nvmlTemperatureSensors_t


@functools.cache
def _library() -> Any:
    """NVML, started; None where there is none."""
    try:
        library = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


@functools.cache
def _handle(device: Gpu) -> Any:
    """NVML's handle of a device, by its place on the bus: its own numbers ignore CUDA_VISIBLE_DEVICES."""
    handle = ctypes.c_void_p()
    place = driver.call("cuDeviceGetPCIBusId", 32, device.handle)
    status = _library().nvmlDeviceGetHandleByPciBusId_v2(place, ctypes.byref(handle))
    return handle if status == 0 else None


def read_sensors(device: Gpu) -> dict[str, float]:
    """What the device reports now: sm_mhz, power_w, temperature_c. Without NVML, or what it does not tell,
    is left out."""
    library = _library()
    handle = None if library is None else _handle(device)
    if handle is None:
        return {}
    value = ctypes.c_uint()
    place = ctypes.byref(value)
    found = {}
    if library.nvmlDeviceGetClockInfo(handle, _CLOCK_SM, place) == 0:
        found["sm_mhz"] = float(value.value)
    if library.nvmlDeviceGetPowerUsage(handle, place) == 0:
        found["power_w"] = value.value / 1000
    if library.nvmlDeviceGetTemperature(handle, _TEMPERATURE_GPU, place) == 0:
        found["temperature_c"] = float(value.value)
    return found


def read_energy(device: Gpu) -> float | None:
    """Joules that the board has taken since the driver was loaded; None where NVML does not tell. The figure
    moves on some ten times a second."""
    library = _library()
    handle = None if library is None else _handle(device)
    if handle is None:
        return None
    millijoules = ctypes.c_ulonglong()
    status = library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
    return millijoules.value / 1000 if status == 0 else None


def read_load(device: Gpu) -> tuple[float, int] | None:
    """(utilisation over the last moments, 0 to 1; NVML's bits of what holds the clocks down); None without
    NVML."""
    library = _library()
    handle = None if library is None else _handle(device)
    if handle is None:
        return None
    rates, reasons = (ctypes.c_uint * 2)(), ctypes.c_ulonglong()
    if library.nvmlDeviceGetUtilizationRates(handle, rates) != 0:
        return None
    for name in _REASONS:
        if hasattr(library, name):  # 0 where it is not told
            getattr(library, name)(handle, ctypes.byref(reasons))
            break
    return rates[0] / 100, int(reasons.value)
