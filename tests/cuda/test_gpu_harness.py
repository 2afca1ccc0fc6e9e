"""The GPU tests' harness, without a GPU: a fault or a crash in one test does not lose the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CONFTEST = """
from pathlib import Path
from tests.gpu import conftest as real
real.HERE = Path(__file__).parent
from tests.gpu.conftest import *
"""
PLUGIN = """
from types import SimpleNamespace
import minfer.cuda.runtime as runtime
FAULTED = []
def synchronize():
    if FAULTED:
        raise runtime.DriverError.__new__(runtime.DriverError)
runtime.device = lambda: SimpleNamespace(
    name="NVIDIA H200", arch="sm_90a", cuda_version="13.0", capability=(9, 0), synchronize=synchronize
)
"""
TESTS = """
import os, time
import fake_gpu
import pytest
def test_first(measure): measure("first", 1.5)
def test_faults():
    fake_gpu.FAULTED.append(True)
    assert False, "a wrong result"
def test_after_a_fault(measure): measure("after", [2])
def test_crashes(): os._exit(3)
def test_after_a_crash(): pass
@pytest.mark.skip(reason="marked")
def test_marked(): pass
def test_skips(): pytest.skip("no tool")
def test_fails(): assert 1 == 2
"""


def run(tmp_path: Path, tests: str, **environment: str) -> tuple[subprocess.CompletedProcess, dict]:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: needs a GPU\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "fake_gpu.py").write_text(PLUGIN)
    (tmp_path / "test_things.py").write_text(tests)
    record = tmp_path / "record.json"
    environment = (
        os.environ
        | environment
        | {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
            "PYTEST_ADDOPTS": "-p fake_gpu -p no:cacheprovider",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "MINFER_GPU_RECORD": str(record),
        }
    )
    command = [sys.executable, "-m", "pytest", "-rA", str(tmp_path)]
    reply = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    return reply, json.loads(record.read_text())


def test_every_test_is_reported(tmp_path):
    reply, record = run(tmp_path, TESTS)
    assert (record["passed"], record["failed"], record["skipped"]) == (3, 3, 2), reply.stdout
    assert {name.split("::")[1] for name in record["failures"]} == {
        "test_faults",
        "test_crashes",
        "test_fails",
    }
    assert "a wrong result" in record["failures"]["test_things.py::test_faults"]
    assert "ended with status 3" in record["failures"]["test_things.py::test_crashes"]
    assert record["measured"] == {"after": [2], "first": 1.5}
    assert "3 failed, 3 passed, 2 skipped" in reply.stdout and reply.returncode == 1
    assert "NVIDIA H200, driver" in reply.stdout and "a wrong result" in reply.stdout


def test_what_is_not_run_in_time_has_failed(tmp_path):
    tests = "import time\ndef test_slow(): time.sleep(60)\ndef test_next(): pass\n"
    _, record = run(tmp_path, tests, MINFER_GPU_LIMIT_S="4")
    assert record["failed"] == 2
    assert any("not run: the 4 s" in text for text in record["failures"].values())
