"""How the token kernel shares out a model: rows to blocks, turns to warps, bytes to shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minfer.cuda.attention.step import AttentionStepConfig
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.checks import check_choice
from minfer.cuda.gemv.fine import FINE_RUN, fine_record_bytes
from minfer.cuda.gemv.lanes import LANE_DOTS
from minfer.cuda.kernel import MAX_SHARED_BYTES, ConfigRefused

WEIGHTS = 256  # a block's
MOST_UNITS = 16  # blocks of weights of a row's part that one warp takes
PAIR = 2  # rows of a turn of Q4_K; Q6_K takes one
LOADS = 8  # 16-byte loads of activations that a thread has in flight
MOST_SLOTS = 8
ENTRY_BYTES = 32


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _align(size: int, to: int = 128) -> int:
    return _ceil(size, to) * to


def _divisors(n: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, n + 1) if n % d == 0)


@dataclass(frozen=True)
class TokenConfig:
    """One decode step of a whole model.

    Attributes:
        attention: the attention's shape (its `output`, `splits` and `chained` do not matter here).
        hidden, ffn: widths, multiples of 256.
        entries: length of the schedule (`minfer.cuda.token.schedule`).
        blocks: the grid, all of it resident at once: one block a multiprocessor.
        warps: warps a block. 15 share out a 7B's rows of 14 blocks of weights (one warp each) and its rows of
            74 (5 warps each) with the fewest idle lanes.
        team: warps that share a row of `ffn` weights; a divisor of `warps`.
    """

    attention: AttentionStepConfig
    hidden: int
    ffn: int
    entries: int
    blocks: int = 132
    warps: int = 15
    team: int = 5

    def __post_init__(self) -> None:
        check_choice("decode_token", "warps", self.warps, tuple(range(1, 17)))
        for name, dim in (("hidden", self.hidden), ("heads", self.attended), ("ffn", self.ffn)):
            if dim <= 0 or dim % WEIGHTS:
                raise ConfigRefused(f"decode_token: rows of {dim} weights ({name}); take a multiple of 256")
        check_choice("decode_token", "team", self.team, _divisors(self.warps))
        if self.longest > MOST_UNITS or self.team > self.ffn // WEIGHTS:
            raise ConfigRefused(
                f"decode_token: a warp would take {self.longest} blocks of a row, {self.team} share the longest; "
                f"take 1 to {MOST_UNITS}"
            )
        if self.hidden > 4 * LOADS * self.threads:
            raise ConfigRefused(f"decode_token: {self.threads} threads norm {self.hidden}; take more warps")
        if self.blocks < self.groups:
            raise ConfigRefused(f"decode_token: {self.blocks} blocks for {self.groups} groups of heads")
        if self.slots < 2:
            raise ConfigRefused(
                f"decode_token: {self.region_bytes} bytes of activations leave no room for a ring in "
                f"{MAX_SHARED_BYTES} bytes of shared memory"
            )

    def __str__(self) -> str:
        shape = f"hidden={self.hidden} ffn={self.ffn} entries={self.entries}"
        return f"{shape} {self.attention} blocks={self.blocks} warps={self.warps} slots={self.slots}"

    @property
    def threads(self) -> int:
        return self.warps * 32

    @property
    def attended(self) -> int:
        """Width of the attention's output."""
        return self.attention.heads * self.attention.head_dim

    @property
    def groups(self) -> int:
        """Groups of heads that a block attends with."""
        return self.attention.heads // self.attention.block_heads

    @property
    def longest(self) -> int:
        """Blocks of weights of the longest part of a row."""
        return max(self.hidden // WEIGHTS, self.attended // WEIGHTS, _ceil(self.ffn // WEIGHTS, self.team))

    @property
    def piece_bytes(self) -> int:
        """A row's part of Q4_K in a slot."""
        return self.longest * BLOCKS["Q4_K"].row_bytes(WEIGHTS)

    @property
    def slot_bytes(self) -> int:
        """Two parts of Q4_K, or one of Q6_K, that may begin and end within a 16-byte line."""
        return _align(max(PAIR * self.piece_bytes, self.longest * BLOCKS["Q6_K"].row_bytes(WEIGHTS) + 30), 16)

    def steps(self, format: str) -> int:
        """Times that a warp goes on along a row's part."""
        return _ceil(self.longest, 32 // LANE_DOTS[format].lanes)

    @property
    def outputs(self) -> int:
        """Most gated activations of a block: whole runs of a record's scale."""
        return _ceil(_ceil(self.ffn, FINE_RUN), self.blocks) * FINE_RUN

    @property
    def region_bytes(self) -> int:
        """The activations of a phase as records, and behind them its sums; or the attention's share."""
        down = fine_record_bytes(self.ffn) + _ceil(self.hidden, self.blocks) * self.team * 4
        gated = fine_record_bytes(self.hidden) + self.outputs * 4
        return _align(max(down, gated, fine_record_bytes(self.attended), self.attention_bytes))

    @property
    def attention_warps(self) -> int:
        """Warps that attend: as many as have room for their sums where the records lie."""
        room = fine_record_bytes(self.ffn) + 128 - self.attention.query_bytes
        return max(1, min(self.warps, 8, room // self.attention_sums))

    @property
    def attention_sums(self) -> int:
        """Bytes of a warp's unnormalised sums and statistics."""
        return self.attention.block_heads * (self.attention.head_dim + 4) * 4

    @property
    def attention_bytes(self) -> int:
        from minfer.cuda.attention.splits import MOST_SPLITS

        sums = max(
            self.attention_warps * self.attention_sums, self.attention.block_heads * MOST_SPLITS * 4
        )
        return self.attention.query_bytes + sums

    @property
    def table_at(self) -> int:
        """Behind the mbarriers of the ring and a float a warp."""
        return _align(self.warps * (MOST_SLOTS * 8 + 4))

    @property
    def region_at(self) -> int:
        return _align(self.table_at + self.entries * ENTRY_BYTES)

    @property
    def ring_at(self) -> int:
        return self.region_at + self.region_bytes

    @cached_property
    def slots(self) -> int:
        """Turns that a warp has in flight."""
        return min(MOST_SLOTS, (MAX_SHARED_BYTES - self.ring_at) // (self.warps * self.slot_bytes))

    @property
    def shared_bytes(self) -> int:
        return self.ring_at + self.warps * self.slots * self.slot_bytes

    @property
    def grid(self) -> tuple[int, int, int]:
        return (self.blocks, 1, 1)
