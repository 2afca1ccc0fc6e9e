"""What a GEMM, attention or MMQ tile moves and computes: bytes, FLOP, barriers, passes over memory.

C[nt, od] = A[nt, id] . B[od, id]^T. A block owns TN rows of A (tokens) and TM rows of B (output dimensions)
and walks id in steps of KS; every step stages both slices in shared memory and meets at one barrier. (Seed
000, section 2.1.) A multiply-accumulate is one MAC and two FLOP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from minfer.arithmetic.counts import check_counts

QUANT_BLOCKS: dict[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""GGUF types: (weights a block, bytes a block), as in ggml."""

PAD40_BYTES = 40
"""Bytes of 32 int8 activations: d (2), 2 unused, the values (32), their sum (4). (Seed 003.)"""


def bits_a_weight(quant: str) -> float:
    """Stored bits a weight of a GGUF type, scales included.

    Raises:
        ValueError: unknown type; the message lists those known.
    """
    if quant.upper() not in QUANT_BLOCKS:
        raise ValueError(f"unknown quant type {quant!r}; known: {', '.join(QUANT_BLOCKS)}")
    weights, size = QUANT_BLOCKS[quant.upper()]
    return size * 8 / weights


def us_per_gmac(seconds: float, gmac: float) -> float:
    """Microseconds a billion MACs: the seeds' unit for comparing GEMMs of different shapes.

    Raises:
        ValueError: no work.
    """
    if not gmac > 0:
        raise ValueError(f"{gmac} GMAC: a rate needs work above 0")
    return seconds * 1e6 / gmac


def tflops_of_us_per_gmac(us: float) -> float:
    """The rate in 1e12 FLOP/s that `us` microseconds a GMAC amount to."""
    return 2e9 / (us * 1e-6) / 1e12


