"""Device time of launches: in a captured graph, over operands that do not stay in L2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minfer.campaign.launch_times import device_ms
from minfer.cuda import runtime
from minfer.engine.cuda.devices import GpuDevice
from tests.cuda.parity import Case

COLD_BYTES = 200 << 20  # more than any L2
NT = 2048


def milliseconds(launches: list) -> float:
    """Device time of one of the bound launches, run one after another in a graph."""
    device = GpuDevice()

    def enqueue() -> None:
        for launch in launches:
            launch()

    return device_ms(device.capture(enqueue), device, samples=9, queued=True) / len(launches)


def copies(nbytes: int) -> int:
    """How many operands of this size are cold when their turn comes again; enough launches to time."""
    return max(4, -(-COLD_BYTES // nbytes))


def milliseconds_of(cases: Sequence[Case], sets: int) -> float:
    """Device time of these launches, one after another, on `sets` sets of arrays by turns. Cases that have an
    array in common share it; outputs are poison at first, and what the last launches left is checked."""
    arrays = {id(v): v for case in cases for v in case.arguments.values() if isinstance(v, np.ndarray)}
    first = {key: runtime.to_device(array) for key, array in arrays.items()}
    launches, held = [], first
    for place in range(sets):
        if place:
            held = {key: runtime.empty(a.shape, a.dtype).copy_from(a) for key, a in first.items()}
        for case in cases:
            arguments = [held.get(id(v), v) for v in case.arguments.values()]
            launches.append(runtime.load(case.kernel).prepare(case.grid, *arguments))
    time = milliseconds(launches) * len(cases)
    for case in cases:
        case.results = {name: held[id(case.arguments[name])].to_host() for name in case.expected}
        case.check()
    return time
