"""Hardware counters of one launch of each class, by Nsight Compute (`ncu`), where the machine permits.

Seed 002 checks its decomposition so: a class that fills neither memory nor multiprocessors is held up by
something else. ncu runs a launch several times over to read its counters, so nothing is timed under it:
milliseconds come from `minfer.campaign.decompose`, and counters stand beside them.

    python -m minfer.campaign.counters MODEL PHASE ROUTE TOKENS CONTEXT     what ncu runs
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from minfer.campaign.observe import Observed

METRICS = {
    "memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""What a counter is called here -> ncu's name. memory, SM: the busiest unit of the memory system and of the
multiprocessors; DRAM: memory itself; warps: resident ones, the achieved occupancy."""
LIMIT_S = 600

Counters = dict[str, dict[str, float]]
"""Class of work -> counter -> share of its peak."""


class NotCounted(RuntimeError):
    """Counters that cannot be read here."""


def read_counters(model: str, phase: str, route: str, tokens: int, context: int) -> Counters:
    """The counters of each class's largest launch in a pass that `decompose` takes apart. The pass runs in a
    process of its own.

    Raises:
        NotCounted: ncu is not installed, may not read counters, or did not profile what was to be.
    """
    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if ncu is None:
        raise NotCounted("counters take Nsight Compute: ncu is not on the path, nor in /usr/local/cuda/bin")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "ncu.csv")
        command = [ncu, "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw"]
        command += ["--metrics", ",".join(METRICS.values()), "--log-file", str(log), sys.executable, "-m"]
        command += ["minfer.campaign.counters", model, phase, route, str(tokens), str(context)]
        try:
            reply = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise NotCounted(f"ncu had read no counters after {LIMIT_S} s") from None
        told = log.read_text(encoding="utf-8") if log.exists() else ""
    if reply.returncode or '"ID"' not in told:
        lines = [line for line in f"{told}\n{reply.stdout}\n{reply.stderr}".splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines[-1:]
        raise NotCounted(f"ncu read no counters: {errors[-1].strip() if errors else 'it said nothing'}")
    return parse(told, json.loads(reply.stdout.splitlines()[-1]))


def parse(told: str, buckets: Sequence[str]) -> Counters:
    """ncu's CSV (of its raw page) of one launch a bucket, in this order.

    Raises:
        NotCounted: another number of launches, or a metric that this ncu or GPU does not have.
    """
    names, _, *rows = csv.reader(told[told.index('"ID"') :].splitlines())  # the second row has units
    if len(rows) != len(buckets):
        raise NotCounted(f"ncu profiled {len(rows)} launches of {len(buckets)}")
    found: Counters = {}
    for bucket, row in zip(buckets, rows, strict=True):
        values = dict(zip(names, row, strict=False))
        try:
            found[bucket] = {
                name: float(values[metric].replace(",", "")) / 100 for name, metric in METRICS.items()
            }
        except (KeyError, ValueError) as error:
            raise NotCounted(f"ncu gave no number for {bucket}: {error}") from None
    return found


def largest(launches: Sequence[Observed]) -> dict[str, Observed]:
    """The launch of each class that has the most work."""
    found: dict[str, Observed] = {}
    for launch in sorted(launches, key=lambda launch: (launch.gmac, launch.nbytes)):
        found[launch.bucket] = launch
    return found


def main(model: str, phase: str, route: str, tokens: str, context: str) -> None:
    """Run a pass, then each class's largest launch with profiling on; print the classes in that order."""
    from minfer.campaign.decompose import ObservingGpu, observed_launches
    from minfer.campaign.prefills import SharedModel
    from minfer.cuda import runtime
    from minfer.engine.cuda.routes import choose_route

    device = ObservingGpu()
    shared = SharedModel(model, device, max(int(tokens), int(context) + 1), tell=lambda line: None)
    chosen = choose_route(route, device.arch, os.environ)
    picked = largest(observed_launches(shared, chosen, phase, int(tokens), int(context)))
    with runtime.profiled():
        for launch in picked.values():
            device.launch(launch.kernel, launch.grid, *launch.args)
    print(json.dumps(list(picked)))


if __name__ == "__main__":
    main(*sys.argv[1:])
