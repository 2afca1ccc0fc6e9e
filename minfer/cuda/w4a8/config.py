"""Tiles of the W4A8 GEMM."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minfer.cuda.checks import check_sizes, check_types
from minfer.cuda.kernel import MAX_SHARED_BYTES, ConfigRefused
from minfer.cuda.tile.hopper import ALIGNMENT
from minfer.cuda.tile.transposed import CHUNK_ROWS
from minfer.cuda.w4a8.formats import (
    BLOCK_BYTES,
    FACTORS_BYTES,
    GROUP,
    GROUP_BLOCKS,
    MINIMA_BYTES,
    RUNS,
    SCALE_BYTES,
)
from minfer.cuda.w4a16.packed_tile import CONSUMERS, ROWS, PackedTile


@dataclass(frozen=True)
class W4A8Config(PackedTile):
    """Tile of 128 outputs x `tokens` of a product of Q4_K weights and int8 activations, k-tiles of 128.

    Attributes:
        tokens: the tile's, a multiple of 16 from 64 to 128.
        stages: k-tiles of activations in flight; slots: groups of 512 weights a row in flight.
        gated: the weights are two matrices of `od` rows, gate and up, and C is silu(gate) * up.
    """

    tokens: int = 128
    stages: int = 5
    slots: int = 2
    gated: bool = False

    tile_k = 128

    def __post_init__(self):
        check_types("w4a8", self)
        if self.tokens % 16 or not 64 <= self.tokens <= 128:
            raise ConfigRefused(f"w4a8: {self.tokens} tokens a tile: a multiple of 16 from 64 to 128")
        if min(self.stages, self.slots) < 2:
            raise ConfigRefused(
                f"w4a8: {self.stages} stages, {self.slots} slots: to copy ahead of computing takes 2"
            )
        if self.buffers < 1:
            raise ConfigRefused(
                f"w4a8: {self.stages} stages of {self.stage_bytes} bytes and {self.slots} slots of "
                f"{self.slot_bytes} leave no room for the epilogue in {MAX_SHARED_BYTES} of shared memory: "
                "use fewer stages"
            )

    def __str__(self) -> str:
        text = f"{ROWS}x{self.tokens}x{self.tile_k} {self.stages} stages {self.slots} slots"
        return text + (" gated" if self.gated else "")

    @property
    def stage_bytes(self) -> int:
        return self.tokens * self.tile_k

    @property
    def landing_bytes(self) -> int:
        """What TMA brings into a slot: blocks, the activations' sums and their scales."""
        return GROUP_BLOCKS * ROWS * BLOCK_BYTES + self.tokens * 4 * (RUNS + 1)

    @property
    def sums_start(self) -> int:
        """In a slot: behind the blocks."""
        return GROUP_BLOCKS * ROWS * BLOCK_BYTES

    @property
    def scales_start(self) -> int:
        """In a slot: the activations' scales."""
        return self.sums_start + self.tokens * 4 * RUNS

    @property
    def factors_start(self) -> int:
        """In a slot: the weights' 16-bit scales."""
        return self.scales_start + -(-self.tokens * 4 // 128) * 128

    @property
    def minima_start(self) -> int:
        return self.factors_start + FACTORS_BYTES

    @property
    def rows_start(self) -> int:
        """In a slot: a scale for each row."""
        return self.minima_start + MINIMA_BYTES

    @property
    def slot_bytes(self) -> int:
        return -(-(self.rows_start + ROWS * SCALE_BYTES) // ALIGNMENT) * ALIGNMENT

    @cached_property
    def boxes(self) -> dict[str, tuple[int, int, int]]:
        """Argument -> (rows, columns, swizzle) of its tensor map's boxes."""
        return {
            "a": (self.tokens, self.tile_k, 128),
            "sums": (self.tokens, RUNS, 64),
            "scales": (1, self.tokens, 0),
            "w": (self.outputs, BLOCK_BYTES, 0),
            "c": (CHUNK_ROWS, self.outputs // CONSUMERS, self.outputs),
        }

    def check(self, nt: int, od: int, depth: int, width: int) -> None:
        """Refuse (ConfigRefused) a product that this kernel cannot compute; `width` is that of C."""
        check_sizes("w4a8", nt=nt, od=od, id=depth, width=width)
        if depth % GROUP or width % 8:
            raise ConfigRefused(
                f"w4a8: {nt} x {od} x {depth} into rows of {width}: id must be a multiple of {GROUP}, the "
                "width of 8"
            )
