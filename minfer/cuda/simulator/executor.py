"""Blocks, clusters and the scheduler of a simulated launch: one thread, a deterministic order.

Blocks run one after another; the blocks of a cluster run together.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from minfer.cuda.simulator.errors import AsyncHazard, Deadlock, Divergence
from minfer.cuda.simulator.lanes import WARP, WARPGROUP, Group, Lane, lane_list, source_place
from minfer.cuda.simulator.memory import GlobalMemory, SharedMemory
from minfer.cuda.simulator.rebinding import Rebinder
from minfer.cuda.trace.ops import Op
from minfer.cuda.trace.source import call_chain


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

    def __init__(self, launch: Launch, index: tuple[int, int, int], rank: int, lanes: list[Lane]) -> None:
        self.launch = launch
        self.index = index
        self.rank = rank  # in the cluster
        self.number = index[0] + launch.grid[0] * (index[1] + launch.grid[1] * index[2])
        self.shared = SharedMemory(launch.shared_bytes, launch.strict)
        self.warps = [Group(self, "warp", n, WARP) for n in range(-(-launch.threads // WARP))]
        self.warpgroups = [
            Group(self, "warpgroup", n, WARPGROUP) for n in range(-(-launch.threads // WARPGROUP))
        ]
        self.lanes = lanes
        for thread, lane in enumerate(self.lanes):
            lane.assign(self, thread)
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
        self._lanes: list[list[Lane]] = []

    def lanes(self, place: int) -> list[Lane]:
        """The greenlets for the threads of a block, the `place`-th of those that run together."""
        while len(self._lanes) <= place:
            with np.errstate(all="ignore"):  # lanes keep the context that they are made in
                self._lanes.append([Lane(self) for _ in range(self.threads)])
        return self._lanes[place]

    def close(self) -> None:
        """End the greenlets."""
        for lane in (lane for lanes in self._lanes for lane in lanes):
            if lane:
                lane.throw(GreenletExit)

    def run(self, indices: list[tuple[int, int, int]]) -> None:
        """Run the blocks of one cluster together; those of several, one behind the other, where these wait
        for each other."""
        blocks = [
            Block(self, index, place % self.cluster, self.lanes(place)) for place, index in enumerate(indices)
        ]
        self.ready.clear()
        for first in range(0, len(blocks), self.cluster):
            cluster = Cluster(self, blocks[first : first + self.cluster])
            for block in cluster.blocks:
                block.cluster = cluster
                self.ready.extend(block.lanes)
        self._schedule()
        if any(block.live for block in blocks):
            raise self._deadlock(blocks)

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
                if not lane.exited:
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
