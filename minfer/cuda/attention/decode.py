"""Decode attention: one query token over the f16 KV cache, split along the cache (flash-decoding).

The number of stored rows is read from device memory, so that a captured graph replays at every position.
Each split writes an unnormalised sum and its statistics; a second kernel combines the splits, and may write
what the next GEMV reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.attention.config import LOG2_E, NEVER, SHARED_LIMIT
from minfer.cuda.checks import check_choice, check_types
from minfer.cuda.dependent import dependent_start, least_arch
from minfer.cuda.elementwise.rows import OUTPUTS, output_argument, store4
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel

MOST_HEADS = 8  # query heads a block: 16 registers each


@dataclass(frozen=True)
class DecodeAttentionConfig:
    """Split-KV decode attention.

    Attributes:
        heads, kv_heads, head_dim: the attention's shape; head_dim 64 or 128.
        splits: parts of the cache, one block each. 2 blocks an SM in all are a good number.
        query: "f32" or "f16": what the query is.
        output: what the combine kernel writes: "f32", "f16", or "q8" records for the decode GEMV.
        warps: warps a block; a group of head_dim / 8 lanes takes a cache row at a time.
        pdl: programmatic dependent launch (`minfer.cuda.dependent`).
    """

    heads: int
    kv_heads: int
    head_dim: int = 128
    splits: int = 32
    query: str = "f16"
    output: str = "f32"
    warps: int = 4
    pdl: bool = False

    def __post_init__(self) -> None:
        check_types("attention_decode", self)
        check_choice("attention_decode", "head_dim", self.head_dim, (64, 128))
        check_choice("attention_decode", "query", self.query, ("f16", "f32"))
        check_choice("attention_decode", "output", self.output, OUTPUTS)
        check_choice("attention_decode", "warps", self.warps, (1, 2, 4, 8))
        if self.kv_heads < 1 or self.heads < 1 or self.heads % self.kv_heads:
            raise ConfigRefused(
                f"attention_decode: {self.heads} heads on {self.kv_heads} kv heads; take a multiple"
            )
        if self.splits < 1:
            raise ConfigRefused(f"attention_decode: {self.splits} splits; take at least 1")
        if self.shared_bytes > SHARED_LIMIT:
            raise ConfigRefused(
                f"attention_decode: {self.shared_bytes} bytes of shared memory a block, the limit is "
                f"{SHARED_LIMIT}: take fewer warps"
            )

    def __str__(self) -> str:
        shape = f"heads={self.heads}/{self.kv_heads} hd={self.head_dim} splits={self.splits}"
        return f"{shape} warps={self.warps} {self.query}->{self.output}{' pdl' if self.pdl else ''}"

    @property
    def block_heads(self) -> int:
        """Query heads of one block: the largest divisor of the group that fits in registers."""
        group = self.heads // self.kv_heads
        return max(n for n in range(1, MOST_HEADS + 1) if group % n == 0)

    @property
    def threads(self) -> int:
        return self.warps * 32

    @property
    def row_groups(self) -> int:
        """Cache rows that a block works on at a time."""
        return self.threads * 8 // self.head_dim

    @property
    def shared_bytes(self) -> int:
        """One unnormalised sum and two statistics a head and row group."""
        return self.row_groups * self.block_heads * (self.head_dim + 2) * 4

    @property
    def partial_shape(self) -> tuple[int, int, int]:
        """Shape of the f32 workspace of sums."""
        return (self.heads, self.splits, self.head_dim)

    @property
    def statistics_shape(self) -> tuple[int, int, int]:
        """Shape of the f32 workspace of (maximum in log2 units, sum)."""
        return (self.heads, self.splits, 2)

    def grid(self) -> tuple[int, int, int]:
        """(splits, groups of heads)."""
        return (self.splits, self.heads // self.block_heads, 1)

    def combine_grid(self) -> tuple[int, int, int]:
        """Blocks of the combine kernel: one warp, 4 outputs a lane."""
        return (-(-self.heads * self.head_dim // 128), 1, 1)


@device_function
def unpack8(values, at, w0, w1, w2, w3):
    """Eight halves into a local f32 array from element `at` on."""
    values[at] = ptx.unpack_f16x2_lo(w0)
    values[at + 1] = ptx.unpack_f16x2_hi(w0)
    values[at + 2] = ptx.unpack_f16x2_lo(w1)
    values[at + 3] = ptx.unpack_f16x2_hi(w1)
    values[at + 4] = ptx.unpack_f16x2_lo(w2)
    values[at + 5] = ptx.unpack_f16x2_hi(w2)
    values[at + 6] = ptx.unpack_f16x2_lo(w3)
    values[at + 7] = ptx.unpack_f16x2_hi(w3)


def attention_decode(config: DecodeAttentionConfig) -> Kernel:
    """Each split's part of softmax(scale * q K^T) V over cache rows 0 .. length - 1.

    Arguments: q [heads * head_dim] f16 or f32, k_cache and v_cache f16 [capacity, kv_heads * head_dim],
    partial f32 [heads, splits, head_dim], statistics f32 [heads, splits, 2], length int32 [1] in device
    memory (rows stored, the query's own included), scale float32. A split without rows writes zeros and a
    maximum of -1e30. A block serves all query heads of a kv head (up to 8), so that K and V are read once.
    Dao et al. 2023, "Flash-Decoding".
    """
    heads, kv_heads, head_dim, splits = config.heads, config.kv_heads, config.head_dim, config.splits
    served, groups, threads = config.block_heads, config.row_groups, config.threads
    lanes = head_dim // 8  # of one cache row: 16 bytes each
    rounds = {16: 4, 8: 3}[lanes]  # shuffles that sum over them
    pitch = kv_heads * head_dim * 2
    per_kv_head = heads // kv_heads // served
    dims = served * 8
    slot = head_dim + 2  # floats of a head in shared memory: the sum, maximum, sum of weights
    query_bytes = {"f16": 2, "f32": 4}[config.query]
    start = dependent_start(config.pdl)

    @device_function
    def load_query_f16(values, at, address):
        w0, w1, w2, w3 = ptx.ld_global_v4_u32(address)
        unpack8(values, at, w0, w1, w2, w3)

    @device_function
    def load_query_f32(values, at, address):
        for i in range(2):
            a0, a1, a2, a3 = ptx.ld_global_v4_f32(address + uint64(i * 16))
            values[at + 4 * i] = a0
            values[at + 4 * i + 1] = a1
            values[at + 4 * i + 2] = a2
            values[at + 4 * i + 3] = a3

    load_query = load_query_f16 if config.query == "f16" else load_query_f32

    @device_function
    def load_row(values, address, inside):
        """This lane's 8 elements of a cache row; zeros past the split's end."""
        w0 = uint32(0)
        w1 = uint32(0)
        w2 = uint32(0)
        w3 = uint32(0)
        if inside:
            w0, w1, w2, w3 = ptx.ld_global_v4_u32(address)
        unpack8(values, 0, w0, w1, w2, w3)

    @device_function
    def dot(query, at, key):
        total = float32(0)
        for i in range(8):
            total += query[at + i] * key[i]
        for step in range(rounds):
            total += ptx.shfl_xor_f32(total, uint32(1 << step))
        return total

    def attention_decode_split(q, k_cache, v_cache, partial, statistics, length, scale):
        start()
        shared = ptx.shared_address(cuda.shared.array(0, uint8))
        thread = int32(cuda.threadIdx.x)
        group = thread // lanes
        part = thread - group * lanes
        split = int32(cuda.blockIdx.x)
        first_head = int32(cuda.blockIdx.y) * served
        kv_head = int32(cuda.blockIdx.y) // per_kv_head
        rows = length[0]
        share = (rows + (splits - 1)) // splits
        begin = min(split * share, rows)
        end = min(begin + share, rows)
        column = uint64(kv_head * (head_dim * 2) + part * 16)
        keys = ptx.global_address(k_cache) + column
        values = ptx.global_address(v_cache) + column

        query = cuda.local.array(dims, float32)
        sums = cuda.local.array(dims, float32)
        largest = cuda.local.array(served, float32)
        weights = cuda.local.array(served, float32)
        key_a = cuda.local.array(8, float32)
        key_b = cuda.local.array(8, float32)
        value_a = cuda.local.array(8, float32)
        value_b = cuda.local.array(8, float32)
        for h in range(served):
            at = ptx.global_address(q) + uint64((first_head + h) * head_dim + part * 8) * uint64(query_bytes)
            load_query(query, h * 8, at)
            largest[h] = float32(NEVER)
            weights[h] = float32(0)
        for i in range(dims):
            sums[i] = float32(0)
        c = scale * float32(LOG2_E)
        # The whole block goes round together: the dot products shuffle. Two rows a turn, for more loads.
        for base in range(begin, end, 2 * groups):
            row = int32(base) + group
            inside_a = row < end
            inside_b = row + groups < end
            offset = uint64(row) * uint64(pitch)
            load_row(key_a, keys + offset, inside_a)
            load_row(key_b, keys + offset + uint64(groups * pitch), inside_b)
            load_row(value_a, values + offset, inside_a)
            load_row(value_b, values + offset + uint64(groups * pitch), inside_b)
            for h in range(served):
                score_a = dot(query, h * 8, key_a) * c
                score_b = dot(query, h * 8, key_b) * c
                if not inside_a:
                    score_a = float32(NEVER)
                if not inside_b:
                    score_b = float32(NEVER)
                top = ptx.max_f32(largest[h], ptx.max_f32(score_a, score_b))
                factor = ptx.ex2_approx(largest[h] - top)
                weight_a = float32(0)
                weight_b = float32(0)
                if inside_a:
                    weight_a = ptx.ex2_approx(score_a - top)
                if inside_b:
                    weight_b = ptx.ex2_approx(score_b - top)
                largest[h] = top
                weights[h] = weights[h] * factor + weight_a + weight_b
                for i in range(8):
                    at = h * 8 + i
                    sums[at] = sums[at] * factor + weight_a * value_a[i] + weight_b * value_b[i]

        for h in range(served):
            mine = shared + uint32((group * served + h) * (slot * 4))
            for i in range(8):
                ptx.st_shared_f32(mine + uint32(part * 32 + i * 4), sums[h * 8 + i])
            if part == 0:
                ptx.st_shared_f32(mine + uint32(head_dim * 4), largest[h])
                ptx.st_shared_f32(mine + uint32(head_dim * 4 + 4), weights[h])
        cuda.syncthreads()
        for item in range(thread, served * head_dim, threads):
            h = item // head_dim
            d = item - h * head_dim
            theirs = shared + uint32(h * (slot * 4))
            top = float32(NEVER)
            for g in range(groups):
                top = ptx.max_f32(
                    top, ptx.ld_shared_f32(theirs + uint32(g * (served * slot * 4) + head_dim * 4))
                )
            total = float32(0)
            weight = float32(0)
            for g in range(groups):
                at = theirs + uint32(g * (served * slot * 4))
                factor = ptx.ex2_approx(ptx.ld_shared_f32(at + uint32(head_dim * 4)) - top)
                total += factor * ptx.ld_shared_f32(at + uint32(d * 4))
                weight += factor * ptx.ld_shared_f32(at + uint32(head_dim * 4 + 4))
            index = uint64((first_head + h) * splits + split)
            target = ptx.global_address(partial) + (index * uint64(head_dim) + uint64(d)) * uint64(4)
            ptx.st_global_f32(target, total)
            if d == 0:
                ptx.st_global_v2_f32(ptx.global_address(statistics) + index * uint64(8), top, weight)

    arguments = (
        Argument("q", "in", {"f16": "float16", "f32": "float32"}[config.query]),
        Argument("k_cache", "in", "float16"),
        Argument("v_cache", "in", "float16"),
        Argument("partial", "out", "float32"),
        Argument("statistics", "out", "float32"),
        Argument("length", "in", "int32"),
        Argument("scale", "scalar", "float32"),
    )
    return Kernel(
        name="attention_decode",
        config=config,
        function=attention_decode_split,
        threads=threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=least_arch(config.pdl),
    )


def attention_combine(config: DecodeAttentionConfig) -> Kernel:
    """The attention output from its splits' parts.

    Arguments: partial f32 [heads, splits, head_dim], statistics f32 [heads, splits, 2], out [heads *
    head_dim] f32 or f16, or q8 records of it. One warp a block, 4 outputs a lane; sums over splits in a
    fixed order.
    """
    head_dim, splits = config.head_dim, config.splits
    total = config.heads * head_dim
    store, start = store4(config.output), dependent_start(config.pdl)

    def attention_combine_splits(partial, statistics, out):
        start()
        index = int32((cuda.blockIdx.x * 32 + cuda.threadIdx.x) * 4)
        a0 = float32(0)
        a1 = float32(0)
        a2 = float32(0)
        a3 = float32(0)
        if index < total:
            head = index // head_dim
            ours = ptx.global_address(statistics) + uint64(head) * uint64(splits * 8)
            sums = ptx.global_address(partial) + (
                uint64(head) * uint64(splits * head_dim) + uint64(index - head * head_dim)
            ) * uint64(4)
            top = float32(NEVER)
            for s in range(splits):
                top = ptx.max_f32(top, ptx.ld_global_f32(ours + uint64(s * 8)))
            weight = float32(0)
            for s in range(splits):
                largest, part = ptx.ld_global_v2_f32(ours + uint64(s * 8))
                b0, b1, b2, b3 = ptx.ld_global_v4_f32(sums + uint64(s * (head_dim * 4)))
                factor = ptx.ex2_approx(largest - top)
                weight += factor * part
                a0 += factor * b0
                a1 += factor * b1
                a2 += factor * b2
                a3 += factor * b3
            inverse = ptx.rcp_approx(weight)
            a0 *= inverse
            a1 *= inverse
            a2 *= inverse
            a3 *= inverse
        store(ptx.global_address(out), index, total, a0, a1, a2, a3)

    arguments = (
        Argument("partial", "in", "float32"),
        Argument("statistics", "in", "float32"),
        output_argument(config.output),
    )
    return Kernel(
        name="attention_combine",
        config=config,
        function=attention_combine_splits,
        threads=32,
        shared_bytes=0,
        arguments=arguments,
        min_arch=least_arch(config.pdl),
    )


# Qwen2.5-7B, Qwen2.5-0.5B and SmolLM2-135M.
_SHAPES = ((28, 4, 128), (14, 2, 64), (9, 3, 64))


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    kernels = []
    for heads, kv_heads, head_dim in _SHAPES:
        shape = (heads, kv_heads, head_dim)
        kernels += [attention_decode(DecodeAttentionConfig(*shape, query=query)) for query in ("f16", "f32")]
        kernels += [attention_combine(DecodeAttentionConfig(*shape, output=output)) for output in OUTPUTS]
        overlapping = DecodeAttentionConfig(*shape, output="q8", pdl=True)
        kernels += [attention_decode(overlapping), attention_combine(overlapping)]
    return kernels
