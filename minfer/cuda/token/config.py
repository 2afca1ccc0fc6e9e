"""How the token kernel shares out a model: rows to blocks, turns to warps, bytes to shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minfer.cuda.attention.step import AttentionStepConfig
from minfer.cuda.checks import check_choice
from minfer.cuda.gemv.fine import FINE_RUN
from minfer.cuda.kernel import MAX_SHARED_BYTES, ConfigRefused
from minfer.cuda.token.records import WEIGHTS, record_bytes

TILE_ROWS = 16  # an mma's
TILE_UNITS = {"Q4_K": 15, "Q6_K": 10}  # most blocks of weights of a tile's rows
PITCH = 2208  # bytes from row to row of a tile: 4 rows of 32 bytes touch all banks of shared memory
SLOT_BYTES = TILE_ROWS * PITCH
LOADS = 8  # 16-byte loads of activations that a thread has in flight
MOST_SLOTS = 8
ENTRY_BYTES = 32


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _align(size: int, to: int = 128) -> int:
    return _ceil(size, to) * to


@dataclass(frozen=True)
class TokenConfig:
    """One decode step of a whole model.

    Attributes:
        attention: the attention's shape (its `output`, `splits` and `chained` do not matter here).
        hidden, ffn: widths, multiples of 256.
        entries: length of the schedule (`minfer.cuda.token.schedule`).
        blocks: the grid, all of it resident at once: one block a multiprocessor.
        warps: warps that multiply; one more streams the weights.
    """

    attention: AttentionStepConfig
    hidden: int
    ffn: int
    entries: int
    blocks: int = 132
    warps: int = 15

    def __post_init__(self) -> None:
        check_choice("decode_token", "warps", self.warps, tuple(range(1, 16)))
        for name, dim in (("hidden", self.hidden), ("heads", self.attended), ("ffn", self.ffn)):
            if dim <= 0 or dim % WEIGHTS:
                raise ConfigRefused(f"decode_token: rows of {dim} weights ({name}); take a multiple of 256")
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
        """Threads that multiply."""
        return self.warps * 32

    @property
    def attended(self) -> int:
        """Width of the attention's output."""
        return self.attention.heads * self.attention.head_dim

    @property
    def groups(self) -> int:
        """Groups of heads that a block attends with."""
        return self.attention.heads // self.attention.block_heads

    def slices(self, format: str, dim: int) -> int:
        """Tiles along a row."""
        return _ceil(dim // WEIGHTS, TILE_UNITS[format])

    @property
    def outputs(self) -> int:
        """Most gated activations of a block: whole runs of a record's scale."""
        return _ceil(_ceil(self.ffn, FINE_RUN), self.blocks) * FINE_RUN

    @property
    def region_bytes(self) -> int:
        """The activations of a phase as records, or the attention's share."""
        widest = max(record_bytes(dim) for dim in (self.hidden, self.attended, self.ffn))
        return _align(max(widest, self.attention_bytes))

    @property
    def attention_warps(self) -> int:
        """Warps that attend: as many as have room for their sums where the records lie."""
        room = record_bytes(self.ffn) + 128 - self.attention.query_bytes
        return max(1, min(self.warps, 8, room // self.attention_sums))

    @property
    def attention_sums(self) -> int:
        """Bytes of a warp's unnormalised sums and statistics."""
        return self.attention.block_heads * (self.attention.head_dim + 4) * 4

    @property
    def attention_bytes(self) -> int:
        from minfer.cuda.attention.splits import MOST_SPLITS

        sums = max(self.attention_warps * self.attention_sums, self.attention.block_heads * MOST_SPLITS * 4)
        return self.attention.query_bytes + sums

    @property
    def scratch_at(self) -> int:
        """Behind the mbarriers of the ring: a float a warp."""
        return MOST_SLOTS * 16

    @property
    def table_at(self) -> int:
        return _align(self.scratch_at + self.warps * 4)

    @property
    def partials_at(self) -> int:
        """Sums of a slot's tile: 16 rows a block of weights."""
        return _align(self.table_at + self.entries * ENTRY_BYTES)

    @property
    def partial_bytes(self) -> int:
        """Of one slot."""
        return max(TILE_UNITS.values()) * TILE_ROWS * 4

    @property
    def fixed_bytes(self) -> int:
        """Everything but what a slot takes."""
        return self.partials_at + _align(self.outputs * 4) + self.region_bytes + 128

    @cached_property
    def slots(self) -> int:
        """Tiles in flight."""
        room = MAX_SHARED_BYTES - self.fixed_bytes
        return min(MOST_SLOTS, room // (SLOT_BYTES + self.partial_bytes))

    @property
    def outputs_at(self) -> int:
        """Gated activations of the block, before they become records."""
        return _align(self.partials_at + self.slots * self.partial_bytes)

    @property
    def region_at(self) -> int:
        return _align(self.outputs_at + self.outputs * 4)

    @property
    def ring_at(self) -> int:
        return self.region_at + self.region_bytes

    @property
    def shared_bytes(self) -> int:
        return self.ring_at + self.slots * SLOT_BYTES

    @property
    def grid(self) -> tuple[int, int, int]:
        return (self.blocks, 1, 1)
