"""Causal GQA prefill attention on Hopper: wgmma, TMA, persistent warp-specialised blocks.

Warpgroup 0 of a block loads by TMA (one thread), warpgroups 1 and 2 own 64 query rows each of a tile of 128
rows of one head. One block a multiprocessor takes tile after tile in an order that the host made
(`HopperAttentionConfig.successors`). In flight together in a warpgroup, in every step down the KV tiles:

    S' = Q K'^T of the next KV tile  |  O += P V of this one  |  exponentials of S' as soon as it is there

so that P V runs under the exponentials. The scores never leave the registers: wgmma's accumulators, converted
in place, are the A operand of the product with V. The output goes through shared memory by stmatrix and TMA
stores, which drain under the next tile.

Scores stay f32 from the tensor cores to the exponential, so that biases as large as Qwen2's, whose scores
overflow f16, cost nothing. FlashAttention-3 (Shah et al. 2024) has the warp specialisation and the two
products in flight; the reference from the diagonal instead of a running maximum is ours.
"""

from __future__ import annotations

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32

from minfer.cuda import ptx
from minfer.cuda.attention.config import LOG2_E
from minfer.cuda.attention.hopper_config import (
    STAGES,
    TILE,
    HopperAttentionConfig,
    hopper_steps,
)
from minfer.cuda.attention.hopper_softmax import (
    REGISTERS,
    first_weights,
    mask_after,
    mask_before,
    softmax_step,
)
from minfer.cuda.attention.softmax import quad_sum
from minfer.cuda.attention.tiles import scale_rows
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.tile.hopper import ALIGNMENT, BOX_COLUMNS, store_tile

#: A box of Q, K or V: 128 rows of 64 columns. 64 rows of it, a consumer's share of Q.
BOX_BYTES, SHARE_BYTES = TILE * BOX_COLUMNS * 2, 64 * BOX_COLUMNS * 2
WARP_BYTES = SHARE_BYTES // 4
#: Registers a thread after setmaxnreg: 24 + 2 x 240 = 3 x 168, what 384 threads start with.
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 24, 240
#: The named barrier of the staggered start.
TURN, CONSUMER_THREADS = 1, 256


@device_function
def first_row(block, q_offset, kv_end):
    """First cache row of the diagonal KV tile of a query block; may be before row 0."""
    return int32(min(int32(q_offset + block * TILE), int32(kv_end - TILE)))


