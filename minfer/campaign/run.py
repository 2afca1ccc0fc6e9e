"""Running a probe: gates, then the A/B of its kernels and of the whole prefill, then the verdict's record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from minfer.campaign.ceilings import ceilings_of
from minfer.campaign.decodes import Decodes
from minfer.campaign.decomposition import products_ms, products_us_per_gmac
from minfer.campaign.environment import environment, stamps
from minfer.campaign.gates import NOTHING, NotRun
from minfer.campaign.observe import PRODUCTS
from minfer.campaign.prefills import REST_S, Prefills, SharedModel
from minfer.campaign.probe import Probe
from minfer.campaign.probe_record import Bound, Comparison, GateResult, ProbeRun, Side
from minfer.campaign.reasons import newest_wall, only_bounded, small_share
from minfer.campaign.records import Record, Wall
from minfer.campaign.statistics import OUTLIER_RULE, QUIET_RULE, decide, unquiet
from minfer.campaign.telemetry import Watch, reader_of
from minfer.campaign.timing import compare_kernels
from minfer.campaign.trial import Trial
from minfer.campaign.workload import Work, work_of
from minfer.cuda.kernel import CompileError, ConfigRefused, LaunchRefused
from minfer.engine.errors import EngineError

CANNOT_RUN = (ConfigRefused, LaunchRefused, CompileError)


def run_gates(trial: Trial, say: Callable[[str], None]) -> list[GateResult]:
    """The probe's gates in order, up to the first that fails."""
    found: list[GateResult] = []
    for gate in trial.probe.gates:
        try:
            result = gate.check(trial)
        except CANNOT_RUN as error:
            result = GateResult(gate.name, False, f"a config cannot run: {error}")
        if result is None or isinstance(result, NotRun):
            say(str(result or NotRun(gate.name, NOTHING)))
            continue
        found.append(result)
        say(f"gate {result.name}: {'passed' if result.passed else 'FAILED'}: {result.found}")
        if not result.passed:
            break
    return found


def run_probe(
    probe: Probe,
    device: Any,
    *,
    model: SharedModel | None = None,
    rounds: int = 30,
    prefill_rounds: int = 15,
    tokens: int = 2048,
    records: Sequence[Record] = (),
    say: Callable[[str], None] = print,
) -> ProbeRun:
    """Run an A/B probe on a GPU and return its record, not yet written.

    Args:
        device: a `minfer.engine.cuda.devices.GpuDevice`. model: for the whole prefill or decode; without it,
            or without routes for both configs, the kernels alone are compared, and a decomposition among
            `records` tells what share of a wall is at stake.
        rounds, prefill_rounds: of the kernels' and the whole pass's A/B. tokens: of the pass.

    Raises:
        RuntimeError: outputs that changed while they were timed. AboveCeiling: an impossible rate.
    """
    watch = Watch(*reader_of(device.gpu))
    routes = [probe.workload.route(config, device.arch) for _, config in probe.sides]
    phase = probe.workload.phase
    trial, gates = Trial(probe, device), []
    if model is not None and None not in routes:
        try:
            whole = Decodes if phase == "decode" else Prefills
            trial = Trial(probe, device, whole(model, *routes, tokens=tokens))
        except (*CANNOT_RUN, EngineError) as error:
            gates = [GateResult(phase, False, f"a route cannot run: {error}")]
    gates = gates or run_gates(trial, say)
    passed = all(gate.passed for gate in gates)
    kernels, wall = _measured(trial, rounds, prefill_rounds, watch, say) if passed else ([], [])
    disturbed = sorted({
        found for c in (*kernels, *wall) for found in unquiet(c.baseline, c.dropped, watch.busy)
    })  # fmt: skip
    verdict = decide(
        gates_passed=passed,
        quiet=not disturbed,
        prefill=wall[0].gain if wall else None,
        kernels=[comparison.gain for comparison in kernels],
        bar=probe.bar,
    )
    record = ProbeRun(
        **_stated(probe, device),
        model="" if trial.prefills is None else model.name,
        settings={
            "rounds": rounds,
            f"{phase} rounds": prefill_rounds if wall else 0,
            f"rest before a {phase} (s)": REST_S if wall else 0.0,
            f"{phase} tokens": trial.prefills.tokens if wall else 0,
            "routes": [] if not wall else [route.settings() for route in routes],
        },
        telemetry=watch.summary(),
        baseline=_side(trial, *probe.sides[0], loaded=passed),
        variant=_side(trial, *probe.sides[1], loaded=passed),
        gates=gates,
        kernels=kernels,
        wall=wall,
        quiet=not disturbed,
        unquiet=disturbed,
        verdict=verdict,
        mechanism=probe.mechanism if passed else gates[-1].found,
        bound=bound_of(probe, device.gpu.name, records) if passed and not wall else None,
    )
    if probe.seed is None or probe.seed.verdict == verdict:
        return record
    explain = (probe.reason, small_share, only_bounded)
    reason = next((why for tell in explain if tell and not disturbed and (why := tell(record, records))), "")
    return replace(record, reason=reason, mechanism=reason if passed else record.mechanism)


