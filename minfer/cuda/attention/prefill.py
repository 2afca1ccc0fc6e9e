"""Causal GQA prefill attention over an f16 KV cache, on mma.sync: every softmax and P.V variant of the seeds.

Scores stay f32 from the tensor cores to the exponential, so that biases as large as Qwen2's, whose scores
overflow f16, cost nothing; P is in [0, 1] and goes to f16 for its product with V, the sums are f32.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.attention import tiles
from minfer.cuda.attention.config import TILE_ROWS, AttentionConfig, seed_steps
from minfer.cuda.attention.tiles import load_a
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.signature import signature_of
from minfer.cuda.tile.epilogue import store_accumulators
from minfer.cuda.tile.fragments import accumulator_to_operand, store_matrix_sync

LOG2_E = 1.4426950408889634
NEVER = -1e30  # a masked score: finite, so that differences of two of them are numbers

_to_operand = accumulator_to_operand("f16")
_wait_all = ptx.cp_async_wait_group(0)
_wait_but_one = ptx.cp_async_wait_group(1)


def attention_prefill(config: AttentionConfig) -> Kernel:
    """out[t, h] = softmax(scale * q[t, h] K^T) V over the cache rows that query t sees.

    Arguments: q [nt, heads * head_dim] f16 or f32, k_cache and v_cache f16 [capacity, kv_heads * head_dim],
    out [nt, heads * head_dim] f16 or f32, nt int32, q_offset int32 (position of query 0: a prompt in chunks
    goes onto the filled cache), kv_end int32 (cache rows stored: rows from there on are never used; at
    least 1), scale float32 (usually 1 / sqrt(head_dim)). Query t sees rows 0 .. min(q_offset + t, kv_end -
    1).

    Seeds 000 (P5.0, P5.3) and 002 (TKV, both mask predicates, FAP2); online softmax as in FlashAttention-2
    (Dao 2023).
    """
    function = _registers(config) if config.softmax == "register" else _shared(config)
    dtypes = {"f16": "float16", "f32": "float32"}
    arguments = (
        Argument("q", "in", dtypes[config.query]),
        Argument("k_cache", "in", "float16"),
        Argument("v_cache", "in", "float16"),
        Argument("out", "out", dtypes[config.output]),
        *(Argument(name, "scalar", "int32") for name in ("nt", "q_offset", "kv_end")),
        Argument("scale", "scalar", "float32"),
    )
    return Kernel(
        name="attention_prefill",
        config=config,
        function=function,
        signature=signature_of(arguments),
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_blocks=2,  # the steps differ in shared memory, not in what the register file allows
    )


@device_function
def _quad_max(v):
    v = ptx.max_f32(v, ptx.shfl_xor_f32(v, 1))
    return ptx.max_f32(v, ptx.shfl_xor_f32(v, 2))


@device_function
def _quad_sum(v):
    v += ptx.shfl_xor_f32(v, 1)
    return v + ptx.shfl_xor_f32(v, 2)


def _load_tiles(config: AttentionConfig) -> Callable:
    """Device function (K tiles, V tiles, keys, values, first, limit): have the tile that starts at row
    `first` on its way, K before V, and with two stages the next one behind it."""
    stages, tkv, size = config.stages, config.tkv, config.kv_bytes
    stage, prefetch, ahead = tiles.stage_kv(config), tiles.prefetch_kv(config), config.l2_prefetch

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


def _registers(config: AttentionConfig) -> Callable:
    """Scores, softmax and P in registers (FAP2): 4 warps of 16 rows, which meet only around the KV tiles."""
    head_dim, tkv, stages = config.head_dim, config.tkv, config.stages
    width, group = config.heads * config.head_dim, config.heads // config.kv_heads
    stride, size = config.row_stride, config.kv_bytes
    query_tile, values_at = config.query_bytes, config.query_bytes + stages * size
    query_words, score_words, sum_words = head_dim // 4, tkv // 2, head_dim // 2  # a lane's share of 16 rows
    in_bytes = {"f16": 2, "f32": 4}[config.query]
    stage_query, load = tiles.stage_query(config), _load_tiles(config)
    query_fragments = tiles.query_fragments(config)
    score_fragments = tiles.score_fragments(config, tkv)
    accumulate, scale_rows = tiles.accumulate_pv(config, head_dim), tiles.scale_rows(head_dim)
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
    def row_max(scores, low, high):
        for j in range(tkv // 8):
            low = ptx.max_f32(low, ptx.max_f32(scores[4 * j], scores[4 * j + 1]))
            high = ptx.max_f32(high, ptx.max_f32(scores[4 * j + 2], scores[4 * j + 3]))
        return _quad_max(low), _quad_max(high)

    @device_function
    def exponentials(scores, c, low, high):
        """scores = 2^(scores * c + low or high); returns this lane's part of the two row sums."""
        sum_low = float32(0)
        sum_high = float32(0)
        for j in range(tkv // 8):
            scores[4 * j] = ptx.ex2_approx(ptx.fma_rn_f32(scores[4 * j], c, low))
            scores[4 * j + 1] = ptx.ex2_approx(ptx.fma_rn_f32(scores[4 * j + 1], c, low))
            scores[4 * j + 2] = ptx.ex2_approx(ptx.fma_rn_f32(scores[4 * j + 2], c, high))
            scores[4 * j + 3] = ptx.ex2_approx(ptx.fma_rn_f32(scores[4 * j + 3], c, high))
            sum_low += scores[4 * j] + scores[4 * j + 1]
            sum_high += scores[4 * j + 2] + scores[4 * j + 3]
        return sum_low, sum_high

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
        head = int32(cuda.blockIdx.x)
        first_row = int32((cuda.gridDim.y - 1 - cuda.blockIdx.y) * TILE_ROWS)
        rows = min(int32(TILE_ROWS), nt - first_row)
        limit = min(kv_end, q_offset + first_row + rows)
        column = uint64((head // group) * (head_dim * 2))
        keys = ptx.global_address(k_cache) + column
        values = ptx.global_address(v_cache) + column
        stage_query(base, ptx.global_address(q) + uint64(head * (head_dim * in_bytes)), first_row, nt)

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
            _wait_but_one()
            cuda.syncthreads()
            if first == 0:
                query_fragments(fragments, base + uint32(warp_row * stride))
            score_fragments(scores, fragments, base + uint32(query_tile) + slot)
            if first + (tkv - 1) > unmasked:
                mask(scores, int32(first), last_low, last_high)
            new_low, new_high = row_max(scores, max_low, max_high)
            factor_low = ptx.ex2_approx((max_low - new_low) * c)
            factor_high = ptx.ex2_approx((max_high - new_high) * c)
            max_low = new_low
            max_high = new_high
            part_low, part_high = exponentials(scores, c, -new_low * c, -new_high * c)
            sum_low = sum_low * factor_low + part_low
            sum_high = sum_high * factor_high + part_high
            scale_rows(sums, factor_low, factor_high)
            if stages == 1:
                _wait_all()
                cuda.syncthreads()
            multiply(sums, scores, base + uint32(values_at) + slot)
            cuda.syncthreads()
        scale_rows(sums, ptx.rcp_approx(_quad_sum(sum_low)), ptx.rcp_approx(_quad_sum(sum_high)))
        store_rows(sums, ptx.global_address(out), first_row + warp_row, head * head_dim, nt, width)

    return attention_registers


def _shared(config: AttentionConfig) -> Callable:
    """Scores, statistics and P in shared memory: 8 warps; a pair shares 16 query rows, half the columns
    each."""
    head_dim, tkv, stages = config.head_dim, config.tkv, config.stages
    width, group = config.heads * config.head_dim, config.heads // config.kv_heads
    stride, size, score_stride = config.row_stride, config.kv_bytes, config.score_stride
    query_tile, values_at = config.query_bytes, config.query_bytes + stages * size
    scores_at = query_tile + 2 * stages * size
    statistics_at = scores_at + config.score_bytes
    in_bytes = {"f16": 2, "f32": 4}[config.query]
    # Scores go 16 columns a fragment: at tkv 16 one warp of a pair computes them.
    columns, half_dim = max(16, tkv // 2), head_dim // 2
    sides = tkv // columns
    query_words, score_words, sum_words = head_dim // 4, columns // 2, half_dim // 2  # a lane's share
    half_p = config.pv == "shared"  # P as f16, in the place of its scores
    stage_query, load = tiles.stage_query(config), _load_tiles(config)
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
            load_a(p, 0, p_rows + uint32(k * 32), score_stride)
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
        head = int32(cuda.blockIdx.x)
        first_row = int32((cuda.gridDim.y - 1 - cuda.blockIdx.y) * TILE_ROWS)
        rows = min(int32(TILE_ROWS), nt - first_row)
        limit = min(kv_end, q_offset + first_row + rows)
        column = uint64((head // group) * (head_dim * 2))
        keys = ptx.global_address(k_cache) + column
        values = ptx.global_address(v_cache) + column
        stage_query(base, ptx.global_address(q) + uint64(head * (head_dim * in_bytes)), first_row, nt)
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
            _wait_but_one()
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
                _wait_all()
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


# Qwen2.5-7B, Qwen2.5-0.5B and SmolLM2-135M.
_SHAPES = ((28, 4, 128), (14, 2, 64), (9, 3, 64))


def shipped() -> list[Kernel]:
    """The seeds' steps at the 7B's shape, and what the engine uses at every model's."""
    kernels = [attention_prefill(config) for config in seed_steps(*_SHAPES[0]).values()]
    for heads, kv_heads, head_dim in _SHAPES[1:]:
        kernels.append(attention_prefill(AttentionConfig(heads, kv_heads, head_dim, stages=2)))
        kernels.append(
            attention_prefill(AttentionConfig(heads, kv_heads, head_dim, 32, "warp_per_row", "shared"))
        )
    return kernels
