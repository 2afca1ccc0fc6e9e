"""The Makefile's targets run: `make run` leaves its report, `make lab` serves the notebooks."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The tests' own environment is set up already: use it instead of .venv.
HERE = [f"BIN={Path(sys.executable).parent}", "RUN_SETUP=", "TEST_SETUP="]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "MAKEFLAGS": "", "MAKELEVEL": ""}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not here"),
]


@pytest.mark.network
def test_make_run(smollm2_path, tmp_path):
    done = subprocess.run(
        ["make", "run", *HERE, f"REPORT_DIR={tmp_path}"],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "The capital of France is Paris" in done.stdout
    assert "tok/s" in done.stderr
    report = tmp_path / "00_start_here.html"
    assert done.stdout.splitlines()[-1] == f"Report: file://{report}"
    page = report.read_text(encoding="utf-8")
    assert "Paris" in page
    assert "Traceback" not in page


def test_make_lab(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = f"--no-browser --ServerApp.ip=127.0.0.1 --ServerApp.port={port} --IdentityProvider.token=t"
    process = subprocess.Popen(
        ["make", "lab", *HERE, f"LAB_ARGS={options}"],
        cwd=ROOT,
        env={**ENVIRONMENT, "JUPYTER_CONFIG_DIR": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        page = _fetch(f"http://127.0.0.1:{port}/lab?token=t", process)
        assert b"JupyterLab" in page
        listing = _fetch(f"http://127.0.0.1:{port}/api/contents?token=t", process)
        assert b"00_start_here.ipynb" in listing
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)


def _fetch(url, process):
    """The page at `url`, as soon as the server is up."""
    while process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=10) as page:
                return page.read()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    pytest.fail(f"the server ended: {process.stdout.read().decode()}")


def test_without_a_usable_python_the_message_says_what_to_install(tmp_path):
    old = tmp_path / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2"\nexit 1\n')
    bare = tmp_path / "bare-python"
    bare.write_text('#!/bin/sh\n[ "$1" = -c ]\n')
    for script, message in ((old, "needs Python 3.11 or newer"), (bare, "apt-get install python3-venv")):
        script.chmod(0o755)
        done = subprocess.run(
            ["make", "run", f"PYTHON={script}", f"VENV={tmp_path / 'venv'}"],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert message in done.stderr
        assert not (tmp_path / "venv").exists()
