"""Random quantized matrices and their dequantized values, by the gguf package's own dequantizer (the
oracle)."""

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from minfer.cuda.blocks import BLOCKS

# Byte offsets of the f16 scales of a block.
_ONE, _TWO = (0,), (0, 2)
_SCALES = {"Q4_0": _ONE, "Q5_0": _ONE, "Q8_0": _ONE, "Q4_1": _TWO, "Q5_1": _TWO, "Q4_K": _TWO}
_SCALES |= {"Q5_K": _TWO, "Q6_K": (208,)}


def random_matrix(
    format: str, rows: int, dim: int, seed: int = 0, scale: float = 0.02
) -> tuple[np.ndarray, np.ndarray]:
    """(bytes uint8 [rows, row bytes], values float32 [rows, dim]): every bit of the blocks random, but
    scales of at most `scale`."""
    rng = np.random.default_rng(seed)
    block = BLOCKS[format]
    if format in ("F32", "F16", "BF16"):
        values = rng.normal(size=(rows, dim)).astype(np.float32)
        if format == "BF16":
            raw = (values.view(np.uint32) >> 16).astype(np.uint16)
            return raw.view(np.uint8).reshape(rows, -1), (raw.astype(np.uint32) << 16).view(np.float32)
        raw = values.astype(np.float16 if format == "F16" else np.float32)
        return raw.view(np.uint8).reshape(rows, -1), raw.astype(np.float32)
    blocks = rng.integers(0, 256, (rows, dim // block.weights, block.size), dtype=np.uint8)
    for offset in _SCALES[format]:
        scales = rng.uniform(-scale, scale, blocks.shape[:2]).astype(np.float16)
        blocks[..., offset : offset + 2] = scales[..., None].view(np.uint8)
    raw = blocks.reshape(rows, -1)
    return raw, dequantize(raw, GGMLQuantizationType[format]).astype(np.float32)