@dataclass(frozen=True)
class GemmTile:
    """One block's share of a GEMM.

    Attributes:
        tn, tm, ks: tokens, output dimensions and depth of a k-step.
        stages: k-steps in flight in shared memory.
        a_bits, b_bits: stored bits an element of what is staged (16 for f16, 32 for the AF32 mirror, 4.5
            for raw Q4_K).
        pad_bytes: bytes added to every staged row.
    """

    tn: int = 64
    tm: int = 64
    ks: int = 32
    stages: int = 2
    a_bits: float = 16
    b_bits: float = 16
    pad_bytes: int = 0

    def __post_init__(self):
        check_counts(1, tn=self.tn, tm=self.tm, ks=self.ks, stages=self.stages)
        check_counts(0, pad_bytes=self.pad_bytes)
        for name in ("a_bits", "b_bits"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")

    @property
    def a_bytes(self) -> int:
        """Bytes of A moved into shared memory in one k-step."""
        return _whole(self.tn * self.ks * self.a_bits / 8)

    @property
    def b_bytes(self) -> int:
        """Bytes of B moved into shared memory in one k-step."""
        return _whole(self.tm * self.ks * self.b_bits / 8)

    @property
    def staged_bytes(self) -> int:
        """Bytes moved into shared memory in one k-step."""
        return self.a_bytes + self.b_bytes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of the block: every stage, with its padded rows."""
        return self.stages * (self.staged_bytes + (self.tn + self.tm) * self.pad_bytes)

    @property
    def flop(self) -> int:
        """FLOP of one k-step."""
        return 2 * self.tn * self.tm * self.ks

    @property
    def bytes_per_kflop(self) -> float:
        """Bytes into shared memory for every 1000 FLOP."""
        return self.staged_bytes / self.flop * 1000

    @property
    def barriers_per_mflop(self) -> float:
        """Block-wide barriers for every million FLOP, at one barrier a k-step."""
        return 1e6 / self.flop

    def mma_per_warp(self, warps: int, k: int = 16) -> float:
        """m16n8k`k` instructions that each of `warps` warps issues between two barriers."""
        return self.tn * self.tm * self.ks / (16 * 8 * k) / warps

    def intensity(self) -> float:
        """FLOP for every byte that crosses L2 into shared memory."""
        return self.flop / self.staged_bytes


@dataclass(frozen=True)
class GemmLedger:
    """A whole GEMM on one tile shape.

    Attributes:
        n_tiles, m_tiles: tiles along the tokens and along the output dimensions. k_steps: steps of each
            block.
        flop: FLOP of the product itself. padded_flop: FLOP issued, edge tiles included.
        barriers: over all blocks.
        a_l2_bytes, b_l2_bytes: bytes of A and B that blocks pull out of L2: A once for every column of
            tiles, B once for every row of tiles.
        a_dram_passes, b_dram_passes: times that A and B stream from DRAM (see `gemm_ledger`).
        dram_bytes: bytes of A, B and C that cross DRAM.
    """

    tile: GemmTile
    nt: int
    od: int
    id: int
    n_tiles: int
    m_tiles: int
    k_steps: int
    flop: int
    padded_flop: int
    barriers: int
    a_l2_bytes: int
    b_l2_bytes: int
    a_dram_passes: float
    b_dram_passes: float
    dram_bytes: int

    @property
    def blocks(self) -> int:
        return self.n_tiles * self.m_tiles

    @property
    def l2_bytes(self) -> int:
        return self.a_l2_bytes + self.b_l2_bytes

    @property
    def intensity(self) -> float:
        """FLOP a DRAM byte."""
        return self.flop / self.dram_bytes


def gemm_ledger(
    tile: GemmTile,
    nt: int,
    od: int,
    id: int,
    *,
    resident_blocks: int | None = None,
    l2_bytes: int | None = None,
    c_bytes: int = 4,
) -> GemmLedger:
    """The ledger of C[nt, od] = A[nt, id] . B[od, id]^T with `tile`.

    Blocks are launched with the token tile fastest, so that those resident together share few B panels. With
    `resident_blocks` (SMs x blocks an SM) and `l2_bytes` the DRAM passes follow a model: a wave of W blocks
    reads min(W / n_tiles, m_tiles) panels of B, rounded up, and at most n_tiles panels of A. A panel of B
    streams once if one wave holds all of its blocks, else once for each wave that it lasts. A streams once if
    it fits in L2 beside the wave's panels of B, else once a wave. Without them, every operand streams once
    (the lower bound). `c_bytes` is the size of an output element.

    Raises:
        ValueError: a dimension that is no whole number from 1 on.
    """
    check_counts(1, nt=nt, od=od, id=id, c_bytes=c_bytes)
    n_tiles, m_tiles, k_steps = _ceil_div(nt, tile.tn), _ceil_div(od, tile.tm), _ceil_div(id, tile.ks)
    a, b, c = nt * id * tile.a_bits / 8, od * id * tile.b_bits / 8, nt * od * c_bytes
    a_passes = b_passes = 1.0
    if resident_blocks is not None and l2_bytes is not None:
        waves = _ceil_div(n_tiles * m_tiles, resident_blocks)
        panels = min(_ceil_div(resident_blocks, n_tiles), m_tiles)
        beside = panels * tile.tm * id * tile.b_bits / 8
        b_passes = float(_ceil_div(n_tiles, resident_blocks))
        a_passes = 1.0 if a + beside <= l2_bytes else float(min(waves, m_tiles))
    return GemmLedger(
        tile=tile,
        nt=nt,
        od=od,
        id=id,
        n_tiles=n_tiles,
        m_tiles=m_tiles,
        k_steps=k_steps,
        flop=2 * nt * od * id,
        padded_flop=n_tiles * m_tiles * k_steps * tile.flop,
        barriers=n_tiles * m_tiles * k_steps,
        a_l2_bytes=_whole(m_tiles * a),
        b_l2_bytes=_whole(n_tiles * b),
        a_dram_passes=a_passes,
        b_dram_passes=b_passes,
        dram_bytes=_whole(a_passes * a + b_passes * b + c),
    )


def attention_shared_bytes(
    tkv: int,
    *,
    tq: int = 64,
    head_dim: int = 128,
    pad_halves: int = 8,
    scores: bool = True,
    statistics: int = 3,
) -> int:
    """Shared memory of a flash-attention block: Q, K and V tiles in f16 with padded rows and, where the
    softmax works in shared memory (`scores`), the f32 score tile and `statistics` f32 values a query row.
    (Seed 000, 2.2; seed 002, 2.2.)

    Raises:
        ValueError: what is no count.
    """
    check_counts(1, tkv=tkv, tq=tq, head_dim=head_dim)
    check_counts(0, pad_halves=pad_halves, statistics=statistics)
    row = (head_dim + pad_halves) * 2
    staged = (tq + 2 * tkv) * row
    return staged + (tq * tkv * 4 + tq * statistics * 4 if scores else 0)


@dataclass(frozen=True)
class AttentionLedger:
    """One head's causal attention over a context, by tiles.

    Attributes:
        kv_tiles: (query tile, KV tile) pairs that are computed; each pays the fixed cost once.
        barriers, rescales: block barriers, and rescalings of the output accumulator, over all pairs.
        flop: FLOP issued, masked positions of computed tiles included. useful_flop: without them.
    """

    tq: int
    tkv: int
    nt: int
    q_tiles: int
    kv_tiles: int
    barriers: int
    rescales: int
    flop: int
    useful_flop: int


def attention_ledger(
    nt: int, tkv: int, *, tq: int = 64, head_dim: int = 128, barriers_per_tile: int = 2
) -> AttentionLedger:
    """Tiles and fixed costs of causal attention of `nt` tokens on themselves (one head, one sequence).

    Halving `tkv` leaves the KV columns as they are and doubles the number of tiles, so that everything paid
    once a tile (staging waits, barriers, the softmax rescale) is paid twice as often (seed 002, section
    2.2).
    """
    check_counts(1, nt=nt, tkv=tkv, tq=tq, head_dim=head_dim)
    q_tiles = _ceil_div(nt, tq)
    pairs = sum(_ceil_div(min(nt, (q + 1) * tq), tkv) for q in range(q_tiles))
    return AttentionLedger(
        tq=tq,
        tkv=tkv,
        nt=nt,
        q_tiles=q_tiles,
        kv_tiles=pairs,
        barriers=pairs * barriers_per_tile,
        rescales=pairs,
        flop=pairs * 4 * tq * tkv * head_dim,
        useful_flop=2 * head_dim * nt * (nt + 1),
    )


@dataclass(frozen=True)
class MmqShared:
    """Shared memory of a raw-byte MMQ block: pad40 activation chunks, raw Q4_K super-blocks, f32 scales."""

    activations: int
    weights: int
    scales: int

    @property
    def total(self) -> int:
        return self.activations + self.weights + self.scales


def mmq_shared_bytes(
    kd: int, *, tokens: int = 64, rows: int = 64, stages: int = 2, scale_stages: int = 1
) -> MmqShared:
    """Shared memory of a raw MMQ tile of `tokens` x `rows` that stages `kd` chunks of 32 k-values (seed
    003, section 2).

    Weights come as whole 144-byte super-blocks whatever `kd` is; each (row, chunk) has two f32 scales. The
    seed's wide kernel charges 128 rows to both operands and buffers its scales twice: `tokens=128,
    rows=128, scale_stages=2`.

    Raises:
        ValueError: what is no count.
    """
    check_counts(1, kd=kd, tokens=tokens, rows=rows, stages=stages, scale_stages=scale_stages)
    return MmqShared(
        activations=stages * kd * tokens * PAD40_BYTES,
        weights=stages * rows * QUANT_BLOCKS["Q4_K"][1],
        scales=scale_stages * 2 * kd * rows * 4,
    )


def _whole(value: float) -> int:
    return math.ceil(value)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
