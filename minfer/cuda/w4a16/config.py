"""Tiles of the W4A16 GEMM: what fits a multiprocessor, and which one for a product."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minfer.cuda.checks import check_choice, check_sizes, check_types
from minfer.cuda.gemm_hopper.config import EXCHANGE_CYCLES
from minfer.cuda.kernel import MAX_SHARED_BYTES, ConfigRefused
from minfer.cuda.tile.hopper import BOX_COLUMNS
from minfer.cuda.tile.scheduler import reversed_rounds
from minfer.cuda.tile.transposed import CHUNK_ROWS
from minfer.cuda.w4a16.formats import QUARTERS, PackedFormat
from minfer.cuda.w4a16.packed_tile import CONSUMER_ROWS, CONSUMERS, MOVERS, REGISTERS, ROWS, PackedTile
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
        split_k: two blocks a tile, each with half of its depth (`minfer.cuda.gemm_hopper.split`): for few
            tokens in a wide tile, which unpacks a weight once for all of them.
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
    split_k: bool = False
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
        if self.split_k and (self.format == PAIR or self.gated or self.bias or self.consumers != 2):
            raise ConfigRefused(
                "w4a16: split_k: of one matrix with 2 consumers, neither gated nor with a bias: each of its "
                "two blocks finishes the rows of one consumer"
            )
        if self.split_k and self.tokens % 16:
            raise ConfigRefused(
                f"w4a16: {self.tokens} tokens with split_k: a multiple of 16, so that half of a consumer's "
                "sums fill a stage"
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
            + (" split" if self.split_k else "")
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
        """Blocks of a persistent launch: one a multiprocessor, at most one a tile (split_k: two). Of a pair
        `od` are the first matrix's rows, `other_od` the second's."""
        token_tiles, output_tiles = self.tiles(nt, od)
        tiles = token_tiles * output_tiles + -(-nt // self.second_tokens) * -(-other_od // self.outputs)
        if not self.split_k:
            return min(multiprocessors, tiles), 1, 1
        if 2 * tiles > multiprocessors:
            raise ConfigRefused(
                f"w4a16: {nt} x {od} takes {2 * tiles} blocks that wait for each other, with split_k, on "
                f"{multiprocessors} multiprocessors: larger tiles, or no split_k"
            )
        return 2 * tiles, 1, 1

    def check(self, nt: int, od: int, depth: int, width: int, left: int = 0) -> None:
        """Refuse (ConfigRefused) a product that this kernel cannot compute; `width` is that of C, `left` how
        many of a pair's outputs are those of the matrix that comes first in C."""
        check_sizes("w4a16", nt=nt, od=od, id=depth, width=width)
        if depth % 256:
            raise ConfigRefused(f"w4a16: id = {depth} is no multiple of 256 ({self.format} rows)")
        if self.split_k and depth == 256:
            raise ConfigRefused("w4a16: id = 256 is one block a row, which split_k cannot halve")
        if self.store == "tma" and width % 8:
            raise ConfigRefused(
                f"w4a16: rows of {width} f16: TMA stores rows of whole 16 bytes: take the direct store"
            )
        if self.store == "tma" and left % self.outputs:
            raise ConfigRefused(
                f"w4a16: {left} outputs beside others: TMA stores tiles of {self.outputs}, over the others: "
                "take the direct store"
            )


#: (tokens, stages, slots, ahead, consumers, [narrow, [other_tokens]]) of the tiles that `choose` picks from.
#: Three consumers of Q6_K lose (`minfer.cuda.w4a16.kernel`).
TWO_CONSUMERS = (
    (256, 4, 2, False, 2),
    (232, 4, 2, True, 2),
    (192, 4, 3, True, 2),
    (152, 4, 3, True, 2),
    (128, 4, 4, True, 2),
    (96, 8, 3, True, 2),
    (64, 8, 3, True, 2),
)
TILES = {
    "Q4_K": ((192, 4, 2, True, 3), *TWO_CONSUMERS),
    "Q6_K": TWO_CONSUMERS,
    PAIR: (
        *TWO_CONSUMERS,
        (192, 4, 3, True, 2, True),
        (192, 4, 2, True, 2, True, 232),
        (176, 4, 3, True, 2, False, 96),
    ),
}
#: Tiles that two blocks may share, for few tokens: (tokens, stages, slots, ahead, consumers).
SPLIT_TILES = (TWO_CONSUMERS[0], TWO_CONSUMERS[2], TWO_CONSUMERS[4])
#: Cycles of a k-tile that its unpacking takes beside one consumer's products.
UNPACKING = {"Q4_K": 370, "Q6_K": 530}


