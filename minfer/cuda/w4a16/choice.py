"""Which tile of the W4A16 GEMM a product takes."""

from __future__ import annotations

from minfer.cuda.checks import check_choice, check_sizes
from minfer.cuda.tile.scheduler import reversed_rounds
from minfer.cuda.w4a16.config import FORMATS, NARROW, PAIR, W4A16Config, split_sums
from minfer.cuda.w4a16.formats import QUARTERS
from minfer.cuda.w4a16.packed_tile import CONSUMER_ROWS, ROWS

#: (tokens, stages, slots, ahead, consumers, [narrow, [other_tokens]]) of the tiles that `choose` picks from.
#: Three consumers of Q6_K lose (`minfer.cuda.w4a16.kernel`).
TWO_CONSUMERS = (
    (256, 4, 2, False, 2),
    (232, 4, 2, True, 2),
    (192, 4, 3, True, 2),
    (176, 4, 3, True, 2),
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
        (192, 4, 3, True, 2, True, 232),
        (176, 4, 3, True, 2, False, 96),
        (152, 4, 3, True, 2, False, 232),
        (128, 4, 4, True, 2, False, 64),
    ),
}
#: Tiles that 2 or 4 blocks may share, for few tokens: (tokens, stages, slots, ahead, consumers).
SPLIT_TILES = tuple(tile for tile in TWO_CONSUMERS if tile[0] in (256, 192, 128))
SPLITS = (2, 4)
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
    a number of cycles for its unpacking, a tile about 1500 cycles outside its main loop, an exchange
    `_exchange`: a fit to times of an H200, which says nothing about what overlaps."""

    check_choice("w4a16", "format", format, tuple(FORMATS))
    check_sizes("w4a16", nt=nt, od=od, id=depth, multiprocessors=multiprocessors)

    def tiles(tile: tuple) -> int:
        return _tiles(tile, nt, od * (1 + gated))

    def cost(option: tuple[tuple, int]) -> int:
        tile, parts = option
        waves = -(-parts * tiles(tile) // multiprocessors)
        return waves * _cycles(format, tile, depth, parts)

    options = [(tile, 1) for tile in TILES[format]]
    if not gated:
        shared = ((tile, parts) for tile in SPLIT_TILES for parts in SPLITS if depth >= 256 * parts)
        options += [(tile, parts) for tile, parts in shared if parts * tiles(tile) <= multiprocessors]
    tile, parts = min(options, key=cost)
    store = "tma" if out == "f16" and width % 8 == 0 else "direct"
    return W4A16Config(format, *tile, out=out, store=store, gated=gated, split_k=parts)


def may_split(depth: int) -> bool:
    """Whether `choose` gives a product of that depth split_k at any sizes: what it saves takes longer than
    the exchange."""
    return any(
        _cycles(format, tile, depth) > _cycles(format, tile, depth, parts)
        for format in FORMATS
        for tile in SPLIT_TILES
        for parts in SPLITS
    )


def split_workspace(multiprocessors: int) -> tuple[int, int]:
    """f32 elements and counters for launches with split_k one after the other; counters are zero between
    launches."""
    sums = (
        multiprocessors // parts * parts * split_sums(tile[0], parts)
        for tile in SPLIT_TILES
        for parts in SPLITS
    )
    return max(sums), multiprocessors


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


def _cycles(format: str, tile: tuple, depth: int, parts: int = 1) -> int:
    """Of one tile, or of the largest of so many parts of its depth, cut between blocks of weights."""
    tokens, consumers = tile[0], tile[4]
    k_tiles = -(-depth // 256 // parts) * QUARTERS
    k_tile = max(2 * consumers * tokens, 2 * tokens + UNPACKING[format])
    return k_tiles * k_tile + 1500 + (_exchange(tokens, parts) if parts > 1 else 0)


def _exchange(tokens: int, parts: int) -> int:
    """Cycles of the exchange of sums, and of a launch of all blocks at once."""
    return 6000 + 64 * tokens * (parts - 1) // parts
