"""Timing every launch of a pass: CUPTI's activity records where `cupti-python` is, else CUDA events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count, pairwise
from typing import Any

from minfer.campaign.decomposition import Span, exclusive
from minfer.campaign.observe import Observed

BUFFER_BYTES = 8 << 20
DECODES = {"copies": 5, "samples": 17}
"""How `graph_ms` times what is as short as a decoded token."""
EVENTS = 50
"""Launches between events that tell what an event costs."""
GRAPHS = "CUDA graphs, one of each class's launches"


class NotTimed(RuntimeError):
    """Launches that cannot be timed, or whose times do not belong to them."""


@dataclass(frozen=True)
class Pass:
    """One observed pass.

    Attributes:
        launches, times: what was launched, and the milliseconds that each alone held the device.
        total: milliseconds of the pass: from the tokens to the logits by the host's clock, or all launches in
            one graph by the device's.
    """

    launches: list[Observed]
    times: list[float]
    total: float


class CuptiTimer:
    """Records of every kernel by CUPTI, of those in a replayed graph too. Raises NotTimed where cupti-python
    is not installed, or finds no CUPTI that it can use. A context manager: it observes inside of it."""

    def __init__(self) -> None:
        try:
            from cupti import cupti

            self._cupti = cupti
            cupti.get_timestamp()
        except Exception as error:  # the package raises its own, of several modules
            raise NotTimed(f"cupti-python cannot be used: {error}") from error
        self.source = f"CUPTI activity (cupti-python {version('cupti-python')})"
        self._seen: list[tuple[str, Span]] = []

    def __enter__(self) -> CuptiTimer:
        cupti = self._cupti
        cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._completed)
        cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
        return self

    def __exit__(self, *_: Any) -> None:
        self._cupti.activity_flush_all(1)
        self._cupti.activity_disable(self._cupti.ActivityKind.CONCURRENT_KERNEL)

    def _completed(self, activities: Sequence[Any]) -> None:
        kinds = (self._cupti.ActivityKind.CONCURRENT_KERNEL, self._cupti.ActivityKind.KERNEL)
        self._seen += [(a.name, Span(a.start, a.end)) for a in activities if a.kind in kinds]

    def observe(self, run: Callable[[], None], device: Any) -> Pass:
        """Run a pass on an observing device (`minfer.campaign.observe`)."""
        device.gpu.synchronize()
        self._cupti.activity_flush_all(1)
        self._seen.clear()
        device.observed = []
        start = time.perf_counter_ns()
        run()
        total = (time.perf_counter_ns() - start) / 1e6
        device.gpu.synchronize()
        self._cupti.activity_flush_all(1)
        seen = sorted(self._seen, key=lambda record: record[1].start)
        launches = list(device.observed)
        match(launches, [name for name, _ in seen], _entry)
        return Pass(launches, exclusive([span for _, span in seen]), total)


class EventTimer:
    """CUDA events between launches. They see nothing inside a graph. A context manager, as CuptiTimer."""

    source = "CUDA events between launches"

    def __enter__(self) -> EventTimer:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def observe(self, run: Callable[[], None], device: Any) -> Pass:
        """Run a pass on an observing device. What events cost (`event_cost`) is in the launches' times."""
        events: list[Any] = []
        total = self._run(run, device, lambda: events.append(_event(device)))
        launches = list(device.observed)
        if len(events) != len(launches) + 1:
            raise NotTimed(f"{len(events)} events around {len(launches)} launches: a graph hides the others")
        return Pass(launches, [end.since(begin) for begin, end in pairwise(events)], total)

    def span(self, run: Callable[[], None], device: Any, launches: int) -> float:
        """Milliseconds from the first to the end of the last of a pass's launches, so many, with no event
        between them."""
        ends: list[Any] = []
        places = count()

        def mark() -> None:
            if next(places) in (0, launches):
                ends.append(_event(device))

        self._run(run, device, mark)
        first, last = ends
        return last.since(first)

    def _run(self, run: Callable[[], None], device: Any, mark: Callable[[], None]) -> float:
        """Run a pass, `mark` before it and after every launch; milliseconds by the host's clock."""
        device.gpu.synchronize()
        device.observed, device.around_launch = [], mark
        try:
            start = time.perf_counter_ns()
            run()
            return (time.perf_counter_ns() - start) / 1e6
        finally:
            device.around_launch = None


