"""Where and when a thread runs: each block has a multiprocessor to itself, at one cycle a nanosecond."""

from __future__ import annotations

import time

from minfer.cuda.simulator.lanes import current_lane
from minfer.cuda.simulator.semantics.table import semantics


@semantics
def multiprocessor():
    return current_lane("multiprocessor").block.number


@semantics
def clock64():
    return time.perf_counter_ns()


@semantics
def globaltimer():
    return time.perf_counter_ns()
