"""A kernel that faults: what the user reads. Runs in a process of its own, since the context is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import numpy as np
from minfer.cuda import runtime
from tests.gpu.tiny import out_of_bounds
out = runtime.empty(4, np.uint32)
try:
    with runtime.checked():
        runtime.launch(out_of_bounds(), (1, 1, 1), out)
except runtime.DriverError as error:
    print(error)
"""


def test_checked_mode_names_the_kernel_that_faulted():
    reply = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert "tiny_out_of_bounds" in reply.stdout, reply.stdout + reply.stderr
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in reply.stdout
