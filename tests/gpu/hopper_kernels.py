"""Small kernels on Hopper's own units: TMA there and back, multicast, one wgmma of each kind."""

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


WGMMA_DTYPES = {"f16": "float16", "bf16": "uint16", "tf32": "float32", "s8": "int8", "u8": "uint8"}


def one_wgmma(dtype: str = "f16", twice: bool = False) -> Kernel:
    """out = D[64, 64] = A[64, K] B[64, K]^T, or twice that, register by register: out[i * 128 + thread].

    K is 128 bytes of `dtype`: four k steps. With `twice` a first pass overwrites and a second accumulates,
    as an operand says.
    """
    integer = dtype in ("s8", "u8")
    element = types.int32 if integer else types.float32
    multiply = ptx.wgmma(64, dtype, accumulate="operand" if twice else False, wait=0)

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
        d = cuda.local.array(32, element)
        left = ptx.wgmma_descriptor(base, 16)
        right = ptx.wgmma_descriptor(types.uint32(base + _TILE_BYTES), 16)
        if twice:
            for i in range(32):
                d[i] = element(7)
            multiply(d, left, right, types.uint32(0))
            multiply(d, left, right, types.uint32(1))
        else:
            multiply(d, left, right)
        for i in range(32):
            word = types.uint32(d[i]) if integer else ptx.bitcast_u32_f32(d[i])
            out[types.int32(i * THREADS + tid)] = word

    return _wgmma(wgmma_kernel, f"wgmma_{dtype}{'_twice' if twice else ''}", "tensor_map", _MAP)


def wgmma_from_registers() -> Kernel:
    """As `one_wgmma`, with A's fragments in registers: word i of thread t is a[i * 128 + t]."""
    multiply = ptx.wgmma(64, "f16", a="registers", accumulate=False, wait=0)
    keep = ptx.pin(16)

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
            ptx.mbarrier_arrive_expect_tx(bar, types.uint32(_TILE_BYTES))
            ptx.tma_load_2d(base, ptx.tensor_map_address(b), bar, types.int32(0), types.int32(0))
        words = cuda.local.array(16, types.uint32)
        for i in range(16):
            words[i] = a[types.int32(i * THREADS + tid)]
        keep(words)
        ptx.mbarrier_wait(bar, types.uint32(0))
        d = cuda.local.array(32, types.float32)
        multiply(d, words, ptx.wgmma_descriptor(base, 16))
        for i in range(32):
            out[types.int32(i * THREADS + tid)] = ptx.bitcast_u32_f32(d[i])

    return _wgmma(wgmma_kernel, "wgmma_registers", "in", types.CPointer(types.uint32))


def _wgmma(function, name: str, a_kind: str, a_type) -> Kernel:
    arguments = (
        Argument("a", a_kind, "uint32" if a_kind == "in" else None),
        Argument("b", "tensor_map"),
        Argument("out", "out", "uint32"),
    )
    return Kernel(
        name="hopper_wgmma",
        config=HopperConfig(name),
        function=function,
        signature=lambda: types.void(a_type, _MAP, _OUT),
        threads=THREADS,
        shared_bytes=2 * _TILE_BYTES + 16 + 1024,
        arguments=arguments,
        min_arch=90,
        arch_specific=True,
    )


def multicast() -> Kernel:
    """Block 0 of a cluster of two loads a box into the shared memory of both; each writes its copy to its
    half of `out`, and tells the other through the other's mbarrier that it has finished."""

    def multicast_kernel(source, out):
        tid = types.int32(cuda.threadIdx.x)
        raw = ptx.shared_address(cuda.shared.array(0, types.uint8))
        base = types.uint32((raw + 1023) & 0xFFFFFC00)
        bar = types.uint32(base + _TILE_BYTES)
        done = types.uint32(bar + 8)
        rank = ptx.cluster_rank()
        if tid == 0:
            ptx.mbarrier_init(bar, types.uint32(1))
            ptx.mbarrier_init(done, types.uint32(1))
            ptx.fence_mbarrier_init()
            ptx.mbarrier_arrive_expect_tx(bar, types.uint32(_TILE_BYTES))
        ptx.cluster_sync()
        if tid == 0 and rank == 0:
            ptx.tma_load_2d_multicast(
                base, ptx.tensor_map_address(source), bar, types.int32(0), types.int32(0), types.uint32(3)
            )
        ptx.mbarrier_wait(bar, types.uint32(0))
        for i in range(_TILE_BYTES // 4 // THREADS):
            at = types.int32(i * THREADS + tid)
            out[types.int32(rank * (_TILE_BYTES // 4) + at)] = ptx.ld_shared_u32(types.uint32(base + at * 4))
        cuda.syncthreads()
        if tid == 0:
            ptx.mbarrier_arrive_cluster(done, types.uint32(rank ^ 1))
        ptx.mbarrier_wait(done, types.uint32(0))
        ptx.cluster_sync()

    return Kernel(
        name="hopper_multicast",
        config=HopperConfig("multicast"),
        function=multicast_kernel,
        signature=lambda: types.void(_MAP, _OUT),
        threads=THREADS,
        shared_bytes=_TILE_BYTES + 16 + 1024,
        arguments=(Argument("source", "tensor_map", "float16"), Argument("out", "out", "uint32")),
        min_arch=90,
        arch_specific=True,
        cluster=2,
    )
