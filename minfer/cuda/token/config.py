"""How the token kernel shares out a model: rows to blocks, tiles to warps, bytes to shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minfer.cuda.blocks import BLOCKS
from minfer.cuda.checks import check_choice, check_types, check_whole
from minfer.cuda.elementwise.rotary_store import RopeStoreConfig
from minfer.cuda.kernel import MAX_SHARED_BYTES, ConfigRefused
from minfer.cuda.token.addresses import ADDRESSES_BYTES
from minfer.cuda.token.records import RUN, WEIGHTS, Layout, record_layout, record_pitch

TILE_ROWS = 16  # most of a tile: of what is copied, waited for and multiplied at once
ROW_BYTES = 2016  # of 14 blocks of Q4_K: a row that tiles are made for
LINES = 32  # from a tile's beginning or end to that of a 16-byte line, twice
MOST_SLOTS = 8
MOST_HEADS = 8  # query heads that a block attends with: columns of an mma fragment
MOST_SPLITS = 64
ONE_BLOCK_TURNS = 3  # up to so many another turn is faster than a combination of splits
EXCHANGES = ("barrier", "tags", "bits")
LOADS = 8  # 16-byte loads of activations that a thread has in flight
ENTRY_BYTES = 32  # of the schedule


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _align(size: int, to: int = 128) -> int:
    return _ceil(size, to) * to


def most_blocks(hidden: int, attended: int, ffn: int) -> int:
    """Blocks that each have some of whatever they exchange: with tags a step is not over before all have made
    their share of it."""
    return min(hidden, attended, ffn // RUN)


@dataclass(frozen=True)
class TokenConfig:
    """One decode step of a whole model.

    Attributes:
        heads, kv_heads, head_dim: the attention's shape; head_dim 64 or 128.
        rotary: dims of a head that rotate, from the first.
        hidden, ffn: widths; with heads * head_dim multiples of 256.
        entries: length of the schedule (`minfer.cuda.token.schedule`).
        interleaved: RoPE of pairs (2i, 2i + 1); else NEOX, (i, i + rotary / 2).
        bias: add a bias to q, k and v.
        blocks: the grid, all of it resident at once: one block a multiprocessor.
        warps: warps that multiply; one more streams the weights.
        lanes: lanes that share a block of weights, 4 or 2 (`minfer.cuda.token.dots`).
        spread: how activations lie in shared memory (`minfer.cuda.token.records`).
        exchange: how blocks hand them on, "barrier", "tags" or "bits" (`minfer.cuda.token.exchange`).
        early: percent of the blocks that one does not wait for before it looks for tags.
        ahead: tiles that are brought into L2, beyond those of the ring, while it is full and one block
            attends to all rows (`minfer.cuda.token.ring`).
        in_flight: most tiles that a block has asked memory for and not got (`minfer.cuda.token.ring`).
        quiet: as many while it hands on what it has made, and waits for what the others have.
        prefetch: bring into L2 what a phase reads besides weights when the stream passes it.
        spare: who attends to a short context makes none of q, k and v: it waits for them earlier.
        spare_o: nor of the output projection, which it would begin later than the others.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    hidden: int
    ffn: int
    entries: int
    interleaved: bool = False
    bias: bool = False
    blocks: int = 132
    warps: int = 11
    lanes: int = 2
    spread: bool = True
    exchange: str = "bits"
    early: int = 50
    ahead: int = 8
    in_flight: int = 2
    quiet: int = 1
    prefetch: bool = True
    spare: bool = True
    spare_o: bool = True

    def __post_init__(self) -> None:
        check_types("decode_token", self)
        check_choice("decode_token", "head_dim", self.head_dim, (64, 128))
        check_choice("decode_token", "warps", self.warps, tuple(range(1, 32)))
        check_choice("decode_token", "lanes", self.lanes, (2, 4))
        check_choice("decode_token", "exchange", self.exchange, EXCHANGES)
        check_whole("decode_token: early", self.early, 0, 100)
        check_whole("decode_token: ahead", self.ahead, 0)
        check_whole("decode_token: in_flight", self.in_flight, 1)
        check_whole("decode_token: quiet", self.quiet, 1)
        check_whole("decode_token: heads", self.heads, 1)
        check_whole("decode_token: entries", self.entries, 1)
        check_whole("decode_token: blocks", self.blocks, 1)
        self.row  # noqa: B018 - checks the attention's shape
        for name, dim in (("hidden", self.hidden), ("heads", self.attended), ("ffn", self.ffn)):
            if dim <= 0 or dim % WEIGHTS:
                raise ConfigRefused(f"decode_token: rows of {dim} weights ({name}); take a multiple of 256")
        if 2 * BLOCKS["Q4_K"].row_bytes(self.hidden) > self.tile_bytes:
            raise ConfigRefused(
                f"decode_token: two rows of {self.hidden} weights do not fit {self.tile_bytes} bytes"
            )
        if BLOCKS["Q6_K"].row_bytes(self.widest) > self.tile_bytes:
            raise ConfigRefused(
                f"decode_token: a row of {self.widest} weights does not fit {self.tile_bytes} bytes"
            )
        if self.row_groups(self.widest) > self.warps:
            raise ConfigRefused(
                f"decode_token: {self.warps} warps for rows of {self.widest} weights; take at least "
                f"{self.row_groups(self.widest)}"
            )
        if self.hidden > 4 * LOADS * self.threads:
            raise ConfigRefused(f"decode_token: {self.threads} threads norm {self.hidden}; take more warps")
        if self.most_added > self.threads:
            raise ConfigRefused(
                f"decode_token: {self.blocks} blocks of {self.threads} threads add to {self.hidden} sums; "
                "take more of either"
            )
        if self.tagged and most_blocks(self.hidden, self.attended, self.ffn) < self.blocks:
            raise ConfigRefused(
                f"decode_token: {self.blocks} blocks for {self.hidden} sums, {self.attended} attended, "
                f"{self.ffn // RUN} runs of activations; with tags a block has some of each: take fewer"
            )
        if self.blocks < self.groups:
            raise ConfigRefused(f"decode_token: {self.blocks} blocks for {self.groups} groups of heads")
        if self.slots < 2:
            raise ConfigRefused(
                f"decode_token: {self.entries} entries of the schedule ({self.entries * ENTRY_BYTES} bytes) "
                f"and {self.region_bytes} bytes of activations leave no room for a ring in the "
                f"{MAX_SHARED_BYTES} bytes of shared memory"
            )

    def __str__(self) -> str:
        kind = ("interleaved" if self.interleaved else "neox") + (" bias" if self.bias else "")
        shape = f"heads={self.heads}/{self.kv_heads} hd={self.head_dim} rotary={self.rotary} {kind}"
        slots = f"{self.slots}+{self.ahead}" if self.ahead else f"{self.slots}"
        if self.limited:
            slots += f" in flight={self.in_flight}"
        if self.hushed:
            slots += f" quiet={self.quiet}"
        ring = f"warps={self.warps} lanes={self.lanes} slots={slots} {self.exchange}"
        if self.tagged:
            ring += f" early={self.early}%"
        for name in ("prefetch", "spare_o", "spare", "spread"):
            if getattr(self, name):
                ring = f"{name} {ring}"
        return (
            f"hidden={self.hidden} ffn={self.ffn} {shape} entries={self.entries} blocks={self.blocks} {ring}"
        )

    @property
    def threads(self) -> int:
        """Threads that multiply."""
        return self.warps * 32

    # ---- the products

    @property
    def tile_bytes(self) -> int:
        """Most of a tile."""
        return TILE_ROWS * ROW_BYTES

    @property
    def slot_bytes(self) -> int:
        """Of the ring, for a tile."""
        return self.tile_bytes + LINES

    @property
    def limited(self) -> bool:
        """Whether the ring could have more tiles in flight than it may."""
        return self.in_flight < self.slots

    @property
    def hushed(self) -> bool:
        """Whether it may have fewer while the block hands on and waits."""
        return self.limited and self.quiet < self.in_flight

    @property
    def group_units(self) -> int:
        """Most blocks of weights of a row that a warp takes."""
        return 32 // self.lanes

    def row_groups(self, columns: int) -> int:
        """Warps that share a row of so many weights."""
        return _ceil(columns // WEIGHTS, self.group_units)

    # ---- activations

    @cached_property
    def layout(self) -> Layout:
        """Of a record in shared memory."""
        return record_layout(self.spread)

    def record_bytes(self, dim: int) -> int:
        """Bytes of the records of `dim` activations in shared memory."""
        return dim // WEIGHTS * record_pitch(self.spread)

    @property
    def tagged(self) -> bool:
        """Whether what blocks exchange carries tags."""
        return self.exchange != "barrier"

    @property
    def awaited(self) -> int:
        """Blocks that one waits for before it looks for tags, or without them."""
        return self.blocks - (self.blocks * self.early // 100 if self.tagged else 0)

    def sums_shape(self, dim: int) -> tuple[int, ...]:
        """Shape of the f32 workspace of so many sums that blocks exchange."""
        return (dim, 2) if self.exchange == "tags" else (dim,)

    def exchanged_bytes(self, dim: int) -> int:
        """Bytes of the workspace of so many activations that blocks exchange."""
        return dim * 2 if self.tagged else self.record_bytes(dim)

    # ---- the attention

    @property
    def row(self) -> RopeStoreConfig:
        """What is done to a stacked row of q, k and v first."""
        return RopeStoreConfig(
            self.heads, self.kv_heads, self.head_dim, self.rotary, self.interleaved, self.bias, "f32"
        )

    @property
    def attended(self) -> int:
        """Width of the attention's output."""
        return self.heads * self.head_dim

    @property
    def block_heads(self) -> int:
        """Query heads of one block: the largest divisor of those of a kv head that fits a fragment."""
        group = self.heads // self.kv_heads
        return max(n for n in range(1, MOST_HEADS + 1) if group % n == 0)

    @property
    def groups(self) -> int:
        """Groups of heads, each a block's; the attention's counters."""
        return self.heads // self.block_heads

    @property
    def splits(self) -> int:
        """Most parts of the cache."""
        return min(self.blocks // self.groups, MOST_SPLITS)

    @property
    def spared(self) -> int:
        """Blocks that make none of q, k and v: those that attend alone, if they are few. Without tags blocks
        arrive together."""
        return self.groups if self.spare and self.tagged and self.groups * 8 <= self.blocks else 0

    @property
    def most_added(self) -> int:
        """Most sums of the residual stream that a block adds to."""
        return _ceil(self.hidden, self.blocks - (self.spared if self.spare_o else 0))

    @property
    def partial_shape(self) -> tuple[int, int, int]:
        """Shape of the f32 workspace of sums."""
        return (self.heads, self.splits, self.head_dim)

    @property
    def statistics_shape(self) -> tuple[int, int, int]:
        """Shape of the f32 workspace of (maximum in log2 units, sum)."""
        return (self.heads, self.splits, 2)

    @property
    def query_bytes(self) -> int:
        """Eight heads' queries, the new row's key and value as f16, and a flag."""
        return (MOST_HEADS + 2) * self.head_dim * 2 + 16

    @property
    def sums_bytes(self) -> int:
        """A warp's unnormalised sums and two statistics a head."""
        return self.block_heads * (self.head_dim + 4) * 4

    @property
    def attention_warps(self) -> int:
        """Warps that attend: as many as have room for their sums where the activations lie."""
        room = self.record_bytes(self.ffn) + 128 - self.query_bytes
        return max(1, min(self.warps, 8, room // self.sums_bytes))

    @property
    def turn_rows(self) -> int:
        """Rows of the cache that a block attends to at once, 16 a warp."""
        return 16 * self.attention_warps

    @property
    def one_block_rows(self) -> int:
        """Most rows that are not split."""
        return ONE_BLOCK_TURNS * self.turn_rows

    @property
    def attention_bytes(self) -> int:
        """The row's part, then the warps' sums or the splits' factors."""
        factors = self.block_heads * MOST_SPLITS * 4
        return self.query_bytes + max(self.attention_warps * self.sums_bytes, factors)

    @property
    def widest(self) -> int:
        """Weights of the longest row."""
        return max(self.hidden, self.attended, self.ffn)

    # ---- shared memory: mbarriers, scratch, addresses, schedule, sums, activations, ring

    @property
    def outputs(self) -> int:
        """Most gated activations of a block: whole runs of a record's scale."""
        return _ceil(self.ffn // RUN, self.blocks) * RUN

    @property
    def region_bytes(self) -> int:
        """The activations of a phase as records (a norm's gains behind them), or the attention's share."""
        return _align(
            max(self.record_bytes(self.widest), self.gains_at + self.hidden * 4, self.attention_bytes)
        )

    @property
    def gains_at(self) -> int:
        """Of the activations' region: the gains of a norm, behind the normed records."""
        return _align(self.record_bytes(self.hidden))

    @property
    def sums(self) -> int:
        """Sums of rows' groups that are kept: what a block gates, and what it adds to the residual stream, is
        written at once."""
        added = self.most_added * self.row_groups(self.widest)
        return max(2 * self.outputs * self.row_groups(self.hidden), added, TILE_ROWS * self.warps)

    full_at = 0
    done_at = full_at + MOST_SLOTS * 8
    """mbarriers, one a slot: its tile has come; it is multiplied."""
    quiet_at = done_at + MOST_SLOTS * 8
    """mbarrier: odd phases are those in which the block hands on and waits."""

    @property
    def scratch_at(self) -> int:
        """A float a warp."""
        return self.quiet_at + 8

    @property
    def norm_scale_at(self) -> int:
        """What the outputs of a normed product are multiplied with."""
        return self.scratch_at + self.warps * 4

    @property
    def best_at(self) -> int:
        """The best of a warp's logits, 8 bytes each (`minfer.cuda.token.choose`)."""
        return _align(self.norm_scale_at + 4, 8)

    @property
    def addresses_at(self) -> int:
        return _align(self.best_at + self.warps * 8)

    @property
    def table_at(self) -> int:
        return self.addresses_at + _align(ADDRESSES_BYTES)

    @property
    def sums_at(self) -> int:
        return _align(self.table_at + self.entries * ENTRY_BYTES)

    @cached_property
    def slots(self) -> int:
        """Tiles in flight."""
        return min(MOST_SLOTS, (MAX_SHARED_BYTES - self.ring_at) // self.slot_bytes)

    @property
    def region_at(self) -> int:
        return _align(self.sums_at + self.sums * 4)

    @property
    def ring_at(self) -> int:
        return self.region_at + self.region_bytes

    @property
    def shared_bytes(self) -> int:
        return self.ring_at + self.slots * self.slot_bytes

    @property
    def grid(self) -> tuple[int, int, int]:
        return (self.blocks, 1, 1)
