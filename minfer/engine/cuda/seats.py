"""What Hopper's GEMMs share on a device, for launches one after the other: the seats of dependent launches
(`minfer.cuda.tile.seats`), and the workspace of those with split_k (`minfer.cuda.gemm_hopper.split`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minfer.cuda.placement import PlacementConfig, placement, places
from minfer.cuda.tile.seats import ORDER, make_seats
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.launches import launch_for


def device_seats(device: Device) -> Any:
    """Seats for launches one after the other, on whichever stream: uint32, a seat a multiprocessor. They are
    there when this returns."""
    count = device.sms
    seats = device.empty(ORDER + count, np.uint32)
    launch_for(placement, PlacementConfig, (count,)).on(device, seats[ORDER:])
    device.write(seats, make_seats(places(device.read(seats[ORDER:]))))
    device.mark()()
    return seats


def device_parts(device: Device, workspace: Callable[[int], tuple[int, int]]) -> tuple[Any, Any]:
    """The sums that blocks hand over, f32, and their counters, uint32 and clear when this returns. workspace:
    a kernel's, (multiprocessors) -> elements of either."""
    elements, counters = workspace(device.sms)
    parts, ready = device.empty(elements, np.float32), device.empty(counters, np.uint32)
    device.clear(ready)
    device.mark()()
    return parts, ready
