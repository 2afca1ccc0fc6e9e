"""Tiles of the W4A16 GEMM: what fits a multiprocessor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minfer.cuda.checks import check_sizes, check_types
from minfer.cuda.kernel import MAX_SHARED_BYTES, ConfigRefused
from minfer.cuda.tile.hopper import BOX_COLUMNS
from minfer.cuda.tile.transposed import CHUNK_ROWS
from minfer.cuda.w4a16.formats import QUARTERS, PackedFormat
from minfer.cuda.w4a16.packed_tile import CONSUMERS, MOVERS, REGISTERS, ROWS, PackedTile
from minfer.cuda.w4a16.q4_k import q4_k
from minfer.cuda.w4a16.q6_k import q6_k

#: Name -> (rows of a tile) -> the format.
FORMATS = {"Q4_K": q4_k, "Q6_K": q6_k}
#: Two matrices, one of each format, whose outputs stand side by side.
PAIR = "Q4_K+Q6_K"
OUTPUTS = ("f16", "f32")
STORES = ("tma", "direct")
NARROW = 128
"""Tokens that the last tiles of a pair's first matrix multiply, where no more are left."""
MOST_TOKENS_OF_THREE = 192
"""Of a tile of three consumers: with more the assembler finds no registers."""


def split_sums(tokens: int, parts: int) -> int:
    """f32 sums that each of the blocks of a tile of so many tokens is handed by the others."""
    return ROWS * tokens * (parts - 1) // parts


