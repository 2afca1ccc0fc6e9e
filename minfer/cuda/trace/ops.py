"""Kinds of records in a trace."""

from __future__ import annotations

import enum


class Op(enum.IntEnum):
    """What a record says. `address` and `width` (bytes) mean memory where nothing else is said."""

    LOAD_SHARED = 1
    STORE_SHARED = 2  # extra: a checksum of what is stored, or 0
    LOAD_GLOBAL = 3
    STORE_GLOBAL = 4
    LDMATRIX = 5  # one record for a lane that gives a row; extra: matrices
    STMATRIX = 6
    ATOMIC = 7
    COPY_READ = 8  # cp.async, the global side
    COPY_ISSUE = 9  # cp.async, the shared side: bytes in flight from here
    COPY_LAND = 10  # ... to here, when its group is waited for
    COPY_COMMIT = 11
    COPY_WAIT = 12  # extra: groups that may stay pending
    MMA = 13
    SHUFFLE = 14
    VOTE = 15
    WARP_ARRIVE = 16  # syncwarp; extra: generation
    WARP_LEAVE = 17
    BARRIER_ARRIVE = 18  # address: barrier number; width: 1 if it waits; extra: generation
    BARRIER_LEAVE = 19
    CLUSTER_ARRIVE = 20  # extra: generation
    CLUSTER_LEAVE = 21
    FENCE_PROXY = 22
    MBARRIER_INIT = 23  # width: block of the cluster; extra: count
    MBARRIER_ARRIVE = 24  # width: block of the cluster; extra: phase
    MBARRIER_WAIT = 25  # the wait is over; width: block of the cluster; extra: phase then current
    TMA_ISSUE = 26  # TMA or bulk load, the shared side; extra: see `pack_mbarrier`
    TMA_LAND = 27
    BULK_GLOBAL_READ = 28
    BULK_READ_BEGIN = 29  # a TMA store starts to read shared memory
    BULK_READ_END = 30
    WGMMA = 31  # one record a lane and group; extra: n
    WGMMA_READ_BEGIN = 32  # shared operands of a group; extra: its number, ascending in the warpgroup
    WGMMA_READ_END = 33  # the first of its threads has waited for it
    WGMMA_WAIT = 34  # a thread has waited for the group with this number


def pack_mbarrier(address: int, rank: int, phase: int) -> int:
    """The `extra` of TMA records: the mbarrier that counts the bytes, its block in the cluster, its phase."""
    return address | rank << 32 | phase << 40


def unpack_mbarrier(extra: int) -> tuple[int, int, int]:
    """(address, block of the cluster, phase) of a TMA record's `extra`."""
    return extra & 0xFFFFFFFF, extra >> 32 & 0xFF, extra >> 40
