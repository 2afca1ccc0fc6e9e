"""The activations of a decode GEMV, made into fine records in shared memory by every block for itself."""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.elementwise.rows import block_sum
from minfer.cuda.gemv.fine import fine_record_bytes, store_fine_shared
from minfer.cuda.gemv.stream_config import LOADS, GemvStreamConfig
from minfer.cuda.instruction import device_function, unroll, unrolled


def stage_activations(config: GemvStreamConfig) -> tuple[Callable, Callable]:
    """Device functions (factors, gains) and (factors, records, scratch, x, gains, eps).

    The first loads what does not depend on the kernel before into the local f32 array `factors` (of
    4 * LOADS elements); the second leaves the records of x at the shared address `records`, for all threads
    of the block. `scratch` is room for a float a warp; x and gains are global addresses."""
    dim, threads, chunks = config.dim, config.threads, fine_record_bytes(config.dim) // 16
    chunk_rounds = -(-chunks // threads)
    chunk_words = 4 * chunk_rounds
    fours, held = dim // 4, LOADS * 4
    rounds = -(-fours // threads)
    total_of = block_sum(config.warps)

    @device_function
    def no_gains(factors, gains):
        return

    @device_function
    @unrolled
    def stage_records(factors, records, scratch, x, gains, eps):
        # Plain loads: the copy engine does not see what another block has just written.
        words = cuda.local.array(chunk_words, uint32)
        for i in unroll(chunk_rounds):
            at = int32(cuda.threadIdx.x) + int32(i * threads)
            if at < chunks:
                w0, w1, w2, w3 = ptx.ld_global_v4_u32(x + uint64(at) * uint64(16))
                words[i * 4] = w0
                words[i * 4 + 1] = w1
                words[i * 4 + 2] = w2
                words[i * 4 + 3] = w3
        for i in unroll(chunk_rounds):
            at = int32(cuda.threadIdx.x) + int32(i * threads)
            if at < chunks:
                ptx.st_shared_v4_u32(
                    records + uint32(at * 16),
                    words[i * 4],
                    words[i * 4 + 1],
                    words[i * 4 + 2],
                    words[i * 4 + 3],
                )
        cuda.syncthreads()

    @device_function
    @unrolled
    def load(values, x):
        for i in unroll(rounds):
            four = int32(cuda.threadIdx.x) + int32(i * threads)
            if four < fours:
                v0, v1, v2, v3 = ptx.ld_global_v4_f32(x + uint64(four) * uint64(16))
                values[i * 4] = v0
                values[i * 4 + 1] = v1
                values[i * 4 + 2] = v2
                values[i * 4 + 3] = v3

    @device_function
    @unrolled
    def load_gains(factors, gains):
        for i in unroll(rounds * 4):
            factors[i] = float32(0)
        load(factors, gains)

    @device_function
    @unrolled
    def stage_normed(factors, records, scratch, x, gains, eps):
        values = cuda.local.array(held, float32)
        for i in unroll(rounds * 4):
            values[i] = float32(0)
        load(values, x)
        squares = float32(0)
        for i in unroll(rounds * 4):
            squares += values[i] * values[i]
        mean = total_of(squares, scratch) * float32(1.0 / dim)
        scale = ptx.rsqrt_approx(mean + eps)
        for i in unroll(rounds):
            four = int32(cuda.threadIdx.x) + int32(i * threads)
            if four < fours:
                store_fine_shared(
                    records,
                    four * 4,
                    values[i * 4] * scale * factors[i * 4],
                    values[i * 4 + 1] * scale * factors[i * 4 + 1],
                    values[i * 4 + 2] * scale * factors[i * 4 + 2],
                    values[i * 4 + 3] * scale * factors[i * 4 + 3],
                )
        cuda.syncthreads()

    return (load_gains, stage_normed) if config.source == "norm" else (no_gains, stage_records)
