"""A stopwatch on a GPU that only keeps time."""

from __future__ import annotations

import itertools
import threading

import pytest

from minfer.campaign.stopwatch import AHEAD, Polled, Stopwatch, mean_power


class Gpu:
    """Runs take 2 ms, one behind the other, at 700 W; the host waits for events. The counter of energy moves
    on every 20 ms."""

    def __init__(self) -> None:
        self.host, self.device, self.most_waiting, self.read, self.taken = 0.0, 0.0, 0, [], []

    def run(self) -> None:
        self.device = max(self.device, self.host) + 2e-3
        self.host += 1e-5
        self.most_waiting = max(self.most_waiting, round((self.device - self.host) / 2e-3))

    def event(self):
        return Event(self)

    def before(self, stream):
        self.read.append(("before", self.device))

    def after(self, stream):
        self.read.append(("after", self.device))

    def mhz(self):
        return 1500.0 if [name for name, _ in self.read[-2:]] == ["before", "after"] else None

    def __enter__(self):
        self.begun = self.host
        return self.taken

    def __exit__(self, *_):
        moves = range(round(self.begun / 0.02), round(self.host / 0.02))
        self.taken += [(0.02 * move, 14.0 * move) for move in moves]


class Event:
    def __init__(self, gpu):
        self.gpu, self.at = gpu, None

    def record(self, stream):
        self.at = self.gpu.device
        return self

    def synchronize(self):
        self.gpu.host = max(self.gpu.host, self.at)

    def since(self, start):
        self.synchronize()
        return (self.at - start.at) * 1e3


@pytest.fixture
def gpu():
    return Gpu()


@pytest.fixture
def stopwatch(gpu):
    return Stopwatch(None, gpu.event, gpu, gpu, now=lambda: gpu.host)


def test_once(gpu, stopwatch):
    us, mhz = stopwatch.once(gpu.run)
    assert us == pytest.approx(2000) and mhz == 1500


def test_a_stretch_counts_what_comes_after_it_has_settled(gpu, stopwatch):
    found = stopwatch.stretch(gpu.run, seconds=0.7, settle=0.3)
    assert found.us == pytest.approx(2000) and found.mhz == 1500
    assert found.watts == pytest.approx(700, rel=0.02)
    (_, begun), (_, ended) = gpu.read
    assert 0.3 <= begun < 0.32 and 0.7 <= ended < 0.72
    assert gpu.most_waiting <= AHEAD + 1


def test_at_least_one_run_counts(gpu, stopwatch):
    assert stopwatch.stretch(gpu.run, seconds=0.001, settle=0.001).us == pytest.approx(2000)


def test_a_thread_reads_energy():
    told = iter([1.0, 1.0, 2.0, None])
    polled = Polled(lambda: next(told), now=lambda: 5.0)
    with polled as taken:
        polled._thread.join(10)
    assert taken == [(5.0, 1.0), (5.0, 1.0), (5.0, 2.0)]
    told, read = itertools.count(), threading.Event()
    polled = Polled(lambda: (next(told) > 5 and read.set()) or 7.0)
    with polled as taken:
        assert read.wait(10)
    count = len(taken)
    assert count > 5 and not polled._thread.is_alive() and len(taken) == count


def test_power_is_between_moves_of_the_counter():
    slow = [(0.0, 5.0), (0.09, 5.0), (0.1, 75.0), (0.15, 75.0), (0.2, 145.0), (0.25, 145.0)]
    assert mean_power(slow) == pytest.approx(700)
    assert mean_power(slow[:4]) is None and mean_power([]) is None
