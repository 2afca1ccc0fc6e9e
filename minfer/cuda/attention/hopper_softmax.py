"""Softmax of a KV tile on Hopper, in two halves: before P V of the previous tile has finished, and after it.

A row's weights are 2^(score * c + n) with n = -reference * c, one n for each of a lane's two rows. `before`
turns scores into weights; only `after` it may touch the sums of P V. What the variants mean is with
`HopperAttentionConfig.softmax`.
"""

from __future__ import annotations

from collections.abc import Callable

from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.attention.config import NEVER
from minfer.cuda.attention.hopper_config import LAZY_BITS, TILE, HopperAttentionConfig
from minfer.cuda.attention.softmax import exponentials, row_max
from minfer.cuda.attention.tiles import scale_rows
from minfer.cuda.instruction import device_function

REGISTERS = TILE // 2  # scores a lane
LARGEST = 3e38  # weights above are infinite: what they came from must be computed again

largest, exponentiate = row_max(TILE), exponentials(TILE)
scale_scores = scale_rows(TILE)


@device_function
def mask_after(scores, last):
    """Of the warp's row r, columns past `last` + r never count."""
    # From `lane_id`, here and below: nothing stays in a register through the main loop.
    lane = int32(ptx.lane_id())
    column, last = int32((lane & 3) * 2), int32(last + (lane >> 2))
    for j in range(TILE // 8):
        if column + 8 * j > last:
            scores[4 * j] = float32(NEVER)
        if column + (8 * j + 1) > last:
            scores[4 * j + 1] = float32(NEVER)
        if column + 8 * j > last + 8:
            scores[4 * j + 2] = float32(NEVER)
        if column + (8 * j + 1) > last + 8:
            scores[4 * j + 3] = float32(NEVER)


@device_function
def mask_before(scores, first):
    """Columns before `first` never count."""
    column = int32((int32(ptx.lane_id()) & 3) * 2)
    for j in range(TILE // 8):
        if column + 8 * j < first:
            scores[4 * j] = float32(NEVER)
            scores[4 * j + 2] = float32(NEVER)
        if column + (8 * j + 1) < first:
            scores[4 * j + 1] = float32(NEVER)
            scores[4 * j + 3] = float32(NEVER)


@device_function
def first_weights(scores, c):
    """(n low, n high, sum low, sum high): the weights of the diagonal tile, relative to its own maxima."""
    top_low, top_high = largest(scores, float32(NEVER), float32(NEVER))
    low, high = -top_low * c, -top_high * c
    sum_low, sum_high = exponentiate(scores, c, low, high)
    return low, high, sum_low, sum_high


def softmax_step(config: HopperAttentionConfig) -> tuple[Callable, Callable]:
    """Device functions (`before`, `after`) of a KV tile below the diagonal one.

    before(scores, c, low, high) -> (next low, next high, part low, part high, moved): the weights relative to
    the next n, their sums, and whether n is another one now. If not, the parts are added, and that is all.

    after(scores, sums, c, low, high, next low, next high, sum low, sum high, part low, part high, first, q,
    k_cache, row, nt, head) -> (low, high, sum low, sum high): if so, the earlier sums scaled to the new n,
    the parts added. The last ones say where the scores came from: first row of the KV tile, the warp's first
    query row."""
    return _guarded(config) if config.softmax == "diagonal" else _with_maximum(config)


def _with_maximum(config: HopperAttentionConfig) -> tuple[Callable, Callable]:
    """ "running" and "lazy"."""
    lazy, scale_sums = config.softmax == "lazy", scale_rows(config.head_dim)

    @device_function
    def before(scores, c, low, high):
        top_low, top_high = largest(scores, float32(NEVER), float32(NEVER))
        next_low, next_high = ptx.min_f32(low, -top_low * c), ptx.min_f32(high, -top_high * c)
        moved = uint32(1)
        if lazy:
            grown = ptx.max_f32(low - next_low, high - next_high)
            moved = ptx.vote_any(uint32(grown > float32(LAZY_BITS)))
            if moved == 0:
                next_low, next_high = low, high
        part_low, part_high = exponentiate(scores, c, next_low, next_high)
        return next_low, next_high, part_low, part_high, moved

    @device_function
    def after(scores, sums, c, low, high, next_low, next_high, sum_low, sum_high, part_low, part_high,
              first, q, k_cache, row, nt, head):  # fmt: skip
        factor_low, factor_high = ptx.ex2_approx(next_low - low), ptx.ex2_approx(next_high - high)
        scale_sums(sums, factor_low, factor_high)
        sum_low, sum_high = sum_low * factor_low + part_low, sum_high * factor_high + part_high
        return next_low, next_high, sum_low, sum_high

    return before, after


def _guarded(config: HopperAttentionConfig) -> tuple[Callable, Callable]:
    """ "diagonal": no maximum; the sums of the weights stand guard.

    A warp whose guard trips moves its reference, from the weights that it has: their row maximum, as a power
    of two, is how far the reference is off. Weights past f32's range are infinite; then the warp computes its
    16 x 128 scores again, from global memory by mma.sync. That happens next to never, so it is written to be
    small, not fast."""
    limit, again, scale_sums = config.rescue_above, scores_again(config), scale_rows(config.head_dim)

    @device_function
    def before(scores, c, low, high):
        part_low, part_high = exponentiate(scores, c, low, high)
        moved = ptx.vote_any(uint32(not (part_low + part_high <= float32(limit))))
        return low, high, part_low, part_high, moved

    @device_function
    def after(scores, sums, c, low, high, next_low, next_high, sum_low, sum_high, part_low, part_high,
              first, q, k_cache, row, nt, head):  # fmt: skip
        top_low, top_high = largest(scores, float32(0), float32(0))
        infinite = uint32(not (ptx.max_f32(top_low, top_high) <= float32(LARGEST)))
        if ptx.vote_any(infinite) != 0:
            again(scores, q, k_cache, row, nt, head, first)
            mask_before(scores, -first)
            top_low, top_high = largest(scores, float32(NEVER), float32(NEVER))
            next_low, next_high = ptx.min_f32(low, -top_low * c), ptx.min_f32(high, -top_high * c)
            factor_low, factor_high = ptx.ex2_approx(next_low - low), ptx.ex2_approx(next_high - high)
            part_low, part_high = exponentiate(scores, c, next_low, next_high)
        else:
            grown_low = ptx.max_f32(ptx.lg2_approx(top_low), float32(0))
            grown_high = ptx.max_f32(ptx.lg2_approx(top_high), float32(0))
            factor_low, factor_high = ptx.ex2_approx(-grown_low), ptx.ex2_approx(-grown_high)
            next_low, next_high = low - grown_low, high - grown_high
            part_low, part_high = part_low * factor_low, part_high * factor_high
            scale_scores(scores, factor_low, factor_high)
        scale_sums(sums, factor_low, factor_high)
        sum_low, sum_high = sum_low * factor_low + part_low, sum_high * factor_high + part_high
        return next_low, next_high, sum_low, sum_high

    return before, after


def scores_again(config: HopperAttentionConfig) -> Callable:
    """Device function (scores, q, k_cache, row, nt, head, first): the warp's 16 x 128 scores by mma.sync from
    global memory, for query rows from `row` and cache rows from `first` on (those before row 0 as row 0).

    Each round of the outer loop moves the scores up by four registers, so that their indices are constant
    though nothing is unrolled."""
    head_dim, group, head_bytes = config.head_dim, config.heads // config.kv_heads, config.head_dim * 2
    q_pitch, k_pitch = config.heads * head_bytes, config.kv_heads * head_bytes

    @device_function
    def again(scores, q, k_cache, row, nt, head, first):
        lane = int32(ptx.lane_id())
        part = (lane & 3) * 4
        queries = ptx.global_address(q) + uint64(head * head_bytes + part)
        row = int32(row + (lane >> 2))
        low = queries + uint64(min(row, nt - 1)) * uint64(q_pitch)
        high = queries + uint64(min(row + 8, nt - 1)) * uint64(q_pitch)
        keys = ptx.global_address(k_cache) + uint64((head // group) * head_bytes + part)
        cache_row = int32(first + (lane >> 2))
        # From an instruction, so that the compiler does not know it and leaves the loops alone.
        steps, rounds = ptx.uniform(head_dim // 16), ptx.uniform(TILE // 8)
        j = int32(0)
        while j < rounds:
            key = keys + uint64(max(cache_row, 0)) * uint64(k_pitch)
            s0, s1, s2, s3 = float32(0), float32(0), float32(0), float32(0)
            k = int32(0)
            while k < steps:
                o = uint64(k * 32)
                s0, s1, s2, s3 = ptx.mma_m16n8k16_f16(
                    ptx.ld_global_nc_u32(low + o), ptx.ld_global_nc_u32(high + o),
                    ptx.ld_global_nc_u32(low + o + uint64(16)), ptx.ld_global_nc_u32(high + o + uint64(16)),
                    ptx.ld_global_nc_u32(key + o), ptx.ld_global_nc_u32(key + o + uint64(16)),
                    s0, s1, s2, s3,
                )  # fmt: skip
                k = int32(k + 1)
            for i in range(REGISTERS - 4):
                scores[i] = scores[i + 4]
            scores[REGISTERS - 4], scores[REGISTERS - 3] = s0, s1
            scores[REGISTERS - 2], scores[REGISTERS - 1] = s2, s3
            cache_row = int32(cache_row + 8)
            j = int32(j + 1)

    return again
