"""Rotary position embedding: the table of angles, the rotation of a thread's pairs, and heads in place.

Angles come from a table of cos and sin (`rope_table`): exact at any context length, where an angle in f32
loses its fraction of a turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import cuda
from numba.cuda.types import float32, int32, uint64
from numpy.typing import ArrayLike, NDArray

from minfer.cuda import ptx
from minfer.cuda.checks import blocks_for, check_threads, check_types
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel


def rope_table(frequencies: ArrayLike, positions: int, scale: float = 1.0) -> NDArray[np.float32]:
    """[positions, rotary / 2, 2] f32: scale * cos and scale * sin of position * frequency.

    `frequencies` [rotary / 2] are radians a position, frequency factors already divided in; `scale` is YaRN's
    attention scale. Angles are taken in float64, where f32 would lose whole turns at long contexts.
    """
    angles = np.arange(positions, dtype=np.float64)[:, None] * np.asarray(frequencies, np.float64)[None, :]
    return (np.stack([np.cos(angles), np.sin(angles)], axis=-1) * scale).astype(np.float32)


def check_head(family: str, head_dim: int, rotary: int) -> None:
    """Refuse (ConfigRefused) a head that threads of 8 dims, or of 4 pairs, do not share out."""
    if head_dim % 8 or head_dim <= 0:
        raise ConfigRefused(
            f"{family}: head_dim {head_dim}; a thread takes 8 dims of a head: take a multiple of 8"
        )
    if rotary % 8 or not 0 < rotary <= head_dim:
        raise ConfigRefused(
            f"{family}: {rotary} rotary dims of {head_dim}; a thread rotates 4 pairs: take a multiple of 8, "
            "at most head_dim"
        )


@device_function
def load_angles(angles, o, address):
    """Four (cos, sin) into angles[o ... o + 7]."""
    c0, s0, c1, s1 = ptx.ld_global_nc_v4_f32(address)
    c2, s2, c3, s3 = ptx.ld_global_nc_v4_f32(address + uint64(16))
    angles[o] = c0
    angles[o + 1] = s0
    angles[o + 2] = c1
    angles[o + 3] = s1
    angles[o + 4] = c2
    angles[o + 5] = s2
    angles[o + 6] = c3
    angles[o + 7] = s3


@device_function
def rotate_halves(angles, o, a0, a1, a2, a3, b0, b1, b2, b3):
    """(a, b) pairs rotated by the four (cos, sin) of angles[o ... o + 7]."""
    c0, s0, c1, s1 = angles[o], angles[o + 1], angles[o + 2], angles[o + 3]
    c2, s2, c3, s3 = angles[o + 4], angles[o + 5], angles[o + 6], angles[o + 7]
    return (
        a0 * c0 - b0 * s0,
        a1 * c1 - b1 * s1,
        a2 * c2 - b2 * s2,
        a3 * c3 - b3 * s3,
        a0 * s0 + b0 * c0,
        a1 * s1 + b1 * c1,
        a2 * s2 + b2 * c2,
        a3 * s3 + b3 * c3,
    )


@device_function
def rotate_adjacent(angles, o, a0, a1, a2, a3, b0, b1, b2, b3):
    """Eight neighbouring dims, rotated as the pairs (0, 1), (2, 3), (4, 5), (6, 7)."""
    x0, x1, x2, x3, y0, y1, y2, y3 = rotate_halves(angles, o, a0, a2, b0, b2, a1, a3, b1, b3)
    return x0, y0, x1, y1, x2, y2, x3, y3


@dataclass(frozen=True)
class RopeConfig:
    """RoPE in place.

    Attributes:
        heads: heads in a row.
        head_dim: dims a head.
        rotary: dims of a head that rotate, from the first.
        interleaved: pairs (2i, 2i + 1); else NEOX, (i, i + rotary / 2).
        threads: threads a block.
    """

    heads: int
    head_dim: int
    rotary: int
    interleaved: bool = False
    threads: int = 128

    def __post_init__(self) -> None:
        check_types("rope", self)
        check_head("rope", self.head_dim, self.rotary)
        if self.heads < 1:
            raise ConfigRefused(f"rope: {self.heads} heads; take at least 1")
        check_threads("rope", self.threads)

    def __str__(self) -> str:
        kind = "interleaved" if self.interleaved else "neox"
        return f"{kind} heads={self.heads} hd={self.head_dim} rotary={self.rotary}"

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, nt: int) -> tuple[int, int, int]:
        """Blocks for nt rows."""
        return (blocks_for("rope: nt", nt), -(-(self.heads * self.rotary // 8) // self.threads), 1)


def rope(config: RopeConfig) -> Kernel:
    """Rotate the heads of x in place.

    Arguments: x f32, row t at x + t * stride with heads * head_dim elements, positions int32 [nt], table f32
    [positions, rotary / 2, 2] (cos, sin), stride int32 (elements, a multiple of 4). A thread rotates 4
    pairs. Su et al. 2021 (RoFormer); NEOX order as in GPT-NeoX.
    """
    threads, head_dim, half = config.threads, config.head_dim, config.rotary // 2
    per_head = config.rotary // 8
    units = config.heads * per_head
    interleaved = config.interleaved
    rotate = rotate_adjacent if interleaved else rotate_halves
    step = 8 if interleaved else 4
    apart = 4 if interleaved else half

    def rope_rows(x, positions, table, stride):
        unit = int32(cuda.blockIdx.y * threads + cuda.threadIdx.x)
        if unit < units:
            t = cuda.blockIdx.x
            head = unit // per_head
            pair = (unit - head * per_head) * 4
            first = uint64(t) * uint64(stride) + uint64(head * head_dim + pair * step // 4)
            low = ptx.global_address(x) + first * uint64(4)
            high = low + uint64(apart * 4)
            angles = cuda.local.array(8, float32)
            turn = uint64(positions[t]) * uint64(half * 8) + uint64(pair * 8)
            load_angles(angles, 0, ptx.global_address(table) + turn)
            a0, a1, a2, a3 = ptx.ld_global_v4_f32(low)
            b0, b1, b2, b3 = ptx.ld_global_v4_f32(high)
            a0, a1, a2, a3, b0, b1, b2, b3 = rotate(angles, 0, a0, a1, a2, a3, b0, b1, b2, b3)
            ptx.st_global_v4_f32(low, a0, a1, a2, a3)
            ptx.st_global_v4_f32(high, b0, b1, b2, b3)

    arguments = (
        Argument("x", "inout", "float32"),
        Argument("positions", "in", "int32"),
        Argument("table", "in", "float32"),
        Argument("stride", "scalar", "int32"),
    )
    return Kernel("rope", config, rope_rows, threads, 0, arguments)


MODEL_SHAPES = ((28, 4, 128, False, True), (14, 2, 64, False, True), (9, 3, 64, True, False))
"""(heads, kv heads, head dim, interleaved, bias) of Qwen2.5-7B, Qwen2.5-0.5B and SmolLM2-135M."""


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    return [
        rope(RopeConfig(n, head_dim, head_dim, interleaved))
        for heads, kv_heads, head_dim, interleaved, _ in MODEL_SHAPES
        for n in (heads, kv_heads)
    ]
