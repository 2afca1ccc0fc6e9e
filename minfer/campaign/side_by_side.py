"""Contests measured: both sides within CUDA graphs, by turns in random order, in one process.

What counts is the median. A burst begins on a GPU that has rested; `soak` seconds of work before it give the
clock that the GPU can hold. Every output is NaN before a graph is replayed whole and its last result checked,
before and after the timing.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from minfer.campaign.against import Comparison
from minfer.campaign.contests import Contest
from minfer.engine.errors import EngineError

REST_S = 8e-3
TOLERANCE = 1e-3  # relative, of f16 results
OURS = "ours"


def compare(
    makers: Iterable[Callable[[Any], Contest]],
    rounds: int = 9,
    soak: float = 0.0,
    on_row: Callable[[Comparison], None] | None = None,
) -> list[Comparison]:
    """Measure every contest; each maker gets the module torch. on_row is told each result.

    Raises EngineError without torch or without a GPU that Hopper's kernels run on, or where a result is
    wrong.
    """
    torch = _torch()
    rows = []
    for make in makers:
        rows.append(_Match(torch, make(torch)).play(rounds, soak))
        torch.cuda.empty_cache()
        if on_row is not None:
            on_row(rows[-1])
    return rows


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise EngineError(
            "torch is not installed: a comparison with cuBLAS and cuDNN needs it: pip install torch"
        ) from None
    from minfer.cuda.runtime import device

    if not torch.cuda.is_available() or device().arch != "sm_90a":
        raise EngineError("the comparison is of Hopper's kernels: it needs a GPU of sm_90 (H100, H200)")
    return torch


class _Match:
    """A contest's graphs."""

    def __init__(self, torch: Any, contest: Contest):
        from minfer.cuda import runtime
        from minfer.cuda.clock import SLOTS, read_clock

        self.torch, self.contest = torch, contest
        self.graphs, self.results = {}, {}
        for side, calls in {OURS: contest.ours, **contest.theirs}.items():
            calls[0]()  # what a library does once
            torch.cuda.synchronize()
            self.graphs[side] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[side]):
                for i in range(contest.launches):
                    self.results[side] = calls[i % len(calls)]()
        kernel, sms = read_clock(), runtime.device().sms
        self.readings = [runtime.zeros((SLOTS, 2), "uint64") for _ in range(2)]
        loaded = runtime.load(kernel)
        self.read_before, self.read_after = (
            loaded.prepare(kernel.config.grid(sms), readings) for readings in self.readings
        )

    def play(self, rounds: int, soak: float) -> Comparison:
        contest, times, clocks = self.contest, {}, {}
        self._check()
        begun = time.perf_counter()
        while time.perf_counter() - begun < soak:
            for side in self.graphs:
                self._replay(side)
        for _ in range(rounds):
            for side in random.sample(list(self.graphs), len(self.graphs)):
                if soak:
                    self._replay(side)  # under the load of the one that is timed
                else:
                    time.sleep(REST_S)
                us, mhz = self._replay(side)
                times.setdefault(side, []).append(us)
                clocks.setdefault(side, []).append(mhz)
        self._check()
        medians = {side: statistics.median(found) for side, found in times.items()}
        peer = min(contest.theirs, key=medians.__getitem__)
        mhz = [_median_of_known(clocks[side]) for side in (OURS, peer)]
        regime = "sustained" if soak else "burst"
        return Comparison(
            contest.product, contest.nt, contest.od, contest.depth, contest.config,
            medians[OURS], medians[peer], regime, *mhz, "counters", contest.weights, peer,
        )  # fmt: skip

    def _check(self) -> None:
        contest = self.contest
        for side, result in self.results.items():
            result.fill_(float("nan"))
            self.graphs[side].replay()
            error = contest.error(result)
            if not error < TOLERANCE:
                what = f"{contest.product} at {contest.nt} tokens, {side} ({contest.config})"
                raise EngineError(f"{what}: off by {error:.1e}, not timed")

    def _replay(self, side: str) -> tuple[float, float | None]:
        """Microseconds of a launch, and the mean clock."""
        from minfer.cuda.clock import mean_mhz

        torch = self.torch
        stream = torch.cuda.current_stream().cuda_stream
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.read_before(stream=stream)
        start.record()
        self.graphs[side].replay()
        end.record()
        self.read_after(stream=stream)
        torch.cuda.synchronize()
        us = start.elapsed_time(end) / self.contest.launches * 1e3
        return us, mean_mhz(*(readings.to_host() for readings in self.readings))


def _median_of_known(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
