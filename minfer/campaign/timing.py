"""Interleaved device times of both sides of a probe on a GPU.

Each side's launches are captured in a CUDA graph over several sets of arrays, together more than twice the
L2 cache, so that every run finds its inputs cold. A round replays baseline, variant and baseline again, in
an order that turns from round to round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minfer.campaign.ceilings import Ceilings
from minfer.campaign.probe_record import Comparison
from minfer.campaign.telemetry import Watch
from minfer.campaign.trial import Trial
from minfer.campaign.workload import Case, work_of

TARGET_MS = 4.0
"""About how long a replay takes: long beside the clock's resolution, short beside thermal time."""
MOST_RUNS = 200
MOST_SETS = 64
COLD = 2.0
"""The sets together are so many times as large as the L2 cache."""


def compare_kernels(
    trial: Trial, case: Case, rounds: int, watch: Watch, ceilings: Ceilings | None
) -> Comparison:
    """Time one case of a probe on its GPU.

    Raises:
        RuntimeError: outputs that changed, or were not written, while they were timed. AboveCeiling: an
            impossible rate.
    """
    first, second = sides = [_Side(trial, config, case) for _, config in trial.probe.sides]
    inputs = trial.inputs(case)
    first.fill(inputs)
    second.fill(inputs, first)
    before = [side.digest() for side in sides]
    runs = max(_runs(side) for side in sides)
    graphs = [side.capture(runs) for side in (first, second, first)]
    for side in sides:
        side.poison()  # a replay that runs nothing must not find what an earlier run left

    def once(which: int) -> float:
        return _replay(trial.device, graphs[which], watch) / runs

    samples = interleave(once, rounds)
    for side, wanted, label in zip(sides, before, trial.probe.called, strict=True):
        if side.digest() != wanted:
            raise RuntimeError(
                f"{case.label}, {label}: the outputs changed while they were timed, or were not written"
            )
    work = work_of(trial.workload, case)
    if ceilings is not None:
        for label, times in zip(trial.probe.called, samples, strict=False):
            ceilings.check(f"{case.label}, {label}", work, statistics.median(times) / 1e3)
    flop, nbytes = (0.0, 0.0) if work is None else (work.flop, work.nbytes)
    return Comparison.of(case.label, case.count, *samples, flop=flop, nbytes=nbytes)


def interleave(
    once: Callable[[int], float], rounds: int, warm_up: int = 2
) -> tuple[list[float], list[float], list[float]]:
    """Samples of side 0, side 1 and side 2 (side 0 again), one of each in every round.

    The order within a round turns, so that no side always follows the same one. `warm_up` rounds come first.
    """
    samples: tuple[list[float], list[float], list[float]] = ([], [], [])
    for turn in range(-warm_up, rounds):
        for place in range(3):
            which = (place + turn) % 3
            value = once(which)
            if turn >= 0:
                samples[which].append(value)
    return samples


class _Side:
    """One config's launches over sets of arrays."""

    def __init__(self, trial: Trial, config: Any, case: Case) -> None:
        self.trial, self.config, self.case = trial, config, case
        self.shared: list[dict[str, Any]] = []
        self.inputs: list[dict[str, Any]] = []
        self.outputs: list[dict[str, Any]] = []
        self._ran = False

    def fill(self, inputs: Mapping[str, np.ndarray], other: _Side | None = None) -> None:
        """Copy the inputs to the device as often as it takes to keep them cold, or as often as the other side
        has; what is not prepared for one of the two is read by both."""
        trial, device = self.trial, self.trial.device
        own = trial.prepared(self.config, self.case, inputs)
        if other is None:
            size = sum(value.nbytes for value in {**inputs, **own}.values())
            size += sum(
                int(np.prod(shape)) * np.dtype(dtype).itemsize
                for shape, dtype in trial.workload.outputs(self.config, self.case).values()
            )
            count = min(MOST_SETS, max(2, -(-int(COLD * device.gpu.l2_bytes) // size)))
            shared = self._copies(inputs, count)
        else:
            shared, count = other.shared, len(other.shared)
        self.shared = shared
        self.inputs = [common | mine for common, mine in zip(shared, self._copies(own, count), strict=True)]
        self.outputs = [trial.poisoned(self.config, self.case) for _ in self.inputs]

    def _copies(self, arrays: Mapping[str, np.ndarray], count: int) -> list[dict[str, Any]]:
        """So many copies on the device."""
        device, first = self.trial.device, self.trial.uploaded(arrays)
        found = [first]
        for _ in range(count - 1):
            copies = {name: device.empty(value.shape, value.dtype) for name, value in first.items()}
            for name, copy in copies.items():
                copy.copy_from(first[name], device.stream)
            found.append(copies)
        return found

    def poison(self) -> None:
        """Set every byte of the outputs to 0xff again."""
        for arrays in self.outputs:
            for array in arrays.values():
                array.fill_bytes(0xFF, self.trial.device.stream)

    def _enqueue(self, place: int) -> None:
        arrays = self.inputs[place] | self.outputs[place]
        self.trial.run(self.trial.launches(self.config, self.case, arrays))

    def digest(self) -> tuple[int, ...]:
        """Sums and parities of the last set's compared outputs, as words; runs all sets first if none has."""
        if not self._ran:
            for place in range(len(self.inputs)):
                self._enqueue(place)
            self._ran = True
        found: list[int] = []
        for name in self.trial.workload.compared:
            raw = (
                np.ascontiguousarray(self.trial.device.read(self.outputs[-1][name]))
                .reshape(-1)
                .view(np.uint8)
            )
            words = raw[: len(raw) // 8 * 8].view(np.uint64)
            found += [int(words.sum()), int(np.bitwise_xor.reduce(words)), int(raw[-8:].sum())]
        return tuple(found)

    def capture(self, runs: int) -> Any:
        """A graph of `runs` runs, over the sets by turns."""
        from minfer.cuda import runtime

        with runtime.capture(self.trial.device.stream) as graph:
            for run in range(runs):
                self._enqueue(run % len(self.inputs))
        return graph


def _runs(side: _Side) -> int:
    """How many runs make a replay of about TARGET_MS, at least each set once."""
    device, sets = side.trial.device, len(side.inputs)
    graph = side.capture(sets)
    _replay(device, graph, None)
    once = _replay(device, graph, None) / sets
    return int(min(MOST_RUNS, max(sets, TARGET_MS / once)))


def _replay(device: Any, graph: Any, watch: Watch | None) -> float:
    """Milliseconds of a replay."""
    from minfer.cuda import runtime

    start = runtime.Event().record(device.stream)
    graph.replay(device.stream)
    end = runtime.Event().record(device.stream)
    if watch is not None:
        watch.look()
    return end.since(start)
