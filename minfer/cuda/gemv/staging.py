"""The activations of a decode GEMV, made into q8 records in shared memory by every block for itself."""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.elementwise.rows import block_sum
from minfer.cuda.gemv.stream_config import LOADS, GemvStreamConfig
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.q8 import q8_record_bytes, store_q8_shared


def stage_activations(config: GemvStreamConfig) -> Callable:
    """Device function (records, scratch, x, gains, eps): wait for the kernel before, then leave the records
    of x at the shared address `records`. `scratch` is room for a float a warp; x and gains are global
    addresses. The block's barrier behind it is the caller's."""
    dim, threads = config.dim, config.threads
    fours, held = dim // 4, LOADS * 4
    rounds = -(-fours // threads)
    batches = -(-rounds // LOADS)
    record_chunks = q8_record_bytes(dim) // 16
    total_of = block_sum(config.warps)

    @device_function
    @unrolled
    def load_batch(values, batch, x):
        for i in unroll(LOADS):
            four = int32(cuda.threadIdx.x) + int32((batch * LOADS + i) * threads)
            if batch * LOADS + i < rounds and four < fours:
                v0, v1, v2, v3 = ptx.ld_global_v4_f32(x + uint64(four) * uint64(16))
                values[i * 4] = v0
                values[i * 4 + 1] = v1
                values[i * 4 + 2] = v2
                values[i * 4 + 3] = v3

    @device_function
    @unrolled
    def store_batch(values, batch, records):
        for i in unroll(LOADS):
            four = int32(cuda.threadIdx.x) + int32((batch * LOADS + i) * threads)
            if batch * LOADS + i < rounds and four < fours:
                store_q8_shared(
                    records, four * 4, values[i * 4], values[i * 4 + 1], values[i * 4 + 2], values[i * 4 + 3]
                )

    @device_function
    def wait():
        ptx.griddepcontrol_launch_dependents()
        ptx.griddepcontrol_wait()

    @device_function
    def stage_records(records, scratch, x, gains, eps):
        wait()
        for i in range(int32(cuda.threadIdx.x), record_chunks, threads):
            w0, w1, w2, w3 = ptx.ld_global_v4_u32(x + uint64(i) * uint64(16))
            ptx.st_shared_v4_u32(records + uint32(i * 16), w0, w1, w2, w3)

    @device_function
    @unrolled
    def stage_f32(records, scratch, x, gains, eps):
        wait()
        values = cuda.local.array(held, float32)
        for batch in unroll(batches):
            load_batch(values, batch, x)
            store_batch(values, batch, records)

    @device_function
    @unrolled
    def stage_normed(records, scratch, x, gains, eps):
        values = cuda.local.array(held, float32)
        factors = cuda.local.array(held, float32)
        for i in unroll(held):
            values[i] = float32(0)
            factors[i] = float32(0)
        load_batch(factors, 0, gains)
        wait()
        load_batch(values, 0, x)
        squares = float32(0)
        for i in unroll(held):
            squares += values[i] * values[i]
        mean = total_of(squares, scratch) * float32(1.0 / dim)
        scale = ptx.rsqrt_approx(mean + eps)
        for i in unroll(rounds * 4):
            values[i] = values[i] * scale * factors[i]
        store_batch(values, 0, records)

    return {"q8": stage_records, "f32": stage_f32, "norm": stage_normed}[config.source]
