"""Taking the wall of a real prefill or decode apart, on a GPU."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from minfer.campaign.ceilings import ceilings_of
from minfer.campaign.decomposition import buckets
from minfer.campaign.environment import environment, stamps
from minfer.campaign.launch_times import (
    DECODES,
    GRAPHS,
    EventTimer,
    Pass,
    class_graphs,
    event_cost,
    graph_ms,
    timer,
)
from minfer.campaign.observe import Observed, ObservedRuntime, observing
from minfer.campaign.prefills import REST_S, SharedModel, separate
from minfer.campaign.telemetry import Watch, reader_of
from minfer.campaign.wall_record import Wall
from minfer.engine.cuda.devices import GpuDevice
from minfer.engine.cuda.routes import ROUTES, Route, choose_route
from minfer.engine.errors import EngineError, InputError
from minfer.engine.session import Session

ObservingGpu = observing(GpuDevice)
Step = Callable[[Session], Callable[[], Any]]
PASSES = 3
DECODE_CONTEXT = 128
NOTES = (
    "q, k and v are one product; in the last layer its k and v take all tokens and its q the last one",
    "tail: the last layer past its K and V, for the last token alone",
    "what one kernel does beside its product (norm, residual, activation) is charged to the product",
    "activations become f16 or int8 inside the kernels that make them, unless the route has a pass for it",
    "a decoded token is taken apart as separate kernels, whatever one kernel for all of it would take",
)
GAP_BESIDE_GRAPH = (
    "the gap is what the wall clock has beside all launches in one CUDA graph: what the host, and launching, "
    "cost passes that nobody observed; timing every launch would delay the next ones"
)
GAP_BESIDE_SPAN = (
    "the gap is what the wall clock has before a pass's first launch and after its last; launching is in the "
    "launches' times"
)


@dataclass(frozen=True)
class Taken:
    """Passes of one route.

    Attributes:
        walls: milliseconds of those that nobody observed, by the host's clock.
        launched: milliseconds of all launches by the device's clock: in one graph, or by events from the
            first to the last of a pass.
        chosen: an observed one, of median length.
        source: who timed its launches. why: the reason that it was not CUPTI, "" if it was or need not be.
        overlapping: milliseconds of a pass whose launches overlap, where the others' do not; None: they were
            not timed by events.
        event_ms: what each event between two launches cost, which no launch is charged.
    """

    walls: list[float]
    launched: float
    chosen: Pass
    source: str
    why: str = ""
    overlapping: float | None = None
    event_ms: float = 0.0

    @property
    def notes(self) -> list[str]:
        """What a reader must know of these passes alone."""
        found = [f"not by CUPTI: {self.why}"] if self.why else []
        if self.overlapping is None:
            return [GAP_BESIDE_GRAPH, *found]
        return [
            GAP_BESIDE_SPAN,
            *found,
            "events cannot see how launches overlap: in these passes each begins when the one before has "
            f"ended; as the engine runs it, the pass takes {self.overlapping:.3f} ms",
            f"an event between launches costs {self.event_ms * 1e3:.1f} us: no launch is charged that",
        ]


def decompose(
    shared: SharedModel,
    route: Route,
    phase: str,
    *,
    tokens: int = 2048,
    context: int = 0,
    passes: int = PASSES,
    source: str = "auto",
    say: Callable[[str], None] = print,
) -> Wall:
    """Time passes whole, others launch by launch, and charge them.

    Args:
        phase: "prefill" of `tokens` tokens, or "decode" of one token, after `context` tokens, by separate
            kernels: one that does a whole token has no classes.
        passes: observed ones, and as many that are not before and after them.
        source: "graphs" (see `class_graphs`; "auto" of a decode) or "cupti"; for a prefill "auto" and
            "events" too (see `timer`).

    Raises:
        EngineError: buckets and gaps do not add up to the wall clock, or a decode by events.
        NotTimed: launches that could not be told apart.
    """
    gpu = shared.device.gpu
    watch = Watch(*reader_of(gpu))
    if phase == "decode":
        if source == "events":
            raise EngineError(
                "a decode is one CUDA graph, and events see nothing in it: take --source graphs"
            )
        source = "graphs" if source == "auto" else source
    route = separate(route)
    if source == "graphs":
        taken = by_class(shared, route, phase, tokens, context, passes, watch)
    else:
        step, (made, why) = _step(shared, phase, tokens, context), timer(source)
        take = _decode if phase == "decode" else _prefill
        taken = take(shared, route, step, passes, watch, made, why)
    say(f"launches timed by {taken.source}{f' ({taken.why})' if taken.why else ''}")
    known = ceilings_of(gpu.name)
    config = shared.model.config
    heads = config.n_heads + 2 * config.n_kv_heads
    wall = Wall(
        **stamps(gpu),
        phase=phase,
        model=shared.name,
        tokens=tokens if phase == "prefill" else 1,
        context=context,
        route=route.name,
        settings=route.settings() | {"q_share": config.n_heads / heads},
        source=taken.source,
        environment=environment(gpu),
        telemetry=watch.summary(),
        wall_ms=taken.walls,
        buckets=buckets(taken.chosen.launches, taken.chosen.times),
        gap_ms=statistics.median(taken.walls) - taken.launched,
        ceilings={} if known is None else known.as_dict(),
        notes=[*NOTES, *taken.notes],
    )
    say(summary(wall))
    try:
        wall.check()
    except ValueError as error:
        raise EngineError(
            f"{error}; the observed pass took {taken.chosen.total:.3f} ms, the others "
            f"{min(taken.walls):.3f} to {max(taken.walls):.3f} ms: nothing is recorded"
        ) from None
    return wall


def prefill_routes(arch: str) -> list[Route]:
    """Every route of an architecture."""
    found = []
    for name in ROUTES[1:]:  # "auto" is one of the others
        with contextlib.suppress(EngineError):  # a route of another architecture
            found.append(separate(choose_route(name, arch, {})))
    return found


def decompose_all(
    shared: SharedModel, tokens: int, say: Callable[[str], None]
) -> tuple[list[Wall], dict[str, str]]:
    """The prefill of every route, and a decode: the walls, and why others were not taken apart, by
    "<phase> <route>"."""
    routes = prefill_routes(shared.device.arch)
    wanted = [(route, "prefill", tokens, 0) for route in routes]
    wanted.append((routes[0], "decode", 1, DECODE_CONTEXT))
    found, failed = [], {}
    for route, phase, count, context in wanted:
        try:
            found.append(decompose(shared, route, phase, tokens=count, context=context, say=say))
        except (EngineError, InputError, RuntimeError, MemoryError) as error:
            failed[f"{phase} {route.name}"] = f"{type(error).__name__}: {error}"
            say(f"{phase} {route.name}: not recorded: {error}")
    return found, failed


def summary(wall: Wall) -> str:
    """One line."""
    parts = [f"{b.name} {b.ms:.3f}" for b in sorted(wall.buckets, key=lambda b: -b.ms)]
    return (
        f"{wall.phase} {wall.route}: wall {wall.ms:.3f} ms = {' + '.join(parts)} + gaps {wall.gap_ms:.3f} "
        f"({wall.conservation:+.2%})"
    )


def _step(shared: SharedModel, phase: str, tokens: int, context: int) -> Step:
    """Given a session, prepares it and returns what is timed."""
    ids = shared.prompt(max(tokens, 1))
    before = shared.prompt(context, seed=1)

    def prepare(session: Session) -> Callable[[], Any]:
        session.reset()
        if context:
            session.forward(before)
        return lambda: session.forward(ids[:1] if phase == "decode" else ids)

    return prepare


def _prefill(
    shared: SharedModel, route: Route, step: Step, passes: int, watch: Watch, made: Any, why: str
) -> Taken:
    """Passes before, under and after a timer, and what they launch in a graph."""
    device = ObservingGpu()
    plain, seen = shared.session(route), shared.session(route, device, ObservedRuntime)

    def whole() -> list[float]:
        return [_wall(step, plain, watch, REST_S) for _ in range(passes)]

    _wall(step, plain, watch, REST_S)
    if isinstance(made, EventTimer):
        overlapping = statistics.median(whole())
        with one_by_one(shared.device, device), made:
            walls = whole()
            observed = _observed(step, seen, device, made, passes)
            cost = event_cost(observed.launches, device)
            alone = partial(made.span, device=device, launches=len(observed.launches))
            launched = statistics.median(_rested(step, seen, passes, alone))
            walls += whole()
        chosen = replace(observed, times=[max(ms - cost, 0.0) for ms in observed.times])
        taken = Taken(walls, launched, chosen, made.source, why, overlapping, cost)
    else:
        walls = whole()
        with made:
            chosen = _observed(step, seen, device, made, passes)
        walls += whole()
        launched = graph_ms(chosen.launches, device, samples=passes, rest=REST_S)
        taken = Taken(walls, launched, chosen, made.source, why)
    shared.forget(device)
    return taken


@contextlib.contextmanager
def one_by_one(*devices: GpuDevice) -> Iterator[None]:
    """Inside, every launch on these devices begins when the one before has ended."""
    for device in devices:
        device.overlaps = False
    try:
        yield
    finally:
        for device in devices:
            device.overlaps = True


def _decode(
    shared: SharedModel, route: Route, step: Step, passes: int, watch: Watch, made: Any, why: str
) -> Taken:
    """Passes, replays under a timer, and what they launch in a graph."""
    device = ObservingGpu()
    plain = shared.session(route)
    walls = [_wall(step, plain, watch) for _ in range(2 * passes + 1)][1:]
    with made:
        seen = shared.session(route, device, ObservedRuntime)
        _wall(step, seen, watch)  # captures the decode
        chosen = _observed(step, seen, device, made, passes)
    graph = graph_ms(chosen.launches, device, **DECODES)
    shared.forget(device)
    return Taken(walls, graph, chosen, made.source, why)


def by_class(
    shared: SharedModel, route: Route, phase: str, tokens: int, context: int, passes: int, watch: Watch
) -> Taken:
    """Passes, and what they launch in graphs by class. Nothing has to add up: a class alone may find in L2
    what it would not beside the others."""
    device = ObservingGpu()
    step, plain = _step(shared, phase, tokens, context), shared.session(route)
    walls = [_wall(step, plain, watch) for _ in range(2 * passes + 1)][1:]
    chosen = class_graphs(observed_launches(shared, route, phase, tokens, context, device), device)
    shared.forget(device)
    return Taken(walls, chosen.total, chosen, GRAPHS)


def observed_launches(
    shared: SharedModel, route: Route, phase: str, tokens: int, context: int, device: Any = None
) -> list[Observed]:
    """What a pass launches: the second one of a session.

    Args:
        device: one that observes; None: the shared model's own does.
    """
    device = shared.device if device is None else device
    step = _step(shared, phase, tokens, context)
    session = shared.session(separate(route), device, ObservedRuntime)
    step(session)()
    run = step(session)
    device.observed = []
    run()
    return list(device.observed)


def _wall(step: Step, session: Session, watch: Watch, rest: float = 0.0) -> float:
    """Milliseconds of a pass by the host's clock, after so many seconds of rest."""
    run = step(session)
    time.sleep(rest)
    start = time.perf_counter_ns()
    run()
    took = (time.perf_counter_ns() - start) / 1e6
    watch.look()
    return took


def _observed(step: Step, session: Session, device: Any, made: Any, passes: int) -> Pass:
    """The pass of median length of some observed ones."""
    found = _rested(step, session, passes, partial(made.observe, device=device))
    return sorted(found, key=lambda one: one.total)[passes // 2]


def _rested(step: Step, session: Session, passes: int, measure: Callable[[Callable[[], Any]], Any]) -> list:
    """What `measure` makes of some passes, each after a rest; one before them warms up."""
    found = []
    for _ in range(passes + 1):
        run = step(session)
        time.sleep(REST_S)
        found.append(measure(run))
    return found[1:]
