"""Block formats of quantized tensors: layout, dequantization, packing.

`FORMATS` are the formats that have code here (and kernels elsewhere). Every other type that the `gguf`
package can dequantize is read through it.
"""

from __future__ import annotations

from functools import cache

import gguf.quants
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from minfer.model.errors import ModelFileError
from minfer.model.quants.formats import FORMATS, BlockFormat

__all__ = ["FORMATS", "BlockFormat", "can_dequantize", "dequantizable_types", "dequantize", "pack"]

_CHUNK_ELEMENTS = 1 << 18  # temporaries of a chunk stay within a core's cache


def dequantize(raw: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Packed rows uint8 (rows, row_bytes) -> a new float32 array (rows, row_elements).

    Equal to `gguf.quants.dequantize` bit for bit; raises ModelFileError for a type that it cannot read.
    """
    if not can_dequantize(kind):
        names = ", ".join(known.name for known in dequantizable_types())
        raise ModelFileError(f"type {kind.name} cannot be dequantized (supported: {names})")
    block_size, type_size = GGML_QUANT_SIZES[kind]
    blocks = np.ascontiguousarray(raw).reshape(-1, type_size)
    out = np.empty((len(blocks), block_size), np.float32)
    step = max(1, _CHUNK_ELEMENTS // block_size)
    with np.errstate(over="ignore", invalid="ignore"):  # a scale in the file may be inf or NaN
        for start in range(0, len(blocks), step):
            chunk = blocks[start : start + step]
            if kind in FORMATS:
                out[start : start + step] = FORMATS[kind].dequantize_blocks(
                    chunk.view(FORMATS[kind].layout)[:, 0]
                )
            else:
                out[start : start + step] = gguf.quants.dequantize(chunk, kind)
    return out.reshape(len(raw), -1)


def pack(values: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Quantize rows float32 (rows, row_elements), all finite, to packed rows uint8 (rows, row_bytes).

    Raises ValueError when a row is not a whole number of blocks, a value is not finite, or the type has no
    code here.
    """
    if kind not in FORMATS:
        raise ValueError(
            f"packing to {kind.name} is not supported (supported: {', '.join(k.name for k in FORMATS)})"
        )
    fmt = FORMATS[kind]
    row_bytes = fmt.row_bytes(values.shape[-1])
    values = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(values).all():
        raise ValueError(f"packing to {kind.name} needs finite values")
    return fmt.pack_blocks(values.reshape(-1, fmt.block_size)).view(np.uint8).reshape(len(values), row_bytes)


@cache
def can_dequantize(kind: GGMLQuantizationType) -> bool:
    """Whether `dequantize` reads this type."""
    if kind in FORMATS:
        return True
    try:
        gguf.quants.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def dequantizable_types() -> list[GGMLQuantizationType]:
    """All types that `dequantize` reads."""
    return [kind for kind in GGML_QUANT_SIZES if can_dequantize(kind)]
