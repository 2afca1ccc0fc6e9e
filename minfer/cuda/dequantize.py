"""Quantized blocks -> f16: the weights that the prefill GEMMs read.

Only blocks cross the bus; the f16 copy is made on the device, once (a resident cache) or before each product
(a scratch).
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import int32, uint64

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS, block_of, four_weights
from minfer.cuda.checks import blocks_for, check_threads, check_types
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel


@dataclass(frozen=True)
class DequantizeConfig:
    """Blocks to f16.

    Attributes:
        format: the block format (a key of `minfer.cuda.blocks.BLOCKS`).
        dim: weights a row, a multiple of 8: a thread writes 8, 16 bytes.
        threads: threads a block.
    """

    format: str
    dim: int
    threads: int = 128

    def __post_init__(self) -> None:
        check_types("dequantize", self)
        block_of("dequantize", self.format, self.dim)
        check_threads("dequantize", self.threads)
        if self.dim % 8:
            raise ConfigRefused(
                f"dequantize: rows of {self.dim}; a thread writes 8 weights: take a multiple of 8"
            )

    def __str__(self) -> str:
        return f"{self.format} dim={self.dim} threads={self.threads}"

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, rows: int) -> tuple[int, int, int]:
        """Blocks for that many rows."""
        return (blocks_for("dequantize: rows", rows), -(-(self.dim // 8) // self.threads), 1)


def dequantize(config: DequantizeConfig) -> Kernel:
    """out[r, j] = f16(dequantize(blocks)[r, j]), round to nearest even; past f16's range it is infinite.

    Arguments: blocks uint8 [rows, row bytes] (GGML layout; 16-byte aligned), out f16 [rows, dim]. The grid's
    rows are all written.
    """
    threads, dim = config.threads, config.dim
    row_bytes = BLOCKS[config.format].row_bytes(dim)
    four = four_weights(config.format)

    def dequantize_rows(blocks, out):
        i = int32((cuda.blockIdx.y * threads + cuda.threadIdx.x) * 8)
        if i < dim:
            r = uint64(cuda.blockIdx.x)
            row = ptx.global_address(blocks) + r * uint64(row_bytes)
            a0, a1, a2, a3 = four(row, i)
            b0, b1, b2, b3 = four(row, i + 4)
            ptx.st_global_v4_u32(
                ptx.global_address(out) + (r * uint64(dim) + uint64(i)) * uint64(2),
                ptx.pack_f16x2(a0, a1),
                ptx.pack_f16x2(a2, a3),
                ptx.pack_f16x2(b0, b1),
                ptx.pack_f16x2(b2, b3),
            )

    arguments = (Argument("blocks", "in", "uint8"), Argument("out", "out", "float16"))
    return Kernel("dequantize", config, dequantize_rows, threads, 0, arguments)


KERNELS = ("dequantize",)


def shipped() -> list[Kernel]:
    """Every format at one width (256 weights are whole blocks of all of them), and the 7B's matrices."""
    kernels = [dequantize(DequantizeConfig(format, 256)) for format in BLOCKS]
    return kernels + [
        dequantize(DequantizeConfig(format, dim)) for format in ("Q4_K", "Q6_K") for dim in (3584, 18944)
    ]
