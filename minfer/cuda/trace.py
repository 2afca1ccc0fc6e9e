"""What every lane of a simulated launch did, and what can be read from it.

`minfer.cuda.simulator.launch(..., trace=Trace())` fills a trace; the functions of this module analyse it.
"""

from __future__ import annotations

import enum
from typing import Any


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
    CLUSTER_ARRIVE = 19
    CLUSTER_LEAVE = 20
    FENCE_PROXY = 21
    MBARRIER_INIT = 22
    MBARRIER_ARRIVE = 23
    MBARRIER_WAIT = 24
    TMA_ISSUE = 25
    TMA_LAND = 26
    BULK_GLOBAL_READ = 27
    BULK_READ_BEGIN = 28
    BULK_READ_END = 29
    WGMMA = 30
    WGMMA_READ_BEGIN = 31
    WGMMA_READ_END = 32


class Trace:
    """Records in order of execution."""

    def __init__(self) -> None:
        self.records: list[tuple[int, ...]] = []

    def begin(self, launch: Any) -> None:
        """Called by the simulator before it runs the blocks."""

    def record(self, lane: Any, op: Op, address: int = 0, width: int = 0, extra: int = 0) -> None:
        self.records.append((op, lane.block.number, lane.thread, address, width, extra))
