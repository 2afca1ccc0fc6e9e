"""Tensor cores alone: products of tiles that stay in shared memory, the speed that no GEMM can pass at the
power that the card allows (`minfer ceilings`).

A block a multiprocessor fills its shared memory once, then only multiplies: no copies, no barriers. Both
operands are read from shared memory, each time another pair of tiles, and each sum starts anew after as
many k-tiles as a GEMM's would: operands and sums toggle as there. That counts, as the wall is power and not
cycles. On an H200 (sustained, 691 W): wgmma on random f16 804 TFLOPS at 1499 MHz, 99 percent of what so many
cycles allow (0.86 pJ a FLOP; tiles of 256 x 224 the same within a percent), int8 1832 TOPS at 1707 MHz
(0.38), mma.sync 513 TFLOPS (58 percent of the cycles, 1.35). On zeros 871 TFLOPS at 245 W.

A first form loaded operands one chunk after the other and stored single sums: 100 us of a launch of 1.5 ms,
now about 50 with a launch from the host.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.checks import check_choice, check_types, check_whole
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.kernel import MAX_SHARED_BYTES, Argument, ConfigRefused, Kernel
from minfer.cuda.tile.fragments import fill_fragment, load_matrix_sync, mma_sync
from minfer.cuda.tile.hopper import ALIGNMENT
from minfer.cuda.tile.maps import Fragment
from minfer.cuda.tile.shared import SharedTile

INSTRUCTIONS = ("wgmma", "mma.sync")
ROW_BYTES = 128
"""Of a k-tile: what wgmma's widest swizzle spans."""
THREADS = 256
MOST_SUMS = 224
"""Accumulators of a thread that 255 registers hold beside what a loop needs."""
DTYPES = {"f16": ("float16", "float32", 64), "s8": ("int8", "int32", 128)}
"""Operands -> NumPy's name of them and of the sums; columns of a k-tile."""


@dataclass(frozen=True)
class ResidentConfig:
    """A tile of `tile_n` x `tile_m` sums by 8 warps, and `stages` k-tiles of each operand.

    Attributes:
        instruction: "wgmma" (two warpgroups, each half of the rows) or "mma.sync" (warps of 64 x 64, with
            fragments by ldmatrix). dtype: "f16" or "s8".
    """

    tile_n: int = 128
    tile_m: int = 256
    stages: int = 4
    dtype: str = "f16"
    instruction: str = "wgmma"

    def __post_init__(self) -> None:
        check_types("resident", self)
        check_choice("resident", "instruction", self.instruction, INSTRUCTIONS)
        check_choice("resident", "dtype", self.dtype, tuple(DTYPES))
        check_choice("resident", "tile_n", self.tile_n, (128, 256))
        check_whole("resident: tile_m", self.tile_m, 16, 256)
        check_whole("resident: stages", self.stages, 2)
        warps = self.instruction == "mma.sync"
        if self.tile_m % 16 or (warps and (self.tile_n, self.tile_m) != (128, 256)):
            raise ConfigRefused(
                f"resident: a tile of {self.tile_n} x {self.tile_m} by {self.instruction}: tile_m must be a "
                "multiple of 16, and 8 warps of 64 x 64 are 128 x 256"
            )
        if self.sums > MOST_SUMS:
            raise ConfigRefused(
                f"resident: a tile of {self.tile_n} x {self.tile_m} is {self.sums} sums a thread, registers "
                f"hold {MOST_SUMS}: take a smaller tile"
            )
        if self.shared_bytes > MAX_SHARED_BYTES:
            raise ConfigRefused(
                f"resident: {self.stages} stages take {self.shared_bytes} bytes of shared memory of "
                f"{MAX_SHARED_BYTES}: take fewer"
            )

    def __str__(self) -> str:
        return f"{self.instruction} {self.dtype} {self.tile_n}x{self.tile_m} {self.stages} stages"

    @property
    def tile_k(self) -> int:
        """Columns of a k-tile."""
        return DTYPES[self.dtype][2]

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.tile_n * self.tile_m // THREADS

    @property
    def shared_bytes(self) -> int:
        """With room to align the tiles."""
        return self.stages * (self.tile_n + self.tile_m) * ROW_BYTES + ALIGNMENT

    def grid(self, sms: int) -> tuple[int, int, int]:
        """A block a multiprocessor."""
        check_whole("resident: multiprocessors", sms, 1)
        return (sms, 1, 1)

    def shapes(self, blocks: int) -> dict[str, tuple[int, int, int]]:
        """Of the arguments a, b and c, for a grid of so many blocks."""
        operands = {"a": self.tile_n, "b": self.tile_m}
        found = {name: (self.stages, rows, self.tile_k) for name, rows in operands.items()}
        return found | {"c": (blocks, self.tile_n, self.tile_m)}

    def operations(self, blocks: int, tiles: int, k_tiles: int) -> float:
        """Multiplications and additions of a launch."""
        return 2.0 * blocks * tiles * k_tiles * self.tile_n * self.tile_m * self.tile_k


