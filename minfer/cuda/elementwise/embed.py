"""Embedding rows, dequantized straight from the table's blocks."""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS, block_of, four_weights
from minfer.cuda.checks import blocks_for, check_threads, check_types
from minfer.cuda.dependent import dependent_start, least_arch
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel


@dataclass(frozen=True)
class EmbeddingConfig:
    """Embedding lookup.

    Attributes:
        format: the table's block format (a key of `minfer.cuda.blocks.BLOCKS`).
        dim: weights a row.
        threads: threads a block.
        pdl: programmatic dependent launch (`minfer.cuda.dependent`).
    """

    format: str
    dim: int
    threads: int = 128
    pdl: bool = False

    def __post_init__(self) -> None:
        check_types("embedding", self)
        block_of("embedding", self.format, self.dim)
        check_threads("embedding", self.threads)
        if self.dim % 4:
            raise ConfigRefused(
                f"embedding: rows of {self.dim}; a thread takes 4 weights: take a multiple of 4"
            )

    def __str__(self) -> str:
        return f"{self.format} dim={self.dim} threads={self.threads}{' pdl' if self.pdl else ''}"

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, nt: int) -> tuple[int, int, int]:
        """Blocks for nt ids."""
        return (blocks_for("embedding: nt", nt), -(-(self.dim // 4) // self.threads), 1)


def embedding(config: EmbeddingConfig) -> Kernel:
    """out[t] = dequantize(table[ids[t]]).

    Arguments: table uint8 [rows, row bytes], ids int32 [nt], out f32 [nt, dim], rows int32. An id outside
    [0, rows) gives a row of NaN, so that a broken id (an argmax of -1) is seen in what follows.
    """
    threads, dim = config.threads, config.dim
    row_bytes = BLOCKS[config.format].row_bytes(dim)
    four, start = four_weights(config.format), dependent_start(config.pdl)

    def embedding_rows(table, ids, out, rows):
        start()
        i = int32((cuda.blockIdx.y * threads + cuda.threadIdx.x) * 4)
        if i < dim:
            t = cuda.blockIdx.x
            row = ids[t]
            target = ptx.global_address(out) + (uint64(t) * uint64(dim) + uint64(i)) * uint64(4)
            if row >= 0 and row < rows:
                v0, v1, v2, v3 = four(ptx.global_address(table) + uint64(row) * uint64(row_bytes), i)
                ptx.st_global_v4_f32(target, v0, v1, v2, v3)
            else:
                nan = uint32(0x7FC00000)
                ptx.st_global_v4_u32(target, nan, nan, nan, nan)

    arguments = (
        Argument("table", "in", "uint8"),
        Argument("ids", "in", "int32"),
        Argument("out", "out", "float32"),
        Argument("rows", "scalar", "int32"),
    )
    return Kernel(
        "embedding",
        config,
        embedding_rows,
        threads,
        0,
        arguments,
        least_arch(config.pdl),
    )


def shipped() -> list[Kernel]:
    """Every format at one width (256 weights are whole blocks of all of them), and the 7B's table."""
    kernels = [embedding(EmbeddingConfig(format, 256)) for format in BLOCKS]
    return [*kernels, *(embedding(EmbeddingConfig("Q4_K", 3584, pdl=pdl)) for pdl in (False, True))]
