"""Block formats of quantized tensors: layout, dequantization, packing."""

from __future__ import annotations

import gguf.quants
import numpy as np
from gguf.constants import GGMLQuantizationType

from minfer.model.errors import ModelFileError


def dequantize(raw: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Packed rows uint8 (rows, row_bytes) -> float32 (rows, row_elements)."""
    try:
        return gguf.quants.dequantize(raw, kind)
    except NotImplementedError:
        raise ModelFileError(f"type {kind.name} cannot be dequantized") from None
