"""Contests measured: both sides within CUDA graphs, by turns in random order, in one process.

What counts is the median. A burst begins on a GPU that has rested; `soak` seconds of work before it give the
clock that the GPU can hold, which both sides share as they take turns within milliseconds. `compare_alone`
gives each side slices of `ALONE_S` instead, at its own clock. Every output is NaN before a graph is replayed
whole and its last result checked, before and after the timing.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from minfer.campaign.against import Comparison
from minfer.campaign.contests import Contest
from minfer.campaign.stopwatch import REST_S, Stopwatch
from minfer.engine.errors import EngineError

ALONE_S, SETTLE_S = 0.7, 0.3
"""Of a slice; of its beginning, which does not count."""
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
    return _played(makers, lambda match: match.play(rounds, soak), on_row)


def compare_alone(
    makers: Iterable[Callable[[Any], Contest]],
    rounds: int = 2,
    on_row: Callable[[Comparison], None] | None = None,
) -> list[Comparison]:
    """As `compare`, each side by itself at its own clock: slices in random order, every second round in the
    reverse of the one before, so that a GPU that warms up favours nobody."""
    return _played(makers, lambda match: match.play_alone(rounds), on_row)


def _played(
    makers: Iterable[Callable[[Any], Contest]],
    play: Callable[[_Match], Comparison],
    on_row: Callable[[Comparison], None] | None,
) -> list[Comparison]:
    torch = _torch()
    rows = []
    for make in makers:
        rows.append(play(_Match(torch, make(torch))))
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
        self.contest = contest
        self.graphs, self.results = {}, {}
        for side, calls in {OURS: contest.ours, **contest.theirs}.items():
            calls[0]()  # what a library does once
            torch.cuda.synchronize()
            self.graphs[side] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[side]):
                for i in range(contest.launches):
                    self.results[side] = calls[i % len(calls)]()
        self.stopwatch = Stopwatch.of(torch.cuda.current_stream().cuda_stream)

    def play(self, rounds: int, soak: float) -> Comparison:
        times, clocks = {}, {}
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
        return self._compared("sustained" if soak else "burst", times, clocks, {})

    def play_alone(self, rounds: int) -> Comparison:
        times, clocks, powers, order = {}, {}, {}, []
        self._check()
        for turn in range(rounds):
            order = order[::-1] if turn % 2 else random.sample(list(self.graphs), len(self.graphs))
            for side in order:
                found = self.stopwatch.stretch(self.graphs[side].replay, ALONE_S, SETTLE_S)
                times.setdefault(side, []).append(found.us / self.contest.launches)
                clocks.setdefault(side, []).append(found.mhz)
                powers.setdefault(side, []).append(found.watts)
        self._check()
        return self._compared("alone", times, clocks, powers)

    def _compared(self, regime: str, times: dict, clocks: dict, powers: dict) -> Comparison:
        contest = self.contest
        medians = {side: statistics.median(found) for side, found in times.items()}
        peer = min(contest.theirs, key=medians.__getitem__)
        mhz, watts = (
            [_median_of_known(found.get(side, ())) for side in (OURS, peer)] for found in (clocks, powers)
        )
        return Comparison(
            contest.product, contest.nt, contest.od, contest.depth, contest.config,
            medians[OURS], medians[peer], regime, *mhz, "counters", contest.weights, peer, *watts,
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
        us, mhz = self.stopwatch.once(self.graphs[side].replay)
        return us / self.contest.launches, mhz


def _median_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
