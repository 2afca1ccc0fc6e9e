"""C[nt, od] = A[nt, id] B[od, id]^T on Hopper: wgmma, TMA, persistent warp-specialised blocks; f16 operands,
f32 sums, f16 or f32 results.

Warpgroup 0 of a block is the producer: one thread issues TMA loads of k-tiles of 64 into a ring of stages.
Warpgroups 1 and 2 are consumers of 64 rows x `tile_m` columns each; they write their tile through shared
memory with TMA stores that drain under the next tile's main loop. One block a multiprocessor takes tile after
tile. What is done to a tile on its way out is the epilogue: nothing ("store"), the sum with what C holds
("add": the residual stream, in L2 by TMA), or the activation of a gated feed-forward ("swiglu": B is the gate
and the up matrix one above the other, and a tile takes half of its rows from each, so that both values of an
output are in one thread).

- The tile is chosen for each problem so that its count fills whole waves of multiprocessors (`choose`).
- The blocks of a cluster share one tile of B: each loads its part of it, by multicast to all.
- What is the same in a whole warp goes through `ptx.uniform`, so that descriptors live in uniform registers.
- The ring's mbarriers are used without cluster scope (each such release or acquire is a fence of the whole
  GPU), and a consumer releases a stage one k-tile late, when its wgmmas have certainly read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

from minfer.cuda.kernel import MAX_SHARED_BYTES, Argument, ConfigRefused, Kernel, require_integers
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
CLUSTERS = (1, 2)
EPILOGUES = ("store", "add", "swiglu")
OUTPUTS = ("f16", "f32")
#: (tile_m, stages) that `choose` picks from: as many stages as leave two buffers for the epilogue.
TILES = ((256, 4), (240, 4), (224, 4), (192, 4), (160, 5), (144, 5), (128, 6), (112, 6))


@dataclass(frozen=True)
class GemmHopperConfig:
    """Tile of 128 tokens x `tile_m` rows of B, `stages` k-tiles of 64 in flight, clusters of 1 or 2 blocks
    along nt (an H200 holds 30 clusters of 4: 120 of its 132 multiprocessors); C as `out`, by an epilogue.
    `pdl`: a programmatic dependent launch, which loads its first tiles of B (weights, which no kernel before
    it may write) while the kernel before it ends."""

    tile_m: int = 256
    stages: int = 4
    cluster: int = 1
    out: str = "f16"
    epilogue: str = "store"
    pdl: bool = False

    tile_n = 64 * CONSUMERS
    tile_k = BOX_COLUMNS
    threads = 128 * (CONSUMERS + 1)

    def __post_init__(self):
        require_integers("gemm_hopper", self, "tile_m", "stages", "cluster")
        for name, value, allowed in (
            ("cluster", self.cluster, CLUSTERS),
            ("out", self.out, OUTPUTS),
            ("epilogue", self.epilogue, EPILOGUES),
        ):
            if value not in allowed:
                raise ConfigRefused(
                    f"gemm_hopper: {name} = {value!r} is not one of {', '.join(map(str, allowed))}"
                )
        if self.epilogue == "add" and self.out != "f32":
            raise ConfigRefused("gemm_hopper: add is for f32 results: rounding every sum to f16 loses them")
        # Every load brings whole groups of 8 rows of B; a warp's part of C fills a chunk.
        granule, least = 8 * self.loads, chunk_columns(self.out) * (self.tile_m // self.out_m)
        if self.tile_m % granule or not least <= self.tile_m <= 256:
            raise ConfigRefused(
                f"gemm_hopper: tile_m = {self.tile_m}: must be a multiple of {granule} from {least} to 256 "
                f"({self.epilogue}, clusters of {self.cluster})"
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
        if self.pdl:
            text += " pdl"
        return text + (f" -> {self.out}" if self.out != "f16" else "")

    @property
    def out_m(self) -> int:
        """Columns of C in a tile."""
        return self.tile_m // 2 if self.epilogue == "swiglu" else self.tile_m

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
        chunks = len(chunk_starts(self.out_m, chunk_columns(self.out)))
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
        """Blocks of a persistent launch: one a multiprocessor, at most one a tile."""
        rows, columns = self.tiles(nt, od)
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
    outside its main loop (measured on an H200). Clusters pay from four waves on."""
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


