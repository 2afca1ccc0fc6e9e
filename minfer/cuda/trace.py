"""What every lane of a simulated launch did, and what can be read from it.

`minfer.cuda.simulator.launch(..., trace=Trace())` fills a trace; the functions of this module analyse it.
"""

from __future__ import annotations

import enum
import sys
from typing import Any

import numpy as np


class Op(enum.IntEnum):
    """Kinds of records."""

    LOAD_SHARED = 1
    STORE_SHARED = 2
    LOAD_GLOBAL = 3
    STORE_GLOBAL = 4
    LDMATRIX = 5
    STMATRIX = 6
    COPY_READ = 7
    COPY_ISSUE = 8
    COPY_LAND = 9
    COPY_COMMIT = 10
    COPY_WAIT = 11
    MMA = 12
    SHUFFLE = 14
    VOTE = 15
    BARRIER_ARRIVE = 16
    BARRIER_LEAVE = 17
    WARP_SYNC = 18


class Trace:
    """Records in order of execution."""

    def __init__(self) -> None:
        self.records: list[tuple[int, ...]] = []

    def begin(self, launch: Any) -> None:
        """Called by the simulator before it runs the blocks."""

    def record(self, lane: Any, op: Op, address: int = 0, width: int = 0, extra: int = 0) -> None:
        self.records.append((op, lane.block.number, lane.thread, address, width, extra))
