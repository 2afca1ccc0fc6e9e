"""A notebook's cells share the seconds that it may take."""

import json
import subprocess
import sys

from minfer.lab import notebooks


def write(path, *cells):
    code = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": text, "outputs": []}
        | {"execution_count": None}
        for i, text in enumerate(cells)
    ]
    notebook = {"cells": code, "metadata": notebooks.METADATA, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook))
    return str(path)


def test_a_notebook_that_takes_too_long_fails(tmp_path):
    quick = write(tmp_path / "quick.ipynb", "import time; time.sleep(1)", "print(1)")
    slow = write(tmp_path / "slow.ipynb", "import time; time.sleep(1)", "time.sleep(60)")
    command = [sys.executable, "-m", "pytest", "-p", "tests.notebook_budget", "--nbval", "-q"]
    done = subprocess.run(
        [*command, "--notebook-seconds", "5", quick, slow], cwd=notebooks.ROOT, capture_output=True, text=True
    )
    assert "1 failed, 3 passed" in done.stdout, done.stdout
    assert "seconds exceeded executing cell" in done.stdout
