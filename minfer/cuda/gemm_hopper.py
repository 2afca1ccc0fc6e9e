"""C[nt, od] = A[nt, id] B[od, id]^T on Hopper: wgmma, TMA, persistent warp-specialised blocks; f16 in and
out, f32 sums.

Warpgroup 0 of a block is the producer: one thread issues TMA loads of k-tiles of 64 into a ring of stages.
Warpgroups 1 and 2 are consumers of 64 rows x `tile_m` columns each; they write their f16 tile through shared
memory with TMA stores that drain under the next tile's main loop. One block a multiprocessor takes tile after
tile.

- The tile is chosen for each problem so that its count fills whole waves of multiprocessors (`choose`).
- A cluster of two blocks shares one tile of B: each loads half of it, by multicast to both.
- What is the same in a whole warp goes through `ptx.uniform`, so that descriptors live in uniform registers.
- The ring's mbarriers are used without cluster scope (each such release or acquire is a fence of the whole
  GPU), and a consumer releases a stage one k-tile late, when its wgmmas have certainly read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

from minfer.cuda.gemm import MAX_SHARED_BYTES
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel
from minfer.cuda.tile.hopper import ALIGNMENT, BOX_COLUMNS, BUFFER_BYTES, MbarrierRing, chunk_starts

CONSUMERS = 2
WARPS = 4 * CONSUMERS
#: Registers a thread after setmaxnreg: 40 + 2 x 232 = 3 x 168, what 384 threads start with. (24 for the
#: producer spills.)
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232
#: Tokens of A that a group of tile rows should hold: they stay in L2 while B passes.
GROUP_ROWS = 2048


@dataclass(frozen=True)
class GemmHopperConfig:
    """Tile of 128 tokens x `tile_m` outputs, `stages` k-tiles of 64 in flight, clusters of 1 or 2 blocks
    along nt."""

    tile_m: int = 256
    stages: int = 4
    cluster: int = 1

    tile_n = 64 * CONSUMERS
    tile_k = BOX_COLUMNS
    threads = 128 * (CONSUMERS + 1)

    def __post_init__(self):
        if self.tile_m % 16 or not 64 <= self.tile_m <= 256:
            raise ConfigRefused(
                f"gemm_hopper: tile_m = {self.tile_m}: must be a multiple of 16 from 64 to 256"
            )
        if self.cluster not in (1, 2) or self.tile_m // self.cluster % 8:
            raise ConfigRefused(
                f"gemm_hopper: clusters of {self.cluster}: 1, or 2 with a tile_m that is 16 n"
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
        return text + (f" clusters of {self.cluster}" if self.cluster > 1 else "")

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
        """Buffers of 64 columns that a warp has for its part of C: what fits, at most all of its columns."""
        left = MAX_SHARED_BYTES - ALIGNMENT - 16 * self.stages - self.stages * self.stage_bytes
        return min(len(chunk_starts(self.tile_m)), left // (WARPS * BUFFER_BYTES))

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
            "b": (self.tile_m // self.cluster, BOX_COLUMNS),
            "c": (16, BOX_COLUMNS),
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
        return -(-nt // (self.tile_n * self.cluster)), -(-od // self.tile_m)

    def grid(self, nt: int, od: int, multiprocessors: int) -> tuple[int, int, int]:
        """Blocks of a persistent launch: one a multiprocessor, at most one a tile."""
        rows, columns = self.tiles(nt, od)
        return self.cluster * min(multiprocessors // self.cluster, rows * columns), 1, 1

    def group(self, nt: int, od: int) -> int:
        """Tile rows a group of the schedule: about 2048 tokens."""
        rows, _ = self.tiles(nt, od)
        return -(-rows // max(1, round(nt / GROUP_ROWS)))


def choose(nt: int, od: int, depth: int, multiprocessors: int = 132) -> GemmHopperConfig:
    """The config with the fewest tensor-core cycles over whole waves of blocks, for an nt x od x depth
    product.

    A k-tile costs its wgmmas (4096 FLOP a cycle) or its bytes from L2 (56 a cycle), a tile about 1500 cycles
    outside its main loop (measured on an H200). Clusters pay from four waves on."""

    def cost(tile_m: int) -> float:
        waves = -(-(-(-nt // 128) * -(-od // tile_m)) // multiprocessors)
        step = max(4 * tile_m, (128 + tile_m) * 128 / 56)
        return waves * (-(-depth // 64) * step + 1500)

    tile_m, stages = min(((256, 4), (224, 4), (192, 4), (160, 5), (128, 6)), key=lambda tile: cost(tile[0]))
    waves = -(-(-(-nt // 128) * -(-od // tile_m)) // multiprocessors)
    paired = waves >= 4 and -(-nt // 128) % 2 == 0 and multiprocessors % 2 == 0
    return GemmHopperConfig(tile_m, stages, 2 if paired else 1)


@cache
def make_gemm_hopper(config: GemmHopperConfig) -> Kernel:
    """The kernel of a config: (a, b, c, nt, od, depth, group).

    a, b, c are tensor maps (`config.boxes`, 128-byte swizzle) of A [nt, depth], B [od, depth] and C [nt, od],
    f16 row-major, od and depth multiples of 8; the sizes are int32; group is `config.group(nt, od)`. The grid
    is `config.grid`. Every element of C is written."""
    from numba import cuda
    from numba.cuda import types

    from minfer.cuda import ptx
    from minfer.cuda.instruction import device_function
    from minfer.cuda.tile.hopper import store_tile
    from minfer.cuda.tile.scheduler import tile_xy

    tile_n, tile_m, tile_k, cluster = config.tile_n, config.tile_m, config.tile_k, config.cluster
    stages, stage_bytes, a_bytes = config.stages, config.stage_bytes, config.a_bytes
    barriers_start, ring_bytes = config.barriers_start, config.stages * config.stage_bytes
    # 64 rows of A for each consumer; the rows of B that each block of a cluster loads for all.
    consumer_bytes, b_share = 64 * tile_k * 2, tile_m // cluster
    share_bytes, everyone = b_share * tile_k * 2, (1 << cluster) - 1
    store_bytes, accumulators = config.store_buffers * BUFFER_BYTES, tile_m // 2
    initialise, advance = config.ring.initialise, config.ring.advance
    fewer, more = ptx.setmaxnreg("dec", PRODUCER_REGISTERS), ptx.setmaxnreg("inc", CONSUMER_REGISTERS)
    # The first k-tile overwrites the sums; afterwards at most this stage's group is in flight.
    multiply = ptx.wgmma(tile_m, k_steps=tile_k // 16, accumulate="operand", wait=1)
    wait_sums = ptx.wgmma_wait(0, accumulators)
    store, wait_stores = store_tile(tile_m, config.store_buffers), ptx.bulk_wait_group_read(0)
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
    def produce(a_map, b_map, base, barriers, rank, tile, step, rows, columns, k_tiles, group):
        stage, parity = types.uint32(0), types.uint32(1)
        while tile < rows * columns:
            row, column = tile_xy(tile, rows, columns, group)
            a_row = types.int32((row * cluster + rank) * tile_n)
            b_row = types.int32(column * tile_m + rank * b_share)
            k = types.int32(0)
            while k < k_tiles:
                full, place = barriers + 8 * stage, base + stage * stage_bytes
                ptx.mbarrier_wait(full + 8 * stages, parity)
                ptx.mbarrier_arrive_expect_tx(full, stage_bytes)
                ptx.tma_load_2d(place, a_map, full, k * tile_k, a_row)
                b_place = place + a_bytes + rank * share_bytes
                if cluster > 1:
                    ptx.tma_load_2d_multicast(b_place, b_map, full, k * tile_k, b_row, everyone)
                else:
                    ptx.tma_load_2d(b_place, b_map, full, k * tile_k, b_row)
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
            first_row = (row * cluster + rank) * tile_n + consumer * 64 + warp * 16
            store(sums, c_map, buffer, first_row, column * tile_m, lane)
            tile = types.int32(tile + step)
        if lane == 0:
            wait_stores()

    def gemm_hopper(a, b, c, nt, od, depth, group):
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
        columns = types.int32((od + (tile_m - 1)) // tile_m)
        k_tiles = types.int32((depth + (tile_k - 1)) // tile_k)
        tile, step = types.int32(cuda.blockIdx.x // cluster), types.int32(cuda.gridDim.x // cluster)
        if warpgroup == 0:
            fewer()
            if thread == 0:
                produce(a_map, b_map, base, barriers, rank, tile, step, rows, columns, k_tiles, group)
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
            Argument("c", "tensor_map", "float16", stored=True),
            *(Argument(name, "scalar", "int32") for name in ("nt", "od", "depth", "group")),
        ),
        min_arch=90,
        arch_specific=True,
        min_blocks=1,
        cluster=cluster,
    )


def shipped() -> list[Kernel]:
    """Every tile that `choose` may pick, alone and in clusters."""
    tiles = ((256, 4), (224, 4), (192, 4), (160, 5), (128, 6))
    return [make_gemm_hopper(GemmHopperConfig(*tile, cluster)) for tile in tiles for cluster in (1, 2)]
