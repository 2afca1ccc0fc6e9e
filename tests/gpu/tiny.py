"""Small kernels that the runtime's tests launch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import cuda

from minfer.cuda import ptx
from minfer.cuda.kernel import Argument, Kernel


@dataclass(frozen=True)
class TinyConfig:
    """Threads a block, and a number that the kernel is specialised on."""

    threads: int = 128
    number: int = 0
    shared_bytes: int = 0
    cluster: int = 1

    def __str__(self) -> str:
        return (
            f"threads={self.threads} number={self.number} shared={self.shared_bytes} cluster={self.cluster}"
        )


def _kernel(name, function, config, arguments, **limits) -> Kernel:
    return Kernel(
        name=name,
        config=config,
        function=function,
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        cluster=config.cluster,
        **limits,
    )


def axpby(config: TinyConfig = TinyConfig()) -> Kernel:
    """out[i] = alpha * a[i] + beta * b[i] for i < n: six arguments."""
    threads = config.threads

    def axpby_kernel(a, b, out, n, alpha, beta):
        i = np.int32(cuda.blockIdx.x * threads + cuda.threadIdx.x)
        if i < n:
            out[i] = alpha * a[i] + beta * b[i]

    arguments = (
        Argument("a", "in", "float32"),
        Argument("b", "in", "float32"),
        Argument("out", "out", "float32"),
        Argument("n", "scalar", "int32"),
        Argument("alpha", "scalar", "float32"),
        Argument("beta", "scalar", "float32"),
    )
    return _kernel("tiny_axpby", axpby_kernel, config, arguments)


def increment(config: TinyConfig = TinyConfig()) -> Kernel:
    """data[i] += 1 for i < n, in place; after the kernels before it, also under programmatic launches."""
    threads = config.threads

    def increment_kernel(data, n):
        ptx.griddepcontrol_wait()
        i = np.int32(cuda.blockIdx.x * threads + cuda.threadIdx.x)
        if i < n:
            data[i] += np.int32(1)
        ptx.griddepcontrol_launch_dependents()

    arguments = (Argument("data", "inout", "int32"), Argument("n", "scalar", "int32"))
    return _kernel("tiny_increment", increment_kernel, config, arguments, min_arch=90)


def fill(config: TinyConfig = TinyConfig(), dtype: str = "uint8") -> Kernel:
    """out[i] = config.number for i < n."""
    threads, size = config.threads, np.dtype(dtype).itemsize
    store = {1: ptx.st_global_u8, 2: ptx.st_global_u16, 4: ptx.st_global_u32}[size]
    bits = int(np.array([config.number], dtype).view(f"u{size}")[0])

    def fill_kernel(out, n):
        i = np.int32(cuda.blockIdx.x * threads + cuda.threadIdx.x)
        if i < n:
            store(ptx.global_address(out) + np.uint64(i) * np.uint64(size), np.uint32(bits))

    return _kernel(
        f"tiny_fill_{dtype}",
        fill_kernel,
        config,
        (Argument("out", "out", dtype), Argument("n", "scalar", "int32")),
    )


def shared_echo(config: TinyConfig) -> Kernel:
    """Every thread writes its index to the last words of `shared_bytes` of dynamic shared memory and reads
    its neighbour's: out[i] = (i + 1) % threads."""
    threads, first = config.threads, config.shared_bytes - 4 * config.threads

    def shared_echo_kernel(out):
        tid = np.int32(cuda.threadIdx.x)
        base = ptx.shared_address(cuda.shared.array(0, np.uint8)) + np.uint32(first)
        ptx.st_shared_u32(base + np.uint32(tid * 4), np.uint32(tid))
        cuda.syncthreads()
        neighbour = (tid + 1) % threads
        out[tid] = ptx.ld_shared_u32(base + np.uint32(neighbour * 4))

    return _kernel("tiny_shared_echo", shared_echo_kernel, config, (Argument("out", "out", "uint32"),))


STATIC_WORDS = 32
STATIC_BYTES = 4 * STATIC_WORDS


def static_shared_echo(config: TinyConfig) -> Kernel:
    """out[i] = i through 128 bytes of static shared memory, beside the config's dynamic bytes; 32 threads."""

    def static_shared_echo_kernel(out):
        tid = np.int32(cuda.threadIdx.x)
        words = cuda.shared.array(STATIC_WORDS, np.uint32)
        words[tid] = np.uint32(tid)
        cuda.syncthreads()
        out[tid] = words[tid]

    arguments = (Argument("out", "out", "uint32"),)
    return _kernel("tiny_static_shared_echo", static_shared_echo_kernel, config, arguments)


def cluster_ranks(config: TinyConfig) -> Kernel:
    """out[block] = its rank in its cluster."""

    def cluster_ranks_kernel(out):
        ptx.cluster_sync()
        if cuda.threadIdx.x == 0:
            out[cuda.blockIdx.x] = ptx.cluster_rank()

    arguments = (Argument("out", "out", "uint32"),)
    return _kernel("tiny_cluster_ranks", cluster_ranks_kernel, config, arguments, min_arch=90)


def out_of_bounds(config: TinyConfig = TinyConfig()) -> Kernel:
    """Writes far outside `out`: an illegal address."""

    def out_of_bounds_kernel(out):
        ptx.st_global_u32(ptx.global_address(out) + np.uint64(1 << 44), np.uint32(1))

    return _kernel("tiny_out_of_bounds", out_of_bounds_kernel, config, (Argument("out", "inout", "uint32"),))
