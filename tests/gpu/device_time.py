"""Device time of launches: in captured graphs, over operands that do not stay in L2, by turns where several
are compared."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minfer.campaign.launch_times import sample_ms
from minfer.campaign.side_by_side import REST_S
from minfer.cuda import runtime
from minfer.engine.cuda.devices import GpuDevice
from tests.cuda.parity import Case

COLD_BYTES = 200 << 20  # more than any L2
NT = 2048


def milliseconds(launches: Sequence[Callable]) -> float:
    """Device time of one of the bound launches, run one after another in a graph."""
    return by_turns({"": launches})[""]


def by_turns(contestants: Mapping[Any, Sequence[Callable]], rounds: int = 9) -> dict[Any, float]:
    """Name -> device time in milliseconds of one of a contestant's launches, which its graph runs one after
    another. Every round times each contestant once, in random order, so that heat makes no one's times longer
    than another's: after a rest, as a burst.

    Args:
        contestants: what launches into the current stream.
    """
    device = GpuDevice()
    graphs, found = {}, {name: [] for name in contestants}
    for name, launches in contestants.items():

        def enqueue(launches=launches) -> None:
            for launch in launches:
                launch()

        with device.stream:
            launches[0]()  # what a library does once
        graphs[name] = device.capture(enqueue)
    for _ in range(rounds):
        for name in random.sample(list(graphs), len(graphs)):
            found[name].append(sample_ms(graphs[name], device, REST_S, queued=True))
    return {name: statistics.median(found[name]) / len(contestants[name]) for name in graphs}


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
