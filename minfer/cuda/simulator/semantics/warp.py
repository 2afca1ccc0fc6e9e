"""Instructions of a whole warp or block: lane number, shuffles, votes, barriers."""

from __future__ import annotations

import numpy as np

from minfer.cuda.simulator.lanes import current_lane
from minfer.cuda.simulator.scalars import CASTS
from minfer.cuda.simulator.semantics.arithmetic import signed32
from minfer.cuda.simulator.semantics.table import register, semantics
from minfer.cuda.trace.ops import Op

_u32, _f32 = CASTS["uint32"], CASTS["float32"]


@semantics
def lane_id():
    return current_lane("lane_id").index


def _source_xor(lane: int, operand: int) -> int:
    return (lane ^ operand) & 31


def _source_idx(lane: int, operand: int) -> int:
    return operand & 31


def _source_down(lane: int, operand: int) -> int:
    return lane + operand if lane + operand < 32 else lane


def _source_up(lane: int, operand: int) -> int:
    return lane - operand if lane >= operand else lane


def _make_shuffle(name: str, source, cast):
    def execute(warp, arguments):
        return [arguments[source(lane, arguments[lane][1])][0] for lane in range(32)]

    def shuffle(value, operand):
        lane = current_lane(name)
        if lane.trace is not None:
            lane.trace.record(lane, Op.SHUFFLE)
        return lane.warp.collective(lane, name, (cast(value), int(operand) & 31), execute)

    return shuffle


for _mode, _source in (
    ("xor", _source_xor),
    ("idx", _source_idx),
    ("down", _source_down),
    ("up", _source_up),
):
    for _kind, _cast in (("f32", _f32), ("u32", _u32), ("s32", signed32)):
        register(f"shfl_{_mode}_{_kind}", _make_shuffle(f"shfl_{_mode}_{_kind}", _source, _cast))


def _first(warp, arguments):
    return [arguments[0]] * 32


@semantics
def uniform(value):
    lane = current_lane("uniform")
    if lane.trace is not None:
        lane.trace.record(lane, Op.SHUFFLE)
    return lane.warp.collective(lane, "uniform", signed32(value), _first)


def _make_vote(name: str, decide):
    def execute(warp, arguments):
        return [decide(arguments)] * 32

    def vote(predicate):
        lane = current_lane(name)
        if lane.trace is not None:
            lane.trace.record(lane, Op.VOTE)
        return lane.warp.collective(lane, name, int(predicate) & 0xFFFFFFFF != 0, execute)

    return vote


register("vote_any", _make_vote("vote_any", lambda votes: int(any(votes))))
register("vote_all", _make_vote("vote_all", lambda votes: int(all(votes))))
register(
    "vote_ballot",
    _make_vote("vote_ballot", lambda votes: int(np.packbits(votes, bitorder="little").view("<u4")[0])),
)


def _synchronize(warp, arguments):
    trace = warp.block.launch.trace
    if trace is not None:
        for op in (Op.WARP_ARRIVE, Op.WARP_LEAVE):
            for lane in warp.lanes:
                trace.record(lane, op, extra=warp.synchronizations)


@semantics
def syncwarp():
    lane = current_lane("syncwarp")
    lane.warp.collective(lane, "syncwarp", None, _synchronize)


@semantics
def bar_sync(number, threads):
    lane = current_lane("bar_sync")
    lane.block.barrier(lane, int(number), int(threads), True, "bar_sync")


@semantics
def bar_arrive(number, threads):
    lane = current_lane("bar_arrive")
    lane.block.barrier(lane, int(number), int(threads), False, "bar_arrive")
