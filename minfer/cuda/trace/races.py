"""Races and missing initialisation in a traced launch.

Every thread has a vector clock (`minfer.cuda.trace.clocks`); barriers, syncwarp, cluster barriers and
mbarriers order what came before them before what comes after. Two accesses of one byte by two threads, one of
them a write, must be ordered. Shuffles, votes and matrix instructions order nothing. An asynchronous copy
writes from its issue until it has landed: accesses before its issue must be ordered before the issue, those
after it after the landing. Asynchronous readers (wgmma, TMA stores) likewise, and what ordinary stores wrote
for them needs a fence.proxy.async of the writer. Blocks of different clusters are never ordered; where they
ran at the same time (a cooperative launch) they order each other by memory, and what passes between them
there is not checked.

Lanes of a warp may store one value to one place with one instruction: it does not matter whose comes last.

Limits: data that wgmma and TMA move in global memory, and atomics, are not checked; a phase of an mbarrier
that TMA bytes complete orders only that data, not what the issuing thread did before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from minfer.cuda.trace.clocks import Clocks
from minfer.cuda.trace.finding import Finding
from minfer.cuda.trace.ops import Op, unpack_mbarrier
from minfer.cuda.trace.recorder import Trace

_SHARED_ACCESSES = (
    Op.LOAD_SHARED, Op.STORE_SHARED, Op.LDMATRIX, Op.STMATRIX, Op.ATOMIC,
    Op.COPY_ISSUE, Op.TMA_ISSUE, Op.BULK_READ_BEGIN, Op.WGMMA_READ_BEGIN,
)  # fmt: skip
_GLOBAL_WRITES = (Op.STORE_GLOBAL,)
_GLOBAL_SPAN = 1 << 40  # arrays lie at multiples of it


def check(trace: Trace) -> list[Finding]:
    """All faults, the most frequent first; empty for a clean launch."""
    return _Checker(trace).run()


def faulty_rows(trace: Trace) -> list[tuple[int, Finding]]:
    """(index into `trace.table`, the fault there) of every access at which `check` finds one, in order."""
    checker = _Checker(trace)
    checker.run()
    return [(row, checker.found[key]) for row, key in checker.faulty]


class _Memory:
    """What is known of one address space's granules."""

    def __init__(self) -> None:
        # thread, clock, site, fences of the thread then, request
        self.writes: dict[int, tuple[int, int, int, int, tuple]] = {}
        self.reads: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)  # thread -> clock, site
        self.landing: dict[int, tuple[int, int]] = {}  # thread, site of a copy in flight
        # (thread or warpgroup, number) -> site of a reader in flight
        self.reading: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)


