"""Bias, head norms, rotary embedding and KV store in one pass over stacked q, k, v rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.checks import blocks_for, check_choice, check_threads, check_types
from minfer.cuda.dependent import dependent_start, least_arch
from minfer.cuda.elementwise.rotary import (
    MODEL_SHAPES,
    check_head,
    load_angles,
    rotate_adjacent,
    rotate_halves,
)
from minfer.cuda.elementwise.rows import load4
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel


@dataclass(frozen=True)
class RopeStoreConfig:
    """Bias, head norms, RoPE and KV store in one pass over a stacked q, k, v row.

    Attributes:
        heads, kv_heads, head_dim: the attention's shape; with heads 0 a row is k and v alone.
        rotary: dims of a head that rotate, from the first.
        interleaved: pairs (2i, 2i + 1); else NEOX, (i, i + rotary / 2).
        bias: add a bias to the row first.
        norm: RMS norm of every q and k head before the rotation (qwen3). Takes a bias too: zeros if the
            model has none.
        source: "f32" or "f16": what the row is.
        query: "f16" or "f32": what the rotated queries are written as.
        threads: threads a block.
        pdl: programmatic dependent launch (`minfer.cuda.dependent`).
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    interleaved: bool = False
    bias: bool = False
    query: str = "f16"
    threads: int = 128
    norm: bool = False
    source: str = "f32"
    pdl: bool = False

    def __post_init__(self) -> None:
        check_types("rope_store", self)
        check_head("rope_store", self.head_dim, self.rotary)
        check_choice("rope_store", "source", self.source, ("f32", "f16"))
        if self.norm and (not self.bias or 32 % (self.head_dim // 8)):
            raise ConfigRefused(
                f"rope_store: head norms with bias={self.bias}, head_dim {self.head_dim}; a head's threads "
                "share a warp: take head_dim 64, 128 or 256 (or 8, 16, 32), and bias=True"
            )
        check_choice("rope_store", "query", self.query, ("f16", "f32"))
        check_threads("rope_store", self.threads)
        if self.kv_heads < 1 or self.heads < 0 or self.heads % self.kv_heads:  # 0: keys and values only
            raise ConfigRefused(
                f"rope_store: {self.heads} heads on {self.kv_heads} kv heads; take a multiple of the kv heads"
            )

    def __str__(self) -> str:
        kind = "interleaved" if self.interleaved else "neox"
        bias = (" bias" if self.bias else "") + (" norm" if self.norm else "")
        if self.source != "f32":
            bias += f" {self.source} rows"
        shape = f"heads={self.heads}/{self.kv_heads} hd={self.head_dim} rotary={self.rotary}"
        return f"{kind} {shape}{bias} query={self.query}{' pdl' if self.pdl else ''}"

    @property
    def width(self) -> int:
        """Elements of a stacked row."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, nt: int) -> tuple[int, int, int]:
        """Blocks for nt rows."""
        return (blocks_for("rope_store: nt", nt), -(-(self.width // 8) // self.threads), 1)


def part_place(config: RopeStoreConfig) -> Callable:
    """Device function (head, part) -> (rotated, low, high): a part of a head of a stacked row is its dims low
    ... low + 3 and high ... high + 3."""
    rotating_heads, rotating, half = config.heads + config.kv_heads, config.rotary // 8, config.rotary // 2
    interleaved = config.interleaved

    @device_function
    def place(head, part):
        # Past the rotary dims, and in v, the two fours are just neighbours.
        low = int32(part * 8)
        high = int32(low + 4)
        rotated = head < rotating_heads and part < rotating
        if rotated and not interleaved:
            low = int32(part * 4)
            high = int32(low + half)
        return rotated, low, high

    return place


def head_part(config: RopeStoreConfig) -> Callable:
    """Device function (source, bias, q_norm, k_norm, position, table, head, part, eps) -> (low, high, a0, a1,
    a2, a3, b0, b1, b2, b3): 8 dims of a head of a stacked row (all arguments but head, part, eps are u64;
    the first three and the table are addresses), with bias, head norm and RoPE applied: dims low ... low + 3
    and high ... high + 3 of the head. With `norm` the head_dim / 8 lanes of a head call it together."""
    head_dim, half = config.head_dim, config.rotary // 2
    heads, kv_heads, per_head = config.heads, config.kv_heads, config.head_dim // 8
    biased, normed = config.bias, config.norm
    rotate = rotate_adjacent if config.interleaved else rotate_halves
    load, element = load4(config.source), {"f32": 4, "f16": 2}[config.source]
    shuffles = per_head.bit_length() - 1
    place = part_place(config)

    @device_function
    def head_scale(squares, eps):
        """1 / rms of a head, of which a lane has the sum of squares of 8 dims."""
        for step in range(shuffles):
            squares += ptx.shfl_xor_f32(squares, uint32(1 << step))
        return ptx.rsqrt_approx(squares * float32(1.0 / head_dim) + eps)

    @device_function
    def take(source, bias, q_norm, k_norm, position, table, head, part, eps):
        rotated, low, high = place(head, part)
        angles = cuda.local.array(8, float32)
        if rotated:  # the first of the loads: none waits for another
            load_angles(angles, 0, table + position * uint64(half * 8) + uint64(part * 32))
        column = head * head_dim
        at = source + uint64(column * element)
        a0, a1, a2, a3 = load(at + uint64(low * element))
        b0, b1, b2, b3 = load(at + uint64(high * element))
        if biased:
            gain = bias + uint64(column * 4)
            c0, c1, c2, c3 = ptx.ld_global_nc_v4_f32(gain + uint64(low * 4))
            d0, d1, d2, d3 = ptx.ld_global_nc_v4_f32(gain + uint64(high * 4))
            a0 += c0
            a1 += c1
            a2 += c2
            a3 += c3
            b0 += d0
            b1 += d1
            b2 += d2
            b3 += d3
        if normed:
            squares = a0 * a0 + a1 * a1 + a2 * a2 + a3 * a3
            scale = head_scale(squares + b0 * b0 + b1 * b1 + b2 * b2 + b3 * b3, eps)
            if head < heads + kv_heads:
                norms = k_norm
                if head < heads:
                    norms = q_norm
                e0, e1, e2, e3 = ptx.ld_global_nc_v4_f32(norms + uint64(low * 4))
                f0, f1, f2, f3 = ptx.ld_global_nc_v4_f32(norms + uint64(high * 4))
                a0 *= scale * e0
                a1 *= scale * e1
                a2 *= scale * e2
                a3 *= scale * e3
                b0 *= scale * f0
                b1 *= scale * f1
                b2 *= scale * f2
                b3 *= scale * f3
        if rotated:
            a0, a1, a2, a3, b0, b1, b2, b3 = rotate(angles, 0, a0, a1, a2, a3, b0, b1, b2, b3)
        return low, high, a0, a1, a2, a3, b0, b1, b2, b3

    return take


def rope_store(config: RopeStoreConfig) -> Kernel:
    """q[t] = rope(qkv[t, q] + bias), k_cache[position] = f16(rope(qkv[t, k] + bias)), v_cache[position] =
    f16(qkv[t, v] + bias). With `norm` the q and k heads go through an RMS norm before the rotation.

    Arguments: qkv f32 or f16 [nt, (heads + 2 kv_heads) * head_dim], (bias f32 of one such row,) (q_norm and
    k_norm f32 [head_dim],) positions int32 [nt] (below the cache's capacity: not checked here), table f32
    [positions, rotary / 2, 2] (cos, sin), q [nt, heads * head_dim] f16 or f32, k_cache and v_cache f16
    [capacity, kv_heads * head_dim] (, eps float32). A thread takes 8 dims of one head: 8 neighbours, or two
    fours rotary / 2 apart.
    """
    threads, head_dim = config.threads, config.head_dim
    heads, kv_heads, width = config.heads, config.kv_heads, config.width
    per_head = head_dim // 8
    element = {"f32": 4, "f16": 2}[config.source]
    start, take, address = dependent_start(config.pdl), head_part(config), ptx.global_address

    @device_function
    def _store_f16(row, low, high, a0, a1, a2, a3, b0, b1, b2, b3):
        ptx.st_global_v2_u32(row + uint64(low * 2), ptx.pack_f16x2(a0, a1), ptx.pack_f16x2(a2, a3))
        ptx.st_global_v2_u32(row + uint64(high * 2), ptx.pack_f16x2(b0, b1), ptx.pack_f16x2(b2, b3))

    @device_function
    def _store_f32(row, low, high, a0, a1, a2, a3, b0, b1, b2, b3):
        ptx.st_global_v4_f32(row + uint64(low * 4), a0, a1, a2, a3)
        ptx.st_global_v4_f32(row + uint64(high * 4), b0, b1, b2, b3)

    store_query = _store_f16 if config.query == "f16" else _store_f32
    query_bytes = 2 if config.query == "f16" else 4

    def rope_store_rows(qkv, bias, q_norm, k_norm, positions, table, q, k_cache, v_cache, eps):
        start()
        unit = int32(cuda.blockIdx.y * threads + cuda.threadIdx.x)
        inside = unit < width // 8
        if not inside:
            unit = int32(0)  # the norm's shuffles want whole warps: read on, store nothing
        t = cuda.blockIdx.x
        head = unit // per_head
        part = unit - head * per_head
        row = address(qkv) + uint64(t) * uint64(width * element)
        position = uint64(positions[t])
        low, high, a0, a1, a2, a3, b0, b1, b2, b3 = take(
            row, address(bias), address(q_norm), address(k_norm), position, address(table), head, part, eps
        )
        if inside:
            if head < heads:
                first = uint64(t) * uint64(heads * head_dim) + uint64(head * head_dim)
                row = address(q) + first * uint64(query_bytes)
                store_query(row, low, high, a0, a1, a2, a3, b0, b1, b2, b3)
            else:
                cache = address(k_cache)
                kv_head = head - heads
                if kv_head >= kv_heads:
                    cache = address(v_cache)
                    kv_head -= kv_heads
                row = cache + (position * uint64(kv_heads) + uint64(kv_head)) * uint64(head_dim * 2)
                _store_f16(row, low, high, a0, a1, a2, a3, b0, b1, b2, b3)

    arguments = (
        Argument("qkv", "in", {"f32": "float32", "f16": "float16"}[config.source]),
        Argument("bias", "in", "float32", present=config.bias),
        Argument("q_norm", "in", "float32", present=config.norm),
        Argument("k_norm", "in", "float32", present=config.norm),
        Argument("positions", "in", "int32"),
        Argument("table", "in", "float32"),
        Argument("q", "out", {"f16": "float16", "f32": "float32"}[config.query]),
        Argument("k_cache", "inout", "float16"),
        Argument("v_cache", "inout", "float16"),
        Argument("eps", "scalar", "float32", present=config.norm),
    )
    return Kernel(
        name="rope_store",
        config=config,
        function=rope_store_rows,
        threads=threads,
        shared_bytes=0,
        arguments=arguments,
        min_arch=least_arch(config.pdl),
    )


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    kernels = []
    for heads, kv_heads, head_dim, interleaved, bias in MODEL_SHAPES:
        kernels += [
            rope_store(RopeStoreConfig(heads, kv_heads, head_dim, head_dim, interleaved, bias, query))
            for query in ("f16", "f32")
        ]
        # Rows from the wgmma GEMM; the last layer's k and v alone; qwen3's head norms.
        shape = (kv_heads, head_dim, head_dim, interleaved)
        kernels += [
            rope_store(RopeStoreConfig(heads, *shape, bias, pdl=True)),
            rope_store(RopeStoreConfig(heads, *shape, bias, source="f16")),
            rope_store(RopeStoreConfig(0, *shape, bias)),
            rope_store(RopeStoreConfig(heads, *shape, bias=True, norm=True)),
        ]
    return kernels
