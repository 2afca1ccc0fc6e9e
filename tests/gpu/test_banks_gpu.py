"""The bank model agrees with the hardware's counters (Nsight Compute) for padded, unpadded and swizzled
ldmatrix."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.bank_probe import LAYOUTS, LOADS

ROOT = Path(__file__).parents[2]
# Whichever of these the installed ncu knows; LDSM is ldmatrix. The plain l1tex counters see all shared loads,
# and the probe does no others.
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
INSTRUCTIONS = "smsp__sass_inst_executed_op_ldsm.sum"
SASS_CONFLICTS = "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum"


def profile(metrics: list[str]) -> dict[str, dict[str, float]]:
    """{layout: {metric: value}}. Skips where ncu cannot read counters here."""
    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if ncu is None:
        pytest.skip("Nsight Compute (ncu) is not installed")
    command = [ncu, "--clock-control", "none", "--csv", "--page", "raw", "--metrics", ",".join(metrics)]
    command += ["--kernel-name", "regex:bank_probe", sys.executable, "-m", "tests.gpu.bank_probe"]
    reply = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    text = reply.stdout
    rows = list(csv.reader(io.StringIO(text[text.find('"ID"') :] if '"ID"' in text else "")))
    if not rows:
        pytest.skip(f"ncu read no counters: {(text + reply.stderr).strip()[-400:]}")
    names = rows[0]
    found: dict[str, dict[str, float]] = {}
    for row in rows[1:]:
        values = dict(zip(names, row, strict=False))
        if "bank_probe" in values.get("Kernel Name", ""):
            layout = values["Kernel Name"].split("__")[1].partition("(")[0]
            numbers = {m: values[m].replace(",", "") for m in metrics if values.get(m)}
            found[layout] = {m: float(v) for m, v in numbers.items() if v.replace(".", "", 1).isdigit()}
    return found


def test_wavefronts_equal_the_model(measure):
    found = profile([WAVEFRONTS, CONFLICTS])
    assert set(found) == {str(layout) for layout in LAYOUTS}
    table = {}
    for layout in LAYOUTS:
        counted = found[str(layout)]
        table[str(layout)] = {
            "model": layout.wavefronts(),
            **{m.split(".")[0]: v for m, v in counted.items()},
        }
    measure("ldmatrix wavefronts, model and ncu", table)
    for layout in LAYOUTS:
        assert found[str(layout)][WAVEFRONTS] == layout.wavefronts(), (str(layout), table)


def test_conflicts_equal_the_model(measure):
    """The compiler-level counter: conflicts are wavefronts beyond one a matrix."""
    found = profile([SASS_CONFLICTS, INSTRUCTIONS])
    measure("ldmatrix conflicts, ncu", {k: v.get(SASS_CONFLICTS) for k, v in found.items()})
    for layout in LAYOUTS:
        counted = found.get(str(layout), {})
        if SASS_CONFLICTS not in counted:
            pytest.skip(f"this ncu has no {SASS_CONFLICTS}")
        if INSTRUCTIONS in counted:
            assert counted[INSTRUCTIONS] == LOADS
        assert counted[SASS_CONFLICTS] == layout.wavefronts() - 4 * LOADS
