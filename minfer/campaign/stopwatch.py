"""Time, clock and power of work on a stream: once, or for a while by itself.

A GPU at its power limit chooses its clock within milliseconds, and what runs beside or just before shares it.
Work that runs by itself for some tenths of a second has the clock and the power that a user's program gets.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

AHEAD = 4
"""Runs that wait for the device, so that it never waits for the host."""
REST_S = 8e-3
"""Before a burst."""
Taken = list[tuple[float, float]]
"""Readings of energy: (seconds, joules)."""


@dataclass(frozen=True)
class Stretch:
    """Work repeated for a while.

    Attributes:
        us: microseconds of one run.
        mhz: mean clock of the multiprocessors by their own counters; watts: mean power of the board, by what
            its counter of energy says. None: nobody could tell.
    """

    us: float
    mhz: float | None
    watts: float | None


class SmCounters:
    """Readings of the multiprocessors' counters around some work (`minfer.cuda.clock`)."""

    def __init__(self) -> None:
        from minfer.cuda import runtime
        from minfer.cuda.clock import SLOTS, read_clock

        kernel, sms = read_clock(), runtime.device().sms
        loaded, self._readings = runtime.load(kernel), [runtime.zeros((SLOTS, 2), "uint64") for _ in range(2)]
        self.before, self.after = (loaded.prepare(kernel.config.grid(sms), each) for each in self._readings)

    def mhz(self) -> float | None:
        """Between the last two readings, both done."""
        from minfer.cuda.clock import mean_mhz

        return mean_mhz(*(readings.to_host() for readings in self._readings))


class Polled:
    """Within it a thread reads what `joules` gives (None: nobody can tell) again and again: a reading takes
    NVML milliseconds, in which whoever waited for it would leave the device without work."""

    def __init__(self, joules: Callable[[], float | None], now: Callable[[], float] = time.perf_counter):
        self._joules, self._now, self._over = joules, now, threading.Event()

    def __enter__(self) -> Taken:
        taken: Taken = []
        self._over.clear()
        self._thread = threading.Thread(target=self._read, args=(taken,), daemon=True)
        self._thread.start()
        return taken

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _read(self, taken: Taken) -> None:
        while not self._over.is_set() and (joules := self._joules()) is not None:
            taken.append((self._now(), joules))


class Stopwatch:
    """Times work on a stream.

    Args:
        event: makes events (`minfer.cuda.runtime.Event`). counters: as SmCounters. energy: gives readings of
            what the board takes within it. now: seconds.
    """

    def __init__(
        self,
        stream: Any,
        event: Callable[[], Any],
        counters: Any,
        energy: AbstractContextManager[Taken],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._stream, self._event, self._counters = stream, event, counters
        self._energy, self._now = energy, now

    @classmethod
    def of(cls, stream: Any) -> Stopwatch:
        """Of the GPU in use. stream: one of `minfer.cuda.runtime`, or a handle."""
        from minfer.cuda import runtime

        gpu = runtime.device()
        return cls(stream, runtime.Event, SmCounters(), Polled(lambda: runtime.read_energy(gpu)))

    def once(self, run: Callable[[], None]) -> tuple[float, float | None]:
        """(microseconds, MHz) of a run."""
        self._counters.before(stream=self._stream)
        start = self._event().record(self._stream)
        run()
        end = self._event().record(self._stream)
        self._counters.after(stream=self._stream)
        us = end.since(start) * 1e3
        self._finished()
        return us, self._counters.mhz()

    def stretch(self, run: Callable[[], None], seconds: float, settle: float) -> Stretch:
        """Runs one behind the other for so many seconds, of which the first `settle` do not count."""
        waiting: deque[Any] = deque()

        def enqueue() -> None:
            run()
            waiting.append(self._event().record(self._stream))
            if len(waiting) > AHEAD:
                waiting.popleft().synchronize()

        begun, runs = self._now(), 0
        while self._now() - begun < settle:
            enqueue()
        self._counters.before(stream=self._stream)
        start = self._event().record(self._stream)
        with self._energy as taken:
            while self._now() - begun < seconds or not runs:
                enqueue()
                runs += 1
        end = self._event().record(self._stream)
        self._counters.after(stream=self._stream)
        us = end.since(start) * 1e3 / runs
        self._finished()
        return Stretch(us, self._counters.mhz(), mean_power(taken))

    def _finished(self) -> None:
        self._event().record(self._stream).synchronize()


def mean_power(taken: Sequence[tuple[float, float]]) -> float | None:
    """Watts by readings (seconds, joules) of a counter that moves on some ten times a second: the slope
    through the readings at which it was first seen to have. None: it moved less than twice."""
    moved = [later for earlier, later in pairwise(taken) if later[1] != earlier[1]]
    return statistics.linear_regression(*zip(*moved, strict=True)).slope if len(moved) > 1 else None