@device_function
def block_and_head(tile, nt, heads):
    """(query block, head) of a tile: from the last query block, head by head."""
    row = int32(uint32(tile) // uint32(heads))
    return int32(int32((nt + (TILE - 1)) >> 7) - 1 - row), int32(tile - row * heads)


def _producer(config: HopperAttentionConfig):
    """Device function: K of the diagonal, Q, then K of the next KV tile and V of this one, down to row 0."""
    heads, head_dim, boxes = config.heads, config.head_dim, config.head_dim // BOX_COLUMNS
    group, tile_bytes, starts = config.heads // config.kv_heads, config.tile_bytes, config.starts
    q_start, k_start, v_start = starts["q"], starts["k"], starts["v"]
    k_bars = config.query_ring.size_bytes
    v_bars = k_bars + config.kv_ring.size_bytes
    advance = config.kv_ring.advance

    @device_function
    def load(place, tensor_map, full, empty, parity, column, row):
        """A tile of 128 rows, once its place is free."""
        ptx.mbarrier_wait(empty, parity)
        ptx.mbarrier_arrive_expect_tx(full, tile_bytes)
        for box in range(boxes):
            ptx.tma_load_2d(place + box * BOX_BYTES, tensor_map, full, int32(column + box * BOX_COLUMNS), row)

    @device_function
    def load_staged(start, bars, tensor_map, stage, parity, column, row):
        full = uint32(bars + 8 * stage)
        load(uint32(start + stage * tile_bytes), tensor_map, full, full + 8 * STAGES, parity, column, row)

    @device_function
    def produce(q_map, k_map, v_map, successors, base, bars, nt, q_offset, kv_end):
        k_stage, k_parity, v_stage, v_parity = uint32(0), uint32(1), uint32(0), uint32(1)
        q_parity = uint32(1)
        tile = int32(cuda.blockIdx.x)
        while tile >= 0:
            block, head = block_and_head(tile, nt, heads)
            row = first_row(block, q_offset, kv_end)
            column = int32((head // group) * head_dim)
            load_staged(base + k_start, bars + k_bars, k_map, k_stage, k_parity, column, row)
            k_stage, k_parity = advance(k_stage, k_parity)
            load(base + q_start, q_map, bars, bars + 8, q_parity, int32(head * head_dim), int32(block * TILE))
            q_parity = uint32(q_parity ^ 1)
            while row > -TILE:
                if row > 0:
                    below = int32(row - TILE)
                    load_staged(base + k_start, bars + k_bars, k_map, k_stage, k_parity, column, below)
                    k_stage, k_parity = advance(k_stage, k_parity)
                load_staged(base + v_start, bars + v_bars, v_map, v_stage, v_parity, column, row)
                v_stage, v_parity = advance(v_stage, v_parity)
                row = int32(row - TILE)
            tile = successors[tile]

    return produce


def _consumer(config: HopperAttentionConfig):
    """Device function: a warpgroup's 64 rows of tile after tile."""
    heads, head_dim, tile_units = config.heads, config.head_dim, config.tile_bytes >> 4
    overlap, late_values, stagger = config.overlap, config.late_values, config.stagger
    starts, store_bytes = config.starts, config.store_bytes
    sum_count, weight_count = head_dim // 2, REGISTERS // 2
    q_start, k_start, v_start, out_start = (starts[name] for name in ("q", "k", "v", "out"))
    q_steps, fragment_count = head_dim // 16, head_dim // 4
    k_bars = config.query_ring.size_bytes
    v_bars = k_bars + config.kv_ring.size_bytes
    advance, descriptor = config.kv_ring.advance, ptx.wgmma_descriptor
    # Q and K lie as boxes of 64 columns; V as it is in the cache, so that its rows are k.
    steps = tuple(BOX_BYTES * (k // 4) + 32 * (k % 4) for k in range(q_steps))
    in_registers = config.query == "registers"
    product = {"a": config.query, "k_steps": q_steps, "accumulate": False, "b_offsets": steps}
    if not in_registers:
        product["a_offsets"] = steps
    multiply_qk = ptx.wgmma(TILE, **product)
    multiply_pv = ptx.wgmma(
        head_dim,
        a="registers",
        k_steps=TILE // 16,
        b_offsets=tuple(16 * BOX_COLUMNS * 2 * k for k in range(TILE // 16)),
        transpose_b=True,
    )
    wait_scores, wait_scores_behind = ptx.wgmma_wait(0, REGISTERS), ptx.wgmma_wait(1, REGISTERS)
    wait_sums_behind, chained = ptx.wgmma_wait(1, sum_count), config.chained
    wait_sums, wait_stores = ptx.wgmma_wait(0, sum_count), ptx.bulk_wait_group_read(0)
    before, after = softmax_step(config)
    scale_sums, store = scale_rows(head_dim), store_tile(head_dim, head_dim // BOX_COLUMNS)

    @device_function
    def load_queries(fragments, rows):
        """A warp's 16 rows of Q as A operands: 16-byte units, XORed with the row as TMA left them."""
        lane = ptx.lane_id()
        line = rows + (lane & 15) * 128
        for k in range(q_steps):
            place = line + (k // 4) * BOX_BYTES + (((2 * (k % 4) + (lane >> 4)) ^ (lane & 7)) << 4)
            r0, r1, r2, r3 = ptx.ldmatrix_x4(place)
            fragments[4 * k], fragments[4 * k + 1] = r0, r1
            fragments[4 * k + 2], fragments[4 * k + 3] = r2, r3

    @device_function
    def pack(weights, scores):
        """The accumulators' map is that of the next product's A operand."""
        for i in range(weight_count):
            weights[i] = ptx.pack_f16x2(scores[2 * i], scores[2 * i + 1])

    @device_function
    def clear(sums, weights):
        for i in range(sum_count):
            sums[i] = float32(0)
        for i in range(weight_count):
            weights[i] = uint32(0)

    @device_function
    def finish(sums, factor_low, factor_high, out_map, buffer, token, column):
        """A warp's output: the sums over those of the weights."""
        scale_sums(sums, factor_low, factor_high)
        store(sums, out_map, buffer, token, column, ptx.lane_id())

    @device_function
    def release_keys(bars, k_empty, thread, first):
        """A product is there: its K may be overwritten, and Q after the last one."""
        ptx.mbarrier_arrive_if(k_empty, thread == 0)
        if not in_registers:
            ptx.mbarrier_arrive_if(bars + 8, (thread == 0) & (first <= 0))

    @device_function
    def consume(out_map, successors, q, k_cache, base, bars, nt, q_offset, kv_end, c, consumer, thread):
        lane, warp = thread & 31, ptx.uniform(thread >> 5)
        scores = cuda.local.array(REGISTERS, float32)
        sums = cuda.local.array(sum_count, float32)
        weights = cuda.local.array(weight_count, uint32)
        warp_row = int32(consumer * 64 + warp * 16)
        if in_registers:
            queries = cuda.local.array(fragment_count, uint32)
        else:
            queries = descriptor(base + q_start + consumer * SHARE_BYTES, 16)
        keys, values = descriptor(base + k_start, 16), descriptor(base + v_start, BOX_BYTES)
        buffer = uint32(base + out_start + (consumer * 4 + warp) * store_bytes)
        k_full, v_full = uint32(bars + k_bars), uint32(bars + v_bars)
        k_empty, v_empty = k_full + 8 * STAGES, v_full + 8 * STAGES
        k_stage, k_parity, v_stage, v_parity = uint32(0), uint32(0), uint32(0), uint32(0)
        q_parity = uint32(0)
        tile, token, column = ptx.uniform(int32(cuda.blockIdx.x)), int32(-1), int32(0)
        factor_low, factor_high = float32(0), float32(0)
        if chained:
            clear(sums, weights)
        while tile >= 0:
            block, head = block_and_head(tile, nt, heads)
            upcoming = successors[tile]  # its latency passes under this tile
            first, position = first_row(block, q_offset, kv_end), int32(q_offset + block * TILE)
            # The diagonal KV tile: every row sees its own key, or the last one stored.
            ptx.mbarrier_wait(bars, q_parity)
            q_parity = uint32(q_parity ^ 1)
            if in_registers:
                load_queries(queries, base + q_start + consumer * SHARE_BYTES + warp * WARP_BYTES)
                ptx.syncwarp()
                ptx.mbarrier_arrive_if(bars + 8, lane == 0)
            ptx.mbarrier_wait(k_full + 8 * k_stage, k_parity)
            waits = stagger and (not chained or token < 0)
            if waits and consumer == 1:
                ptx.bar_sync(TURN, CONSUMER_THREADS)
            k_place = keys + k_stage * tile_units
            if chained:
                # Behind the last product of the tile before, whose output leaves under this one. The first
                # time that product is of zeros and what is there already, K.
                v_place = values + v_stage * tile_units
                if token < 0:
                    v_place = descriptor(base + k_start, BOX_BYTES)
                multiply_pv(sums, weights, v_place)
                multiply_qk(scores, queries, k_place)
                wait_sums_behind(sums)
                if token >= 0:
                    ptx.mbarrier_arrive_if(v_empty + 8 * v_stage, thread == 0)
                    v_stage, v_parity = advance(v_stage, v_parity)
                    finish(sums, factor_low, factor_high, out_map, buffer, token, column)
            else:
                multiply_qk(scores, queries, k_place)
            wait_scores(scores)
            if waits and consumer == 0:
                ptx.bar_arrive(TURN, CONSUMER_THREADS)
            release_keys(bars, k_empty + 8 * k_stage, thread, first)
            mask_after(scores, int32(position + warp_row - first))
            if first < 0:
                mask_before(scores, int32(-first))
            low, high, sum_low, sum_high = first_weights(scores, c)
            token, column = int32(block * TILE + warp_row), int32(head * head_dim)
            k_stage, k_parity = advance(k_stage, k_parity)
            pack(weights, scores)
            for i in range(sum_count):
                sums[i] = float32(0)
            ptx.mbarrier_wait(v_full + 8 * v_stage, v_parity)
            while first > 0:
                # What is rare stands outside the inner loop, which the instruction cache then holds whole.
                moved = uint32(0)
                while first > 0:
                    first = int32(first - TILE)
                    spent = v_stage
                    if overlap:
                        ptx.mbarrier_wait(k_full + 8 * k_stage, k_parity)
                        multiply_qk(scores, queries, keys + k_stage * tile_units)
                        multiply_pv(sums, weights, values + v_stage * tile_units)
                        wait_scores_behind(scores)
                    else:
                        multiply_pv(sums, weights, values + v_stage * tile_units)
                        wait_sums(sums)
                        ptx.mbarrier_arrive_if(v_empty + 8 * spent, thread == 0)
                        ptx.mbarrier_wait(k_full + 8 * k_stage, k_parity)
                        multiply_qk(scores, queries, keys + k_stage * tile_units)
                        wait_scores(scores)
                    release_keys(bars, k_empty + 8 * k_stage, thread, first)
                    k_stage, k_parity = advance(k_stage, k_parity)
                    v_stage, v_parity = advance(v_stage, v_parity)
                    if not late_values:
                        ptx.mbarrier_wait(v_full + 8 * v_stage, v_parity)
                    if first < 0:
                        mask_before(scores, int32(-first))
                    next_low, next_high, part_low, part_high, moved = before(scores, c, low, high)
                    if late_values:
                        ptx.mbarrier_wait(v_full + 8 * v_stage, v_parity)
                    if overlap:
                        wait_sums(sums)
                        ptx.mbarrier_arrive_if(v_empty + 8 * spent, thread == 0)
                    if moved != 0:
                        break
                    sum_low, sum_high = sum_low + part_low, sum_high + part_high
                    pack(weights, scores)
                if moved != 0:
                    low, high, sum_low, sum_high = after(
                        scores, sums, c, low, high, next_low, next_high, sum_low, sum_high, part_low,
                        part_high, first, q, k_cache, int32(block * TILE + warp_row), nt, head,
                    )  # fmt: skip
                    pack(weights, scores)
            factor_low, factor_high = ptx.rcp_approx(quad_sum(sum_low)), ptx.rcp_approx(quad_sum(sum_high))
            tile = ptx.uniform(upcoming)
            if not chained:
                multiply_pv(sums, weights, values + v_stage * tile_units)
                wait_sums(sums)
                ptx.mbarrier_arrive_if(v_empty + 8 * v_stage, thread == 0)
                v_stage, v_parity = advance(v_stage, v_parity)
                finish(sums, factor_low, factor_high, out_map, buffer, token, column)
        if chained:
            multiply_pv(sums, weights, values + v_stage * tile_units)
            wait_sums(sums)
            finish(sums, factor_low, factor_high, out_map, buffer, token, column)
        if lane == 0:
            wait_stores()

    return consume


def attention_hopper(config: HopperAttentionConfig) -> Kernel:
    """out[t, h] = softmax(scale * q[t, h] K^T) V over the cache rows that query t sees.

    Arguments: tensor maps (`config.boxes`, 128-byte swizzle) of q f16 [nt, heads * head_dim], of the K and V
    caches f16 [capacity, kv_heads * head_dim] and of out f16 [nt, heads * head_dim]; successors int32, what
    `config.successors` returns for these lengths and this grid; q and k_cache themselves (read only where
    weights overflow f32, see `HopperAttentionConfig.softmax`); nt int32, q_offset int32 (position of query
    0), kv_end int32 (cache rows stored; at least 1), scale float32 (above 0, usually 1 / sqrt(head_dim)).
    Query t sees rows 0 .. min(q_offset + t, kv_end - 1). The grid is `config.grid`. Every element of out is
    written; cache rows from kv_end on are not read."""
    produce, consume = _producer(config), _consumer(config)
    bars_start = config.starts["barriers"]
    k_bars = config.query_ring.size_bytes
    v_bars = k_bars + config.kv_ring.size_bytes
    initialise_q, initialise_kv = config.query_ring.initialise, config.kv_ring.initialise
    fewer, more = ptx.setmaxnreg("dec", PRODUCER_REGISTERS), ptx.setmaxnreg("inc", CONSUMER_REGISTERS)

    def kernel(q_map, k_map, v_map, out_map, successors, q, k_cache, nt, q_offset, kv_end, scale):
        start = ptx.shared_address(cuda.shared.array(0, uint8))
        base = uint32((start + (ALIGNMENT - 1)) & (0x100000000 - ALIGNMENT))
        bars = uint32(base + bars_start)
        queries, keys = ptx.tensor_map_address(q_map), ptx.tensor_map_address(k_map)
        values, out = ptx.tensor_map_address(v_map), ptx.tensor_map_address(out_map)
        thread = cuda.threadIdx.x
        warpgroup = ptx.uniform(thread >> 7)
        if thread == 0:
            ptx.prefetch_tensor_map(queries)
            ptx.prefetch_tensor_map(keys)
            ptx.prefetch_tensor_map(values)
            ptx.prefetch_tensor_map(out)
            initialise_q(bars)
            initialise_kv(bars + k_bars)
            initialise_kv(bars + v_bars)
        cuda.syncthreads()
        if warpgroup == 0:
            fewer()
            if thread == 0:
                produce(queries, keys, values, successors, base, bars, nt, q_offset, kv_end)
        else:
            more()
            consumer, within = int32(warpgroup - 1), int32(thread & 127)
            c = float32(scale * float32(LOG2_E))
            consume(out, successors, q, k_cache, base, bars, nt, q_offset, kv_end, c, consumer, within)

    kernel.__name__ = "attention_hopper"
    return Kernel(
        name="attention_hopper",
        config=config,
        function=kernel,
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=(
            *(Argument(f"{name}_map", "tensor_map", "float16") for name in "qkv"),
            Argument("out_map", "tensor_map", "float16", stored=True),
            Argument("successors", "in", "int32"),
            Argument("q", "in", "float16"),
            Argument("k_cache", "in", "float16"),
            *(Argument(name, "scalar", "int32") for name in ("nt", "q_offset", "kv_end")),
            Argument("scale", "scalar", "float32"),
        ),
        min_arch=90,
        arch_specific=True,
        min_blocks=1,
    )


# Qwen2.5-7B, Qwen2.5-0.5B and SmolLM2-135M.
_SHAPES = ((28, 4, 128), (14, 2, 64), (9, 3, 64))


def shipped() -> list[Kernel]:
    """The ladder at the 7B's shape, and what the engine uses at every model's. (The two schedules are one
    kernel.)"""
    kernels = [attention_hopper(config) for config in hopper_steps(*_SHAPES[0]).values()]
    return kernels + [attention_hopper(HopperAttentionConfig(*shape)) for shape in _SHAPES[1:]]
