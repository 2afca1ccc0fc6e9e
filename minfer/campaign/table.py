"""The campaign as a table: every probe, the seed's verdict beside ours, and why they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any

from minfer.campaign.probe import Probe
from minfer.campaign.probe_record import ProbeRun
from minfer.campaign.seeds import SeedVerdict


def newest_runs(name: str, runs: Iterable[ProbeRun]) -> dict[str, ProbeRun]:
    """The newest run of a probe on each device, by the device's key."""
    found: dict[str, ProbeRun] = {}
    for run in sorted(runs, key=lambda run: run.date):
        if run.probe == name:
            found[run.device_key or run.device] = run
    return found


def probe_rows(probes: Iterable[Probe], runs: Sequence[ProbeRun]) -> list[dict]:
    """A row a probe: what it asks, the seed's verdict and figures, and of each device's newest run verdict,
    gain (or None), most (the bound of a gain that was not measured, or None), kernels (speed of the kernels
    alone, or None), figures, mechanism, reason, origin."""
    return [
        {
            "probe": probe.name,
            "title": probe.title,
            "hypothesis": probe.hypothesis,
            "prediction": str(probe.predicted()),
            "seed verdict": "" if probe.seed is None else probe.seed.verdict,
            "seed figures": "" if probe.seed is None else probe.seed.summary,
            "seed origin": "" if probe.seed is None else probe.seed.origin,
            "runs": {key: _run_row(run) for key, run in newest_runs(probe.name, runs).items()},
        }
        for probe in probes
    ]


def _run_row(run: ProbeRun) -> dict:
    a, b = run.kernel_ms() if run.kernels else (0.0, 0.0)
    return {
        "verdict": run.verdict,
        "gain": None if run.gain is None else run.gain.value,
        "gain low": None if run.gain is None else run.gain.low,
        "gain high": None if run.gain is None else run.gain.high,
        "most": run.most,
        "kernels": a / b - 1 if b else None,
        "kernel ms": [a, b] if b else [],
        "figures": run.summary,
        "mechanism": run.mechanism,
        "retry": run.retry,
        "reason": run.reason,
        "unquiet": run.unquiet,
        "origin": run.origin,
        "file": run.file,
    }


def describe(probe: Probe, runs: Sequence[ProbeRun]) -> str:
    """A probe in full, as `minfer probe show` prints it."""
    parts = [f"{probe.name}: {probe.title}"]
    parts.append(_named("hypothesis", probe.hypothesis))
    parts.append(_named("prediction", str(probe.predicted())))
    if probe.measure == "ab":
        parts += [_named(label, str(config)) for label, config in probe.sides]
    gates = [gate.name for gate in probe.gates] if probe.measure == "ab" else ["conservation of every wall"]
    parts.append(_named("gates", ", ".join(gates) or "none"))
    parts.append(_named("bar", f"{probe.bar:+.0%} of the wall clock"))
    if probe.seed is not None:
        parts.append(_seed(probe.seed))
    newest = newest_runs(probe.name, runs)
    parts += [describe_run(run) for run in newest.values()] or ["not run yet"]
    return "\n".join(parts)


def describe_run(run: ProbeRun) -> str:
    """A run in full: gates, A/B, verdict."""
    lines = [f"{run.verdict} on {run.origin}"]
    lines += [f"  gate {g.name}: {'passed' if g.passed else 'FAILED'}: {g.found}" for g in run.gates]
    for side in (run.baseline, run.variant):
        lines += [f"  {side.label}: {kernel}: {_used(facts)}" for kernel, facts in side.facts.items()]
    lines += [f"  {comparison}" for comparison in (*run.kernels, *run.wall)]
    if run.gain is not None:
        g = run.gain
        found = f"wall clock {g.value:+.2%} [{g.low:+.2%}, {g.high:+.2%}], A/A noise {g.noise:.2%}"
        lines.append(f"  {found}, bar {run.bar:+.0%}, {g.rounds} rounds")
    if run.most is not None:
        lines.append(f"  {bound_words(run)}")
    lines.append(f"  {run.telemetry}")
    lines += [f"  not quiet: {found}" for found in run.unquiet]
    lines += [f"  rule: {rule}" for rule in run.rules]
    labels: dict[str, list[str]] = {}  # a mechanism that is the reason too is printed once
    for name in ("mechanism", "reason", "retry"):
        labels.setdefault(getattr(run, name), []).append(name)
    lines += [f"  {' and '.join(names)}: {text}" for text, names in labels.items() if text]
    return "\n".join(lines)


def _used(facts: dict[str, Any]) -> str:
    """What a side's kernel uses, by the assembler and the driver."""
    spilled = f", {facts['spill_bytes']} bytes spilled" if facts["spill_bytes"] else ""
    return (
        f"{facts['registers']} registers, {facts['shared_bytes']:,} bytes of shared memory, "
        f"{facts['threads']} threads, {facts['blocks_sm']} blocks an SM{spilled}"
    )


def bound_words(run: ProbeRun) -> str:
    """What is at stake where no whole prefill was timed. For a run that has `most`."""
    bound = run.bound
    return (
        f"no whole prefill was timed: upper bound of its gain {run.most:+.2%}, if all of {bound.bucket}, "
        f"{bound.share:.1%} of the wall in {bound.wall}, gained as these kernels do"
    )


def _seed(seed: SeedVerdict) -> str:
    lines = [f"{seed.verdict} in {seed.origin}"]
    lines += [f"  {figure.what}: {figure}" for figure in seed.figures]
    lines.append(f"  mechanism: {seed.mechanism}")
    if seed.retry:
        lines.append(f"  retry: {seed.retry}")
    return "\n".join(lines)


def _named(name: str, text: str) -> str:
    return fill(f"{name}: {text}", 100, subsequent_indent="    ", break_long_words=False)
