"""F32, F16 and BF16: one element is one block.

BF16 is the upper half of an IEEE binary32, rounded to nearest, ties to even.
"""

from __future__ import annotations

import numpy as np

F32 = np.dtype([("x", "<f4")])
F16 = np.dtype([("x", "<f2")])
BF16 = np.dtype([("bits", "<u2")])


def dequantize_f32(blocks: np.ndarray) -> np.ndarray:
    return blocks["x"][:, None]


def pack_f32(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1).view(F32)


def dequantize_f16(blocks: np.ndarray) -> np.ndarray:
    return blocks["x"].astype(np.float32)[:, None]


def pack_f16(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1).astype("<f2").view(F16)


def dequantize_bf16(blocks: np.ndarray) -> np.ndarray:
    return (blocks["bits"].astype(np.uint32) << np.uint32(16)).view(np.float32)[:, None]


def pack_bf16(values: np.ndarray) -> np.ndarray:
    bits = values.reshape(-1).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype("<u2").view(BF16)
