"""What both prefill kernels share: staging of Q, K and V tiles, score fragments, P.V steps and the epilogue.

Fragments are those of mma.m16n8k16: an accumulator's c0 c1 are row lane / 4, columns 2 (lane % 4) and the
next; c2 c3 the same of row + 8. A warp owns 16 query rows.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.attention.config import TILE_ROWS, AttentionConfig
from minfer.cuda.instruction import device_function


def stage_kv(config: AttentionConfig) -> Callable:
    """Device function (shared address, address of the head's row 0, first row, end): cp.async of `tkv`
    cache rows; rows at or past `end` are zero."""
    threads, stride, chunks = config.threads, config.row_stride, config.head_dim // 8
    total = config.tkv * chunks
    rounds = -(-total // threads)
    whole = total % threads == 0
    pitch = config.kv_heads * config.head_dim * 2

    @device_function
    def stage(tile, source, first, end):
        for i in range(rounds):
            item = int32(cuda.threadIdx.x) + i * threads
            if whole or item < total:
                row = item // chunks
                chunk = item - row * chunks
                size = uint32(0)
                if first + row < end:
                    size = uint32(16)
                ptx.cp_async_cg_16(
                    tile + uint32(row * stride + chunk * 16),
                    source + uint64(first + row) * uint64(pitch) + uint64(chunk * 16),
                    size,
                )

    return stage


def stage_query(config: AttentionConfig) -> Callable:
    """Device function (shared address, address of the head in row 0 of the tile, rows): the Q tile, as f16;
    rows at or past `rows` are zero. f16 queries arrive by cp.async, f32 ones through registers."""
    threads, stride, chunks = config.threads, config.row_stride, config.head_dim // 8
    rounds = TILE_ROWS * chunks // threads
    pitch = config.heads * config.head_dim

    @device_function
    def stage_f16(tile, source, rows):
        for i in range(rounds):
            item = int32(cuda.threadIdx.x) + i * threads
            row = item // chunks
            chunk = item - row * chunks
            size = uint32(0)
            if row < rows:
                size = uint32(16)
            ptx.cp_async_cg_16(
                tile + uint32(row * stride + chunk * 16),
                source + uint64(row) * uint64(pitch * 2) + uint64(chunk * 16),
                size,
            )

    @device_function
    def stage_f32(tile, source, rows):
        for i in range(rounds):
            item = int32(cuda.threadIdx.x) + i * threads
            row = item // chunks
            chunk = item - row * chunks
            h0 = uint32(0)
            h1 = uint32(0)
            h2 = uint32(0)
            h3 = uint32(0)
            if row < rows:
                at = source + uint64(row) * uint64(pitch * 4) + uint64(chunk * 32)
                a0, a1, a2, a3 = ptx.ld_global_nc_v4_f32(at)
                b0, b1, b2, b3 = ptx.ld_global_nc_v4_f32(at + uint64(16))
                h0 = ptx.pack_f16x2(a0, a1)
                h1 = ptx.pack_f16x2(a2, a3)
                h2 = ptx.pack_f16x2(b0, b1)
                h3 = ptx.pack_f16x2(b2, b3)
            ptx.st_shared_v4_u32(tile + uint32(row * stride + chunk * 16), h0, h1, h2, h3)

    return stage_f16 if config.query == "f16" else stage_f32


def prefetch_kv(config: AttentionConfig) -> Callable:
    """Device function (address of the head's row 0, first row, end): touch the tile's 128-byte lines in
    L2."""
    tkv, lines = config.tkv, config.head_dim * 2 // 128
    pitch = config.kv_heads * config.head_dim * 2

    @device_function
    def prefetch(source, first, end):
        # At most 64 rows of two lines: one a thread.
        row = int32(cuda.threadIdx.x) // lines
        if row < min(int32(tkv), end - first):
            line = int32(cuda.threadIdx.x) - row * lines
            ptx.prefetch_global_l2(source + uint64(first + row) * uint64(pitch) + uint64(line * 128))

    return prefetch


def query_fragments(config: AttentionConfig) -> Callable:
    """Device function (u32 array of head_dim / 4, shared address of the warp's 16 rows): the A fragments of
    Q."""
    stride, steps = config.row_stride, config.head_dim // 16

    @device_function
    def load(fragments, rows):
        lane = ptx.lane_id()
        base = rows + uint32((lane & uint32(15)) * uint32(stride) + (lane >> uint32(4)) * uint32(16))
        for k in range(steps):
            a0, a1, a2, a3 = ptx.ldmatrix_x4(base + uint32(k * 32))
            fragments[4 * k] = a0
            fragments[4 * k + 1] = a1
            fragments[4 * k + 2] = a2
            fragments[4 * k + 3] = a3

    return load


def score_fragments(config: AttentionConfig, columns: int) -> Callable:
    """Device function (f32 array of columns / 2, A fragments of Q, shared address of the K tile's first of
    `columns` rows): scores[16, columns] = Q K^T, unscaled."""
    stride, steps = config.row_stride, config.head_dim // 16

    @device_function
    def pairs(scores, query, rows):
        lane = ptx.lane_id()
        row = (lane & uint32(7)) + ((lane >> uint32(4)) << uint32(3))
        base = rows + uint32(row * uint32(stride) + ((lane >> uint32(3)) & uint32(1)) * uint32(16))
        for i in range(columns // 2):
            scores[i] = float32(0)
        for k in range(steps):
            for j in range(columns // 16):
                b0, b1, b2, b3 = ptx.ldmatrix_x4(base + uint32(j * 16 * stride + k * 32))
                scores[8 * j], scores[8 * j + 1], scores[8 * j + 2], scores[8 * j + 3] = ptx.mma_m16n8k16_f16(
                    query[4 * k],
                    query[4 * k + 1],
                    query[4 * k + 2],
                    query[4 * k + 3],
                    b0,
                    b1,
                    scores[8 * j],
                    scores[8 * j + 1],
                    scores[8 * j + 2],
                    scores[8 * j + 3],
                )
                scores[8 * j + 4], scores[8 * j + 5], scores[8 * j + 6], scores[8 * j + 7] = (
                    ptx.mma_m16n8k16_f16(
                        query[4 * k],
                        query[4 * k + 1],
                        query[4 * k + 2],
                        query[4 * k + 3],
                        b2,
                        b3,
                        scores[8 * j + 4],
                        scores[8 * j + 5],
                        scores[8 * j + 6],
                        scores[8 * j + 7],
                    )
                )

    @device_function
    def single(scores, query, rows):
        lane = ptx.lane_id()
        base = rows + uint32(
            (lane & uint32(7)) * uint32(stride) + ((lane >> uint32(3)) & uint32(1)) * uint32(16)
        )
        for i in range(4):
            scores[i] = float32(0)
        for k in range(steps):
            b0, b1 = ptx.ldmatrix_x2(base + uint32(k * 32))
            scores[0], scores[1], scores[2], scores[3] = ptx.mma_m16n8k16_f16(
                query[4 * k],
                query[4 * k + 1],
                query[4 * k + 2],
                query[4 * k + 3],
                b0,
                b1,
                scores[0],
                scores[1],
                scores[2],
                scores[3],
            )

    return single if columns == 8 else pairs


def accumulate_pv(config: AttentionConfig, columns: int) -> Callable:
    """Device function (f32 array of columns / 2, a0 .. a3, shared address of V's 16 rows at the first
    column): out[16, columns] += P[16, 16] V[16, columns]."""
    stride = config.row_stride

    @device_function
    def accumulate(out, a0, a1, a2, a3, rows):
        lane = ptx.lane_id()
        base = rows + uint32((lane & uint32(15)) * uint32(stride) + (lane >> uint32(4)) * uint32(16))
        for j in range(columns // 16):
            b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(base + uint32(j * 32))
            out[8 * j], out[8 * j + 1], out[8 * j + 2], out[8 * j + 3] = ptx.mma_m16n8k16_f16(
                a0, a1, a2, a3, b0, b1, out[8 * j], out[8 * j + 1], out[8 * j + 2], out[8 * j + 3]
            )
            out[8 * j + 4], out[8 * j + 5], out[8 * j + 6], out[8 * j + 7] = ptx.mma_m16n8k16_f16(
                a0, a1, a2, a3, b2, b3, out[8 * j + 4], out[8 * j + 5], out[8 * j + 6], out[8 * j + 7]
            )

    return accumulate


def scale_rows(columns: int) -> Callable:
    """Device function (f32 array of columns / 2, factor of row lane / 4, factor of row + 8)."""

    @device_function
    def scale(out, low, high):
        for j in range(columns // 8):
            out[4 * j] *= low
            out[4 * j + 1] *= low
            out[4 * j + 2] *= high
            out[4 * j + 3] *= high

    return scale


def store_rows(config: AttentionConfig, columns: int) -> Callable:
    """Device function (f32 array of columns / 2, address of (row lane / 4, the warp's first column),
    whether that row is one, whether row + 8 is)."""
    element = 2 if config.output == "f16" else 4
    below = 8 * config.heads * config.head_dim * element

    @device_function
    def store_f16(out, address, low, high):
        at = address + uint64((ptx.lane_id() & uint32(3)) * uint32(4))
        for j in range(columns // 8):
            if low:
                ptx.st_global_u32(at + uint64(j * 16), ptx.pack_f16x2(out[4 * j], out[4 * j + 1]))
            if high:
                packed = ptx.pack_f16x2(out[4 * j + 2], out[4 * j + 3])
                ptx.st_global_u32(at + uint64(below + j * 16), packed)

    @device_function
    def store_f32(out, address, low, high):
        at = address + uint64((ptx.lane_id() & uint32(3)) * uint32(8))
        for j in range(columns // 8):
            if low:
                ptx.st_global_v2_f32(at + uint64(j * 32), out[4 * j], out[4 * j + 1])
            if high:
                ptx.st_global_v2_f32(at + uint64(below + j * 32), out[4 * j + 2], out[4 * j + 3])

    return store_f16 if config.output == "f16" else store_f32
