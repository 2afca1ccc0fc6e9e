"""Prefill attention with everything but the operands in registers: FAP2 of seed 002."""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32

from minfer.cuda import ptx
from minfer.cuda.attention import tiles
from minfer.cuda.attention.config import LOG2_E, NEVER, AttentionConfig
from minfer.cuda.attention.softmax import exponentials, quad_sum, row_max
from minfer.cuda.instruction import device_function
from minfer.cuda.tile.epilogue import store_accumulators
from minfer.cuda.tile.fragments import accumulator_to_operand

_to_operand = accumulator_to_operand("f16")


def prefill_registers(config: AttentionConfig) -> Callable:
    """Scores, softmax and P in registers (FAP2): 4 warps of 16 rows, which meet only around the KV tiles."""
    head_dim, tkv, stages = config.head_dim, config.tkv, config.stages
    width = config.heads * config.head_dim
    stride, size = config.row_stride, config.kv_bytes
    query_tile, values_at = config.query_bytes, config.query_bytes + stages * size
    query_words, score_words, sum_words = head_dim // 4, tkv // 2, head_dim // 2  # a lane's share of 16 rows
    start, load = tiles.prologue(config), tiles.load_tiles(config)
    query_fragments = tiles.query_fragments(config)
    score_fragments = tiles.score_fragments(config, tkv)
    accumulate, scale_rows = tiles.accumulate_pv(config, head_dim), tiles.scale_rows(head_dim)
    largest, exponentiate = row_max(tkv), exponentials(tkv)
    store_rows = store_accumulators(1, head_dim // 16, config.output)

    @device_function
    def mask(scores, first, low, high):
        """Columns past `low` (row lane / 4) and `high` (row + 8) never count."""
        column = first + int32((ptx.lane_id() & uint32(3)) * uint32(2))
        for j in range(tkv // 8):
            if column + 8 * j > low:
                scores[4 * j] = float32(NEVER)
            if column + (8 * j + 1) > low:
                scores[4 * j + 1] = float32(NEVER)
            if column + 8 * j > high:
                scores[4 * j + 2] = float32(NEVER)
            if column + (8 * j + 1) > high:
                scores[4 * j + 3] = float32(NEVER)

    @device_function
    def multiply(sums, scores, rows):
        """sums += P V, 16 columns of P at a time: as f16 they are the A fragment."""
        p = cuda.local.array(4, uint32)
        for k in range(tkv // 16):
            _to_operand(p, 0, scores, 8 * k)
            accumulate(sums, p, rows + uint32(k * 16 * stride))

    def attention_registers(q, k_cache, v_cache, out, nt, q_offset, kv_end, scale):
        base = ptx.shared_address(cuda.shared.array(0, uint8))
        thread = int32(cuda.threadIdx.x)
        warp_row = (thread >> 5) * 16
        head, first_row, limit, keys, values = start(base, q, k_cache, v_cache, nt, q_offset, kv_end)

        fragments = cuda.local.array(query_words, uint32)
        scores = cuda.local.array(score_words, float32)
        sums = cuda.local.array(sum_words, float32)
        for i in range(sum_words):
            sums[i] = float32(0)
        c = scale * float32(LOG2_E)
        position = q_offset + first_row + warp_row + ((thread & 31) >> 2)
        last_low = min(position, kv_end - 1)
        last_high = min(position + 8, kv_end - 1)
        # Columns up to here are seen by every row of the warp.
        unmasked = min(q_offset + first_row + warp_row, kv_end - 1)
        max_low = float32(NEVER)
        max_high = float32(NEVER)
        sum_low = float32(0)
        sum_high = float32(0)
        for first in range(0, limit, tkv):
            load(base + uint32(query_tile), base + uint32(values_at), keys, values, first, limit)
            slot = uint32(0)
            if stages == 2:
                slot = uint32(((first // tkv) & 1) * size)
            tiles.wait_but_one()
            cuda.syncthreads()
            if first == 0:
                query_fragments(fragments, base + uint32(warp_row * stride))
            score_fragments(scores, fragments, base + uint32(query_tile) + slot)
            if first + (tkv - 1) > unmasked:
                mask(scores, int32(first), last_low, last_high)
            new_low, new_high = largest(scores, max_low, max_high)
            factor_low = ptx.ex2_approx((max_low - new_low) * c)
            factor_high = ptx.ex2_approx((max_high - new_high) * c)
            max_low = new_low
            max_high = new_high
            part_low, part_high = exponentiate(scores, c, -new_low * c, -new_high * c)
            sum_low = sum_low * factor_low + part_low
            sum_high = sum_high * factor_high + part_high
            scale_rows(sums, factor_low, factor_high)
            if stages == 1:
                tiles.wait_all()
                cuda.syncthreads()
            multiply(sums, scores, base + uint32(values_at) + slot)
            cuda.syncthreads()
        scale_rows(sums, ptx.rcp_approx(quad_sum(sum_low)), ptx.rcp_approx(quad_sum(sum_high)))
        store_rows(sums, ptx.global_address(out), first_row + warp_row, head * head_dim, nt, width)

    return attention_registers
