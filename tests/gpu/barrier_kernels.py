"""Small kernels around barriers, and copies that arrive at one, with random inputs."""

from __future__ import annotations

import numpy as np

from tests.gpu.instruction_probe import (
    DRAIN,
    THREADS,
    Probe,
    random_bytes,
    shared_lines,
    source_probe,
)


def bulk_load_probe(name: str) -> Probe:
    """One thread copies 4 KB with an mbarrier; all read it out."""
    words = 1024
    lines = [
        f"    bar = base + types.uint32({4 * words})",
        "    if tid == 0:",
        "        ptx.mbarrier_init(bar, types.uint32(1))",
        "        ptx.fence_mbarrier_init()",
        "    cuda.syncthreads()",
        "    if tid == 0:",
        f"        ptx.mbarrier_arrive_expect_tx(bar, types.uint32({4 * words}))",
        f"        ptx.bulk_load(base, ptx.global_address(in0), types.uint32({4 * words}), bar)",
        "    ptx.mbarrier_wait(bar, types.uint32(0))",
        *shared_lines(DRAIN, words),
    ]
    inputs = (random_bytes(name, 4 * words).view(np.uint32),)
    return source_probe(name, lines, inputs, words, 4 * words + 16, min_arch=90)


def named_barrier_probe(name: str) -> Probe:
    """Two warps write and arrive, two wait and read."""
    lines = [
        "    if tid < 64:",
        "        ptx.st_shared_u32(types.uint32(base + tid * 4), in0[tid])",
        "        ptx.bar_arrive(types.uint32(1), types.uint32(128))",
        "        out[tid] = in0[tid + 64]",
        "    else:",
        "        ptx.bar_sync(types.uint32(1), types.uint32(128))",
        "        out[tid] = ptx.ld_shared_u32(types.uint32(base + (127 - tid) * 4))",
    ]
    inputs = (random_bytes(name, 512).view(np.uint32),)
    return source_probe(name, lines, inputs, THREADS, 256)


def mbarrier_probe(name: str) -> Probe:
    """Two phases of an mbarrier: 128 arrivals before each, in the second only from even threads."""
    lines = [
        "    first, second = types.uint32(base + 512), types.uint32(base + 520)",
        "    if tid == 0:",
        "        ptx.mbarrier_init(first, types.uint32(128))",
        "        ptx.mbarrier_init(second, types.uint32(64))",
        "    cuda.syncthreads()",
        "    ptx.st_shared_u32(types.uint32(base + tid * 4), in0[tid])",
        "    ptx.mbarrier_arrive(first)",
        "    ptx.mbarrier_wait(first, types.uint32(0))",
        "    out[tid] = ptx.ld_shared_u32(types.uint32(base + (127 - tid) * 4))",
        "    ptx.mbarrier_arrive(first)",
        "    ptx.mbarrier_wait(first, types.uint32(1))",
        "    ptx.st_shared_u32(types.uint32(base + tid * 4), types.uint32(tid))",
        "    ptx.mbarrier_arrive_if(second, types.uint32(tid & 1 ^ 1))",
        "    ptx.mbarrier_wait(second, types.uint32(0))",
        "    out[tid + 128] = ptx.ld_shared_u32(types.uint32(base + (tid & 126) * 4))",
    ]
    inputs = (random_bytes(name, 512).view(np.uint32),)
    return source_probe(name, lines, inputs, 2 * THREADS, 528, min_arch=90)


def completion_probe(name: str, more: str = "") -> Probe:
    """Not yet completed, whatever the time; completed; and the parity that a fresh mbarrier passes for.
    `more` stands behind the parity."""
    calls = [f"ptx.{name}(base, types.uint32({parity}){more})" for parity in range(2)]
    lines = [
        "    if tid == 0:",
        "        ptx.mbarrier_init(base, types.uint32(128))",
        "    cuda.syncthreads()",
        f"    out[tid] = {calls[0]}",
        f"    out[tid + 128] = {calls[1]}",
        "    cuda.syncthreads()",
        "    ptx.mbarrier_arrive(base)",
        "    ptx.mbarrier_wait(base, types.uint32(0))",
        f"    out[tid + 256] = {calls[0]}",
        f"    out[tid + 384] = {calls[1]}",
    ]
    inputs = (np.random.default_rng(0).integers(0, 20_000, THREADS, np.uint32),)  # nanoseconds
    return source_probe(name, lines, inputs, 4 * THREADS, 16, min_arch=90)


def copy_mbarrier_probe(name: str) -> Probe:
    """128 copies that an mbarrier counts as they land; each thread reads what another one copied."""
    lines = [
        "    landed = types.uint32(base + 512)",
        "    if tid == 0:",
        "        ptx.mbarrier_init(landed, types.uint32(128))",
        "    cuda.syncthreads()",
        "    source = ptx.global_address(in0) + types.uint64(tid) * types.uint64(4)",
        "    ptx.cp_async_ca_4(types.uint32(base + tid * 4), source, types.uint32(4))",
        "    ptx.cp_async_mbarrier_arrive(landed)",
        "    ptx.mbarrier_wait(landed, types.uint32(0))",
        "    out[tid] = ptx.ld_shared_u32(types.uint32(base + (127 - tid) * 4))",
    ]
    inputs = (random_bytes(name, 512).view(np.uint32),)
    return source_probe(name, lines, inputs, THREADS, 520, min_arch=90)


def barrier_probes() -> list[Probe]:
    """All of them."""
    return [
        bulk_load_probe("bulk_load"),
        named_barrier_probe("bar_sync"),
        mbarrier_probe("mbarrier_arrive"),
        completion_probe("mbarrier_test"),
        completion_probe("mbarrier_wait_for", ", in0[tid]"),
        copy_mbarrier_probe("cp_async_mbarrier_arrive"),
    ]