@cache
def make_gemm_hopper(config: GemmHopperConfig) -> Kernel:
    """The kernel of a config: (a, b, c, nt, od, depth, group).

    a, b, c are tensor maps (`config.boxes`, 128-byte swizzle) of A [nt, depth] and B [od, depth], f16
    row-major, and C [nt, od] of `config.out`, od and depth multiples of 8; the sizes are int32; group is
    `config.group(nt, od)`. The grid is `config.grid`. Every element of C is written; with epilogue "add" C
    += A B^T, each element rounded once. With "swiglu" B is [2 od, depth]: the gate's rows, then the up
    matrix's, and C = silu(gate) * up."""
    from numba import cuda
    from numba.cuda import types

    from minfer.cuda import ptx
    from minfer.cuda.instruction import device_function
    from minfer.cuda.tile.activation import gate_columns
    from minfer.cuda.tile.hopper import store_tile
    from minfer.cuda.tile.scheduler import tile_xy

    tile_n, tile_m, tile_k, cluster = config.tile_n, config.tile_m, config.tile_k, config.cluster
    stages, stage_bytes, a_bytes = config.stages, config.stage_bytes, config.a_bytes
    barriers_start, ring_bytes = config.barriers_start, config.stages * config.stage_bytes
    out_m, loads, gated, pdl = config.out_m, config.loads, config.epilogue == "swiglu", config.pdl
    # 64 rows of A for each consumer; the rows of B of one load.
    consumer_bytes, b_share = 64 * tile_k * 2, tile_m // loads
    share_bytes, everyone = b_share * tile_k * 2, (1 << cluster) - 1
    # Loads of the gate's rows, before those of the up matrix; loads of this block.
    gate_loads, own_loads = loads // 2, loads // cluster
    store_bytes, accumulators = config.store_buffers * BUFFER_BYTES, tile_m // 2
    initialise, advance = config.ring.initialise, config.ring.advance
    fewer, more = ptx.setmaxnreg("dec", PRODUCER_REGISTERS), ptx.setmaxnreg("inc", CONSUMER_REGISTERS)
    # The first k-tile overwrites the sums; afterwards at most this stage's group is in flight.
    multiply = ptx.wgmma(tile_m, k_steps=tile_k // 16, accumulate="operand", wait=1)
    wait_sums = ptx.wgmma_wait(0, accumulators)
    store = store_tile(out_m, config.store_buffers, config.out, config.epilogue == "add")
    wait_stores, activate = ptx.bulk_wait_group_read(0), gate_columns(accumulators // 2)
    descriptor = ptx.wgmma_descriptor

    @device_function
    def release(barrier, thread):
        """One arrival from a consumer at the mbarrier of each block of the cluster."""
        if cluster > 1:
            if thread < cluster:
                ptx.mbarrier_arrive_cluster(barrier, thread)
        else:
            ptx.mbarrier_arrive_if(barrier, thread == 0)

    @device_function
    def first_b(column, load, od):
        """First row of B of a tile's load."""
        row = types.int32(column * out_m + load * b_share)
        if gated:
            # Past the gate's loads come those of the up matrix, `od` rows further on.
            up = load >= gate_loads
            row = types.int32(column * out_m + (load - gate_loads * up) * b_share + od * up)
        return row

    @device_function
    def load_b(b_map, place, full, k, b_row, rank, od):
        """A tile of B, or this block's part of it for the whole cluster."""
        b_place = place + a_bytes + rank * share_bytes
        if cluster > 1:
            ptx.tma_load_2d_multicast(b_place, b_map, full, k * tile_k, b_row, everyone)
        else:
            ptx.tma_load_2d(b_place, b_map, full, k * tile_k, b_row)
            if gated:
                ptx.tma_load_2d(b_place + share_bytes, b_map, full, k * tile_k, b_row + od)

    @device_function
    def load_ahead(b_map, base, barriers, rank, b_row, k_tiles, od):
        """The ring's first tiles of B, then wait for the kernel before; returns how many."""
        ahead = types.int32(min(k_tiles, types.int32(stages)))
        k = types.int32(0)
        while k < ahead:
            full = barriers + 8 * k
            ptx.mbarrier_arrive_expect_tx(full, stage_bytes)
            load_b(b_map, base + k * stage_bytes, full, k, b_row, rank, od)
            k = types.int32(k + 1)
        ptx.griddepcontrol_wait()
        return ahead

    @device_function
    def produce(a_map, b_map, base, barriers, rank, tile, step, rows, columns, k_tiles, group, od):
        stage, parity, ahead = types.uint32(0), types.uint32(1), types.int32(0)
        if pdl:
            _, column = tile_xy(tile, rows, columns, group)
            ahead = load_ahead(
                b_map, base, barriers, rank, first_b(column, rank * own_loads, od), k_tiles, od
            )
        while tile < rows * columns:
            row, column = tile_xy(tile, rows, columns, group)
            a_row = types.int32((row * cluster + rank) * tile_n)
            b_row = first_b(column, rank * own_loads, od)
            k = types.int32(0)
            while k < k_tiles:
                full, place = barriers + 8 * stage, base + stage * stage_bytes
                if ahead > 0:
                    ahead = types.int32(ahead - 1)
                    ptx.tma_load_2d(place, a_map, full, k * tile_k, a_row)
                else:
                    ptx.mbarrier_wait(full + 8 * stages, parity)
                    ptx.mbarrier_arrive_expect_tx(full, stage_bytes)
                    ptx.tma_load_2d(place, a_map, full, k * tile_k, a_row)
                    load_b(b_map, place, full, k, b_row, rank, od)
                stage, parity = advance(stage, parity)
                k = types.int32(k + 1)
            tile = types.int32(tile + step)

    @device_function
    def consume(c_map, base, barriers, rank, tile, step, rows, columns, k_tiles, group, consumer, thread):
        lane, warp = thread & 31, ptx.uniform(thread >> 5)
        sums = cuda.local.array(accumulators, dtype=types.float32)
        for i in range(accumulators):
            sums[i] = types.float32(0)
        a_start = descriptor(base + consumer * consumer_bytes, 16)
        b_start = descriptor(base + a_bytes, 16)
        buffer = types.uint32(base + ring_bytes + (consumer * 4 + warp) * store_bytes)
        stage, parity, previous = types.uint32(0), types.uint32(0), types.uint32(0)
        row, column = types.int32(0), types.int32(0)
        while tile < rows * columns:
            k = types.int32(0)
            while k < k_tiles:
                ptx.mbarrier_wait(barriers + 8 * stage, parity)
                offset = stage * (stage_bytes >> 4)
                multiply(sums, a_start + offset, b_start + offset, k)
                if k > 0:
                    release(barriers + 8 * (stages + previous), thread)
                else:
                    # Divisions that run under the tensor cores' work.
                    tile_row, tile_column = tile_xy(tile, rows, columns, group)
                    row, column = ptx.uniform(tile_row), ptx.uniform(tile_column)
                previous = stage
                stage, parity = advance(stage, parity)
                k = types.int32(k + 1)
            wait_sums(sums)
            release(barriers + 8 * (stages + previous), thread)
            if gated:
                activate(sums)
            first_row = (row * cluster + rank) * tile_n + consumer * 64 + warp * 16
            store(sums, c_map, buffer, first_row, column * out_m, lane)
            tile = types.int32(tile + step)
        if lane == 0:
            wait_stores()

    def gemm_hopper(a, b, c, nt, od, depth, group):
        if pdl:
            ptx.griddepcontrol_launch_dependents()
        start = ptx.shared_address(cuda.shared.array(0, dtype=types.uint8))
        base = types.uint32((start + (ALIGNMENT - 1)) & (0x100000000 - ALIGNMENT))
        barriers = types.uint32(base + barriers_start)
        a_map, b_map, c_map = ptx.tensor_map_address(a), ptx.tensor_map_address(b), ptx.tensor_map_address(c)
        thread = cuda.threadIdx.x
        warpgroup = ptx.uniform(thread >> 7)
        rank = types.int32(0)
        if cluster > 1:
            rank = types.int32(ptx.cluster_rank())
        if thread == 0:
            ptx.prefetch_tensor_map(a_map)
            ptx.prefetch_tensor_map(b_map)
            ptx.prefetch_tensor_map(c_map)
            initialise(barriers)
        if cluster > 1:
            ptx.cluster_sync()
        else:
            cuda.syncthreads()
        rows = types.int32((nt + (cluster * tile_n - 1)) // (cluster * tile_n))
        columns = types.int32((od + (out_m - 1)) // out_m)
        k_tiles = types.int32((depth + (tile_k - 1)) // tile_k)
        tile, step = types.int32(cuda.blockIdx.x // cluster), types.int32(cuda.gridDim.x // cluster)
        if warpgroup == 0:
            fewer()
            if thread == 0:
                produce(a_map, b_map, base, barriers, rank, tile, step, rows, columns, k_tiles, group, od)
        else:
            more()
            consumer, within = types.int32(warpgroup - 1), types.int32(thread & 127)
            consume(c_map, base, barriers, rank, tile, step, rows, columns, k_tiles, group, consumer, within)
        if cluster > 1:
            # No block leaves while a peer may still arrive at its mbarriers.
            ptx.cluster_sync()

    def signature():
        tensor_map = types.CPointer(types.uint8)
        return types.void(tensor_map, tensor_map, tensor_map, *([types.int32] * 4))

    return Kernel(
        name="gemm_hopper",
        config=config,
        function=gemm_hopper,
        signature=signature,
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=(
            Argument("a", "tensor_map", "float16"),
            Argument("b", "tensor_map", "float16"),
            Argument("c", "tensor_map", f"float{config.out[1:]}", stored=config.epilogue != "add"),
            *(Argument(name, "scalar", "int32") for name in ("nt", "od", "depth", "group")),
        ),
        min_arch=90,
        arch_specific=True,
        min_blocks=1,
        cluster=cluster,
    )


def shipped() -> list[Kernel]:
    """Every tile that `choose` may pick, alone; those of many waves also in clusters, and with the epilogues
    of a model's layers."""
    plain = [GemmHopperConfig(*tile) for tile in TILES]
    pairs = [GemmHopperConfig(*tile, 2) for tile in ((256, 4), (224, 4), (192, 4))]
    fused = [
        GemmHopperConfig(tile_m, stages, cluster, *form)
        for form in (("f32", "add"), ("f16", "swiglu"))
        for tile_m, stages, cluster in ((256, 4, 1), (256, 4, 2), (224, 4, 1), (192, 4, 1), (128, 6, 1))
    ]
    return [make_gemm_hopper(config) for config in (*plain, *pairs, *fused, GemmHopperConfig(pdl=True))]
