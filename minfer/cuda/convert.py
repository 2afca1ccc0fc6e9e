"""f32 -> f16 passes: activations before a GEMM, K and V rows into the cache.

Both exist in the form that seed 000 started from, one element a thread, and in the form that it landed
(P5.1): 8 elements a thread for the convert, 4 for the KV store, so that a warp moves the same bytes in 4 to
8 times fewer transactions. They are the campaign's baseline and variant.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import float32, int32, uint64

from minfer.cuda import ptx
from minfer.cuda.checks import blocks_for, check_threads, check_types
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel


@dataclass(frozen=True)
class ConvertConfig:
    """f32 -> f16 of a flat array.

    Attributes:
        vector: elements a thread, 1 or 8.
        threads: threads a block.
    """

    vector: int = 8
    threads: int = 256

    def __post_init__(self) -> None:
        check_types("convert", self)
        if self.vector not in (1, 8):
            raise ConfigRefused(f"convert: {self.vector} elements a thread; the variants are 1 and 8")
        check_threads("convert", self.threads)

    def __str__(self) -> str:
        return f"vector={self.vector} threads={self.threads}"

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, n: int) -> tuple[int, int, int]:
        """Blocks for n elements."""
        # The last block's indices are past n, and must not be past int32.
        return (blocks_for("convert: n", n, self.threads * self.vector, 2**31 - 2**13), 1, 1)


def convert_f32_f16(config: ConvertConfig = ConvertConfig()) -> Kernel:
    """out[i] = f16(x[i]), round to nearest even.

    Arguments: x f32 [n], out f16 [n], n int32 (at most 2^31 - 2^13). x 32-byte and out 16-byte aligned when
    vector is 8; any n: the last, partial run of 8 goes one by one. Seed 000, section 3.2,
    convert_f32_f16_kernel.
    """
    vector, threads = config.vector, config.threads

    def convert_scalar(x, out, n):
        i = int32(cuda.blockIdx.x * threads + cuda.threadIdx.x)
        if i < n:
            value = ptx.ld_global_nc_f32(ptx.global_address(x) + uint64(i) * uint64(4))
            half = ptx.pack_f16x2(value, float32(0))
            ptx.st_global_u16(ptx.global_address(out) + uint64(i) * uint64(2), half)

    def convert_vector(x, out, n):
        i = int32((cuda.blockIdx.x * threads + cuda.threadIdx.x) * 8)
        source = ptx.global_address(x) + uint64(i) * uint64(4)
        target = ptx.global_address(out) + uint64(i) * uint64(2)
        if i + 8 <= n:
            a0, a1, a2, a3 = ptx.ld_global_nc_v4_f32(source)
            b0, b1, b2, b3 = ptx.ld_global_nc_v4_f32(source + uint64(16))
            ptx.st_global_v4_u32(
                target,
                ptx.pack_f16x2(a0, a1),
                ptx.pack_f16x2(a2, a3),
                ptx.pack_f16x2(b0, b1),
                ptx.pack_f16x2(b2, b3),
            )
        else:
            while i < n:
                ptx.st_global_u16(target, ptx.pack_f16x2(ptx.ld_global_nc_f32(source), float32(0)))
                source += uint64(4)
                target += uint64(2)
                i += 1

    arguments = (
        Argument("x", "in", "float32", align=16 if vector == 8 else 4),
        Argument("out", "out", "float16", align=16 if vector == 8 else 2),
        Argument("n", "scalar", "int32"),
    )
    return Kernel(
        name="convert_f32_f16",
        config=config,
        function=convert_vector if vector == 8 else convert_scalar,
        threads=threads,
        shared_bytes=0,
        arguments=arguments,
    )


@dataclass(frozen=True)
class StoreKvConfig:
    """K or V rows, f32, into the f16 cache.

    Attributes:
        vector: dims a thread, 1 or 4.
        threads: threads a block.
    """

    vector: int = 4
    threads: int = 128

    def __post_init__(self) -> None:
        check_types("store_kv_f16", self)
        if self.vector not in (1, 4):
            raise ConfigRefused(f"store_kv_f16: {self.vector} dims a thread; the variants are 1 and 4")
        check_threads("store_kv_f16", self.threads)

    def __str__(self) -> str:
        return f"vector={self.vector} threads={self.threads}"

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, nt: int, width: int) -> tuple[int, int, int]:
        """Blocks for nt rows of `width` = kv_heads * head_dim."""
        return (blocks_for("store_kv_f16: nt", nt), -(-width // (self.threads * self.vector)), 1)


def store_kv_f16(config: StoreKvConfig = StoreKvConfig()) -> Kernel:
    """cache[positions[t], j] = f16(rows[t, j]).

    Arguments: rows f32 [nt, width], cache f16 [capacity, width], positions int32 [nt] (each below capacity:
    not checked here), width int32. Rows of other positions stay. With vector 4 the last width % 4 dims, and
    rows that are not 16-byte aligned because width % 4 is not 0, go one by one. Seed 000, section 3.2,
    store_kv_f16.
    """
    vector, threads = config.vector, config.threads

    def store_scalar(rows, cache, positions, width):
        t = cuda.blockIdx.x
        j = int32(cuda.blockIdx.y * threads + cuda.threadIdx.x)
        if j < width:
            source = uint64(t) * uint64(width) + uint64(j)
            target = uint64(positions[t]) * uint64(width) + uint64(j)
            value = ptx.ld_global_nc_f32(ptx.global_address(rows) + source * uint64(4))
            half = ptx.pack_f16x2(value, float32(0))
            ptx.st_global_u16(ptx.global_address(cache) + target * uint64(2), half)

    def store_vector(rows, cache, positions, width):
        t = cuda.blockIdx.x
        j = int32((cuda.blockIdx.y * threads + cuda.threadIdx.x) * 4)
        if j < width:
            first = uint64(t) * uint64(width) + uint64(j)
            last = uint64(positions[t]) * uint64(width) + uint64(j)
            source = ptx.global_address(rows) + first * uint64(4)
            target = ptx.global_address(cache) + last * uint64(2)
            if j + 4 <= width and ((first | last) & uint64(3)) == 0:
                a0, a1, a2, a3 = ptx.ld_global_nc_v4_f32(source)
                ptx.st_global_v2_u32(target, ptx.pack_f16x2(a0, a1), ptx.pack_f16x2(a2, a3))
            else:
                end = min(j + 4, width)
                while j < end:
                    ptx.st_global_u16(target, ptx.pack_f16x2(ptx.ld_global_nc_f32(source), float32(0)))
                    source += uint64(4)
                    target += uint64(2)
                    j += 1

    arguments = (
        Argument("rows", "in", "float32", align=4 * vector),
        Argument("cache", "inout", "float16", align=2 * vector),
        Argument("positions", "in", "int32"),
        Argument("width", "scalar", "int32"),
    )
    return Kernel(
        name="store_kv_f16",
        config=config,
        function=store_vector if vector == 4 else store_scalar,
        threads=threads,
        shared_bytes=0,
        arguments=arguments,
    )


KERNELS = ("convert_f32_f16", "store_kv_f16")


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    return [
        *(convert_f32_f16(ConvertConfig(vector=v)) for v in (1, 8)),
        *(store_kv_f16(StoreKvConfig(vector=v)) for v in (1, 4)),
    ]
