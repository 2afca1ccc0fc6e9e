"""Small kernels on Hopper's own units: TMA there and back, one wgmma."""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.kernel import Argument, Kernel

THREADS = 128
BOX = 64  # rows of a box; its 64 f16 columns are the 128 bytes that the swizzle spans
_MAP = types.CPointer(types.uint8)
_OUT = types.CPointer(types.uint32)
_TILE_BYTES = BOX * 128


@dataclass(frozen=True)
class HopperConfig:
    """Which unit, and the element position of the box."""

    unit: str
    x: int = 0
    y: int = 0

    def __str__(self) -> str:
        return f"{self.unit} x={self.x} y={self.y}"


def tma_there_and_back(x: int, y: int) -> Kernel:
    """Loads the box at column x, row y, writes shared memory out as it lies, and stores the box at (0, 0) of
    another matrix."""

    def tma_kernel(source, target, out):
        tid = types.int32(cuda.threadIdx.x)
        raw = ptx.shared_address(cuda.shared.array(0, types.uint8))
        base = types.uint32((raw + 1023) & 0xFFFFFC00)
        bar = types.uint32(base + _TILE_BYTES)
        if tid == 0:
            ptx.mbarrier_init(bar, types.uint32(1))
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        if tid == 0:
            ptx.mbarrier_arrive_expect_tx(bar, types.uint32(_TILE_BYTES))
            ptx.tma_load_2d(base, ptx.tensor_map_address(source), bar, types.int32(x), types.int32(y))
        ptx.mbarrier_wait(bar, types.uint32(0))
        for i in range(_TILE_BYTES // 4 // THREADS):
            at = types.int32(i * THREADS + tid)
            out[at] = ptx.ld_shared_u32(types.uint32(base + at * 4))
        if tid == 0:
            ptx.tma_store_2d(ptx.tensor_map_address(target), base, types.int32(0), types.int32(0))
            ptx.bulk_commit_group()
            wait()

    wait = ptx.bulk_wait_group_read(0)
    arguments = (
        Argument("source", "tensor_map", "float16"),
        Argument("target", "tensor_map", "float16", stored=True),
        Argument("out", "out", "uint32"),
    )
    return Kernel(
        name="hopper_tma",
        config=HopperConfig("tma", x, y),
        function=tma_kernel,
        signature=lambda: types.void(_MAP, _MAP, _OUT),
        threads=THREADS,
        shared_bytes=_TILE_BYTES + 16 + 1024,
        arguments=arguments,
        min_arch=90,
    )


def one_wgmma() -> Kernel:
    """out = D[64, 64] = A[64, 64] B[64, 64]^T in f32, register by register: out[i * 128 + thread]."""
    multiply = ptx.wgmma(64, "f16", accumulate=False, wait=0)

    def wgmma_kernel(a, b, out):
        tid = types.int32(cuda.threadIdx.x)
        raw = ptx.shared_address(cuda.shared.array(0, types.uint8))
        base = types.uint32((raw + 1023) & 0xFFFFFC00)
        bar = types.uint32(base + 2 * _TILE_BYTES)
        if tid == 0:
            ptx.mbarrier_init(bar, types.uint32(1))
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        if tid == 0:
            ptx.mbarrier_arrive_expect_tx(bar, types.uint32(2 * _TILE_BYTES))
            ptx.tma_load_2d(base, ptx.tensor_map_address(a), bar, types.int32(0), types.int32(0))
            second = types.uint32(base + _TILE_BYTES)
            ptx.tma_load_2d(second, ptx.tensor_map_address(b), bar, types.int32(0), types.int32(0))
        ptx.mbarrier_wait(bar, types.uint32(0))
        d = cuda.local.array(32, types.float32)
        left = ptx.wgmma_descriptor(base, 16)
        right = ptx.wgmma_descriptor(types.uint32(base + _TILE_BYTES), 16)
        multiply(d, left, right)
        for i in range(32):
            out[types.int32(i * THREADS + tid)] = ptx.bitcast_u32_f32(d[i])

    arguments = (
        Argument("a", "tensor_map", "float16"),
        Argument("b", "tensor_map", "float16"),
        Argument("out", "out", "uint32"),
    )
    return Kernel(
        name="hopper_wgmma",
        config=HopperConfig("wgmma"),
        function=wgmma_kernel,
        signature=lambda: types.void(_MAP, _MAP, _OUT),
        threads=THREADS,
        shared_bytes=2 * _TILE_BYTES + 16 + 1024,
        arguments=arguments,
        min_arch=90,
        arch_specific=True,
    )
