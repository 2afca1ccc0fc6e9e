"""Tiles of the W4A8 GEMM."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minfer.cuda.gemm import MAX_SHARED_BYTES
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.tile.hopper import ALIGNMENT, MbarrierRing, chunk_starts
from minfer.cuda.tile.transposed import CHUNK_ROWS, chunk_bytes
from minfer.cuda.w4a8.formats import (
    BLOCK_BYTES,
    FACTORS_BYTES,
    GROUP,
    GROUP_BLOCKS,
    MINIMA_BYTES,
    RUNS,
    SCALE_BYTES,
)
from minfer.cuda.w4a16.config import CONSUMERS, GROUP_TOKENS
from minfer.cuda.w4a16.formats import ROWS


@dataclass(frozen=True)
class W4A8Config:
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
    threads = 128 * (CONSUMERS + 1)

    def __post_init__(self):
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
    def outputs(self) -> int:
        """Columns of C in a tile."""
        return ROWS // 2 if self.gated else ROWS

    @property
    def chunk_bytes(self) -> int:
        """A chunk of a consumer's part of C."""
        return chunk_bytes(self.outputs // CONSUMERS)

    @cached_property
    def ring(self) -> MbarrierRing:
        return MbarrierRing(self.stages, CONSUMERS)

    @cached_property
    def slot_ring(self) -> MbarrierRing:
        return MbarrierRing(self.slots, 4 * CONSUMERS)

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

    @property
    def barrier_bytes(self) -> int:
        return self.ring.size_bytes + self.slot_ring.size_bytes + 8 * self.slots + 8

    @property
    def buffers(self) -> int:
        """Chunks of C that a consumer may have in flight: what fits."""
        used = self.stages * self.stage_bytes + self.slots * self.slot_bytes + self.barrier_bytes + ALIGNMENT
        return min(
            len(chunk_starts(self.tokens)), (MAX_SHARED_BYTES - used) // (CONSUMERS * self.chunk_bytes)
        )

    @property
    def buffers_start(self) -> int:
        return self.stages * self.stage_bytes

    @property
    def slots_start(self) -> int:
        return self.buffers_start + self.buffers * CONSUMERS * self.chunk_bytes

    @property
    def barriers_start(self) -> int:
        return self.slots_start + self.slots * self.slot_bytes

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block, with room to align its start to 1024 bytes."""
        return self.barriers_start + self.barrier_bytes + ALIGNMENT

    @property
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
        if min(nt, od, depth) < 1 or depth % GROUP or width % 8:
            raise ConfigRefused(
                f"w4a8: {nt} x {od} x {depth} into rows of {width}: sizes from 1, id a multiple of {GROUP}, "
                "the width of 8"
            )

    def tiles(self, nt: int, od: int) -> tuple[int, int]:
        """(token tiles, output tiles)."""
        return -(-nt // self.tokens), -(-od // self.outputs)

    def grid(self, nt: int, od: int, multiprocessors: int) -> tuple[int, int, int]:
        """Blocks of a persistent launch: one a multiprocessor, at most one a tile."""
        token_tiles, output_tiles = self.tiles(nt, od)
        return min(multiprocessors, token_tiles * output_tiles), 1, 1

    def group(self, nt: int) -> int:
        """Token tiles a group of the schedule: about 2048 tokens."""
        token_tiles = -(-nt // self.tokens)
        return -(-token_tiles // max(1, round(nt / GROUP_TOKENS)))
