"""Configs of the Hopper GEMM."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minfer.cuda.checks import check_sizes, check_types
from minfer.cuda.gemm_hopper.heads import PIECE, RUN, Heads
from minfer.cuda.kernel import MAX_SHARED_BYTES, ConfigRefused
from minfer.cuda.tile.hopper import (
    ALIGNMENT,
    BOX_COLUMNS,
    BUFFER_BYTES,
    MbarrierRing,
    chunk_columns,
    chunk_starts,
)
from minfer.cuda.tile.scheduler import MOST_TILES

#: Tokens of A that a group of tile rows should hold: they stay in L2 while B passes.
GROUP_ROWS = 2048
EPILOGUES = ("store", "add", "swiglu", "rope")
OUTPUTS = ("f16", "f32")


@dataclass(frozen=True)
class Warpgroups:
    """How the tokens of a tile are shared out.

    Attributes:
        consumers: warpgroups that multiply; row_blocks: blocks of 64 tokens that each of them holds.
        largest_m: the most rows of B for which the sums fit the registers (and for three consumers an
            instruction those that its block starts with: 128).
        registers: of a thread of the producer and of a consumer, after setmaxnreg: together what a block of
            so many warpgroups starts with. None: there is no producer, the first consumer loads, and a thread
            has 255 (240 beside a producer hold 208 sums: the assembler's begin at register 24).
        skew: k-tiles by which the blocks are apart at the ends of a tile in what `choose` picks.
    """

    consumers: int
    row_blocks: int
    largest_m: int
    registers: tuple[int, int] | None
    skew: int = 0


#: By the tokens of a tile.
WARPGROUPS = {
    128: Warpgroups(2, 1, 256, (40, 232)),
    192: Warpgroups(3, 1, 200, (32, 160)),
    256: Warpgroups(2, 2, 224, None, skew=2),
}
#: Rows of B of the largest tile whose gates can be activated while its other block is multiplied.
MOST_SKEWED_GATES = 192
#: (tile_n, tile_m, stages, split_lead) that two blocks may share, for few tokens. Twelve k-tiles for one
#: consumer take 5,600 to 6,900 cycles by their bytes (64 a cycle), about as long as the exchange.
SPLIT_TILES = ((128, 224, 4, 6), (128, 168, 5, 6), (128, 112, 6, 0), (128, 64, 8, 0))


def split_sums(multiprocessors: int) -> int:
    """f32 elements of a device's workspace for split_k: a tile of the largest of SPLIT_TILES for every two
    multiprocessors."""
    return multiprocessors // 2 * max(n * m for n, m, *_ in SPLIT_TILES)


@dataclass(frozen=True)
class GemmHopperConfig:
    """Tile of `tile_n` tokens x `tile_m` rows of B, `stages` k-tiles of 64 in flight; C as `out`, by an
    epilogue ("rope": for a product with q, k and v of `heads`). pdl: a dependent launch, which loads B before
    the kernel before it has ended, and whose blocks take seats (`minfer.cuda.tile.seats`). split_k: two
    blocks a tile, each with half of the depth (`minfer.cuda.gemm_hopper.split`). skew: k-tiles by which a
    consumer's two blocks of rows are apart at the ends of a tile (`minfer.cuda.gemm_hopper.skewed`).
    split_lead: k-tiles beyond half of the depth that a block multiplies with the rows that it finishes, and
    that are missing from those with the rows that it hands over."""

    tile_m: int = 256
    stages: int = 4
    out: str = "f16"
    epilogue: str = "store"
    tile_n: int = 128
    heads: Heads | None = None
    pdl: bool = False
    split_k: bool = False
    skew: int = 0
    split_lead: int = 0

    tile_k = BOX_COLUMNS

    def __post_init__(self):
        check_types("gemm_hopper", self)
        for name, value, allowed in (
            ("tile_n", self.tile_n, WARPGROUPS),
            ("out", self.out, OUTPUTS),
            ("epilogue", self.epilogue, EPILOGUES),
        ):
            if value not in allowed:
                raise ConfigRefused(
                    f"gemm_hopper: {name} = {value!r} is not one of {', '.join(map(str, allowed))}"
                )
        if self.epilogue == "add" and self.out != "f32":
            raise ConfigRefused("gemm_hopper: add is for f32 results: rounding every sum to f16 loses them")
        self._check_heads()
        # Every load brings whole groups of 8 rows of B; a warp's part of C fills a chunk.
        granule, most = 8 * self.loads, self.warpgroups.largest_m
        least = chunk_columns(self.out) * (2 if self.epilogue == "swiglu" else 1)
        if not least <= self.tile_m <= most or self.tile_m % granule:
            raise ConfigRefused(
                f"gemm_hopper: tile_m = {self.tile_m}: must be a multiple of {granule} from {least} to "
                f"{most} ({self.tile_n} tokens, {self.epilogue})"
            )
        if self.split_k and self.tile_n != 128:
            raise ConfigRefused(
                f"gemm_hopper: split_k with {self.tile_n} tokens: its two blocks finish the rows of one "
                "consumer each, so take 128"
            )
        if self.split_lead < 0 or (self.split_lead and not self.split_k):
            raise ConfigRefused(
                f"gemm_hopper: split_lead = {self.split_lead}: must be 0 or more, and 0 without split_k"
            )
        self._check_skew()
        if self.stages < 2:
            raise ConfigRefused(f"gemm_hopper: {self.stages} stages: to copy ahead of computing takes 2")
        if self.store_buffers < 1:
            raise ConfigRefused(
                f"gemm_hopper: {self.stages} stages of {self.stage_bytes} bytes leave no room for "
                f"the epilogue's {self.warps * BUFFER_BYTES} bytes in {MAX_SHARED_BYTES} of shared memory: "
                "use fewer stages"
            )

    def _check_skew(self) -> None:
        if self.skew and self.warpgroups.row_blocks != 2:
            raise ConfigRefused(
                f"gemm_hopper: skew with {self.tile_n} tokens: it is between two blocks of 64 rows, which a "
                "consumer has with 256"
            )
        if self.skew and not self.can_skew:
            raise ConfigRefused(
                f"gemm_hopper: skew with swiglu over {self.tile_m} rows: its registers spill; take "
                f"{MOST_SKEWED_GATES} rows or fewer, or no skew"
            )
        if not 0 <= self.skew <= self.stages:
            raise ConfigRefused(
                f"gemm_hopper: skew = {self.skew}: must be from 0 to {self.stages}, the stages that hold the "
                "k-tiles between two blocks of rows"
            )

    def _check_heads(self) -> None:
        rotates = self.epilogue == "rope"
        if not isinstance(self.heads, Heads if rotates else type(None)):
            raise ConfigRefused(
                f"gemm_hopper: epilogue {self.epilogue} with heads = {self.heads!r}: rope takes Heads, no "
                "other epilogue has any"
            )
        if not rotates:
            return
        if self.out != "f16":
            raise ConfigRefused(
                f"gemm_hopper: rope with out = {self.out}: take f16, as queries and caches are"
            )
        if not self.can_rotate:
            raise ConfigRefused(
                f"gemm_hopper: rope with a tile of {self.tile_n} x {self.tile_m}: tile_m must be a multiple "
                f"of {PIECE}, to hold both columns of every pair, and tile_n 128 or 192: beside the sums of "
                "256 tokens no registers are left for angles"
            )

    def __str__(self) -> str:
        text = f"{self.tile_n}x{self.tile_m}x{self.tile_k} {self.stages} stages"
        if self.epilogue != "store":
            text += f" {self.epilogue}"
        if self.heads is not None:
            text += f" {self.heads}"
        text += f" -> {self.out}" if self.out != "f16" else ""
        text += " split" if self.split_k else ""
        text += f" lead {self.split_lead}" if self.split_lead else ""
        text += f" skew {self.skew}" if self.skew else ""
        return text + (" pdl" if self.pdl else "")

    @property
    def warpgroups(self) -> Warpgroups:
        return WARPGROUPS[self.tile_n]

    @property
    def producer(self) -> bool:
        """Whether a warpgroup of its own loads the tiles."""
        return self.warpgroups.registers is not None

    @property
    def threads(self) -> int:
        """Of a block: the consumers, and the producer's warpgroup."""
        return 128 * (self.warpgroups.consumers + self.producer)

    @property
    def block_sums(self) -> int:
        """f32 sums that a consumer's thread has of a block of 64 tokens."""
        return self.tile_m // 2

    @property
    def sums(self) -> int:
        """f32 sums of a consumer's thread."""
        return self.warpgroups.row_blocks * self.block_sums

    @property
    def warps(self) -> int:
        """That multiply."""
        return 4 * self.warpgroups.consumers

    @property
    def can_rotate(self) -> bool:
        """Whether its tile can have the epilogue "rope"."""
        return self.tile_m % PIECE == 0 and self.warpgroups.row_blocks == 1

    @property
    def best_skew(self) -> int:
        """The skew that `choose` gives its tile."""
        return self.warpgroups.skew if self.can_skew else 0

    @property
    def can_skew(self) -> bool:
        """Whether registers are left for the arithmetic of one block of rows beside the other's wgmmas."""
        return self.epilogue != "swiglu" or self.tile_m <= MOST_SKEWED_GATES

    @property
    def out_m(self) -> int:
        """Columns of C in a tile."""
        return self.tile_m // 2 if self.epilogue == "swiglu" else self.tile_m

    @property
    def loads(self) -> int:
        """TMA loads that bring a tile of B: one, with swiglu one a matrix, one a run of columns where these
        are no neighbours."""
        if self.heads is not None and self.heads.split:
            return self.tile_m // RUN
        return 2 if self.epilogue == "swiglu" else 1

    @cached_property
    def ring(self) -> MbarrierRing:
        return MbarrierRing(self.stages, self.warpgroups.consumers)

    @property
    def a_bytes(self) -> int:
        """A's part of a stage."""
        return self.tile_n * self.tile_k * 2

    @property
    def a_loads(self) -> int:
        """TMA loads that bring a tile of A: one; one a consumer if a k-tile may be for one of them alone."""
        return 2 if self.split_lead else 1

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage; also what a block receives a k-tile."""
        return self.a_bytes + self.tile_m * self.tile_k * 2

    @property
    def store_buffers(self) -> int:
        """Buffers of a chunk that a warp has for its part of C: what fits, at most all of its columns; with
        rope one, which no TMA store keeps in use."""
        left = MAX_SHARED_BYTES - ALIGNMENT - self.ring.size_bytes - 16 * self.pdl
        left -= self.stages * self.stage_bytes
        chunks = len(chunk_starts(self.out_m, chunk_columns(self.out)))
        most = 1 if self.epilogue == "rope" else chunks
        return min(most, left // (self.warps * BUFFER_BYTES))

    @property
    def barriers_start(self) -> int:
        """Where the mbarriers lie: behind the ring and the store buffers."""
        return self.stages * self.stage_bytes + self.warps * self.store_buffers * BUFFER_BYTES

    @property
    def place_start(self) -> int:
        """Where the block's place lies, with pdl: behind the mbarriers."""
        return self.barriers_start + self.ring.size_bytes

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block, with room to align its start to 1024 bytes."""
        return self.place_start + 16 * self.pdl + ALIGNMENT

    @cached_property
    def boxes(self) -> dict[str, tuple[int, int]]:
        """Argument -> (rows, columns) of its tensor map's boxes; all have the 128-byte swizzle."""
        return {
            "a": (self.tile_n // self.a_loads, BOX_COLUMNS),
            "b": (self.tile_m // self.loads, BOX_COLUMNS),
            "c": (16, chunk_columns(self.out)),
        }

    def check(self, nt: int, od: int, depth: int) -> None:
        """Refuse (ConfigRefused) a product that this kernel cannot compute."""
        check_sizes("gemm_hopper", nt=nt, od=od, id=depth)
        if od % 8 or depth % 8:
            raise ConfigRefused(
                f"gemm_hopper: {nt} x {od} x {depth}: od and id must be multiples of 8 (TMA moves rows of "
                "whole 16 bytes)"
            )
        if self.split_k and depth <= self.tile_k:
            raise ConfigRefused(f"gemm_hopper: id = {depth} is one k-tile, which split_k cannot halve")
        if self.heads is not None and od != self.heads.width:
            raise ConfigRefused(
                f"gemm_hopper: od = {od}: q, k and v of {self.heads} have {self.heads.width} rows"
            )

    def tiles(self, nt: int, od: int) -> tuple[int, int]:
        """(rows, columns) of tiles."""
        return -(-nt // self.tile_n), -(-od // self.out_m)

    def grid(self, nt: int, od: int, multiprocessors: int) -> tuple[int, int, int]:
        """Blocks of a persistent launch: with seats one a multiprocessor; else as many as take the fewest
        waves, in equal ones."""
        rows, columns = self.tiles(nt, od)
        if rows * columns >= MOST_TILES:
            raise ConfigRefused(
                f"gemm_hopper: {nt} x {od} takes {rows * columns:,} tiles of {self.tile_n} x {self.out_m}, "
                f"{MOST_TILES - 1:,} at most: larger tiles, or part of the tokens at a time"
            )
        blocks = 2 * rows * columns if self.split_k else rows * columns
        waves = -(-blocks // multiprocessors)
        if self.split_k and waves > 1:
            raise ConfigRefused(
                f"gemm_hopper: {nt} x {od} takes {blocks} blocks that wait for each other, with split_k, on "
                f"{multiprocessors} multiprocessors: larger tiles, or no split_k"
            )
        sums, most = rows * columns * self.tile_n * self.tile_m, split_sums(multiprocessors)
        if self.split_k and sums > most:
            raise ConfigRefused(
                f"gemm_hopper: {nt} x {od} in tiles of {self.tile_n} x {self.tile_m} takes {sums:,} sums of "
                f"split_k's workspace, which has {most:,} for {multiprocessors} multiprocessors: smaller "
                "tiles, or no split_k"
            )
        return multiprocessors if self.pdl else -(-blocks // waves), 1, 1

    def group(self, nt: int, od: int) -> int:
        """Tile rows a group of the schedule: about 2048 tokens."""
        rows, _ = self.tiles(nt, od)
        return -(-rows // max(1, round(nt / GROUP_ROWS)))
