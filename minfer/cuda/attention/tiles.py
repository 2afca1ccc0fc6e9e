"""What both prefill kernels share: staging of Q, K and V tiles, and a warp's products on them.

A warp owns 16 query rows. Accumulator arrays hold 16 x 16 fragments one after another along the columns
(`minfer.cuda.tile.fragments`): in every 8 elements, 0 1 4 5 belong to row lane / 4 and 2 3 6 7 to row + 8.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.attention.config import TILE_ROWS, AttentionConfig
from minfer.cuda.instruction import device_function
from minfer.cuda.tile.fragments import fill_fragment, load_matrix_sync, mma_sync
from minfer.cuda.tile.maps import Fragment
from minfer.cuda.tile.shared import SharedTile
from minfer.cuda.tile.staging import StagedF16

load_a = load_matrix_sync(Fragment("matrix_a", "f16"))
load_k = load_matrix_sync(Fragment("matrix_b", "f16", "col_major"))  # K rows are columns of K^T
load_v = load_matrix_sync(Fragment("matrix_b", "f16", "row_major"))
mma = mma_sync("f16")

wait_all = ptx.cp_async_wait_group(0)
wait_but_one = ptx.cp_async_wait_group(1)  # for K of a single stage, for the whole tile of two


def _stage_rows(config: AttentionConfig, rows: int, heads: int) -> Callable:
    """Device function (shared address, address of the head's row 0, first row, end): cp.async of `rows`
    rows of one head of an f16 matrix of `heads`; rows at or past `end` are zero."""
    tile = SharedTile(rows, config.head_dim * 2, padding=config.pad * 2)
    staged = StagedF16(tile, config.threads)
    start, copy = staged.start, staged.copy
    head_dim, pitch = config.head_dim, heads * config.head_dim

    @device_function
    def stage(shared, source, first, end):
        thread = int32(cuda.threadIdx.x)
        pointer, rows_left, ks_left = start(source, pitch, first, end, head_dim, thread)
        copy(shared, pointer, pitch, rows_left, ks_left, thread)

    return stage


def stage_kv(config: AttentionConfig) -> Callable:
    """Device function (shared address, address of the head's row 0, first row, end): a K or V tile."""
    return _stage_rows(config, config.tkv, config.kv_heads)


def stage_query(config: AttentionConfig) -> Callable:
    """Device function (shared address, address of the head's row 0, first row, end): the Q tile, as f16. f16
    queries arrive by cp.async, f32 ones through registers."""
    if config.query == "f16":
        return _stage_rows(config, TILE_ROWS, config.heads)
    threads, stride, chunks = config.threads, config.row_stride, config.head_dim // 8
    pitch = config.heads * config.head_dim * 4

    @device_function
    def stage_f32(shared, source, first, end):
        for item in range(int32(cuda.threadIdx.x), TILE_ROWS * chunks, threads):
            row = item // chunks
            chunk = item - row * chunks
            h0 = uint32(0)
            h1 = uint32(0)
            h2 = uint32(0)
            h3 = uint32(0)
            if first + row < end:
                at = source + uint64(first + row) * uint64(pitch) + uint64(chunk * 32)
                a0, a1, a2, a3 = ptx.ld_global_nc_v4_f32(at)
                b0, b1, b2, b3 = ptx.ld_global_nc_v4_f32(at + uint64(16))
                h0 = ptx.pack_f16x2(a0, a1)
                h1 = ptx.pack_f16x2(a2, a3)
                h2 = ptx.pack_f16x2(b0, b1)
                h3 = ptx.pack_f16x2(b2, b3)
            ptx.st_shared_v4_u32(shared + uint32(row * stride + chunk * 16), h0, h1, h2, h3)

    return stage_f32


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


def load_tiles(config: AttentionConfig) -> Callable:
    """Device function (K tiles, V tiles, keys, values, first, limit): have the tile that starts at row
    `first` on its way, K before V, and with two stages the next one behind it."""
    stages, tkv, size = config.stages, config.tkv, config.kv_bytes
    stage, prefetch, ahead = stage_kv(config), prefetch_kv(config), config.l2_prefetch

    @device_function
    def load(key_tiles, value_tiles, keys, values, first, limit):
        if stages == 2:
            if first == 0:
                stage(key_tiles, keys, first, limit)
                stage(value_tiles, values, first, limit)
                ptx.cp_async_commit()
            following = first + tkv
            if following < limit:
                slot = uint32(((following // tkv) & 1) * size)
                stage(key_tiles + slot, keys, following, limit)
                stage(value_tiles + slot, values, following, limit)
        else:
            stage(key_tiles, keys, first, limit)
            ptx.cp_async_commit()
            stage(value_tiles, values, first, limit)
        ptx.cp_async_commit()
        if ahead:
            prefetch(keys, first + tkv * stages, limit)
            prefetch(values, first + tkv * stages, limit)

    return load


def prologue(config: AttentionConfig) -> Callable:
    """Device function (shared address, q, k_cache, v_cache, nt, q_offset, kv_end): have the block's queries
    on their way; returns (head, first query row, limit of the cache rows that they see, addresses of the
    head's keys and values). The blocks of a head run from the last rows, which have the most work."""
    head_dim, group = config.head_dim, config.heads // config.kv_heads
    in_bytes = {"f16": 2, "f32": 4}[config.query]
    stage = stage_query(config)

    @device_function
    def start(base, q, k_cache, v_cache, nt, q_offset, kv_end):
        head = int32(cuda.blockIdx.x)
        first_row = int32((cuda.gridDim.y - 1 - cuda.blockIdx.y) * TILE_ROWS)
        rows = min(int32(TILE_ROWS), nt - first_row)
        limit = min(kv_end, q_offset + first_row + rows)
        column = uint64((head // group) * (head_dim * 2))
        keys = ptx.global_address(k_cache) + column
        values = ptx.global_address(v_cache) + column
        stage(base, ptx.global_address(q) + uint64(head * (head_dim * in_bytes)), first_row, nt)
        return head, first_row, limit, keys, values

    return start


def query_fragments(config: AttentionConfig) -> Callable:
    """Device function (u32 array of head_dim / 4, shared address of the warp's 16 rows): Q as A fragments."""
    stride, steps = config.row_stride, config.head_dim // 16

    @device_function
    def load(query, rows):
        for k in range(steps):
            load_a(query, 4 * k, rows + uint32(k * 32), stride)

    return load


def score_fragments(config: AttentionConfig, columns: int) -> Callable:
    """Device function (f32 array of columns / 2, Q fragments, shared address of the first of `columns` rows
    of the K tile): scores[16, columns] = Q K^T, unscaled."""
    stride, steps, fragments = config.row_stride, config.head_dim // 16, columns // 16
    clear = fill_fragment(fragments)

    @device_function
    def multiply(scores, query, rows):
        key = cuda.local.array(4, uint32)
        clear(scores, float32(0))
        for k in range(steps):
            for j in range(fragments):
                load_k(key, 0, rows + uint32(j * 16 * stride + k * 32), stride)
                mma(scores, 8 * j, query, 4 * k, key, 0)

    return multiply


def accumulate_pv(config: AttentionConfig, columns: int) -> Callable:
    """Device function (f32 array of columns / 2, A fragment of P[16, 16], shared address of 16 rows of V at
    the first column): sums[16, columns] += P V."""
    stride, fragments = config.row_stride, columns // 16

    @device_function
    def accumulate(sums, p, rows):
        value = cuda.local.array(4, uint32)
        for j in range(fragments):
            load_v(value, 0, rows + uint32(j * 32), stride)
            mma(sums, 8 * j, p, 0, value, 0)

    return accumulate


@functools.cache
def scale_rows(columns: int) -> Callable:
    """Device function (f32 array of columns / 2, factor of row lane / 4, factor of row + 8)."""

    @device_function
    def scale(values, low, high):
        for j in range(columns // 8):
            values[4 * j] *= low
            values[4 * j + 1] *= low
            values[4 * j + 2] *= high
            values[4 * j + 3] *= high

    return scale
