"""compute-sanitizer finds nothing: memcheck (out of bounds, misaligned) and racecheck (shared-memory
hazards)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minfer.cuda import runtime

ROOT = Path(__file__).parents[2]
UNABLE = (
    r"Device not supported|not supported on this (device|system)|Target application terminated before first"
)


def sanitize(tool: str, *command: str) -> str:
    """The report of a tool over `python ...`; skips where the sanitizer cannot run."""
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"
    )
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    whole = [sanitizer, "--tool", tool, "--error-exitcode", "99", sys.executable, *command]
    reply = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, timeout=220)
    report = reply.stdout + reply.stderr
    if re.search(UNABLE, report):
        pytest.skip(f"compute-sanitizer cannot run here: {report.strip()[-300:]}")
    return report


@pytest.mark.parametrize(
    ("what", "tool"),
    [
        ("cases", "memcheck"),
        ("cases", "racecheck"),
        ("probes", "memcheck"),
        ("probes", "racecheck"),
        ("hopper", "memcheck"),
    ],
)
def test_finds_nothing(what, tool, measure):
    if what == "hopper" and runtime.device().arch != "sm_90a":
        pytest.skip(f"wgmma is Hopper's; this is {runtime.device().arch}")
    report = sanitize(tool, "-m", "tests.gpu.sanitized", what)
    ran = re.findall(r"^ran .*", report, re.MULTILINE)
    assert " done" in report, f"stopped after {len(ran)} cases, {ran[-1:]}: {report[-3000:]}"
    assert re.search(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards", report), report[-3000:]
    measure(f"compute-sanitizer {tool} over {what}", int(re.search(r"(\d+) done", report)[1]))


def test_finds_a_planted_fault():
    program = (
        "from minfer.cuda import runtime\nfrom tests.gpu.tiny import fill\n"
        "runtime.launch(fill(), (1, 1, 1), runtime.empty(100, 'uint8'), 101)\nruntime.device().synchronize()"
    )
    report = sanitize("memcheck", "-c", program)
    assert re.search(r"Invalid __global__ write of size 1", report), report[-2000:]
    assert "tiny_fill_uint8" in report
