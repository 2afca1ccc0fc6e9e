"""The attention of a decode step in one kernel: bias, head norms and RoPE, the KV store, split-KV attention
on tensor cores and the combination of the splits.

One query row per head leaves tensor cores mostly idle, but the query heads that share a kv head are rows of
one matrix: 7 of the 8 columns of an mma fragment for Qwen2.5-7B, and K and V are read once for all of them.
Scores are Q K^T (heads by cache rows, 16 rows a warp and turn); the output is computed as V^T P^T, whose
second operand is what the score fragment already holds. Which dims of a row an mma calls k or m is free, as
long as both operands agree: each lane takes 16-byte pieces as they lie in the cache.

A decode step waits for one kernel after the other, so what does not depend on the one before is done while
that still runs: the position is known, older rows are in the cache, biases and angles are constants. The new
token's row goes from the projection to the scores without a detour through the cache. Up to ONE_BLOCK rows
are one block's work; longer contexts are split, and the last block of a head group combines the splits, in
their order, whoever it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.attention.config import LOG2_E, NEVER
from minfer.cuda.attention.fragments import make_fragments
from minfer.cuda.attention.splits import MOST_SPLITS, make_combine, make_gather, make_is_last
from minfer.cuda.checks import check_choice
from minfer.cuda.elementwise.rotary import RopeStoreConfig, head_part
from minfer.cuda.elementwise.rows import store4
from minfer.cuda.gemv.fine import store_fine
from minfer.cuda.gemv.stream import chain
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel
from minfer.cuda.signature import signature_of

MOST_HEADS = 8  # query heads a block: columns of an mma fragment
WARPS = 8
TURN_ROWS = 16 * WARPS  # cache rows of a block's turn
ONE_BLOCK = 3 * TURN_ROWS  # up to so many rows another turn is faster than a combination


@dataclass(frozen=True)
class AttentionStepConfig:
    """Attention of one token, from its stacked q, k, v row to the attended row.

    Attributes:
        heads, kv_heads, head_dim: the attention's shape; head_dim 64 or 128.
        rotary: dims of a head that rotate, from the first.
        interleaved: pairs (2i, 2i + 1); else NEOX, (i, i + rotary / 2).
        bias, norm: as in `RopeStoreConfig`.
        splits: most parts of the cache.
        output: "records" (fine records for the GEMV behind it) or "f32".
        chained: as in `GemvStreamConfig`.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    interleaved: bool = False
    bias: bool = False
    norm: bool = False
    splits: int = 32
    output: str = "records"
    chained: bool = False

    def __post_init__(self) -> None:
        check_choice("attention_step", "head_dim", self.head_dim, (64, 128))
        check_choice("attention_step", "output", self.output, ("records", "f32"))
        if self.heads < 1:
            raise ConfigRefused(f"attention_step: {self.heads} heads; take at least 1")
        if not 1 <= self.splits <= MOST_SPLITS:
            raise ConfigRefused(f"attention_step: {self.splits} splits; take 1 to {MOST_SPLITS}")
        self.row  # noqa: B018 - checks the rest

    def __str__(self) -> str:
        kind = "interleaved" if self.interleaved else "neox"
        extra = (" bias" if self.bias else "") + (" norm" if self.norm else "")
        shape = f"heads={self.heads}/{self.kv_heads} hd={self.head_dim} rotary={self.rotary}"
        return (
            f"{kind} {shape}{extra} splits={self.splits} ->{self.output}{' chained' if self.chained else ''}"
        )

    @property
    def row(self) -> RopeStoreConfig:
        """What is done to the row first."""
        return RopeStoreConfig(
            self.heads, self.kv_heads, self.head_dim, self.rotary, self.interleaved, self.bias, "f32",
            norm=self.norm,
        )  # fmt: skip

    @property
    def block_heads(self) -> int:
        """Query heads of one block: the largest divisor of the group that fits a fragment."""
        group = self.heads // self.kv_heads
        return max(n for n in range(1, MOST_HEADS + 1) if group % n == 0)

    @property
    def threads(self) -> int:
        return WARPS * 32

    @property
    def query_bytes(self) -> int:
        """Eight heads' queries, the new row's key and value as f16, and a flag."""
        return (MOST_HEADS + 2) * self.head_dim * 2 + 16

    @property
    def shared_bytes(self) -> int:
        """The row's part, then one unnormalised sum and two statistics a head and warp (or the splits'
        factors)."""
        sums = WARPS * self.block_heads * (self.head_dim + 4) * 4
        return self.query_bytes + max(sums, self.block_heads * MOST_SPLITS * 4)

    @property
    def partial_shape(self) -> tuple[int, int, int]:
        """Shape of the f32 workspace of sums."""
        return (self.heads, self.splits, self.head_dim)

    @property
    def statistics_shape(self) -> tuple[int, int, int]:
        """Shape of the f32 workspace of (maximum in log2 units, sum)."""
        return (self.heads, self.splits, 2)

    @property
    def counters(self) -> int:
        """uint32 of the workspace that must be zero before the first launch; each launch leaves it so."""
        return self.heads // self.block_heads

    def grid(self) -> tuple[int, int, int]:
        """(splits, groups of heads)."""
        return (self.splits, self.heads // self.block_heads, 1)


def attention_step(config: AttentionStepConfig) -> Kernel:
    """out = softmax(scale * q K^T) V over cache rows 0 ... position, of which this launch stores the last.

    Arguments: qkv f32 [(heads + 2 kv_heads) * head_dim], (bias f32 of one such row,) (q_norm, k_norm f32
    [head_dim], eps float32,) position int32 [1] (rows stored before; neither it nor the
    caches may be written by the kernels just before), table f32 [positions, rotary / 2, 2], k_cache and
    v_cache f16 [capacity, kv_heads * head_dim], partial, statistics and counters: workspaces of
    the config's shapes, out [heads * head_dim] f32, or fine records of it, scale float32. Launch with
    pdl=True or without. Dao et al. 2023, "Flash-Decoding".
    """
    heads, kv_heads, head_dim, splits = config.heads, config.kv_heads, config.head_dim, config.splits
    served, threads = config.block_heads, config.threads
    pieces = head_dim // 32  # 16-byte pieces of a row that a lane takes for the scores
    per_lane = head_dim // 8  # dims that a lane has for the output, and mma tiles of it
    lanes = head_dim // 8  # that stage a head
    pitch = kv_heads * head_dim * 2
    per_kv_head = heads // kv_heads // served
    key_at, value_at = MOST_HEADS * head_dim * 2, (MOST_HEADS + 1) * head_dim * 2
    flag_at, sums_at = value_at + head_dim * 2, config.query_bytes
    slot = (head_dim + 4) * 4  # bytes of a head's sums, maximum, sum of weights
    units = (served + 2) * lanes
    unit_rounds = -(-units // threads)
    fours = served * head_dim // 4
    four_rounds = -(-fours // threads)
    key_words, value_words = 8 * pieces, 2 * per_lane
    biased, chained = config.bias, config.chained
    take = head_part(config.row)
    store = store_fine if config.output == "records" else store4("f32")
    parts = make_fragments(config.block_heads, kv_heads, head_dim)
    load_keys, load_values, put_new_row = parts.load_keys, parts.load_values, parts.put_new_row
    scores, add_values, put_sums = parts.scores, parts.add_values, parts.put_sums
    gather, is_last = make_gather(served, head_dim, WARPS), make_is_last(flag_at)
    split_factors, combine = make_combine(served, head_dim, splits, WARPS)
    total, rotary = heads * head_dim, config.rotary

    @device_function
    def count_on(after):
        """Tell the next kernel that this block is through."""
        if chained and cuda.threadIdx.x == 0:
            ptx.red_add_release_u32(after, uint32(1))

    @device_function
    def unit_place(i, kv_head, first_head):
        """(whether there is such a unit, its head in the stacked row, local head, part)."""
        unit = int32(cuda.threadIdx.x) + int32(i * threads)
        inside = unit < units
        if not inside:
            unit = int32(0)
        local = unit // lanes
        head = first_head + local
        if local >= served:
            head = heads + (local - served) * kv_heads + kv_head
        return inside, head, local, unit - local * lanes

    @device_function
    def warm(bias, angles, kv_head, first_head):
        """Load the row's constants once before they are wanted: they come from memory, not from L2."""
        for i in range(unit_rounds):
            inside, head, _, part = unit_place(i, kv_head, first_head)
            if biased and inside:
                ptx.ld_global_nc_u32(bias + uint64((head * head_dim + part * 8) * 4))
            if inside and part < rotary // 8:
                ptx.ld_global_nc_u32(angles + uint64(part * 32))

    @device_function
    def stage_row(shared, qkv, bias, q_norm, k_norm, eps, position, table, kv_head, first_head):
        """Rotated queries and the new key and value as f16 to shared memory."""
        for i in range(unit_rounds):
            inside, head, local, part = unit_place(i, kv_head, first_head)
            low, high, a0, a1, a2, a3, b0, b1, b2, b3 = take(
                qkv, bias, q_norm, k_norm, uint64(position), table, head, part, eps
            )
            if inside:
                row = shared + uint32(local * (head_dim * 2))
                if local >= served:
                    row = shared + uint32(key_at + (local - served) * (head_dim * 2))
                at = row + uint32(low * 2)
                ptx.st_shared_v2_u32(at, ptx.pack_f16x2(a0, a1), ptx.pack_f16x2(a2, a3))
                at = row + uint32(high * 2)
                ptx.st_shared_v2_u32(at, ptx.pack_f16x2(b0, b1), ptx.pack_f16x2(b2, b3))

    @device_function
    @unrolled
    def attend(
        qkv, bias, q_norm, k_norm, eps, positions, table, k_cache, v_cache, partial, statistics, counters,
        out, scale, before, expected, after,
    ):  # fmt: skip
        shared = ptx.shared_address(cuda.shared.array(0, uint8))
        thread = int32(cuda.threadIdx.x)
        warp = ptx.uniform(thread >> 5)
        lane = thread & 31
        t = lane & 3
        split = int32(cuda.blockIdx.x)
        first_head = int32(cuda.blockIdx.y) * served
        kv_head = int32(cuda.blockIdx.y) // per_kv_head
        keys = k_cache + uint64(kv_head * (head_dim * 2))
        values = v_cache + uint64(kv_head * (head_dim * 2))
        ptx.griddepcontrol_launch_dependents()
        position = int32(ptx.ld_global_u32(positions))
        rows = position + 1
        share = rows
        if rows > ONE_BLOCK:
            share = int32(max(TURN_ROWS, (rows + (splits - 1)) // splits))
        active = (rows + (share - 1)) // share
        if split >= active:
            count_on(after)
            return
        begin = split * share
        end = int32(min(begin + share, rows))

        key_buffer = cuda.local.array(key_words, uint32)
        value_buffer = cuda.local.array(value_words, uint32)
        first = begin + warp * 16
        load_keys(keys, key_buffer, first, int32(min(end, position)))
        row = first + (lane >> 1)
        if row < int32(min(end, position)):  # registers are too few for the values too
            ptx.prefetch_global_l2(values + uint64(row) * uint64(pitch) + uint64((lane & 1) * head_dim))
        warm(bias, table + uint64(position) * uint64(rotary * 4), kv_head, first_head)
        # Columns without a head: zero.
        for i in range(served * head_dim * 2 + thread * 4, MOST_HEADS * head_dim * 2, threads * 4):
            ptx.st_shared_u32(shared + uint32(i), uint32(0))
        if chained:
            if thread == 0:
                ptx.wait_global_u32(before, expected)
            cuda.syncthreads()
        else:
            ptx.griddepcontrol_wait()

        stage_row(shared, qkv, bias, q_norm, k_norm, eps, position, table, kv_head, first_head)
        cuda.syncthreads()
        if split == active - 1 and int32(cuda.blockIdx.y) == kv_head * per_kv_head and thread < lanes:
            at = uint64(position) * uint64(pitch) + uint64(thread * 16)
            w0, w1, w2, w3 = ptx.ld_shared_v4_u32(shared + uint32(key_at + thread * 16))
            ptx.st_global_v4_u32(keys + at, w0, w1, w2, w3)
            w0, w1, w2, w3 = ptx.ld_shared_v4_u32(shared + uint32(value_at + thread * 16))
            ptx.st_global_v4_u32(values + at, w0, w1, w2, w3)
        sums = cuda.local.array(value_words, float32)
        for i in unroll(2 * per_lane):
            sums[i] = float32(0)
        found = cuda.local.array(4, float32)
        largest = float32(NEVER)
        weight = float32(0)
        factor = scale * float32(LOG2_E)
        for base in range(first, end, TURN_ROWS):
            row = int32(base)
            load_values(values, value_buffer, row, int32(min(end, position)))
            if row > first:
                load_keys(keys, key_buffer, row, int32(min(end, position)))
            put_new_row(shared + uint32(key_at), key_buffer, value_buffer, row, position)
            scores(shared, key_buffer, found)
            top = largest
            for i in unroll(4):
                found[i] = found[i] * factor
                if row + 2 * t + (i & 1) + (i >> 1) * 8 >= end:
                    found[i] = float32(NEVER)
                top = ptx.max_f32(top, found[i])
            top = ptx.max_f32(top, ptx.shfl_xor_f32(top, uint32(1)))
            top = ptx.max_f32(top, ptx.shfl_xor_f32(top, uint32(2)))
            past = ptx.ex2_approx(largest - top)
            largest = top
            weight *= past
            for i in unroll(4):
                found[i] = ptx.ex2_approx(found[i] - top)
                weight += found[i]
            if row > first:
                past0 = ptx.shfl_idx_f32(past, uint32(t * 8))
                past1 = ptx.shfl_idx_f32(past, uint32(t * 8 + 4))
                for i in unroll(per_lane // 2):
                    sums[i * 4] *= past0
                    sums[i * 4 + 1] *= past1
                    sums[i * 4 + 2] *= past0
                    sums[i * 4 + 3] *= past1
            add_values(
                value_buffer, ptx.pack_f16x2(found[0], found[1]), ptx.pack_f16x2(found[2], found[3]), sums
            )
        put_sums(shared + uint32(sums_at + warp * (served * slot)), sums, largest, weight)
        cuda.syncthreads()

        # Whole warps go round together: the store may shuffle.
        for i in range(four_rounds):
            item = thread + i * threads
            inside = item < fours
            if not inside:
                item = int32(0)
            h = item * 4 // head_dim
            d = item * 4 - h * head_dim
            a0, a1, a2, a3, top, weight = gather(shared + uint32(sums_at), h, d)
            if active == 1:
                inverse = ptx.rcp_approx(weight)
                index = int32(total)
                if inside:
                    index = first_head * head_dim + item * 4
                store(out, index, int32(total), a0 * inverse, a1 * inverse, a2 * inverse, a3 * inverse)
            elif inside:
                place = uint64((first_head + h) * splits + split)
                target = partial + (place * uint64(head_dim) + uint64(d)) * uint64(4)
                ptx.st_global_v4_f32(target, a0, a1, a2, a3)
                if d == 0:
                    ptx.st_global_v2_f32(statistics + place * uint64(8), top, weight)
        if active == 1:
            cuda.syncthreads()
            count_on(after)
            return
        if is_last(shared, counters + uint64(cuda.blockIdx.y) * uint64(4), active):
            factors = shared + uint32(sums_at)
            split_factors(factors, statistics, first_head, active)
            cuda.syncthreads()
            for i in range(four_rounds):
                item = thread + i * threads
                inside = item < fours
                if not inside:
                    item = int32(0)
                h = item * 4 // head_dim
                a0, a1, a2, a3 = combine(factors, partial, first_head, h, item * 4 - h * head_dim, active)
                index = int32(total)
                if inside:
                    index = first_head * head_dim + item * 4
                store(out, index, int32(total), a0, a1, a2, a3)
        cuda.syncthreads()
        count_on(after)

    address = ptx.global_address

    def attention_step_heads(
        qkv, bias, q_norm, k_norm, eps, position, table, k_cache, v_cache, partial, statistics, counters, out,
        scale, before, expected, after,
    ):  # fmt: skip
        attend(
            address(qkv), address(bias), address(q_norm), address(k_norm), eps, address(position),
            address(table), address(k_cache), address(v_cache), address(partial), address(statistics),
            address(counters), address(out), scale, address(before), expected, address(after),
        )  # fmt: skip

    arguments = (
        Argument("qkv", "in", "float32"),
        Argument("bias", "in", "float32", present=config.bias),
        Argument("q_norm", "in", "float32", present=config.norm),
        Argument("k_norm", "in", "float32", present=config.norm),
        Argument("eps", "scalar", "float32", present=config.norm),
        Argument("position", "in", "int32"),
        Argument("table", "in", "float32"),
        Argument("k_cache", "inout", "float16"),
        Argument("v_cache", "inout", "float16"),
        Argument("partial", "inout", "float32"),
        Argument("statistics", "inout", "float32"),
        Argument("counters", "inout", "uint32"),
        Argument("out", "out", "uint8" if config.output == "records" else "float32"),
        Argument("scale", "scalar", "float32"),
        *chain(config.chained),
    )
    return Kernel(
        name="attention_step",
        config=config,
        function=attention_step_heads,
        signature=signature_of(arguments),
        threads=threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=90,
        min_blocks=2,
    )


# Qwen2.5-7B, Qwen2.5-0.5B and SmolLM2-135M.
_SHAPES = (
    (28, 4, 128, 128, False, True),
    (14, 2, 64, 64, False, True),
    (9, 3, 64, 64, True, False),
)


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    configs = [AttentionStepConfig(*shape) for shape in _SHAPES]
    configs.append(AttentionStepConfig(28, 4, 128, 128, bias=True, norm=True, output="f32"))
    return [attention_step(config) for config in configs]
