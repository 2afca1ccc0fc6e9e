"""Lanes, shuffles, votes and barriers."""

from minfer.cuda.instruction import f32, instruction, s32, u32

_SHFL = "9.7.9.6 shfl.sync"
_VOTE = "9.7.13.9 vote.sync"
_BAR = "9.7.13.1 bar, barrier"


@instruction("mov.u32 $0, %laneid;", section="10.3 Special Registers: %laneid")
def lane_id() -> u32:
    """Lane within the warp, 0 ... 31. Not hoisted: what is computed from it stays near its use."""


@instruction("shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;", section=_SHFL, collective=True)
def uniform(value: s32) -> s32:
    """Lane 0's value, in all lanes. Tells the assembler that the value is the same in the whole warp, so that
    it and what follows from it live in uniform registers."""


@instruction("shfl.sync.bfly.b32 $0, $1, $2, 31, 0xffffffff;", section=_SHFL, collective=True)
def shfl_xor_f32(value: f32, mask: u32) -> f32:
    """The value of lane `lane ^ mask`."""


@instruction("shfl.sync.bfly.b32 $0, $1, $2, 31, 0xffffffff;", section=_SHFL, collective=True)
def shfl_xor_u32(value: u32, mask: u32) -> u32:
    """The value of lane `lane ^ mask`."""


@instruction("shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;", section=_SHFL, collective=True)
def shfl_idx_f32(value: f32, lane: u32) -> f32:
    """The value of lane `lane % 32`."""


@instruction("shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;", section=_SHFL, collective=True)
def shfl_idx_u32(value: u32, lane: u32) -> u32:
    """The value of lane `lane % 32`."""


@instruction("shfl.sync.down.b32 $0, $1, $2, 31, 0xffffffff;", section=_SHFL, collective=True)
def shfl_down_f32(value: f32, distance: u32) -> f32:
    """The value of lane `lane + distance`; a lane whose source is past lane 31 keeps its own."""


@instruction("shfl.sync.down.b32 $0, $1, $2, 31, 0xffffffff;", section=_SHFL, collective=True)
def shfl_down_u32(value: u32, distance: u32) -> u32:
    """The value of lane `lane + distance`; a lane whose source is past lane 31 keeps its own."""


def _vote(mode: str) -> str:
    return (
        "{\n.reg .pred p, q;\nsetp.ne.u32 p, $1, 0;\n"
        f"vote.sync.{mode}.pred q, p, 0xffffffff;\nselp.u32 $0, 1, 0, q;\n}}"
    )


@instruction(_vote("any"), section=_VOTE, collective=True)
def vote_any(condition: u32) -> u32:
    """1 in all lanes if the condition is nonzero in any lane, else 0."""


@instruction(_vote("all"), section=_VOTE, collective=True)
def vote_all(condition: u32) -> u32:
    """1 in all lanes if the condition is nonzero in every lane, else 0."""


@instruction("bar.warp.sync 0xffffffff;", section="9.7.13.2 bar.warp.sync", collective=True)
def syncwarp():
    """All lanes of the warp arrive; their memory accesses before it are visible to each other after it."""


@instruction("bar.sync $0, $1;", section=_BAR, collective=True)
def bar_sync(barrier: u32, threads: u32):
    """Arrive at named barrier 0 ... 15 and wait until `threads` threads (a multiple of 32) have arrived."""


@instruction("bar.arrive $0, $1;", section=_BAR, collective=True)
def bar_arrive(barrier: u32, threads: u32):
    """Arrive at a named barrier without waiting; others wait for it with `bar_sync` and the same
    `threads`."""