@dataclass(frozen=True)
class W4A16Config(PackedTile):
    """Tile of 64 weight rows a consumer x `tokens`, k-tiles of 64.

    Attributes:
        format: of the weights, "Q4_K", "Q6_K" or "Q4_K+Q6_K": two matrices, one of each.
        tokens: the tile's, a multiple of 8 from 64 to 256.
        stages: k-tiles of activations in flight, 4 or 8: those of one or two blocks.
        slots: blocks of 256 weights a row in flight.
        ahead: weights are unpacked while the tensor cores still work on two k-tiles, not on the last one
            only: takes 20 registers, which the largest tiles lack.
        consumers: warpgroups of 64 rows, 2 or 3. Three have fewer registers each, so fewer tokens, and more
            time to unpack under the others' products.
        narrow: of a pair, tiles of the first matrix with NARROW tokens at most multiply only so many; they
            come last, so that the blocks that began with the second matrix's slow tiles end with them.
        other_tokens: those of a pair's second matrix; 0: as many as the first one's. Its activations come by
            a tensor map of their own.
        split_k: blocks that share a tile, 1, 2 or 4, each with a part of its depth
            (`minfer.cuda.gemm_hopper.split`): for few tokens in a wide tile, which unpacks a weight once for
            all of them.
        out: "f16" or "f32".
        store: "tma" (f16 only; whole lines through shared memory, rows of C must be whole 16 bytes) or
            "direct" (any width, an element at a time; f32 fills its sectors).
        bias: an f32 vector is added to every row of C.
        gated: the weights are two matrices of `od` rows, gate and up, and C is silu(gate) * up.
    """

    format: str = "Q4_K"
    tokens: int = 256
    stages: int = 4
    slots: int = 2
    ahead: bool = True
    consumers: int = CONSUMERS
    narrow: bool = False
    other_tokens: int = 0
    split_k: int = 1
    out: str = "f16"
    store: str = "tma"
    bias: bool = False
    gated: bool = False

    tile_k = BOX_COLUMNS
    #: Launched so that it overlaps the end of the kernel before (`minfer.cuda.dependent`).
    pdl = True

    def __post_init__(self):
        check_types("w4a16", self)
        for name, allowed in (("format", (*FORMATS, PAIR)), ("out", OUTPUTS), ("store", STORES)):
            if getattr(self, name) not in allowed:
                raise ConfigRefused(
                    f"w4a16: {name} = {getattr(self, name)!r}: must be one of {', '.join(allowed)}"
                )
        if self.consumers not in REGISTERS:
            raise ConfigRefused(f"w4a16: {self.consumers} consumers: 2 or 3 have registers enough")
        if self.tokens % 8 or not 64 <= self.tokens <= 256:
            raise ConfigRefused(f"w4a16: {self.tokens} tokens a tile: a multiple of 8 from 64 to 256")
        if self.narrow and (self.format != PAIR or self.tokens <= NARROW):
            raise ConfigRefused(f"w4a16: narrow: of {PAIR} with more than {NARROW} tokens a tile only")
        if self.other_tokens and (
            self.format != PAIR or self.other_tokens % 8 or not 64 <= self.other_tokens <= 256
        ):
            raise ConfigRefused(
                f"w4a16: {self.other_tokens} tokens of a second matrix: a multiple of 8 from 64 to 256, of "
                f"{PAIR} only"
            )
        if self.split_k not in (1, 2, 4):
            raise ConfigRefused(f"w4a16: split_k = {self.split_k}: 1, 2 or 4 blocks can share a tile")
        if self.split_k > 1 and (self.format == PAIR or self.gated or self.bias or self.consumers != 2):
            raise ConfigRefused(
                "w4a16: split_k: of one matrix with 2 consumers, neither gated nor with a bias: each block "
                "finishes rows of one consumer"
            )
        least = 64 * max(1, self.split_k // 2)
        if self.split_k > 1 and (self.tokens % 16 or self.tokens < least):
            raise ConfigRefused(
                f"w4a16: {self.tokens} tokens with split_k = {self.split_k}: a multiple of 16 from {least} "
                "on, so that halves of a consumer's sums fill stages, and what a block finishes a chunk"
            )
        if self.consumers == 3 and self.tokens > MOST_TOKENS_OF_THREE:
            raise ConfigRefused(
                f"w4a16: {self.tokens} tokens of 3 consumers: their registers hold the sums of at most "
                f"{MOST_TOKENS_OF_THREE}; take fewer, or 2 consumers"
            )
        if self.store == "tma" and self.out != "f16":
            raise ConfigRefused(f'w4a16: {self.out} cannot be stored by TMA here: take store="direct"')
        if self.gated and (self.store != "tma" or self.bias):
            raise ConfigRefused("w4a16: a gated product is stored by TMA and has no bias")
        if self.format == PAIR and (self.gated or self.bias):
            raise ConfigRefused(f"w4a16: {PAIR}: a pair of matrices is neither gated nor has it a bias")
        if self.stages not in (QUARTERS, 2 * QUARTERS) or self.slots < 2:
            raise ConfigRefused(
                f"w4a16: {self.stages} stages, {self.slots} slots: must be the 4 k-tiles of a block, or of "
                "two; to copy ahead of computing takes 2 slots"
            )
        if self.shared_bytes > MAX_SHARED_BYTES or (self.store == "tma" and self.buffers < 1):
            raise ConfigRefused(
                f"w4a16: {self.stages} stages of {self.stage_bytes} bytes and {self.slots} slots of "
                f"{self.slot_bytes} leave no room for the epilogue's {self.consumers * self.chunk_bytes} "
                f"bytes in {MAX_SHARED_BYTES} of shared memory: use fewer stages"
            )

    def __str__(self) -> str:
        tokens = f"{self.tokens}+{self.other_tokens}" if self.other_tokens else str(self.tokens)
        text = f"{self.format} {self.rows}x{tokens}x{self.tile_k}"
        text += (
            f" {self.stages} stages {self.slots} slots {self.out}"
            + (" ahead" if self.ahead else "")
            + (" narrow" if self.narrow else "")
            + (f" split {self.split_k}" if self.split_k > 1 else "")
            + (" direct" if self.store == "direct" else "")
        )
        return text + (" bias" if self.bias else "") + (" gated" if self.gated else "")

    @property
    def parts(self) -> tuple[PackedFormat, ...]:
        """The format, or both of a pair."""
        return tuple(FORMATS[name](self.rows) for name in self.format.split("+"))

    @property
    def second_tokens(self) -> int:
        """Those of a tile of the second matrix."""
        return self.other_tokens or self.tokens

    @property
    def stage_bytes(self) -> int:
        """Activations of a k-tile."""
        return max(self.tokens, self.second_tokens) * self.tile_k * 2

    @property
    def slot_bytes(self) -> int:
        """A slot: the blocks and their expanded scales; boxes start at whole 128 bytes."""
        size, whole = max(packed.slot_bytes for packed in self.parts), 128 if "w" in self.boxes else 16
        return -(-size // whole) * whole

    @property
    def landing_arrivals(self) -> int:
        """Of the threads that copy: one, or each."""
        return 1 if all(packed.by_tma for packed in self.parts) else 32 * MOVERS

    @property
    def buffers(self) -> int:
        """Chunks of C that a consumer may have in flight; a direct store needs none."""
        return super().buffers if self.store == "tma" else 0

    @cached_property
    def boxes(self) -> dict[str, tuple[int, int, int]]:
        """Argument -> (rows, columns, swizzle) of its tensor map's boxes; weights are bytes."""
        boxes = {"a": (self.tokens, BOX_COLUMNS, 128)}
        if self.other_tokens:
            boxes["a_other"] = (self.other_tokens, BOX_COLUMNS, 128)
        if self.parts[0].by_tma:
            boxes["w"] = (self.outputs, self.parts[0].block_bytes, 0)
        if self.store == "tma":
            columns = self.outputs // self.consumers
            boxes["c"] = (CHUNK_ROWS, columns, 2 * columns)
        return boxes

    def has_narrow(self, nt: int) -> bool:
        """Whether the last column of tiles is narrow."""
        return self.narrow and 0 < nt % self.tokens <= NARROW

    def grid(self, nt: int, od: int, multiprocessors: int, other_od: int = 0) -> tuple[int, int, int]:
        """Blocks of a persistent launch: as many as take the fewest rounds, in equal ones, where tiles are
        alike; of a pair one a multiprocessor, at most one a tile; `split_k` a tile. Of a pair `od` are the
        first matrix's rows, `other_od` the second's."""
        token_tiles, output_tiles = self.tiles(nt, od)
        tiles = token_tiles * output_tiles + -(-nt // self.second_tokens) * -(-other_od // self.outputs)
        blocks = self.split_k * tiles
        if self.format == PAIR:
            return min(multiprocessors, tiles), 1, 1
        if self.split_k == 1:
            return -(-tiles // -(-tiles // multiprocessors)), 1, 1
        if blocks > multiprocessors:
            raise ConfigRefused(
                f"w4a16: {nt} x {od} takes {blocks} blocks that wait for each other, with split_k, on "
                f"{multiprocessors} multiprocessors: larger tiles, or no split_k"
            )
        return blocks, 1, 1

    def check(self, nt: int, od: int, depth: int, width: int, left: int = 0) -> None:
        """Refuse (ConfigRefused) a product that this kernel cannot compute; `width` is that of C, `left` how
        many of a pair's outputs are those of the matrix that comes first in C."""
        check_sizes("w4a16", nt=nt, od=od, id=depth, width=width)
        if depth % 256:
            raise ConfigRefused(f"w4a16: id = {depth} is no multiple of 256 ({self.format} rows)")
        if depth < 256 * self.split_k:
            raise ConfigRefused(
                f"w4a16: id = {depth} is {depth // 256} blocks a row, too few for split_k = {self.split_k}"
            )
        if self.store == "tma" and width % 8:
            raise ConfigRefused(
                f"w4a16: rows of {width} f16: TMA stores rows of whole 16 bytes: take the direct store"
            )
        if self.store == "tma" and left % self.outputs:
            raise ConfigRefused(
                f"w4a16: {left} outputs beside others: TMA stores tiles of {self.outputs}, over the others: "
                "take the direct store"
            )
