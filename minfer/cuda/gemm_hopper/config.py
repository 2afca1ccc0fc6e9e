"""Configs of the Hopper GEMM, and the choice of one for a product."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minfer.cuda.kernel import MAX_SHARED_BYTES, ConfigRefused, require_integers
from minfer.cuda.tile.hopper import (
    ALIGNMENT,
    BOX_COLUMNS,
    BUFFER_BYTES,
    MbarrierRing,
    chunk_columns,
    chunk_starts,
)

CONSUMERS = 2
WARPS = 4 * CONSUMERS
#: Registers a thread after setmaxnreg: 40 + 2 x 232 = 3 x 168, what 384 threads start with. (24 for the
#: producer spills.)
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232
#: Tokens of A that a group of tile rows should hold: they stay in L2 while B passes.
GROUP_ROWS = 2048
CLUSTERS = SPLITS = (1, 2)
EPILOGUES = ("store", "add", "swiglu")
OUTPUTS = ("f16", "f32")
#: (tile_m, stages) that `choose` picks from: as many stages as leave two buffers for the epilogue.
TILES = (
    (256, 4), (240, 4), (224, 4), (192, 4), (160, 5), (144, 5), (128, 6), (112, 6), (96, 6), (64, 8),
)  # fmt: skip


@dataclass(frozen=True)
class GemmHopperConfig:
    """Tile of 128 tokens x `tile_m` rows of B, `stages` k-tiles of 64 in flight, clusters of 1 or 2 blocks
    along nt (an H200 holds 30 clusters of 4: 120 of its 132 multiprocessors); C as `out`, by an epilogue.
    `pdl`: a programmatic dependent launch, which loads its first tiles of B (weights, which no kernel before
    it may write) while the kernel before it ends. `split` 2: two blocks share a tile, each sums half of the
    depth, and they exchange halves of their sums: for products of less than a wave of tiles."""

    tile_m: int = 256
    stages: int = 4
    cluster: int = 1
    out: str = "f16"
    epilogue: str = "store"
    pdl: bool = False
    split: int = 1

    tile_n = 64 * CONSUMERS
    tile_k = BOX_COLUMNS
    threads = 128 * (CONSUMERS + 1)

    def __post_init__(self):
        require_integers("gemm_hopper", self, "tile_m", "stages", "cluster", "split")
        for name, value, allowed in (
            ("cluster", self.cluster, CLUSTERS),
            ("split", self.split, SPLITS),
            ("out", self.out, OUTPUTS),
            ("epilogue", self.epilogue, EPILOGUES),
        ):
            if value not in allowed:
                raise ConfigRefused(
                    f"gemm_hopper: {name} = {value!r} is not one of {', '.join(map(str, allowed))}"
                )
        if self.epilogue == "add" and self.out != "f32":
            raise ConfigRefused("gemm_hopper: add is for f32 results: rounding every sum to f16 loses them")
        if self.split > 1 and (self.cluster > 1 or self.epilogue == "swiglu"):
            raise ConfigRefused(
                f"gemm_hopper: split = {self.split} with clusters of {self.cluster}, {self.epilogue}: two "
                "blocks that share a tile are a cluster of their own, and store or add"
            )
        # Every load brings whole groups of 8 rows of B; a warp's part of C fills a chunk.
        granule = 8 * max(self.loads, self.split)
        least = chunk_columns(self.out) * (self.tile_m // self.store_m)
        if self.tile_m % granule or not least <= self.tile_m <= 256:
            raise ConfigRefused(
                f"gemm_hopper: tile_m = {self.tile_m}: must be a multiple of {granule} from {least} to 256 "
                f"({self.epilogue}, clusters of {self.cluster}, split {self.split})"
            )
        if self.stages < 2:
            raise ConfigRefused(f"gemm_hopper: {self.stages} stages: to copy ahead of computing takes 2")
        if self.store_buffers < 1:
            raise ConfigRefused(
                f"gemm_hopper: {self.stages} stages of {self.stage_bytes} bytes leave no room for "
                f"the epilogue's {WARPS * BUFFER_BYTES} bytes in {MAX_SHARED_BYTES} of shared memory: "
                "use fewer stages"
            )

    def __str__(self) -> str:
        text = f"{self.tile_n}x{self.tile_m}x{self.tile_k} {self.stages} stages"
        if self.cluster > 1:
            text += f" clusters of {self.cluster}"
        if self.epilogue != "store":
            text += f" {self.epilogue}"
        if self.split > 1:
            text += f" split {self.split}"
        if self.pdl:
            text += " pdl"
        return text + (f" -> {self.out}" if self.out != "f16" else "")

    @property
    def out_m(self) -> int:
        """Columns of C in a tile."""
        return self.tile_m // 2 if self.epilogue == "swiglu" else self.tile_m

    @property
    def store_m(self) -> int:
        """Columns of C that a block stores of a tile."""
        return self.out_m // self.split

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster * self.split

    @property
    def loads(self) -> int:
        """TMA loads that bring a tile of B: one a block of the cluster, with swiglu at least one a matrix."""
        return max(self.cluster, 2 if self.epilogue == "swiglu" else 1)

    @cached_property
    def ring(self) -> MbarrierRing:
        return MbarrierRing(self.stages, CONSUMERS * self.cluster)

    @property
    def a_bytes(self) -> int:
        """A's part of a stage."""
        return self.tile_n * self.tile_k * 2

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage; also what a block receives a k-tile."""
        return self.a_bytes + self.tile_m * self.tile_k * 2

    @property
    def store_buffers(self) -> int:
        """Buffers of a chunk that a warp has for its part of C: what fits, at most all of its columns."""
        left = MAX_SHARED_BYTES - ALIGNMENT - 16 * self.stages - self.stages * self.stage_bytes
        chunks = len(chunk_starts(self.store_m, chunk_columns(self.out)))
        return min(chunks, left // (WARPS * BUFFER_BYTES))

    @property
    def barriers_start(self) -> int:
        """Where the mbarriers lie: behind the ring and the store buffers."""
        return self.stages * self.stage_bytes + WARPS * self.store_buffers * BUFFER_BYTES

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block, with room to align its start to 1024 bytes."""
        return self.barriers_start + self.ring.size_bytes + ALIGNMENT

    @property
    def boxes(self) -> dict[str, tuple[int, int]]:
        """Argument -> (rows, columns) of its tensor map's boxes; all have the 128-byte swizzle."""
        return {
            "a": (self.tile_n, BOX_COLUMNS),
            "b": (self.tile_m // self.loads, BOX_COLUMNS),
            "c": (16, chunk_columns(self.out)),
        }

    def check(self, nt: int, od: int, depth: int) -> None:
        """Refuse (ConfigRefused) a product that this kernel cannot compute."""
        if min(nt, od, depth) < 1 or od % 8 or depth % 8:
            raise ConfigRefused(
                f"gemm_hopper: {nt} x {od} x {depth}: sizes from 1; od and id multiples of 8 (TMA moves "
                "rows of whole 16 bytes)"
            )

    def tiles(self, nt: int, od: int) -> tuple[int, int]:
        """(rows, columns) of tiles; a row of tiles is one of clusters."""
        return -(-nt // (self.tile_n * self.cluster)), -(-od // self.out_m)

    def grid(self, nt: int, od: int, multiprocessors: int) -> tuple[int, int, int]:
        """Blocks of a persistent launch: one a multiprocessor, at most one a tile; with `split` all tiles'
        blocks."""
        rows, columns = self.tiles(nt, od)
        if self.split > 1:
            return self.split * rows * columns, 1, 1
        return self.cluster * min(multiprocessors // self.cluster, rows * columns), 1, 1

    def group(self, nt: int, od: int) -> int:
        """Tile rows a group of the schedule: about 2048 tokens."""
        rows, _ = self.tiles(nt, od)
        return -(-rows // max(1, round(nt / GROUP_ROWS)))


def choose(
    nt: int, od: int, depth: int, multiprocessors: int = 132, out: str = "f16", epilogue: str = "store"
) -> GemmHopperConfig:
    """The config with the fewest tensor-core cycles over whole waves of blocks, for an nt x od x depth
    product.

    A k-tile costs its wgmmas (4096 FLOP a cycle) or its bytes from L2 (56 a cycle), a tile about 1500 cycles
    outside its main loop (measured on an H200). Clusters pay from four waves on.

    What cycles do not say: an H200 is at its power limit within the first millisecond, where a schedule of
    fewer cycles gets a lower clock. That is why neither `pdl` nor `split` is chosen: 5 % fewer cycles with
    `pdl` at 512 tokens took the same time, and an exchange of sums costs as much as wider tiles save."""
    halves = 2 if epilogue == "swiglu" else 1
    tiles = [tile for tile in TILES if tile[0] >= 128] if epilogue == "swiglu" else TILES

    def waves(tile_m: int) -> int:
        return -(-(-(-nt // 128) * -(-od * halves // tile_m)) // multiprocessors)

    def cost(tile_m: int) -> float:
        step = max(4 * tile_m, (128 + tile_m) * 128 / 56)
        return waves(tile_m) * (-(-depth // 64) * step + 1500)

    tile_m, stages = min(tiles, key=lambda tile: cost(tile[0]))
    paired = waves(tile_m) >= 4 and -(-nt // 128) % 2 == 0 and multiprocessors % 2 == 0
    return GemmHopperConfig(tile_m, stages, 2 if paired else 1, out, epilogue)
