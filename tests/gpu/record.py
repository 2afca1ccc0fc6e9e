"""The summary record of a run of the GPU tests."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections import Counter
from pathlib import Path

import pytest

from minfer.campaign.environment import commit_of, driver_package

PACKAGES = ("numba-cuda", "numba", "llvmlite", "cuda-bindings", "numpy", "torch")


def outcome_of(reports: list[pytest.TestReport]) -> str:
    """passed, failed or skipped: of all phases of one test."""
    outcomes = {report.outcome for report in reports}
    return next((o for o in ("failed", "skipped") if o in outcomes), "passed")


def make_record(reports: dict[str, list[pytest.TestReport]], measured: dict, root: Path) -> dict:
    """The record's content."""
    from minfer.cuda.runtime import device
    from minfer.cuda.runtime.toolchain import compiler_versions, package_version

    gpu = device()
    outcomes = {nodeid: outcome_of(found) for nodeid, found in reports.items()}
    counts = Counter(outcomes.values())
    files = {}
    for nodeid, outcome in outcomes.items():
        files.setdefault(nodeid.split("::")[0], Counter())[outcome] += 1
    return {
        "kind": "gpu-tests",
        "schema": 2,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit_of(root),
        "device": gpu.name,
        "arch": gpu.arch,
        "driver": driver_package(),
        "cuda": gpu.cuda_version,
        "python": platform.python_version(),
        "versions": compiler_versions() | {name: package_version(name) for name in PACKAGES},
        "passed": counts["passed"],
        "failed": counts["failed"],
        "skipped": counts["skipped"],
        "seconds": round(sum(r.duration for found in reports.values() for r in found), 1),
        "files": {name: dict(found) for name, found in sorted(files.items())},
        "failures": {
            nodeid: shortened(
                str(next(r.longrepr for r in reports[nodeid] if r.failed)).replace(f"{root}/", "")
            )
            for nodeid, outcome in outcomes.items()
            if outcome == "failed"
        },
        "skips": {
            nodeid: skip_reason(reports[nodeid])
            for nodeid, outcome in outcomes.items()
            if outcome == "skipped"
        },
        "measured": dict(sorted(measured.items())),
    }


def shortened(text: str, head: int = 500, tail: int = 1500) -> str:
    """The first and the last characters of a failure: the case's name and what was wrong."""
    if len(text) <= head + tail:
        return text
    return f"{text[:head]}\n... {len(text) - head - tail} characters ...\n{text[-tail:]}"


def skip_reason(reports: list[pytest.TestReport]) -> str:
    """Why a test was skipped."""
    text = next(r.longrepr for r in reports if r.outcome == "skipped")
    return str(text[2] if isinstance(text, (tuple, list)) else text)


def write_record(
    reports: dict[str, list[pytest.TestReport]], measured: dict, root: Path
) -> tuple[Path, dict]:
    """Write the record to `$MINFER_GPU_RECORD` or under data/records; (its path, its content)."""
    content = make_record(reports, measured, root)
    folder = re.sub(r"\W+", "-", content["device"].lower().removeprefix("nvidia ")).strip("-")
    default = root / "data" / "records" / folder / f"gpu-tests-{content['date'][:10]}.json"
    path = Path(os.environ.get("MINFER_GPU_RECORD") or default)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path, content