def resident(config: ResidentConfig = ResidentConfig()) -> Kernel:
    """c[block] = sum over k < k_tiles of a[k % stages] b[(k + k // stages) % stages]^T, `tiles` times over.

    Arguments: a [stages, tile_n, tile_k], b [stages, tile_m, tile_k] of f16 or int8 (16-byte aligned), c
    [blocks, tile_n, tile_m] of f32 or int32, tiles and k_tiles int32, at least 1.
    """
    tile_n, tile_m, stages = config.tile_n, config.tile_m, config.stages
    a_bytes, b_bytes = tile_n * ROW_BYTES, tile_m * ROW_BYTES
    chunks, a_chunks = stages * (a_bytes + b_bytes) // 16, stages * a_bytes // 16
    at = SharedTile(tile_n, ROW_BYTES, swizzle=ROW_BYTES).address
    operand, result, _ = DTYPES[config.dtype]
    sum_count, sum_type = config.sums, getattr(types, result)
    if config.instruction == "wgmma":
        (begin, proceed), rows_apart, columns = _by_warpgroups(config), 64, tile_m
        finish, alone = ptx.wgmma_wait(0, sum_count, "f32" if config.dtype == "f16" else "s32"), True
    else:
        (begin, proceed), rows_apart, columns = _by_warps(config), 16, 64
        finish, alone = None, False
    store_pair = ptx.st_global_v2_f32 if config.dtype == "f16" else ptx.st_global_v2_u32
    loaded = ptx.cp_async_wait_group(0)
    n_fragments, m_fragments = sum_count * 2 // columns, columns // 16

    @device_function
    def load(a, b, base, thread):
        """Both operands to shared memory, swizzled: all on their way at once."""
        chunk = types.int32(thread)
        while chunk < chunks:
            source = a + types.uint64(chunk) * types.uint64(16)
            if chunk >= a_chunks:
                source = b + types.uint64(chunk - a_chunks) * types.uint64(16)
            ptx.cp_async_cg_16(base + at(chunk >> 3, (chunk & 7) << 4), source, 16)
            chunk += types.int32(THREADS)
        ptx.cp_async_commit()
        loaded()

    @device_function
    @unrolled
    def store(sums, target):
        """A warp's fragments of 16 x 16, two neighbours at a time."""
        for i in unroll(n_fragments):
            for j in unroll(m_fragments):
                for e in unroll(4):
                    row, column = rows_apart * i + 8 * (e % 2), 16 * j + 8 * (e // 2)
                    o = 8 * (i * m_fragments + j) + 2 * e
                    store_pair(target + types.uint64((row * tile_m + column) * 4), sums[o], sums[o + 1])

    def resident_products(a, b, c, tiles, k_tiles):
        start = ptx.shared_address(cuda.shared.array(0, dtype=types.uint8))
        base = types.uint32((start + (ALIGNMENT - 1)) & (0x100000000 - ALIGNMENT))
        thread = cuda.threadIdx.x
        warp, lane = ptx.uniform(thread >> 5), thread & 31
        load(ptx.global_address(a), ptx.global_address(b), base, thread)
        if alone:
            ptx.fence_proxy_async()
        cuda.syncthreads()
        sums = cuda.local.array(sum_count, dtype=sum_type)
        b_base = types.uint32(base + stages * a_bytes)
        begin(sums, base, b_base, warp, tiles)
        i, j, k = types.uint32(1), types.uint32(1), types.int32(1)
        left = types.int32(tiles * k_tiles - 1)
        while left > 0:
            if k == k_tiles:
                i, j, k = types.uint32(0), types.uint32(0), types.int32(0)
            proceed(
                sums, types.uint32(base + i * a_bytes), types.uint32(b_base + j * b_bytes), warp, k, tiles
            )
            wraps = types.uint32(i == stages - 1)
            i = ptx.select_u32(wraps, 0, i + 1)
            j = types.uint32(j + 1 + wraps)
            j = ptx.select_u32(types.uint32(j >= stages), j - stages, j)
            k, left = types.int32(k + 1), types.int32(left - 1)
        if alone:
            finish(sums)
            row, column = (warp >> 2) * (tile_n // 2) + (warp & 3) * 16, 0
        else:
            row, column = (warp >> 2) * 64, (warp & 3) * 64
        row, column = row + (lane >> 2), column + (lane & 3) * 2
        first = types.int32((cuda.blockIdx.x * tile_n + row) * tile_m + column)
        store(sums, ptx.global_address(c) + types.uint64(first) * types.uint64(4))

    arguments = (
        Argument("a", "in", operand, align=16),
        Argument("b", "in", operand, align=16),
        Argument("c", "out", result),
        Argument("tiles", "scalar", "int32"),
        Argument("k_tiles", "scalar", "int32"),
    )
    return Kernel(
        "resident",
        config,
        resident_products,
        THREADS,
        config.shared_bytes,
        arguments,
        min_arch=90 if alone else 80,
        arch_specific=alone,
        min_blocks=1,
    )


def _by_warpgroups(config: ResidentConfig):
    """The very first k-tile by wgmma: (sums, a, b, warp, size), and another one: (sums, a, b, warp, k, size);
    k = 0 overwrites the sums."""
    shape = {"row_blocks": config.tile_n // 128, "high": "operand"}
    first = ptx.wgmma(config.tile_m, config.dtype, accumulate=False, **shape)
    multiply = ptx.wgmma(config.tile_m, config.dtype, accumulate="operand", wait=1, **shape)
    high_word, descriptor = ptx.wgmma_high_word(), ptx.wgmma_descriptor
    half = config.tile_n // 2 * ROW_BYTES

    @device_function
    def operands(a, b, warp, size):
        # A size has no sign, which the assembler does not know: it keeps the word in a register.
        high = types.uint32(high_word | (size >> 31))
        return descriptor(a + types.uint32(warp >> 2) * half, 16), descriptor(b, 16), high

    @device_function
    def begin(sums, a, b, warp, size):
        left, right, high = operands(a, b, warp, size)
        first(sums, left, right, high, high)

    @device_function
    def proceed(sums, a, b, warp, k, size):
        left, right, high = operands(a, b, warp, size)
        multiply(sums, left, right, types.uint32(k != 0), high, high)

    return begin, proceed


def _by_warps(config: ResidentConfig):
    """K-tiles by mma.sync, of a warp's 64 x 64: as `_by_warpgroups`."""
    tile_n, dtype, sum_count = config.tile_n, config.dtype, config.sums
    tile = SharedTile(tile_n, ROW_BYTES, swizzle=ROW_BYTES)
    load_a = load_matrix_sync(Fragment("matrix_a", dtype, "row_major"), tile)
    load_b = load_matrix_sync(Fragment("matrix_b", dtype, "col_major"), tile)
    multiply, fill = mma_sync(dtype), fill_fragment(sum_count // 8)
    zero = getattr(types, DTYPES[dtype][1])(0)

    @device_function
    @unrolled
    def column(sums, a_registers, b_registers, b, row, byte, j):
        load_b(b_registers, 0, b, row + 16 * j, byte)
        for i in unroll(4):
            multiply(sums, 8 * (4 * i + j), a_registers, 4 * i, b_registers, 0)

    @device_function
    @unrolled
    def proceed(sums, a, b, warp, k, size):
        a_registers = cuda.local.array(16, dtype=types.uint32)
        b_registers = cuda.local.array(4, dtype=types.uint32)
        if k == 0:
            fill(sums, zero)
        for part in unroll(4):
            for i in unroll(4):
                load_a(a_registers, 4 * i, a, (warp >> 2) * 64 + 16 * i, 32 * part)
            for j in unroll(4):
                column(sums, a_registers, b_registers, b, (warp & 3) * 64, 32 * part, j)

    @device_function
    def begin(sums, a, b, warp, size):
        proceed(sums, a, b, warp, types.int32(0), size)

    return begin, proceed


KERNELS = ("resident",)


def shipped() -> list[Kernel]:
    """What is measured: the tiles of the largest products by wgmma, and mma.sync."""
    wide = (ResidentConfig(), ResidentConfig(256, 224, 3))
    whole = (ResidentConfig(dtype="s8"), ResidentConfig(256, 224, 3, "s8"))
    return [resident(config) for config in (*wide, *whole, ResidentConfig(stages=2, instruction="mma.sync"))]
