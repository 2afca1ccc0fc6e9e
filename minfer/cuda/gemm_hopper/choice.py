"""The choice of a config of the Hopper GEMM for a product, by the cycles of its tiles."""

from __future__ import annotations

from dataclasses import replace

from minfer.cuda.checks import check_sizes
from minfer.cuda.gemm_hopper.config import SPLIT_TILES, GemmHopperConfig

#: Cycles up to which a product is a dependent launch: what that saves, a microsecond, is lost in longer ones.
DEPENDENT_CYCLES = 300_000
#: That two blocks take to exchange sums, and to be launched at once (measured on an H200); with a lead, which
#: hides the exchange, larger tiles take as much to add and to store them.
EXCHANGE_CYCLES = 9500
#: Tiles with a lead are for products that take less than this part of the cycles otherwise: `k_tile_cycles`
#: makes more of the bytes that they save than was measured.
LEAD_GAIN = 0.9
#: Of one of a block's tiles outside its main loop (about; measured on an H200), beside its launch's own.
TILE_CYCLES = 1500
#: (tile_n, tile_m, stages) that `choose` picks from: as many stages as leave two buffers for the epilogue.
TILES = (
    *((128, m, 4) for m in (256, 240, 224, 192)),
    *((128, m, 5) for m in (160, 144)),
    *((128, m, 6) for m in (128, 112, 96)),
    (128, 64, 8), (192, 192, 4), (256, 192, 3), (256, 224, 3),
)  # fmt: skip


def k_tile_cycles(tile_n: int, tile_m: int) -> float:
    """Cycles of a k-tile: of its wgmmas (4096 FLOP a cycle) or its bytes from L2 (56 a cycle)."""
    return max(tile_n * tile_m / 32, (tile_n + tile_m) * 128 / 56)


def shared_cost(k_tiles: int, tile_n: int, tile_m: int, lead: int) -> float:
    """Cycles of a tile that two blocks share, as `choose` weighs them."""
    if not lead:
        return -(-k_tiles // 2) * k_tile_cycles(tile_n, tile_m) + TILE_CYCLES + EXCHANGE_CYCLES
    both = max(k_tiles // 2 - lead, 1)
    alone = (k_tiles - 2 * both) * k_tile_cycles(tile_n // 2, tile_m)
    return (both * k_tile_cycles(tile_n, tile_m) + alone + TILE_CYCLES + EXCHANGE_CYCLES) / LEAD_GAIN


def may_split(depth: int) -> bool:
    """Whether `choose` gives a product of that depth split_k at any sizes: a tile takes two blocks less time
    than two tiles of half of its columns, of which there is room for as many."""
    k_tiles = -(-depth // 64)
    if k_tiles == 1:
        return False
    for tile_n, tile_m, _, lead in SPLIT_TILES:
        half = min(m for n, m, _ in TILES if n == tile_n and 2 * m >= tile_m)
        if shared_cost(k_tiles, tile_n, tile_m, lead) < k_tiles * k_tile_cycles(tile_n, half) + TILE_CYCLES:
            return True
    return False


def choose(
    nt: int, od: int, depth: int, multiprocessors: int = 132, out: str = "f16", epilogue: str = "store"
) -> GemmHopperConfig:
    """The config with the least time over whole waves of blocks, for an nt x od x depth product.

    A k-tile costs `k_tile_cycles`, a tile `TILE_CYCLES` besides, one that two blocks share `shared_cost`.

    What cycles do not say: an H200 is at its power limit within the first millisecond, where a schedule of
    fewer cycles gets a lower clock, and one that moves fewer bytes a higher one."""
    check_sizes("gemm_hopper", nt=nt, od=od, id=depth, multiprocessors=multiprocessors)
    halves, k_tiles = 2 if epilogue == "swiglu" else 1, -(-depth // 64)

    def tiles(tile_n: int, tile_m: int) -> int:
        return -(-nt // tile_n) * -(-od * halves // tile_m)

    def cost(option: tuple[int, int, int, int | None]) -> float:
        tile_n, tile_m, _, lead = option
        if lead is not None:
            return shared_cost(k_tiles, tile_n, tile_m, lead)
        step = k_tile_cycles(tile_n, tile_m)
        return -(-tiles(tile_n, tile_m) // multiprocessors) * (k_tiles * step + TILE_CYCLES)

    options = [(*tile, None) for tile in TILES if tile[1] >= 64 * halves]
    if may_split(depth):
        fit = (tile for tile in SPLIT_TILES if 2 * tiles(*tile[:2]) <= multiprocessors)
        options += [tile for tile in fit if tile[1] >= 64 * halves]
    tile_n, tile_m, stages, lead = best = min(options, key=cost)
    shared = {} if lead is None else {"split_k": True, "split_lead": lead}
    config = GemmHopperConfig(
        tile_m, stages, out, epilogue, tile_n, pdl=cost(best) <= DEPENDENT_CYCLES, **shared
    )
    return replace(config, skew=config.best_skew)
