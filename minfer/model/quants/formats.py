"""The block formats that this project reads with its own code, and their sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gguf.constants import GGMLQuantizationType

from minfer.model.quants import floats, k_quants, legacy


@dataclass(frozen=True)
class BlockFormat:
    """One block format.

    block_size         weights a block
    layout             the block as a structured dtype, field by field in file order
    dequantize_blocks  structured [n] -> float32 [n, block_size]
    pack_blocks        float32 [n, block_size], finite -> structured [n]
    """

    type: GGMLQuantizationType
    block_size: int
    layout: np.dtype
    dequantize_blocks: Callable[[np.ndarray], np.ndarray]
    pack_blocks: Callable[[np.ndarray], np.ndarray]

    @property
    def name(self) -> str:
        return self.type.name

    @property
    def type_size(self) -> int:
        """Bytes a block."""
        return self.layout.itemsize

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.type_size / self.block_size

    def row_bytes(self, row_elements: int) -> int:
        """Packed bytes of a row; raises ValueError when a row is not a whole number of blocks."""
        if row_elements % self.block_size:
            raise ValueError(
                f"a row of {row_elements} is not a whole number of {self.name} blocks of {self.block_size}"
            )
        return row_elements // self.block_size * self.type_size


_T = GGMLQuantizationType
FORMATS: dict[GGMLQuantizationType, BlockFormat] = {
    fmt.type: fmt
    for fmt in (
        BlockFormat(_T.F32, 1, floats.F32, floats.dequantize_f32, floats.pack_f32),
        BlockFormat(_T.F16, 1, floats.F16, floats.dequantize_f16, floats.pack_f16),
        BlockFormat(_T.BF16, 1, floats.BF16, floats.dequantize_bf16, floats.pack_bf16),
        BlockFormat(_T.Q4_0, 32, legacy.Q4_0, legacy.dequantize_symmetric, legacy.pack_q4_0),
        BlockFormat(_T.Q4_1, 32, legacy.Q4_1, legacy.dequantize_affine, legacy.pack_q4_1),
        BlockFormat(_T.Q5_0, 32, legacy.Q5_0, legacy.dequantize_symmetric, legacy.pack_q5_0),
        BlockFormat(_T.Q5_1, 32, legacy.Q5_1, legacy.dequantize_affine, legacy.pack_q5_1),
        BlockFormat(_T.Q8_0, 32, legacy.Q8_0, legacy.dequantize_q8_0, legacy.pack_q8_0),
        BlockFormat(_T.Q4_K, 256, k_quants.Q4_K, k_quants.dequantize_q4_k, k_quants.pack_q4_k),
        BlockFormat(_T.Q5_K, 256, k_quants.Q5_K, k_quants.dequantize_q5_k, k_quants.pack_q5_k),
        BlockFormat(_T.Q6_K, 256, k_quants.Q6_K, k_quants.dequantize_q6_k, k_quants.pack_q6_k),
    )
}
