"""CUDA threads as greenlets, and the groups of them that execute instructions together.

A lane (one CUDA thread) runs until it waits: at a collective, a barrier or an mbarrier. Lanes switch to each
other directly; the hub (the greenlet that started the launch) only sees lanes that end and the moment when
nobody can run.
"""

from __future__ import annotations

import contextvars
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent, greenlet

from minfer.cuda.simulator.errors import Divergence, SimulatorError
from minfer.cuda.trace.source import SOURCE_MARK, call_site, same_site

if TYPE_CHECKING:
    from minfer.cuda.simulator.executor import Block, Launch

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

    def __init__(self, name: str, site: tuple[Any, int, Any, int], size: int) -> None:
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
        self.size = size  # a power of two
        self.mask = size - 1
        self.lanes: list[Lane] = []
        self.synchronizations = 0  # collectives executed so far
        self.pending: _Collective | None = None

    def collective(
        self, lane: Lane, name: str, argument: Any, execute: Callable[[Group, list[Any]], list[Any] | None]
    ) -> Any:
        """Wait until all lanes of the group are at this instruction; the last one executes it for all.

        `execute(group, arguments)` gets one argument a lane and returns one result a lane (or None).
        """
        site = call_site(sys._getframe(2))
        pending = self.pending
        if pending is None:
            if len(self.lanes) != self.size or any(other.exited for other in self.lanes):
                raise Divergence(f"{name} needs all {self.size} lanes of {self.name}: {self._missing()}")
            pending = self.pending = _Collective(name, site, self.size)
        elif pending.name != name or not same_site(pending.site, site):
            raise Divergence(
                f"lanes of {self.name} are at different instructions: lane {lane.index} of warp "
                f"{lane.warp.number} at {name}, {source_place(sys._getframe(1))}; {self._describe(pending)}"
            )
        lanes = pending.lanes
        lanes.append(lane)
        pending.arguments[lane.thread & self.mask] = argument
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
        mask = self.mask
        for other in lanes:
            other.result = results[other.thread & mask]
        return results[lane.thread & mask]

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
