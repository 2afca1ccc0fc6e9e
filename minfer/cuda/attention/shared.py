"""Prefill attention with scores, statistics and P in shared memory: seed 000, and TKV of seed 002."""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32

from minfer.cuda import ptx
from minfer.cuda.attention import tiles
from minfer.cuda.attention.config import LOG2_E, NEVER, TILE_ROWS, AttentionConfig
from minfer.cuda.instruction import device_function
from minfer.cuda.tile.epilogue import store_accumulators
from minfer.cuda.tile.fragments import store_matrix_sync


def prefill_shared(config: AttentionConfig) -> Callable:
    """Scores, statistics and P in shared memory: 8 warps; a pair shares 16 query rows, half the columns
    each."""
    head_dim, tkv, stages = config.head_dim, config.tkv, config.stages
    width = config.heads * config.head_dim
    stride, size, score_stride = config.row_stride, config.kv_bytes, config.score_stride
    query_tile, values_at = config.query_bytes, config.query_bytes + stages * size
    scores_at = query_tile + 2 * stages * size
    statistics_at = scores_at + config.score_bytes
    # Scores go 16 columns a fragment: at tkv 16 one warp of a pair computes them.
    columns, half_dim = max(16, tkv // 2), head_dim // 2
    sides = tkv // columns
    query_words, score_words, sum_words = head_dim // 4, columns // 2, half_dim // 2  # a lane's share
    half_p = config.pv == "shared"  # P as f16, in the place of its scores
    start, load = tiles.prologue(config), tiles.load_tiles(config)
    query_fragments = tiles.query_fragments(config)
    score_fragments, scale_scores = tiles.score_fragments(config, columns), tiles.scale_rows(columns)
    store_fragment = store_matrix_sync("f32")
    accumulate, scale_rows = tiles.accumulate_pv(config, half_dim), tiles.scale_rows(half_dim)
    store_rows = store_accumulators(1, half_dim // 16, config.output)
    sum_at, factor_at = TILE_ROWS * 4, TILE_ROWS * 8  # statistics: maxima, sums, factors

    @device_function
    def store_p(row, column, p):
        if half_p:
            ptx.st_shared_u16(row + uint32(column * 2), ptx.pack_f16x2(p, float32(0)))
        else:
            ptx.st_shared_f32(row + uint32(column * 4), p)

    @device_function
    def softmax_serial(base, first, position, kv_end):
        """One thread a row: a chain of tkv steps on 2 of the 8 warps."""
        thread = int32(cuda.threadIdx.x)
        if thread < TILE_ROWS:
            row = base + uint32(scores_at + thread * score_stride)
            kept = base + uint32(statistics_at + thread * 4)
            largest = ptx.ld_shared_f32(kept)
            old = largest
            seen = max(int32(0), min(int32(tkv), min(position + thread + 1, kv_end) - first))
            for column in range(seen):
                largest = ptx.max_f32(largest, ptx.ld_shared_f32(row + uint32(column * 4)))
            total = float32(0)
            # In place: P's element (2 bytes) never reaches a score that is still to be read.
            for column in range(seen):
                p = ptx.ex2_approx(ptx.ld_shared_f32(row + uint32(column * 4)) - largest)
                total += p
                store_p(row, column, p)
            for column in range(seen, tkv):
                store_p(row, column, float32(0))
            factor = ptx.ex2_approx(old - largest)
            ptx.st_shared_f32(kept, largest)
            before = ptx.ld_shared_f32(kept + uint32(sum_at))
            ptx.st_shared_f32(kept + uint32(sum_at), before * factor + total)
            ptx.st_shared_f32(kept + uint32(factor_at), factor)

    @device_function
    def softmax_warp_per_row(base, first, position, kv_end):
        """8 warps x 8 rows; a lane takes columns lane and lane + 32. A lane whose column is not in the tile
        (tkv 16) must not count, even where that column is within the stored range: both predicates are
        needed."""
        thread = int32(cuda.threadIdx.x)
        lane = thread & 31
        for r in range(8):
            index = (thread >> 5) * 8 + r
            row = base + uint32(scores_at + index * score_stride)
            kept = base + uint32(statistics_at + index * 4)
            visible = min(position + index + 1, kv_end) - first
            a = float32(NEVER)
            b = float32(NEVER)
            if lane < tkv and lane < visible:
                a = ptx.ld_shared_f32(row + uint32(lane * 4))
            if lane + 32 < tkv and lane + 32 < visible:
                b = ptx.ld_shared_f32(row + uint32(lane * 4 + 128))
            largest = ptx.max_f32(a, b)
            for step in range(5):
                largest = ptx.max_f32(largest, ptx.shfl_xor_f32(largest, uint32(1 << step)))
            old = ptx.ld_shared_f32(kept)
            largest = ptx.max_f32(old, largest)
            a = ptx.ex2_approx(a - largest)
            b = ptx.ex2_approx(b - largest)
            total = a + b
            for step in range(5):
                total += ptx.shfl_xor_f32(total, uint32(1 << step))
            ptx.syncwarp()
            if lane < tkv:
                store_p(row, lane, a)
            if lane + 32 < tkv:
                store_p(row, lane + 32, b)
            if lane == 0:
                factor = ptx.ex2_approx(old - largest)
                ptx.st_shared_f32(kept, largest)
                before = ptx.ld_shared_f32(kept + uint32(sum_at))
                ptx.st_shared_f32(kept + uint32(sum_at), before * factor + total)
                ptx.st_shared_f32(kept + uint32(factor_at), factor)

    @device_function
    def multiply_tensor(sums, p_rows, values):
        """sums += P V on tensor cores: A fragments by ldmatrix from the score tile."""
        p = cuda.local.array(4, uint32)
        for k in range(tkv // 16):
            tiles.load_a(p, 0, p_rows + uint32(k * 32), score_stride)
            accumulate(sums, p, values + uint32(k * 16 * stride))

    @device_function
    def multiply_scalar(sums, p_rows, values):
        """sums += P V by FMAs, on the same elements that a fragment would hold."""
        lane = ptx.lane_id()
        row = p_rows + uint32((lane >> uint32(2)) * uint32(score_stride))
        column = values + uint32((lane & uint32(3)) * uint32(4))
        for kv in range(tkv):
            low = ptx.ld_shared_f32(row + uint32(kv * 4))
            high = ptx.ld_shared_f32(row + uint32(8 * score_stride + kv * 4))
            for j in range(half_dim // 8):
                pair = ptx.ld_shared_u32(column + uint32(kv * stride + j * 16))
                v0 = ptx.unpack_f16x2_lo(pair)
                v1 = ptx.unpack_f16x2_hi(pair)
                sums[4 * j] += low * v0
                sums[4 * j + 1] += low * v1
                sums[4 * j + 2] += high * v0
                sums[4 * j + 3] += high * v1

    softmax = softmax_serial if config.softmax == "serial" else softmax_warp_per_row
    multiply = multiply_tensor if half_p else multiply_scalar

    def attention_shared(q, k_cache, v_cache, out, nt, q_offset, kv_end, scale):
        base = ptx.shared_address(cuda.shared.array(0, uint8))
        thread = int32(cuda.threadIdx.x)
        warp_row = (thread >> 6) * 16
        side = (thread >> 5) & 1
        head, first_row, limit, keys, values = start(base, q, k_cache, v_cache, nt, q_offset, kv_end)
        if thread < TILE_ROWS:
            ptx.st_shared_f32(base + uint32(statistics_at + thread * 4), float32(NEVER))
            ptx.st_shared_f32(base + uint32(statistics_at + sum_at + thread * 4), float32(0))

        fragments = cuda.local.array(query_words, uint32)
        scores = cuda.local.array(score_words, float32)
        sums = cuda.local.array(sum_words, float32)
        for i in range(sum_words):
            sums[i] = float32(0)
        c = scale * float32(LOG2_E)
        row = warp_row + ((thread & 31) >> 2)
        statistics = base + uint32(statistics_at + row * 4)
        for first in range(0, limit, tkv):
            load(base + uint32(query_tile), base + uint32(values_at), keys, values, first, limit)
            slot = uint32(0)
            if stages == 2:
                slot = uint32(((first // tkv) & 1) * size)
            tiles.wait_but_one()
            cuda.syncthreads()
            if side < sides:
                query_fragments(fragments, base + uint32(warp_row * stride))
                keys_at = query_tile + side * (columns * stride)
                score_fragments(scores, fragments, base + uint32(keys_at) + slot)
                scale_scores(scores, c, c)
                tile = base + uint32(scores_at + warp_row * score_stride + side * (columns * 4))
                for j in range(columns // 16):
                    store_fragment(scores, 8 * j, tile + uint32(j * 64), score_stride)
            cuda.syncthreads()
            softmax(base, int32(first), q_offset + first_row, kv_end)
            if stages == 1:
                tiles.wait_all()
            cuda.syncthreads()
            factor_low = ptx.ld_shared_f32(statistics + uint32(factor_at))
            factor_high = ptx.ld_shared_f32(statistics + uint32(factor_at + 32))
            scale_rows(sums, factor_low, factor_high)
            multiply(
                sums,
                base + uint32(scores_at + warp_row * score_stride),
                base + uint32(values_at + side * half_dim * 2) + slot,
            )
            cuda.syncthreads()
        scale_rows(
            sums,
            ptx.rcp_approx(ptx.ld_shared_f32(statistics + uint32(sum_at))),
            ptx.rcp_approx(ptx.ld_shared_f32(statistics + uint32(sum_at + 32))),
        )
        first_column = head * head_dim + side * half_dim
        store_rows(sums, ptx.global_address(out), first_row + warp_row, first_column, nt, width)

    return attention_shared
