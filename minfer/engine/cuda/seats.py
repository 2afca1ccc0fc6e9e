"""The seats of a device's dependent launches (`minfer.cuda.tile.seats`): where its multiprocessors lie."""

from __future__ import annotations

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