class _Checker:
    def __init__(self, trace: Trace) -> None:
        if trace.info is None:
            raise ValueError("the trace is empty: give it to simulator.launch first")
        self.trace = trace
        self.info = trace.info
        self.found: dict[tuple, Finding] = {}
        self.faulty: list[tuple[int, tuple]] = []  # row of the table, key in `found`
        self.row = -1
        self.table = trace.table
        shared = trace.rows(*_SHARED_ACCESSES)
        shared = shared[shared["address"] < _GLOBAL_SPAN]
        self.shared_granule = _granule(shared)
        written = trace.rows(*_GLOBAL_WRITES)
        self.written_arrays = set(np.unique(written["address"] // _GLOBAL_SPAN).tolist())
        everywhere = trace.rows(Op.LOAD_GLOBAL, Op.STORE_GLOBAL, Op.COPY_READ, Op.BULK_GLOBAL_READ)
        self.global_granule = _granule(everywhere)
        self.global_memory: dict[int, tuple[int, int, int, int, int]] = {}
        self.global_reads: dict[int, dict[tuple[int, int], tuple[int, int]]] = defaultdict(dict)

    def run(self) -> list[Finding]:
        blocks = self.table["block"]
        width = self.info.grid[0]
        cluster_of = blocks // width * width + blocks % width // self.info.cluster * self.info.cluster
        runs, clusters = np.count_nonzero(np.diff(cluster_of)) + 1, np.unique(cluster_of)
        self.together = runs > len(clusters)
        for cluster in clusters:
            self.cluster(np.flatnonzero(cluster_of == cluster))
        return sorted(self.found.values(), key=lambda finding: (-finding.count, str(finding)))

    # ---- one cluster

    def cluster(self, places: np.ndarray) -> None:
        """Its rows of the table, in order."""
        info, rows = self.info, self.table[places]
        self.first_block = int(rows["block"].min() // info.cluster * info.cluster)
        threads = info.cluster * info.threads
        landings = {unpack_mbarrier(int(e))[:2] for e in np.unique(rows["extra"][rows["op"] == Op.TMA_LAND])}
        # mbarriers that count bytes, and warpgroups as readers, have a clock of their own, which those who
        # wait for them learn
        self.agents = {mbarrier: threads + i for i, mbarrier in enumerate(sorted(landings))}
        self.warpgroups = threads + len(self.agents)
        size = self.warpgroups + -(-threads // 128)
        self.clocks = Clocks(size)
        self.fences = [0] * size
        self.shared = [_Memory() for _ in range(info.cluster)]
        self.mbarriers: dict[tuple[int, int], tuple[int, int, int]] = {}  # thread, clock, site that made it
        for self.row, row in zip(places.tolist(), rows.tolist(), strict=True):
            op, block, thread, site, sync, occurrence, address, length, extra = row
            # what lanes of a warp that store the same with one instruction have in common; else nobody's
            twins = extra and op == Op.STORE_SHARED
            self.request = (thread // 32, site, sync, occurrence, address, extra) if twins else (self.row,)
            handler = _HANDLERS.get(op)
            if handler is not None:
                rank = block - self.first_block
                handler(self, rank, rank * info.threads + thread, site, address, length, extra)

    def report(
        self, kind: str, space: str, address: int, thread: int, site: int, other: tuple[int, int] | None
    ) -> None:
        other_site = other[1] if other else None
        # a race is one finding whichever side came first
        places = frozenset((site, other_site)) if kind.endswith("race") else (site, other_site)
        key = (kind, space, places)
        self.faulty.append((self.row, key))
        known = self.found.get(key)
        if known is not None:
            self.found[key] = replace(known, count=known.count + 1)
            return
        threads = self.info.threads
        earlier = None if other is None or other[0] >= self.info.cluster * threads else other[0] % threads
        self.found[key] = Finding(
            kind=kind,
            space=space,
            address=address,
            block=self.first_block + thread // threads,
            thread=thread % threads,
            place=self.trace.place(site),
            other_thread=earlier,
            other_place=None if other is None else self.trace.place(other_site),
        )

    def granules(self, address: int, length: int) -> range:
        return range(address // self.shared_granule, -(-(address + length) // self.shared_granule))

    # ---- shared memory

    def read(self, rank, thread, site, address, length, extra, asynchronous=False):
        memory, clock = self.shared[rank], self.clocks.of[thread]
        for granule in self.granules(address, length):
            where = granule * self.shared_granule
            flight = memory.landing.get(granule)
            if flight is not None:
                self.report("read before landing", "shared", where, thread, site, flight)
                break
            write = memory.writes.get(granule)
            if write is None:
                self.report("uninitialized read", "shared", where, thread, site, None)
                break
            writer, at, write_site, fences, _ = write
            if writer != thread and clock[writer] < at:
                self.report("read-write race", "shared", where, thread, site, (writer, write_site))
                break
            if (
                asynchronous
                and writer < self.info.cluster * self.info.threads
                and self.fences[writer] <= fences
            ):
                self.report("missing proxy fence", "shared", where, thread, site, (writer, write_site))
                break
            if not asynchronous:
                memory.reads[granule][thread] = (clock[thread], site)

    def before_write(self, rank, thread, site, address, length) -> None:
        """Everything that used these bytes must be ordered before this thread's present."""
        memory, clock = self.shared[rank], self.clocks.of[thread]
        for granule in self.granules(address, length):
            where = granule * self.shared_granule
            flight = memory.landing.get(granule)
            write = memory.writes.get(granule)
            if flight is not None:
                self.report("write-write race", "shared", where, thread, site, flight)
                break
            unordered = write is not None and write[0] != thread and clock[write[0]] < write[1]
            if unordered and write[4] != self.request:
                self.report("write-write race", "shared", where, thread, site, (write[0], write[2]))
                break
            readers = memory.reads.get(granule)
            if readers:
                late = next(
                    (
                        (reader, read[1])
                        for reader, read in readers.items()
                        if reader != thread and clock[reader] < read[0]
                    ),
                    None,
                )
                if late is not None:
                    self.report("read-write race", "shared", where, thread, site, late)
                    break
                del memory.reads[granule]
            asynchronous = memory.reading.get(granule)
            if asynchronous:
                (reader, _), read_site = next(iter(asynchronous.items()))
                self.report(
                    "overwrites asynchronous read",
                    "shared",
                    where,
                    thread,
                    site,
                    (reader, read_site),
                )
                break

    def write(self, rank, thread, site, address, length, extra):
        self.before_write(rank, thread, site, address, length)
        self.written(rank, thread, site, address, length)

    def written(self, rank, thread, site, address, length):
        entry = (thread, self.clocks.now(thread), site, self.fences[thread], self.request)
        writes = self.shared[rank].writes
        for granule in self.granules(address, length):
            writes[granule] = entry

    def copy_issue(self, rank, thread, site, address, length, extra):
        self.before_write(rank, thread, site, address, length)
        for granule in self.granules(address, length):
            self.shared[rank].landing[granule] = (thread, site)

    def copy_land(self, rank, thread, site, address, length, extra):
        landing = self.shared[rank].landing
        for granule in self.granules(address, length):
            flight = landing.pop(granule, None)
            site = site if flight is None else flight[1]
        self.written(rank, thread, site, address, length)

    def tma_issue(self, rank, thread, site, address, length, extra):
        mbarrier, target, _ = unpack_mbarrier(extra)
        self.use_mbarrier(thread, site, target, mbarrier)
        self.copy_issue(target, thread, site, address, length, extra)

    def tma_land(self, rank, thread, site, address, length, extra):
        mbarrier, target, phase = unpack_mbarrier(extra)
        agent = self.agents[mbarrier, target]
        self.clocks.tick(agent)
        self.copy_land(target, agent, site, address, length, extra)
        self.clocks.announce(agent, ("mbarrier", target, mbarrier, phase))

    def read_begin(self, rank, thread, site, address, length, extra):
        self.read(rank, thread, site, address, length, extra, asynchronous=True)
        for granule in self.granules(address, length):
            self.shared[rank].reading[granule][thread, 0] = site

    def read_end(self, rank, thread, site, address, length, extra):
        memory, now = self.shared[rank], self.clocks.now(thread)
        for granule in self.granules(address, length):
            begun = memory.reading[granule].pop((thread, 0), site)
            memory.reads[granule][thread] = (now, begun)

    def wgmma_begin(self, rank, thread, site, address, length, extra):
        self.read(rank, thread, site, address, length, extra, asynchronous=True)
        for granule in self.granules(address, length):
            self.shared[rank].reading[granule][self.warpgroups + thread // 128, extra] = site

    def wgmma_end(self, rank, thread, site, address, length, extra):
        memory, agent = self.shared[rank], self.warpgroups + thread // 128
        for granule in self.granules(address, length):
            begun = memory.reading[granule].pop((agent, extra), site)
            memory.reads[granule][agent] = (extra + 1, begun)

    def wgmma_wait(self, rank, thread, site, address, length, extra):
        clock, agent = self.clocks.of[thread], self.warpgroups + thread // 128
        clock[agent] = max(clock[agent], extra + 1)

    def atomic(self, rank, thread, site, address, length, extra):
        if address < _GLOBAL_SPAN:
            for granule in self.granules(address, length):
                if granule not in self.shared[rank].writes:
                    self.report("uninitialized read", "shared", address, thread, site, None)

    # ---- order

    def barrier_arrive(self, rank, thread, site, address, length, extra):
        self.clocks.release(thread, ("barrier", rank, address, extra))

    def barrier_leave(self, rank, thread, site, address, length, extra):
        self.clocks.acquire(thread, ("barrier", rank, address, extra))

    def warp_arrive(self, rank, thread, site, address, length, extra):
        self.clocks.release(thread, ("warp", thread // 32, extra))

    def warp_leave(self, rank, thread, site, address, length, extra):
        self.clocks.acquire(thread, ("warp", thread // 32, extra))

    def cluster_arrive(self, rank, thread, site, address, length, extra):
        self.clocks.release(thread, ("cluster", extra))

    def cluster_leave(self, rank, thread, site, address, length, extra):
        self.clocks.acquire(thread, ("cluster", extra))

    def mbarrier_init(self, rank, thread, site, address, length, extra):
        self.mbarriers[rank, address] = (thread, self.clocks.now(thread), site)

    def use_mbarrier(self, thread: int, site: int, rank: int, address: int) -> None:
        maker, at, made = self.mbarriers[rank, address]
        if maker != thread and self.clocks.of[thread][maker] < at:
            self.report("mbarrier race", "shared", address, thread, site, (maker, made))

    def mbarrier_arrive(self, rank, thread, site, address, length, extra):
        self.use_mbarrier(thread, site, length, address)
        self.clocks.release(thread, ("mbarrier", length, address, extra))

    def mbarrier_wait(self, rank, thread, site, address, length, extra):
        self.use_mbarrier(thread, site, length, address)
        self.clocks.acquire(thread, ("mbarrier", length, address, extra - 1))

    def fence(self, rank, thread, site, address, length, extra):
        self.fences[thread] += 1

    # ---- global memory: only arrays that the launch writes with ordinary stores

    def global_read(self, rank, thread, site, address, length, extra):
        if address // _GLOBAL_SPAN not in self.written_arrays:
            return
        step, clock = self.global_granule, self.clocks.of[thread]
        for granule in range(address // step, -(-(address + length) // step)):
            write = self.global_memory.get(granule)
            if write is not None and self.unordered(thread, clock, write):
                self.report("read-write race", "global", granule * step, thread, site, (write[1], write[3]))
                return
            self.global_reads[granule][self.first_block, thread] = (clock[thread], site)

    def global_write(self, rank, thread, site, address, length, extra):
        step, clock = self.global_granule, self.clocks.of[thread]
        for granule in range(address // step, -(-(address + length) // step)):
            write = self.global_memory.get(granule)
            if write is not None and self.unordered(thread, clock, write):
                self.report("write-write race", "global", granule * step, thread, site, (write[1], write[3]))
                return
            for (block, reader), (at, read_site) in self.global_reads.pop(granule, {}).items():
                if self.unordered(thread, clock, (block, reader, at, read_site)):
                    self.report(
                        "read-write race", "global", granule * step, thread, site, (reader, read_site)
                    )
                    return
            self.global_memory[granule] = (self.first_block, thread, clock[thread], site)

    def unordered(self, thread: int, clock: Sequence[int], other: tuple[int, int, int, int]) -> bool:
        block, other_thread, at, _ = other
        if block != self.first_block:
            return not self.together
        return other_thread != thread and clock[other_thread] < at


def _granule(rows: np.ndarray) -> int:
    """The largest power of two, up to 16, that divides every address and width."""
    if not len(rows):
        return 16
    bits = int(np.bitwise_or.reduce(rows["address"] | rows["width"]))
    return min(16, bits & -bits) if bits else 16


_HANDLERS = {
    Op.LOAD_SHARED: _Checker.read,
    Op.LDMATRIX: _Checker.read,
    Op.STORE_SHARED: _Checker.write,
    Op.STMATRIX: _Checker.write,
    Op.ATOMIC: _Checker.atomic,
    Op.COPY_ISSUE: _Checker.copy_issue,
    Op.COPY_LAND: _Checker.copy_land,
    Op.TMA_ISSUE: _Checker.tma_issue,
    Op.TMA_LAND: _Checker.tma_land,
    Op.BULK_READ_BEGIN: _Checker.read_begin,
    Op.BULK_READ_END: _Checker.read_end,
    Op.WGMMA_READ_BEGIN: _Checker.wgmma_begin,
    Op.WGMMA_READ_END: _Checker.wgmma_end,
    Op.WGMMA_WAIT: _Checker.wgmma_wait,
    Op.BARRIER_ARRIVE: _Checker.barrier_arrive,
    Op.BARRIER_LEAVE: _Checker.barrier_leave,
    Op.WARP_ARRIVE: _Checker.warp_arrive,
    Op.WARP_LEAVE: _Checker.warp_leave,
    Op.CLUSTER_ARRIVE: _Checker.cluster_arrive,
    Op.CLUSTER_LEAVE: _Checker.cluster_leave,
    Op.MBARRIER_INIT: _Checker.mbarrier_init,
    Op.MBARRIER_ARRIVE: _Checker.mbarrier_arrive,
    Op.MBARRIER_WAIT: _Checker.mbarrier_wait,
    Op.FENCE_PROXY: _Checker.fence,
    Op.LOAD_GLOBAL: _Checker.global_read,
    Op.COPY_READ: _Checker.global_read,
    Op.BULK_GLOBAL_READ: _Checker.global_read,
    Op.STORE_GLOBAL: _Checker.global_write,
}
