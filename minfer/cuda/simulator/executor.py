"""Threads of a simulated launch: greenlets under one deterministic scheduler.

A lane (one CUDA thread) runs until it waits: at a warp collective, a barrier or an mbarrier. Blocks run one
after another; the blocks of a cluster run together. Lanes switch to each other directly; the hub (the
greenlet that called `run`) only sees lanes that end and the moment when nobody can run.
"""

from __future__ import annotations

import contextvars
import random
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from minfer.cuda.simulator.errors import AsyncHazard, Deadlock, Divergence, SimulatorError
from minfer.cuda.simulator.memory import GlobalMemory, SharedMemory
from minfer.cuda.simulator.rebinding import Rebinder
from minfer.cuda.trace.ops import Op
from minfer.cuda.trace.source import SOURCE_MARK, call_chain

WARP = 32
WARPGROUP = 128


def source_place(frame: Any) -> str:
    """ "file:line in function" of the innermost frame of kernel source at or above `frame`."""
    while frame is not None:
        if SOURCE_MARK in frame.f_globals:
            code = frame.f_code
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return "no kernel source"


class Lane(greenlet):
    """One CUDA thread."""

    def __init__(self, block: Block, thread: int) -> None:
        super().__init__(self._main, block.launch.hub)
        self.block = block
        self.launch: Launch = block.launch
        self.trace = block.launch.trace
        self.thread = thread
        self.index = thread % WARP
        self.warp: Group = block.warps[thread // WARP]
        self.warp.lanes.append(self)
        self.warpgroup: Group = block.warpgroups[thread // WARPGROUP]
        self.warpgroup.lanes.append(self)
        self.exited = False
        self.result: Any = None
        self.waiting: str | None = None
        self.copies: list[Any] = []  # asynchronous copies not yet committed
        self.copy_groups: deque[list[Any]] = deque()
        self.bulk: list[Any] = []  # bulk stores not yet committed
        self.bulk_groups: deque[list[Any]] = deque()
        self.wgmmas: deque[Any] = deque()  # in flight, one a group
        self.barriers = 0  # block and cluster barriers left behind
        self.counted_sync = -1  # of the trace: executions of each site since the last synchronisation
        self.site_counts: dict[int, int] = {}
        self.gr_context = contextvars.copy_context()

    def _main(self) -> None:
        try:
            self.block.launch.function(*self.block.launch.arguments)
            self.block.exit(self)
        except GreenletExit:
            raise
        except SimulatorError as error:
            self._locate(error)
            raise
        except Exception as error:
            error.add_note(
                f"in {self.launch.name}, block {self.block.index}, thread {self.thread} (simulated), "
                f"{self.place_of(error)}"
            )
            raise

    def place_of(self, error: BaseException) -> str:
        """Kernel source line that an exception comes from."""
        place, traceback = "no kernel source", error.__traceback__
        while traceback is not None:
            if SOURCE_MARK in traceback.tb_frame.f_globals:
                code = traceback.tb_frame.f_code
                place = f"{code.co_filename}:{traceback.tb_lineno} in {code.co_name}"
            traceback = traceback.tb_next
        return place

    def _locate(self, error: SimulatorError) -> None:
        if error.kernel is None:
            error.kernel, error.block, error.thread = self.launch.name, self.block.index, self.thread
            error.where = self.place_of(error)

    def suspend(self, reason: str) -> None:
        """Let others run until somebody makes this lane ready again."""
        self.waiting = reason
        launch = self.launch
        # a lane that has not begun starts from the hub: it inherits its starter's recursion depth
        if launch.random is None and launch.ready and launch.ready[0]:
            launch.ready.popleft().switch()
        else:
            launch.hub.switch()
        self.waiting = None


def current_lane(what: str = "a CUDA instruction") -> Lane:
    """The lane that runs now; raises where no simulated kernel runs."""
    lane = getcurrent()
    if type(lane) is not Lane:
        raise RuntimeError(f"{what} was called outside a kernel; run it through minfer.cuda.simulator.launch")
    return lane


class _Collective:
    __slots__ = ("arguments", "lanes", "name", "site")

    def __init__(self, name: str, site: tuple[int, ...], size: int) -> None:
        self.name = name
        self.site = site
        self.lanes: list[Lane] = []
        self.arguments: list[Any] = [None] * size


class Group:
    """Lanes that execute collectives together: a warp, or the four warps of a warpgroup."""

    def __init__(self, block: Block, kind: str, number: int, size: int) -> None:
        self.block = block
        self.name = f"{kind} {number}"
        self.number = number
        self.size = size
        self.lanes: list[Lane] = []
        self.synchronizations = 0  # collectives executed so far
        self.pending: _Collective | None = None

    def collective(
        self, lane: Lane, name: str, argument: Any, execute: Callable[[Group, list[Any]], list[Any] | None]
    ) -> Any:
        """Wait until all lanes of the group are at this instruction; the last one executes it for all.

        `execute(group, arguments)` gets one argument a lane and returns one result a lane (or None).
        """
        site = call_chain(sys._getframe(1))
        pending = self.pending
        if pending is None:
            if len(self.lanes) != self.size or any(other.exited for other in self.lanes):
                raise Divergence(f"{name} needs all {self.size} lanes of {self.name}: {self._missing()}")
            pending = self.pending = _Collective(name, site, self.size)
        elif pending.site != site or pending.name != name:
            raise Divergence(
                f"lanes of {self.name} are at different instructions: lane {lane.index} of warp "
                f"{lane.warp.number} at {name}, {source_place(sys._getframe(1))}; {self._describe(pending)}"
            )
        lanes = pending.lanes
        lanes.append(lane)
        pending.arguments[lane.thread % self.size] = argument
        if len(lanes) < self.size:
            lane.suspend(name)
            return lane.result
        self.pending = None
        self.synchronizations += 1
        results = execute(self, pending.arguments)
        lanes.pop()
        self.block.launch.ready.extend(lanes)
        if results is None:
            for other in lanes:
                other.result = None
            return None
        for other in lanes:
            other.result = results[other.thread % self.size]
        return results[lane.thread % self.size]

    def _describe(self, pending: _Collective) -> str:
        place = source_place(pending.lanes[0].gr_frame)
        return f"{lane_list(pending.lanes)} waiting at {pending.name}, {place}"

    def _missing(self) -> str:
        gone = [lane for lane in self.lanes if lane.exited]
        return f"{lane_list(gone)} exited" if gone else f"there are only {len(self.lanes)}"

    def check_exit(self, lane: Lane) -> None:
        if self.pending is not None:
            raise Divergence(
                f"lane {lane.index} of warp {lane.warp.number} exits while {self._describe(self.pending)}, "
                f"which needs all lanes"
            )


def lane_list(lanes: list[Lane]) -> str:
    """ "lanes 0-15, 17" of some lanes of one warp; threads of the block where they are of several."""
    one_warp = len({lane.warp for lane in lanes}) == 1
    numbers = sorted(lane.index if one_warp else lane.thread for lane in lanes)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"{'lane' if one_warp else 'thread'}{'' if len(numbers) == 1 else 's'} {text}"


class _Barrier:
    """A named barrier of a block (0 is that of syncthreads)."""

    __slots__ = ("arrivals", "expected", "generation", "sites", "waiting")

    def __init__(self) -> None:
        self.generation = 0
        self.expected: int | None = None  # None: all threads that have not exited
        self.arrivals = 0
        self.waiting: list[Lane] = []
        self.sites: dict[int, tuple[int, ...]] = {}


class Block:
    """One CTA: its lanes, shared memory and barriers."""

    def __init__(self, launch: Launch, index: tuple[int, int, int], rank: int) -> None:
        self.launch = launch
        self.index = index
        self.rank = rank  # in the cluster
        self.number = index[0] + launch.grid[0] * (index[1] + launch.grid[1] * index[2])
        self.shared = SharedMemory(launch.shared_bytes, launch.strict)
        self.warps = [Group(self, "warp", n, WARP) for n in range(-(-launch.threads // WARP))]
        self.warpgroups = [
            Group(self, "warpgroup", n, WARPGROUP) for n in range(-(-launch.threads // WARPGROUP))
        ]
        self.lanes = [Lane(self, thread) for thread in range(launch.threads)]
        self.live = launch.threads
        self.barriers: dict[int, _Barrier] = {}
        self.mbarriers: dict[int, Any] = {}
        self.cluster: Cluster

    def barrier(self, lane: Lane, number: int, expected: int | None, wait: bool, name: str) -> None:
        """Arrive at a named barrier of `expected` threads (None: every thread left), and wait unless told
        not to."""
        if not 0 <= number < 16:
            raise Divergence(f"{name}: barrier {number}; a block has barriers 0 to 15")
        if expected is not None and (expected % WARP or not WARP <= expected <= self.launch.threads):
            raise Divergence(
                f"{name}: {expected} threads; it takes a multiple of {WARP} up to the block's "
                f"{self.launch.threads}"
            )
        barrier = self.barriers.setdefault(number, _Barrier())
        if barrier.arrivals and barrier.expected != expected:
            raise Divergence(
                f"{name}: barrier {number} with {expected} threads, but others wait there for "
                f"{barrier.expected}"
            )
        site = call_chain(sys._getframe(1))
        if barrier.sites.setdefault(lane.warp.number, site) != site:
            others = [other for other in barrier.waiting if other.warp is lane.warp]
            raise Divergence(
                f"lanes of warp {lane.warp.number} reach barrier {number} at different places: "
                f"lane {lane.index} at {source_place(sys._getframe(1))}; {lane_list(others)} elsewhere"
            )
        barrier.expected = expected
        barrier.arrivals += 1
        if lane.trace is not None:
            lane.trace.record(lane, Op.BARRIER_ARRIVE, number, 1 if wait else 0, barrier.generation)
        if wait:
            barrier.waiting.append(lane)
        if not self._complete(number, barrier, lane) and wait:
            lane.suspend(name)

    def _complete(self, number: int, barrier: _Barrier, last: Lane | None) -> bool:
        needed = self.live if barrier.expected is None else barrier.expected
        if barrier.arrivals < needed or not barrier.arrivals:
            return False
        waiting, barrier.waiting = barrier.waiting, []
        barrier.arrivals, barrier.sites = 0, {}
        for lane in waiting:
            if lane.trace is not None:
                lane.trace.record(lane, Op.BARRIER_LEAVE, number, 0, barrier.generation)
            lane.barriers += 1
            if lane is not last:
                self.launch.ready.append(lane)
        barrier.generation += 1
        return True

    def exit(self, lane: Lane) -> None:
        """Account for a lane whose kernel function has returned."""
        lane.warp.check_exit(lane)
        lane.warpgroup.check_exit(lane)
        if lane.bulk or lane.bulk_groups:
            raise AsyncHazard(
                "a thread exits while its bulk stores still read shared memory: bulk_wait_group_read(0) is "
                "missing"
            )
        if lane.wgmmas:
            raise AsyncHazard("a thread exits with wgmma in flight: wgmma_wait(0, ...) is missing")
        lane.exited = True
        self.live -= 1
        barrier = self.barriers.get(0)
        if barrier is not None and barrier.expected is None and self.live:
            self._complete(0, barrier, None)
        self.cluster.complete(None)


class Cluster:
    """Blocks that run together, and the barrier of all their threads."""

    def __init__(self, launch: Launch, blocks: list[Block]) -> None:
        self.launch = launch
        self.blocks = blocks
        self.generation = 0
        self.waiting: list[Lane] = []

    def barrier(self, lane: Lane) -> None:
        if lane.trace is not None:
            lane.trace.record(lane, Op.CLUSTER_ARRIVE, 0, 1, self.generation)
        self.waiting.append(lane)
        if not self.complete(lane):
            lane.suspend("cluster_sync")

    def complete(self, last: Lane | None) -> bool:
        """Release the waiting threads if they are all that are left."""
        if not self.waiting or len(self.waiting) < sum(block.live for block in self.blocks):
            return False
        waiting, self.waiting = self.waiting, []
        for lane in waiting:
            if lane.trace is not None:
                lane.trace.record(lane, Op.CLUSTER_LEAVE, 0, 0, self.generation)
            lane.barriers += 1
            if lane is not last:
                self.launch.ready.append(lane)
        self.generation += 1
        return True


class Launch:
    """One launch: its arguments, its memory and the scheduler's state."""

    def __init__(
        self,
        name: str,
        function: Callable,
        rebinder: Rebinder,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        cluster: int,
        memory: GlobalMemory,
        arguments: tuple[Any, ...],
        trace: Any,
        strict: bool,
        seed: int | None,
    ) -> None:
        self.name = name
        self.function = function
        self.rebinder = rebinder
        self.grid = grid
        self.threads = threads
        self.shared_bytes = shared_bytes
        self.cluster = cluster
        self.memory = memory
        self.arguments = arguments
        self.trace = trace
        self.strict = strict
        self.random = None if seed is None else random.Random(seed)
        self.ready: deque[Lane] = deque()
        self.hub: greenlet = getcurrent()

    def run(self, indices: list[tuple[int, int, int]]) -> None:
        """Run the blocks of one cluster together."""
        with np.errstate(all="ignore"):
            blocks = [Block(self, index, rank) for rank, index in enumerate(indices)]
        self.ready.clear()
        cluster = Cluster(self, blocks)
        for block in blocks:
            block.cluster = cluster
            self.ready.extend(block.lanes)
        try:
            self._schedule()
            if any(block.live for block in blocks):
                raise self._deadlock(blocks)
        finally:
            for block in blocks:
                for lane in block.lanes:
                    if lane and not lane.dead:
                        lane.throw(GreenletExit)

    def _schedule(self) -> None:
        ready, chooser = self.ready, self.random
        if chooser is None:
            while ready:
                ready.popleft().switch()
            return
        while ready:
            ready.rotate(-chooser.randrange(len(ready)))
            ready.popleft().switch()

    def _deadlock(self, blocks: list[Block]) -> Deadlock:
        places: dict[tuple[int, int, str], list[Lane]] = {}
        for block in blocks:
            for lane in block.lanes:
                if not lane.dead:
                    text = f"{lane.waiting}, {source_place(lane.gr_frame)}"
                    places.setdefault((block.number, lane.warp.number, text), []).append(lane)
        error = Deadlock(
            "no thread can go on:\n"
            + "\n".join(
                f"  block {number} warp {warp} {lane_list(lanes)} wait at {text}"
                for (number, warp, text), lanes in places.items()
            )
        )
        error.kernel, error.block = self.name, blocks[0].index
        return error