def _measured(
    trial: Trial, rounds: int, prefill_rounds: int, watch: Watch, say: Callable[[str], None]
) -> tuple[list[Comparison], list[Comparison]]:
    """The A/B of the kernels, case by case, and that of the prefill where the trial has one.

    Raises:
        RuntimeError: outputs that changed while they were timed. AboveCeiling: an impossible rate.
    """
    probe, ceilings = trial.probe, ceilings_of(trial.device.gpu.name)
    kernels = []
    for case in probe.workload.cases:
        kernels.append(compare_kernels(trial, case, rounds, watch, ceilings))
        say(str(kernels[-1]))
    if trial.prefills is None:
        return kernels, []
    wall = trial.prefills.compare(prefill_rounds, watch)
    say(str(wall))
    if ceilings is not None:
        own = work_of(probe.workload, probe.workload.cases[0])
        work = Work(wall.flop, 0.0, "f16" if own is None else own.dtype)
        for label, ms in zip(probe.called, wall.ms, strict=True):
            ceilings.check(f"{wall.case}, {label}", work, ms / 1e3)
    return kernels, [wall]


def _stated(probe: Probe, device: Any) -> dict[str, Any]:
    """The fields of a record that say what was asked, where and when."""
    return stamps(device.gpu) | {
        "probe": probe.name,
        "title": probe.title,
        "seed": "" if probe.seed is None else probe.seed.seed,
        "hypothesis": probe.hypothesis,
        "prediction": str(probe.predicted()),
        "bar": probe.bar,
        "environment": environment(device.gpu),
        "rules": [OUTLIER_RULE, QUIET_RULE],
        "retry": probe.retry,
    }


def wall_run(
    probe: Probe, device: Any, model: str, walls: Sequence[Wall], failed: Mapping[str, str]
) -> ProbeRun:
    """The record of a probe that takes walls apart. Each wall is a gate: buckets and gaps add up to the wall
    clock.

    Args:
        failed: the walls that were not taken apart -> why. Their gates failed.
    """
    gates = [
        GateResult(
            f"conservation, {wall.phase} {wall.route}",
            True,
            f"buckets and gaps {wall.charged_ms:.3f} ms, wall clock {wall.ms:.3f} ms: "
            f"{wall.conservation:+.2%}",
        )
        for wall in walls
    ]
    gates += [GateResult(f"conservation, {name}", False, why) for name, why in failed.items()]
    told = "; ".join(
        f"{wall.route}: {wall.tok_s:,.0f} tok/s, products {products_ms(wall) / wall.ms:.1%} of the wall at "
        f"{products_us_per_gmac(wall):.2f} us a GMAC"
        for wall in walls
        if wall.phase == "prefill"
    )
    watch = Watch(*reader_of(device.gpu))
    disturbed = [
        f"{wall.phase} {wall.route}: {found}" for wall in walls for found in wall.unquiet(watch.busy)
    ]
    return ProbeRun(
        **_stated(probe, device),
        model=model,
        settings={"walls": [wall.stem for wall in walls]},
        telemetry=walls[0].telemetry if walls else watch.summary(),
        baseline=Side("wall clock", "passes that nobody observed", {}),
        variant=Side("charged", "buckets and gaps of an observed pass", {}),
        gates=gates,
        kernels=[],
        wall=[],
        quiet=not disturbed,
        unquiet=disturbed,
        verdict="REVERTED" if failed else "MEAS-ONLY",
        mechanism=told,
    )


def bound_of(probe: Probe, device: str, records: Sequence[Record]) -> Bound | None:
    """The share that the kernels' class of work has of the newest prefill's wall on this device, on the route
    that they belong to; None where there is no such wall, or the class has no time in it."""
    bucket = probe.workload.bucket()
    newest = newest_wall(records, device, probe.workload.wall_route)
    if bucket is None or newest is None:
        return None
    names = PRODUCTS if bucket == "products" else (bucket,)
    ms = sum(b.ms for b in newest.buckets if b.name in names)
    return Bound(bucket, ms / newest.ms, newest.file) if ms else None


def _side(trial: Trial, label: str, config: Any, loaded: bool) -> Side:
    """What a side's kernels use."""
    facts: dict[str, Any] = {}
    if loaded:
        from minfer.campaign.trial import side_kernels
        from minfer.cuda import runtime

        for made in side_kernels(trial, config):
            run = runtime.load(made)
            used = run.compiled.resources
            facts[str(made)] = {
                "registers": used.registers,
                "shared_bytes": made.shared_bytes + used.static_shared_bytes,
                "threads": made.threads,
                "blocks_sm": run.occupancy(),
                "spill_bytes": used.spill_store_bytes + used.spill_load_bytes,
            }
    return Side(label, str(config), facts)
