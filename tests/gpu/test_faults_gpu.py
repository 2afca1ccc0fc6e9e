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

DIRTY_SEATS = """
import numpy as np
from minfer.cuda import runtime
from minfer.cuda.tile.seats import make_seats
from tests.cuda.seat_kernel import seat_takers
sms = runtime.device().sms
seats = make_seats(range(sms))
for left in (0, 1):
    seats[0] = left
    taken = runtime.empty(sms, np.uint32).fill_bytes(0xFF)
    runtime.launch(seat_takers(), (sms, 1, 1), runtime.to_device(seats), taken)
    try:
        print(sorted(taken.to_host()) == list(range(sms)))
    except runtime.DriverError as error:
        print(error)
"""


def test_checked_mode_names_the_kernel_that_faulted():
    reply = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert "tiny_out_of_bounds" in reply.stdout, reply.stdout + reply.stderr
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in reply.stdout


def test_seats_that_an_ended_launch_left_taken_are_a_fault_and_no_hang(hopper):
    reply = subprocess.run(
        [sys.executable, "-c", DIRTY_SEATS], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    clear, dirty = reply.stdout.splitlines()
    assert clear == "True" and "CUDA_ERROR" in dirty, reply.stdout + reply.stderr
