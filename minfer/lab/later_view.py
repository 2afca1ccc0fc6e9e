"""Probes that minfer ships beside the seeds': what they ask and foretell, and what a GPU said."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.campaign.discovery import later
from minfer.campaign.probe import Probe, ProbeError
from minfer.campaign.probe_record import Comparison, ProbeRun
from minfer.campaign.record import Record
from minfer.campaign.table import newest_runs
from minfer.lab.figures import DEVICE


def _named(names: Sequence[str]) -> list[Probe]:
    known = {probe.name: probe for probe in later()}
    for name in names:
        if name not in known:
            raise ProbeError(f"no probe is called {name!r}: there are {', '.join(known)}")
    return [known[name] for name in names]


def asked_rows(*names: str) -> list[dict]:
    """A row a probe: its name, what it asks, what should happen, and what the arithmetic says beforehand.

    Raises:
        ProbeError: no such probe.
    """
    return [
        {
            "probe": probe.name,
            "question": probe.title,
            "hypothesis": probe.hypothesis,
            "predicted": str(probe.predicted()),
        }
        for probe in _named(names)
    ]


def found_rows(records: Sequence[Record], *names: str, device: str = DEVICE) -> list[dict]:
    """A row a case of the newest run on a device, whole passes last: times of both sides in us, what the
    variant gains with its interval of 95 %, by how much two equal runs differ, and the verdict.

    Raises:
        ProbeError: no such probe.
    """
    runs = [record for record in records if isinstance(record, ProbeRun)]
    found = []
    for probe in _named(names):
        run = newest_runs(probe.name, runs).get(device)
        if run is not None:
            found += [_row(run, comparison) for comparison in (*run.kernels, *run.wall)]
    return found


def _row(run: ProbeRun, comparison: Comparison) -> dict:
    gain = comparison.gain
    before, after = (1e3 * ms for ms in comparison.ms)
    return {
        "probe": run.probe,
        "case": comparison.case,
        "before (us)": before,
        "after (us)": after,
        "speed": f"{gain.value:+.1%}",
        "interval": f"{gain.low:+.1%} to {gain.high:+.1%}",
        "noise": f"{gain.noise:.1%}",
        "verdict": run.verdict,
        "measured": run.origin,
    }