def choose(
    format: str,
    nt: int,
    od: int,
    depth: int,
    multiprocessors: int = 132,
    out: str = "f16",
    width: int = 8,
    gated: bool = False,
) -> W4A16Config:
    """The config with the fewest cycles over whole waves of blocks, for an nt x od x depth product into a C
    of this `width`; gated: of 2 od rows of weights.

    A k-tile costs its wgmmas (2 cycles a token for a consumer's 64 weight rows), or those of one consumer and
    a number of cycles for its unpacking, a tile about 1500 cycles outside its main loop: a fit to times of an
    H200, which says nothing about what overlaps."""

    check_choice("w4a16", "format", format, tuple(FORMATS))
    check_sizes("w4a16", nt=nt, od=od, id=depth, multiprocessors=multiprocessors)

    def tiles(tile: tuple) -> int:
        return _tiles(tile, nt, od * (1 + gated))

    def cost(option: tuple[tuple, bool]) -> int:
        tile, split = option
        if split:
            return _cycles(format, tile, _longer_half(depth)) + EXCHANGE_CYCLES
        return -(-tiles(tile) // multiprocessors) * _cycles(format, tile, depth)

    options = [(tile, False) for tile in TILES[format]]
    if depth > 256 and not gated:
        options += [(tile, True) for tile in SPLIT_TILES if 2 * tiles(tile) <= multiprocessors]
    tile, split = min(options, key=cost)
    store = "tma" if out == "f16" and width % 8 == 0 else "direct"
    return W4A16Config(format, *tile, out=out, store=store, gated=gated, split_k=split)


def _longer_half(depth: int) -> int:
    """Of split_k, which cuts between blocks of weights."""
    return -(-depth // 512) * 256


def may_split(depth: int) -> bool:
    """Whether `choose` gives a product of that depth split_k at any sizes: half of it takes longer than the
    exchange."""
    return any(
        _cycles(format, tile, depth) > _cycles(format, tile, _longer_half(depth)) + EXCHANGE_CYCLES
        for format in FORMATS
        for tile in SPLIT_TILES
    )


def split_workspace(multiprocessors: int) -> tuple[int, int]:
    """f32 elements and counters for launches with split_k one after the other; counters are zero between
    launches."""
    tiles = multiprocessors // 2
    return tiles * ROWS * max(tile[0] for tile in SPLIT_TILES), 2 * tiles


def choose_pair(
    nt: int,
    ods: tuple[int, int],
    depth: int,
    multiprocessors: int = 132,
    out: str = "f16",
    width: int = 8,
    left: int = 0,
) -> W4A16Config:
    """`choose` for a pair of `ods` outputs, of Q4_K and of Q6_K; `left`: those of the one that comes first in
    C. The slowest block counts, as the tiles are dealt: of the second matrix first, narrow ones last."""
    check_sizes("w4a16", nt=nt, first=ods[0], second=ods[1], id=depth, multiprocessors=multiprocessors)

    def tiles(tile: tuple) -> tuple[int, int]:
        return _tiles(tile, nt, ods[0]), _tiles(_other(tile), nt, ods[1])

    def cost(tile: tuple) -> tuple[int, int]:
        """Of the slowest block, and of all."""
        config, (first, second) = W4A16Config(PAIR, *tile), tiles(tile)
        narrow = _tiles(tile, 1, ods[0]) if config.has_narrow(nt) else 0
        cycles = [_cycles("Q6_K", _other(tile), depth)] * second
        cycles += [_cycles("Q4_K", tile, depth)] * (first - narrow)
        cycles += [_cycles("Q4_K", (NARROW, *tile[1:]), depth)] * narrow
        dealt = reversed_rounds(len(cycles), min(multiprocessors, len(cycles)))
        return max(sum(cycles[i] for i in own) for own in dealt), sum(cycles)

    # In one round there is nothing to end with.
    one_round = [tile for tile in TILES[PAIR] if sum(tiles(tile)) <= multiprocessors]
    tile = min((t for t in TILES[PAIR] if not (True in t[5:6] and t in one_round)), key=cost)
    store = "tma" if out == "f16" and width % 8 == 0 and left % ROWS == 0 else "direct"
    return W4A16Config(PAIR, *tile, out=out, store=store)


def _other(tile: tuple) -> tuple:
    """The tile of a pair's second matrix."""
    return (*tile[6:], tile[0])[0], *tile[1:]


def _tiles(tile: tuple, nt: int, rows: int) -> int:
    """Tiles over nt tokens and so many weight rows."""
    return -(-nt // tile[0]) * -(-rows // (tile[4] * CONSUMER_ROWS))


def _cycles(format: str, tile: tuple, depth: int) -> int:
    """Of one tile."""
    tokens, consumers = tile[0], tile[4]
    return depth // 64 * max(2 * consumers * tokens, 2 * tokens + UNPACKING[format]) + 1500
