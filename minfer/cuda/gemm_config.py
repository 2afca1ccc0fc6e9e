"""Configs of the mma.sync GEMM (`minfer.cuda.gemm`): what a tile holds, and what cannot run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from minfer.cuda.checks import check_sizes, check_types, check_whole
from minfer.cuda.kernel import MAX_SHARED_BYTES, MAX_THREAD_REGISTERS, ConfigRefused

SM_REGISTERS = 65_536
LAYOUTS = ("padded", "swizzled", "plain")
A_SOURCES = ("f16", "f32_mirror")
#: f16, or blocks of a quantized format that the staging dequantizes.
B_SOURCES = ("f16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
BLOCK_SOURCES = {name.upper(): name for name in B_SOURCES}
"""The source of B by the format of a matrix."""
OUTPUTS = ("f32", "f16")


@dataclass(frozen=True)
class GemmConfig:
    """One compile-time specialisation; refuses (ConfigRefused) what cannot run.

    tile_n x tile_m is the block's tile (tokens x outputs), tile_k the k-step in elements; `warps_n` warps
    share the tokens and warps / warps_n the outputs. `layout`: "padded" rows (16 bytes more), "swizzled"
    chunks, or "plain" rows with their bank conflicts. `out` is C's type. `pitch`: elements from one row
    of C to the next, where C is some columns of a wider matrix."""

    tile_n: int = 64
    tile_m: int = 64
    tile_k: int = 32
    stages: int = 2
    warps: int = 8
    warps_n: int = 2
    layout: str = "padded"
    a_source: str = "f16"
    b_source: str = "f16"
    out: str = "f32"
    pitch: int | None = None

    def __post_init__(self):
        check_types("gemm", self)
        for name, value, allowed in (
            ("layout", self.layout, LAYOUTS),
            ("a_source", self.a_source, A_SOURCES),
            ("b_source", self.b_source, B_SOURCES),
            ("out", self.out, OUTPUTS),
        ):
            if value not in allowed:
                raise ConfigRefused(f"gemm: {name} = {value!r} is not one of {', '.join(allowed)}")
        if self.tile_k not in (16, 32, 64, 128):
            raise ConfigRefused(f"gemm: k-step {self.tile_k}: use 16, 32, 64 or 128")
        if self.stages < 2:
            raise ConfigRefused(f"gemm: {self.stages} stages: copying ahead of computing needs at least 2")
        if self.warps < 1 or self.threads > 1024:
            raise ConfigRefused(
                f"gemm: {self.warps} warps are {self.threads} threads a block, the limits are 32 and 1024: "
                "use 1 to 32 warps"
            )
        if self.warps_n < 1 or self.warps % self.warps_n:
            raise ConfigRefused(f"gemm: {self.warps} warps do not divide into rows of {self.warps_n}")
        for name, tile, warps in (
            ("tile_n", self.tile_n, self.warps_n),
            ("tile_m", self.tile_m, self.warps_m),
        ):
            if tile < 1 or tile % (16 * warps):
                raise ConfigRefused(
                    f"gemm: {name} = {tile} over {warps} warps: a warp's share must be a multiple of 16, so "
                    f"{name} one of {16 * warps}"
                )
        if self.pitch is not None:
            check_whole("gemm: pitch", self.pitch, 1)
        if self.registers > MAX_THREAD_REGISTERS:
            raise ConfigRefused(
                f"gemm: about {self.registers} registers a thread ({self.accumulators} accumulators), the "
                f"limit is {MAX_THREAD_REGISTERS}: use more warps or a smaller tile"
            )
        if self.registers * self.threads > SM_REGISTERS:
            raise ConfigRefused(
                f"gemm: about {self.registers} registers for {self.threads} threads, a multiprocessor has "
                f"{SM_REGISTERS}: use a smaller tile"
            )
        if self.shared_bytes > MAX_SHARED_BYTES:
            raise ConfigRefused(
                f"gemm: {self.shared_bytes} bytes of shared memory, the largest device allows "
                f"{MAX_SHARED_BYTES}: use fewer stages, a smaller tile or k-step"
            )

    def __str__(self) -> str:
        text = (
            f"{self.tile_n}x{self.tile_m}x{self.tile_k} {self.stages} stages {self.warps} warps {self.layout}"
        )
        if self.a_source != "f16":
            text += f" A {self.a_source}"
        if self.b_source != "f16":
            text += f" B {self.b_source}"
        if self.warps_n != 2:
            text += f" {self.warps_n} along nt"
        if self.pitch is not None:
            text += f" pitch {self.pitch}"
        return text + (f" -> {self.out}" if self.out != "f32" else "")

    # ---- arithmetic

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps

    @property
    def warps_m(self) -> int:
        """Warps that share the outputs of the tile."""
        return self.warps // self.warps_n

    @property
    def warp_tile(self) -> tuple[int, int]:
        """(tokens, outputs) of a warp."""
        return self.tile_n // self.warps_n, self.tile_m // self.warps_m

    @property
    def accumulators(self) -> int:
        """f32 accumulators a thread."""
        return self.tile_n * self.tile_m // self.threads

    @property
    def registers(self) -> int:
        """A lower estimate of a thread's registers: accumulators, the fragments of a k16 step, 32 for the
        rest."""
        return self.accumulators + self.warp_tile[0] // 16 * 4 + 4 + 32

    @property
    def min_blocks(self) -> int | None:
        """The blocks that bound the compiler's registers: 4 for a small tile of Q8_0, which ptxas 13.5, left
        alone, squeezes to the same 64 registers with a spill (sm_86)."""
        small = (self.accumulators, self.warps) == (16, 8)
        return 4 if small and self.b_source == "Q8_0" else None

    @cached_property
    def tiles(self):
        """(A's, B's) f16 shared tile."""
        from minfer.cuda.tile.shared import SharedTile

        row_bytes = 2 * self.tile_k
        padding = 16 if self.layout == "padded" else 0
        swizzle = min(row_bytes, 128) if self.layout == "swizzled" else 0
        return tuple(SharedTile(rows, row_bytes, padding, swizzle) for rows in (self.tile_n, self.tile_m))

    @cached_property
    def sources(self):
        """(A's, B's) staging."""
        from minfer.cuda.tile.staging import StagedF16, StagedF32

        a_tile, b_tile = self.tiles
        a_source = {"f16": StagedF16, "f32_mirror": StagedF32}[self.a_source](a_tile, self.threads)
        if self.b_source == "f16":
            return a_source, StagedF16(b_tile, self.threads)
        from minfer.cuda.tile.quantized import StagedBlocks

        return a_source, StagedBlocks(b_tile, self.threads, self.b_source)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage of the ring, A and B."""
        return sum(source.stage_bytes for source in self.sources)

    @property
    def settled_bytes(self) -> int:
        """Shared memory of the f16 tiles that are made from the ring (0 where the ring holds them)."""
        return sum(
            source.settled_tiles * tile.size_bytes
            for source, tile in zip(self.sources, self.tiles, strict=True)
        )

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block."""
        return self.stages * self.stage_bytes + self.settled_bytes

    @property
    def copied_bytes(self) -> tuple[int, int]:
        """(A's, B's) bytes that a block reads from global memory a k-step."""
        return tuple(source.copied_bytes for source in self.sources)

    @property
    def step_flop(self) -> int:
        """FLOP of a block's k-step."""
        return 2 * self.tile_n * self.tile_m * self.tile_k

    def check(self, nt: int, od: int, depth: int) -> None:
        """Refuse (ConfigRefused) a product that this kernel cannot compute."""
        check_sizes("gemm", nt=nt, od=od, id=depth)
        multiple = 8
        if self.b_source != "f16":
            multiple = self.sources[1].block.weights
        if depth % multiple:
            raise ConfigRefused(
                f"gemm: id = {depth} is no multiple of {multiple} ({self.b_source} rows of B)"
            )
        if self.pitch is not None and od > self.pitch:
            raise ConfigRefused(f"gemm: {od} outputs in rows that are {self.pitch} elements apart")

    def grid(self, nt: int, od: int) -> tuple[int, int, int]:
        """Blocks for an nt x od product: token tiles fastest."""
        return -(-nt // self.tile_n), -(-od // self.tile_m), 1


def seed_config(environment: Mapping[str, str] = os.environ) -> GemmConfig:
    """The campaign's config that its switches select: MINFER_GEMM_TM (64, 128 or 256; default 128),
    MINFER_GEMM_K64 (1: k-steps of 64) and MINFER_GEMM_AF32 (1: A as f32 through the mirror). Raises
    ConfigRefused for other values."""

    def switch(name: str, allowed: tuple[str, ...], default: str) -> str:
        value = environment.get(name, default)
        if value not in allowed:
            raise ConfigRefused(f"gemm: {name} = {value!r} is not one of {', '.join(allowed)}")
        return value

    tile_m = int(switch("MINFER_GEMM_TM", ("64", "128", "256"), "128"))
    config = GemmConfig(tile_m=tile_m, warps=16 if tile_m == 256 else 8)
    if switch("MINFER_GEMM_K64", ("0", "1"), "0") == "1":
        config = replace(config, tile_k=64)
    if switch("MINFER_GEMM_AF32", ("0", "1"), "0") == "1":
        config = replace(config, a_source="f32_mirror")
    return config
