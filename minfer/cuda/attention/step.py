"""The attention of a decode step in one kernel: bias, head norms and RoPE, the KV store, split-KV attention
and the combination of the splits.

Blocks take parts of the cache, as in `attention.decode`, of at least LEAST_ROWS rows: a short context takes
few blocks. Each rotates the queries of its heads for itself (some hundred FMAs), and the new token's row goes
from the projection to the scores without a detour through the cache. The last block of a kv head to finish,
by a counter in memory, combines the splits; the sums are in the order of the splits, whoever does them.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.attention.config import LOG2_E, NEVER
from minfer.cuda.attention.decode import MOST_HEADS, unpack8
from minfer.cuda.checks import check_choice
from minfer.cuda.elementwise.rotary import RopeStoreConfig, head_part
from minfer.cuda.elementwise.rows import store4, warp_sum
from minfer.cuda.gemv.fine import store_fine
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel
from minfer.cuda.signature import signature_of

LEAST_ROWS = 32  # cache rows of a split
MOST_SPLITS = 64
WARPS = 4
CHUNK = 8  # splits whose sums the combination has in flight


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
        return f"{kind} {shape}{extra} splits={self.splits} ->{self.output}"

    @property
    def row(self) -> RopeStoreConfig:
        """What is done to the row first."""
        return RopeStoreConfig(
            self.heads, self.kv_heads, self.head_dim, self.rotary, self.interleaved, self.bias, "f32",
            norm=self.norm,
        )  # fmt: skip

    @property
    def block_heads(self) -> int:
        """Query heads of one block: the largest divisor of the group that fits in registers."""
        group = self.heads // self.kv_heads
        return max(n for n in range(1, MOST_HEADS + 1) if group % n == 0)

    @property
    def threads(self) -> int:
        return WARPS * 32

    @property
    def row_groups(self) -> int:
        """Cache rows that a block works on at a time."""
        return self.threads * 8 // self.head_dim

    @property
    def query_bytes(self) -> int:
        """The block's queries as f32, then the new row's key and value as f16, then a flag."""
        return self.block_heads * self.head_dim * 4 + 2 * self.head_dim * 2 + 16

    @property
    def shared_bytes(self) -> int:
        """The row's part, then one unnormalised sum and two statistics a head and row group (or the splits'
        factors)."""
        sums = self.row_groups * self.block_heads * (self.head_dim + 4) * 4
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
    [head_dim], eps float32,) position int32 [1] (rows stored before), table f32 [positions, rotary / 2, 2],
    k_cache and v_cache f16 [capacity, kv_heads * head_dim], partial, statistics and counters: workspaces of
    the config's shapes, out [heads * head_dim] f32, or fine records of it, scale float32. Launch with
    pdl=True or without. Dao et al. 2023, "Flash-Decoding".
    """
    heads, kv_heads, head_dim, splits = config.heads, config.kv_heads, config.head_dim, config.splits
    served, groups, threads = config.block_heads, config.row_groups, config.threads
    lanes = head_dim // 8  # of one cache row: 16 bytes each
    shuffles = lanes.bit_length() - 1
    pitch = kv_heads * head_dim * 2
    per_kv_head = heads // kv_heads // served
    dims = served * 8
    slot = (head_dim + 4) * 4  # bytes of a head in shared memory: sums, maximum, sum of weights
    key_at = served * head_dim * 4
    value_at, flag_at, sums_at = key_at + head_dim * 2, key_at + head_dim * 4, config.query_bytes
    units = (served + 2) * lanes
    unit_rounds = -(-units // threads)
    fours = served * head_dim // 4
    four_rounds = -(-fours // threads)
    biased, normed = config.bias, config.norm
    take = head_part(config.row)
    store = store_fine if config.output == "records" else store4("f32")

    @device_function
    def prefetch(keys, values, begin, end):
        """Bring the split's rows into L2 while the kernel before runs."""
        for row in range(begin + int32(cuda.threadIdx.x), end, threads):
            at = uint64(row) * uint64(pitch)
            ptx.bulk_prefetch_l2(keys + at, uint32(head_dim * 2))
            ptx.bulk_prefetch_l2(values + at, uint32(head_dim * 2))

    @device_function
    def stage_row(shared, qkv, bias, q_norm, k_norm, eps, position, table, kv_head, first_head, factor):
        """Rotated queries, times `factor`, as f32 and the new key and value as f16 to shared memory."""
        for i in range(unit_rounds):
            unit = int32(cuda.threadIdx.x) + i * threads
            inside = unit < units
            if not inside:
                unit = int32(0)
            local = unit // lanes
            head = first_head + local
            if local >= served:
                head = heads + (local - served) * kv_heads + kv_head
            low, high, a0, a1, a2, a3, b0, b1, b2, b3 = take(
                qkv, bias, q_norm, k_norm, uint64(position), table, head, unit - local * lanes, eps
            )
            if inside:
                if local < served:
                    row = shared + uint32(local * (head_dim * 4))
                    f = factor
                    ptx.st_shared_v4_f32(row + uint32(low * 4), a0 * f, a1 * f, a2 * f, a3 * f)
                    ptx.st_shared_v4_f32(row + uint32(high * 4), b0 * f, b1 * f, b2 * f, b3 * f)
                else:
                    row = shared + uint32(key_at + (local - served) * (head_dim * 2))
                    at = row + uint32(low * 2)
                    ptx.st_shared_v2_u32(at, ptx.pack_f16x2(a0, a1), ptx.pack_f16x2(a2, a3))
                    at = row + uint32(high * 2)
                    ptx.st_shared_v2_u32(at, ptx.pack_f16x2(b0, b1), ptx.pack_f16x2(b2, b3))

    @device_function
    def load_row(target, cached, fresh, row, position, end):
        """This lane's 8 elements of a cache row; zeros past the split's end."""
        w0 = uint32(0)
        w1 = uint32(0)
        w2 = uint32(0)
        w3 = uint32(0)
        if row < end:
            if row == position:
                w0, w1, w2, w3 = ptx.ld_shared_v4_u32(fresh)
            else:
                w0, w1, w2, w3 = ptx.ld_global_v4_u32(cached + uint64(row) * uint64(pitch))
        unpack8(target, 0, w0, w1, w2, w3)

    @device_function
    def dot(query, at, key):
        total = float32(0)
        for i in range(8):
            total += query[at + i] * key[i]
        for step in range(shuffles):
            total += ptx.shfl_xor_f32(total, uint32(1 << step))
        return total

    @device_function
    def warp_max(v):
        for step in range(5):
            v = ptx.max_f32(v, ptx.shfl_xor_f32(v, uint32(1 << step)))
        return v

    @device_function
    def gather(sums, h, d):
        """Four dims of a head from the block's row groups: (sums, maximum, sum of weights)."""
        mine = sums + uint32(h * slot)
        top = float32(NEVER)
        for g in range(groups):
            top = ptx.max_f32(top, ptx.ld_shared_f32(mine + uint32(g * (served * slot) + head_dim * 4)))
        a0 = float32(0)
        a1 = float32(0)
        a2 = float32(0)
        a3 = float32(0)
        weight = float32(0)
        for g in range(groups):
            at = mine + uint32(g * (served * slot))
            largest, part = ptx.ld_shared_v2_f32(at + uint32(head_dim * 4))
            b0, b1, b2, b3 = ptx.ld_shared_v4_f32(at + uint32(d * 4))
            factor = ptx.ex2_approx(largest - top)
            weight += factor * part
            a0 += factor * b0
            a1 += factor * b1
            a2 += factor * b2
            a3 += factor * b3
        return a0, a1, a2, a3, top, weight

    @device_function
    def is_last(shared, counter, active):
        """Whether this block is the last of `active` ones that come here; in all threads."""
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            ptx.fence_gpu()
            before = ptx.atom_add_global_u32(counter, uint32(1))
            ptx.fence_gpu()
            last = uint32(0)
            if before == uint32(active - 1):
                last = uint32(1)
                ptx.st_global_u32(counter, uint32(0))
            ptx.st_shared_u32(shared + uint32(flag_at), last)
        cuda.syncthreads()
        return ptx.ld_shared_u32(shared + uint32(flag_at)) == uint32(1)

    @device_function
    def split_factors(factors, statistics, first_head, active):
        """What each split's sums are multiplied with, [served, MOST_SPLITS] f32 in shared memory."""
        lane = int32(ptx.lane_id())
        for h in range(int32(cuda.threadIdx.x) >> 5, served, WARPS):
            ours = statistics + uint64((first_head + h) * splits) * uint64(8)
            largest0 = float32(NEVER)
            weight0 = float32(0)
            largest1 = float32(NEVER)
            weight1 = float32(0)
            if lane < active:
                largest0, weight0 = ptx.ld_global_v2_f32(ours + uint64(lane) * uint64(8))
            if lane + 32 < active:
                largest1, weight1 = ptx.ld_global_v2_f32(ours + uint64(lane + 32) * uint64(8))
            top = warp_max(ptx.max_f32(largest0, largest1))
            factor0 = ptx.ex2_approx(largest0 - top)
            factor1 = ptx.ex2_approx(largest1 - top)
            inverse = ptx.rcp_approx(warp_sum(factor0 * weight0 + factor1 * weight1))
            row = factors + uint32(h * (MOST_SPLITS * 4) + lane * 4)
            ptx.st_shared_f32(row, factor0 * inverse)
            ptx.st_shared_f32(row + uint32(128), factor1 * inverse)

    @device_function
    @unrolled
    def combine(factors, partial, first_head, h, d, active):
        """Four dims of a head, normalised, from all splits."""
        ours = partial + (uint64((first_head + h) * splits) * uint64(head_dim) + uint64(d)) * uint64(4)
        parts = cuda.local.array(32, float32)
        a0 = float32(0)
        a1 = float32(0)
        a2 = float32(0)
        a3 = float32(0)
        for base in range(0, active, CHUNK):
            for i in unroll(8):
                s = int32(min(base + i, active - 1))
                b0, b1, b2, b3 = ptx.ld_global_v4_f32(ours + uint64(s) * uint64(head_dim * 4))
                parts[i * 4] = b0
                parts[i * 4 + 1] = b1
                parts[i * 4 + 2] = b2
                parts[i * 4 + 3] = b3
            for i in unroll(8):
                if base + i < active:
                    factor = ptx.ld_shared_f32(factors + uint32((h * MOST_SPLITS + base + i) * 4))
                    a0 += factor * parts[i * 4]
                    a1 += factor * parts[i * 4 + 1]
                    a2 += factor * parts[i * 4 + 2]
                    a3 += factor * parts[i * 4 + 3]
        return a0, a1, a2, a3

    @device_function
    def attend(
        qkv, bias, q_norm, k_norm, eps, positions, table, k_cache, v_cache, partial, statistics, counters,
        out, scale,
    ):  # fmt: skip
        shared = ptx.shared_address(cuda.shared.array(0, uint8))
        sums = shared + uint32(sums_at)
        thread = int32(cuda.threadIdx.x)
        group = thread // lanes
        part = thread - group * lanes
        split = int32(cuda.blockIdx.x)
        first_head = int32(cuda.blockIdx.y) * served
        kv_head = int32(cuda.blockIdx.y) // per_kv_head
        keys = k_cache + uint64(kv_head * (head_dim * 2))
        values = v_cache + uint64(kv_head * (head_dim * 2))
        # A guess, if the kernel before is the one that moves the position: it only warms L2.
        guess = int32(ptx.ld_global_u32(positions))
        share = int32(max(LEAST_ROWS, (guess + splits) // splits))
        prefetch(keys, values, split * share, int32(min((split + 1) * share, guess)))
        ptx.griddepcontrol_launch_dependents()
        ptx.griddepcontrol_wait()

        position = int32(ptx.ld_global_u32(positions))
        rows = position + 1
        share = int32(max(LEAST_ROWS, (rows + (splits - 1)) // splits))
        active = (rows + (share - 1)) // share
        if split >= active:
            return
        begin = split * share
        end = int32(min(begin + share, rows))
        factor = scale * float32(LOG2_E)
        stage_row(shared, qkv, bias, q_norm, k_norm, eps, position, table, kv_head, first_head, factor)
        cuda.syncthreads()
        key_fresh = shared + uint32(key_at + part * 16)
        value_fresh = shared + uint32(value_at + part * 16)
        key_cached = keys + uint64(part * 16)
        value_cached = values + uint64(part * 16)
        if split == active - 1 and int32(cuda.blockIdx.y) == kv_head * per_kv_head and thread < lanes:
            at = uint64(position) * uint64(pitch)
            w0, w1, w2, w3 = ptx.ld_shared_v4_u32(key_fresh)
            ptx.st_global_v4_u32(key_cached + at, w0, w1, w2, w3)
            w0, w1, w2, w3 = ptx.ld_shared_v4_u32(value_fresh)
            ptx.st_global_v4_u32(value_cached + at, w0, w1, w2, w3)

        query = cuda.local.array(dims, float32)
        totals = cuda.local.array(dims, float32)
        largest = cuda.local.array(served, float32)
        weights = cuda.local.array(served, float32)
        key_a = cuda.local.array(8, float32)
        key_b = cuda.local.array(8, float32)
        value_a = cuda.local.array(8, float32)
        value_b = cuda.local.array(8, float32)
        for h in range(served):
            for i in range(2):
                at = shared + uint32(h * (head_dim * 4) + part * 32 + i * 16)
                q0, q1, q2, q3 = ptx.ld_shared_v4_f32(at)
                query[h * 8 + i * 4] = q0
                query[h * 8 + i * 4 + 1] = q1
                query[h * 8 + i * 4 + 2] = q2
                query[h * 8 + i * 4 + 3] = q3
            largest[h] = float32(NEVER)
            weights[h] = float32(0)
        for i in range(dims):
            totals[i] = float32(0)
        # The whole block goes round together: the dot products shuffle. Two rows a turn, for more loads.
        for base in range(begin, end, 2 * groups):
            row_a = int32(base) + group
            row_b = row_a + groups
            load_row(key_a, key_cached, key_fresh, row_a, position, end)
            load_row(key_b, key_cached, key_fresh, row_b, position, end)
            load_row(value_a, value_cached, value_fresh, row_a, position, end)
            load_row(value_b, value_cached, value_fresh, row_b, position, end)
            for h in range(served):
                score_a = dot(query, h * 8, key_a)
                score_b = dot(query, h * 8, key_b)
                if row_a >= end:
                    score_a = float32(NEVER)
                if row_b >= end:
                    score_b = float32(NEVER)
                top = ptx.max_f32(largest[h], ptx.max_f32(score_a, score_b))
                past = ptx.ex2_approx(largest[h] - top)
                weight_a = float32(0)
                weight_b = float32(0)
                if row_a < end:
                    weight_a = ptx.ex2_approx(score_a - top)
                if row_b < end:
                    weight_b = ptx.ex2_approx(score_b - top)
                largest[h] = top
                weights[h] = weights[h] * past + weight_a + weight_b
                for i in range(8):
                    at = h * 8 + i
                    totals[at] = totals[at] * past + weight_a * value_a[i] + weight_b * value_b[i]
        for h in range(served):
            mine = sums + uint32((group * served + h) * slot)
            for i in range(2):
                at = h * 8 + i * 4
                ptx.st_shared_v4_f32(
                    mine + uint32(part * 32 + i * 16),
                    totals[at], totals[at + 1], totals[at + 2], totals[at + 3],
                )  # fmt: skip
            if part == 0:
                ptx.st_shared_v2_f32(mine + uint32(head_dim * 4), largest[h], weights[h])
        cuda.syncthreads()

        # Whole warps go round together: the store may shuffle.
        for i in range(four_rounds):
            item = thread + i * threads
            inside = item < fours
            if not inside:
                item = int32(0)
            h = item * 4 // head_dim
            d = item * 4 - h * head_dim
            a0, a1, a2, a3, top, weight = gather(sums, h, d)
            if active == 1:
                inverse = ptx.rcp_approx(weight)
                index = int32(heads * head_dim)
                if inside:
                    index = first_head * head_dim + item * 4
                store(
                    out,
                    index,
                    int32(heads * head_dim),
                    a0 * inverse,
                    a1 * inverse,
                    a2 * inverse,
                    a3 * inverse,
                )
            else:
                if inside:
                    index = uint64((first_head + h) * splits + split)
                    target = partial + (index * uint64(head_dim) + uint64(d)) * uint64(4)
                    ptx.st_global_v4_f32(target, a0, a1, a2, a3)
                    if d == 0:
                        ptx.st_global_v2_f32(statistics + index * uint64(8), top, weight)
        if active == 1:
            return
        if is_last(shared, counters + uint64(cuda.blockIdx.y) * uint64(4), active):
            split_factors(sums, statistics, first_head, active)
            cuda.syncthreads()
            for i in range(four_rounds):
                item = thread + i * threads
                inside = item < fours
                if not inside:
                    item = int32(0)
                h = item * 4 // head_dim
                a0, a1, a2, a3 = combine(sums, partial, first_head, h, item * 4 - h * head_dim, active)
                index = int32(heads * head_dim)
                if inside:
                    index = first_head * head_dim + item * 4
                store(out, index, int32(heads * head_dim), a0, a1, a2, a3)

    address = ptx.global_address

    def attention_step_plain(
        qkv, positions, table, k_cache, v_cache, partial, statistics, counters, out, scale
    ):
        none = uint64(0)
        attend(
            address(qkv), none, none, none, float32(0), address(positions), address(table), address(k_cache),
            address(v_cache), address(partial), address(statistics), address(counters), address(out), scale,
        )  # fmt: skip

    def attention_step_biased(
        qkv, bias, positions, table, k_cache, v_cache, partial, statistics, counters, out, scale
    ):
        none = uint64(0)
        attend(
            address(qkv), address(bias), none, none, float32(0), address(positions), address(table),
            address(k_cache), address(v_cache), address(partial), address(statistics), address(counters),
            address(out), scale,
        )  # fmt: skip

    def attention_step_normed(
        qkv, bias, q_norm, k_norm, eps, positions, table, k_cache, v_cache, partial, statistics, counters,
        out, scale,
    ):  # fmt: skip
        attend(
            address(qkv), address(bias), address(q_norm), address(k_norm), eps, address(positions),
            address(table), address(k_cache), address(v_cache), address(partial), address(statistics),
            address(counters), address(out), scale,
        )  # fmt: skip

    function = attention_step_biased if biased else attention_step_plain
    norms = ()
    if normed:
        function = attention_step_normed
        norms = (
            Argument("q_norm", "in", "float32"),
            Argument("k_norm", "in", "float32"),
            Argument("eps", "scalar", "float32"),
        )
    arguments = (
        Argument("qkv", "in", "float32"),
        *((Argument("bias", "in", "float32"),) if biased else ()),
        *norms,
        Argument("position", "in", "int32"),
        Argument("table", "in", "float32"),
        Argument("k_cache", "inout", "float16"),
        Argument("v_cache", "inout", "float16"),
        Argument("partial", "inout", "float32"),
        Argument("statistics", "inout", "float32"),
        Argument("counters", "inout", "uint32"),
        Argument("out", "out", "uint8" if config.output == "records" else "float32"),
        Argument("scale", "scalar", "float32"),
    )
    return Kernel(
        name="attention_step",
        config=config,
        function=function,
        signature=signature_of(arguments),
        threads=threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=90,
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
