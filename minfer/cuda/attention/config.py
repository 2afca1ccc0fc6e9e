"""Configs of the prefill attention: one family that holds every step of the seeds.

The steps (seed 000 sections 2.2 and 3.2, seed 002 sections 2.2 and 3.2): P.V by scalar FMAs, P.V on tensor
cores with P in shared memory (P5.0), softmax by one warp a row and padded rows (P5.3), KV tiles of 32
instead of 64 (r23), softmax in registers with P rebuilt as the A fragment (FAP2), the L2 prefetch of the
next KV tile (seed 003, a null probe).
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.cuda.checks import blocks_for, check_types
from minfer.cuda.kernel import ConfigRefused

TILE_ROWS = 64  # query rows a block
LOG2_E = 1.4426950408889634
NEVER = -1e30  # a masked score: finite, so that differences of two of them are numbers
STATISTICS = 3  # f32 a row in shared memory: maximum, sum, rescale factor
SHARED_LIMIT = 227 * 1024  # most that any supported device gives a block


@dataclass(frozen=True)
class AttentionConfig:
    """Causal GQA prefill over an f16 KV cache, 64 query rows a block.

    Attributes:
        heads, kv_heads: query heads and kv heads; heads % kv_heads == 0.
        head_dim: 64 or 128.
        tkv: rows of a KV tile: 16, 32 or 64.
        softmax: "serial" (one thread a row) or "warp_per_row" (8 warps x 8 rows, shuffles), both on scores in
            shared memory; "register" (the scores stay in the accumulators).
        pv: how P.V runs: "scalar" FMAs; "shared": tensor cores, P as f16 in shared memory; "register": tensor
            cores, P is the repacked score fragment (exactly with softmax="register").
        pad: halves that a row of Q, K, V is padded by: 8 (272 bytes at hd 128: no ldmatrix conflict) or 0
            (256 bytes: 8-way conflict).
        score_pad: f32 that a row of scores is padded by, a multiple of 4.
        stages: KV tiles in shared memory: 1, or 2 (the next tile lands while this one is used).
        l2_prefetch: touch the next KV tile's lines in L2.
        query: "f16" or "f32": what the queries are; f32 ones are rounded to f16 when they are staged.
        output: "f16" or "f32".
    """

    heads: int
    kv_heads: int
    head_dim: int = 128
    tkv: int = 64
    softmax: str = "register"
    pv: str = "register"
    pad: int = 8
    score_pad: int = 0
    stages: int = 1
    l2_prefetch: bool = False
    query: str = "f16"
    output: str = "f16"

    def __post_init__(self) -> None:
        check_types("attention", self)
        choices = {
            "head_dim": (64, 128),
            "tkv": (16, 32, 64),
            "softmax": ("serial", "warp_per_row", "register"),
            "pv": ("scalar", "shared", "register"),
            "pad": (0, 8),
            "stages": (1, 2),
            "query": ("f16", "f32"),
            "output": ("f16", "f32"),
        }
        for field, legal in choices.items():
            if getattr(self, field) not in legal:
                raise ConfigRefused(
                    f"attention: {field}={getattr(self, field)!r}; variants: {', '.join(map(str, legal))}"
                )
        if self.kv_heads < 1 or self.heads < 1 or self.heads % self.kv_heads:
            raise ConfigRefused(
                f"attention: {self.heads} heads on {self.kv_heads} kv heads; take a multiple of the kv heads"
            )
        if (self.softmax == "register") != (self.pv == "register"):
            raise ConfigRefused(
                f"attention: softmax={self.softmax}, pv={self.pv}; P is rebuilt in registers exactly when "
                "the softmax is in registers: take both, or neither"
            )
        if self.score_pad % 4 or self.score_pad < 0 or (self.score_pad and self.softmax == "register"):
            raise ConfigRefused(
                f"attention: score rows padded by {self.score_pad}; take a multiple of 4 (16-byte rows for "
                "ldmatrix), 0 with softmax=register"
            )
        if self.shared_bytes > SHARED_LIMIT:
            raise ConfigRefused(
                f"attention: {self.shared_bytes} bytes of shared memory a block, the limit is {SHARED_LIMIT}"
                ": take a smaller tkv, or stages=1"
            )

    def __str__(self) -> str:
        text = f"heads={self.heads}/{self.kv_heads} hd={self.head_dim} tkv={self.tkv}"
        text += f" softmax={self.softmax} pv={self.pv}"
        if self.pad != 8:
            text += f" pad={self.pad}"
        if self.score_pad:
            text += f" score_pad={self.score_pad}"
        if self.l2_prefetch:
            text += " l2_prefetch"
        return f"{text} stages={self.stages} {self.query}->{self.output}"

    @property
    def threads(self) -> int:
        """4 warps of 16 rows each when nothing is shared between warps, else 8."""
        return 128 if self.softmax == "register" else 256

    @property
    def row_stride(self) -> int:
        """Bytes between rows of Q, K and V in shared memory."""
        return (self.head_dim + self.pad) * 2

    @property
    def score_stride(self) -> int:
        """Bytes between rows of the score tile (f32, later P)."""
        return (self.tkv + self.score_pad) * 4

    @property
    def query_bytes(self) -> int:
        """Bytes of the Q tile."""
        return TILE_ROWS * self.row_stride

    @property
    def kv_bytes(self) -> int:
        """Bytes of one K or V tile."""
        return self.tkv * self.row_stride

    @property
    def score_bytes(self) -> int:
        """Bytes of the score tile: none when scores stay in registers."""
        return 0 if self.softmax == "register" else TILE_ROWS * self.score_stride

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the row statistics: none when scores stay in registers."""
        return 0 if self.softmax == "register" else TILE_ROWS * STATISTICS * 4

    @property
    def shared_bytes(self) -> int:
        """Q, `stages` pairs of K and V, scores, statistics."""
        return self.query_bytes + 2 * self.stages * self.kv_bytes + self.score_bytes + self.statistics_bytes

    def grid(self, nt: int) -> tuple[int, int, int]:
        """(heads, query tiles); the tiles run from the last, which has the most work."""
        return (self.heads, blocks_for("attention: nt", nt, TILE_ROWS), 1)


def seed_steps(heads: int, kv_heads: int, head_dim: int = 128) -> dict[str, AttentionConfig]:
    """The campaign's steps by name, each a config that runs alone: in the seeds' order, the last one ours."""

    def step(tkv: int, softmax: str, pv: str, **rest: object) -> AttentionConfig:
        return AttentionConfig(heads, kv_heads, head_dim, tkv, softmax, pv, **rest)  # type: ignore[arg-type]

    return {
        "before P5": step(64, "serial", "scalar", pad=0),
        "P5.0": step(64, "serial", "shared", pad=0),
        "P5.3": step(64, "warp_per_row", "shared"),
        "P5.3, L2 prefetch": step(64, "warp_per_row", "shared", l2_prefetch=True),
        "TKV=32": step(32, "warp_per_row", "shared"),
        "TKV=32, padded scores": step(32, "warp_per_row", "shared", score_pad=4),
        "TKV=16": step(16, "warp_per_row", "shared"),
        "FAP2": step(32, "register", "register"),
        "FAP2, TKV=16": step(16, "register", "register"),
        "FAP2, TKV=64": step(64, "register", "register"),
        "FAP2, TKV=64, two stages": step(64, "register", "register", stages=2),
    }