def _event(device: Any) -> Any:
    """An event of the device's stream, now."""
    from minfer.cuda import runtime

    return runtime.Event().record(device.stream)


def event_cost(launches: Sequence[Observed], device: Any) -> float:
    """Milliseconds that a launch between events takes beside what it takes in a graph: at each event the
    device stands still. Measured on the pass over activations that moves the most bytes, whose time hardly
    depends on the clock, behind products, so that the host is ahead."""
    longest = max(launches, key=lambda launch: launch.gmac)
    chosen = max((launch for launch in launches if not launch.gmac), key=lambda launch: launch.nbytes)
    found: list[float] = []
    for _ in range(5):
        for _ in range(4):
            _launch(longest, device)
        events = [_event(device)]
        for _ in range(EVENTS):
            _launch(chosen, device)
            events.append(_event(device))
        found += [end.since(begin) for begin, end in pairwise(events)]
    return max(statistics.median(found) - graph_ms([chosen], device, copies=EVENTS), 0.0)


def _launch(launch: Observed, device: Any) -> None:
    """Launch again what was observed."""
    device.launch(launch.kernel, launch.grid, *launch.args, pdl=launch.pdl)


def class_graphs(launches: Sequence[Observed], device: Any) -> Pass:
    """A pass whose launches are timed class by class: a graph holds one class's launches in their order,
    some times over, and they share its time evenly. For a decode, whose launches are so short that what lies
    between them counts: by CUPTI a token of 2.0 ms took 4.1 on an H200, and its launches alone were charged
    5 % less than the graph that holds them takes.
    """
    whole = graph_ms(launches, device, **DECODES)
    held = {}
    for name in dict.fromkeys(launch.bucket for launch in launches):
        own = [launch for launch in launches if launch.bucket == name]
        held[name] = graph_ms(own, device, **DECODES) / len(own)
    return Pass(list(launches), [held[launch.bucket] for launch in launches], whole)


def graph_ms(
    launches: Sequence[Observed], device: Any, *, copies: int = 1, samples: int = 5, rest: float = 0.0
) -> float:
    """Milliseconds of device time of these launches in a graph, once: the median of some replays.

    Args:
        copies: of the launches in the graph. rest: seconds before every replay.
    """

    def enqueue() -> None:
        for _ in range(copies):
            for launch in launches:
                _launch(launch, device)

    return device_ms(device.capture(enqueue), device, samples=samples, rest=rest) / copies


def device_ms(
    enqueue: Callable[[], None], device: Any, *, samples: int = 5, rest: float = 0.0, queued: bool = False
) -> float:
    """Milliseconds of device time of what `enqueue` puts on the device's stream: the median of some times.

    Args:
        rest: seconds before each. queued: each behind another one, so that the device does not wait for the
            host; else that is in it, some 20 microseconds of a graph.
    """
    return statistics.median([sample_ms(enqueue, device, rest, queued) for _ in range(samples + 1)][1:])


def sample_ms(enqueue: Callable[[], None], device: Any, rest: float = 0.0, queued: bool = False) -> float:
    """One of `device_ms`'s times."""
    time.sleep(rest)
    if queued:
        enqueue()
    start = _event(device)
    enqueue()
    return _event(device).since(start)


def timer(source: str = "auto") -> tuple[Any, str]:
    """A timer, and why it is not CUPTI ("" if it is). source: "auto", "cupti" or "events".

    Raises:
        NotTimed: CUPTI was asked for and cannot be had.
    """
    if source == "events":
        return EventTimer(), "asked for"
    try:
        return CuptiTimer(), ""
    except NotTimed as error:
        if source == "cupti":
            raise
        return EventTimer(), str(error)


def match(launches: Sequence[Observed], names: Sequence[str], entry: Callable[[Observed], str]) -> None:
    """Check that records in order of their start belong to the launches.

    Raises:
        NotTimed: another number, or another kernel in some place.
    """
    for place, (launch, name) in enumerate(zip(launches, names, strict=False)):
        if entry(launch) != name:
            raise NotTimed(f"launch {place} is {launch.kernel}, the record there is of {name}")
    if len(launches) != len(names):
        raise NotTimed(f"{len(names)} kernel records for {len(launches)} launches")


def _entry(launch: Observed) -> str:
    from minfer.cuda import runtime

    return runtime.load(launch.kernel).compiled.entry
