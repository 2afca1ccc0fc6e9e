"""Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: 32 weights a block, one f16 scale `d`, in the _1 types one f16 minimum `m`.

    Q4_0   18 B   d[2] qs[16]            w = d (q - 8)
    Q4_1   20 B   d[2] m[2] qs[16]       w = d q + m
    Q5_0   22 B   d[2] qh[4] qs[16]      w = d (q - 16)
    Q5_1   24 B   d[2] m[2] qh[4] qs[16] w = d q + m
    Q8_0   34 B   d[2] qs[32], signed    w = d q

Byte j of a 16-byte `qs` holds weight j in its low and weight j + 16 in its high nibble; bit j of `qh` (32
bits, little-endian) is the fifth bit of weight j. Packing rounds as ggml's reference quantizer does.
"""

from __future__ import annotations

import numpy as np

Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
Q5_0 = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
Q8_0 = np.dtype([("d", "<f2"), ("qs", "i1", 32)])


def dequantize_symmetric(blocks: np.ndarray) -> np.ndarray:
    """Q4_0 and Q5_0: structured [n] -> float32 [n, 32]."""
    quants = _unpack(blocks)
    zero = 16 if "qh" in blocks.dtype.names else 8
    return _f32(blocks["d"]) * (quants.astype(np.int8) - np.int8(zero)).astype(np.float32)


def dequantize_affine(blocks: np.ndarray) -> np.ndarray:
    """Q4_1 and Q5_1: structured [n] -> float32 [n, 32]."""
    values = _unpack(blocks).astype(np.float32)
    values *= _f32(blocks["d"])
    values += _f32(blocks["m"])
    return values


def dequantize_q8_0(blocks: np.ndarray) -> np.ndarray:
    return blocks["qs"].astype(np.float32) * _f32(blocks["d"])


def pack_q4_0(values: np.ndarray) -> np.ndarray:
    return _pack_symmetric(values, Q4_0, zero=8)


def pack_q5_0(values: np.ndarray) -> np.ndarray:
    return _pack_symmetric(values, Q5_0, zero=16)


def pack_q4_1(values: np.ndarray) -> np.ndarray:
    return _pack_affine(values, Q4_1, top=15)


def pack_q5_1(values: np.ndarray) -> np.ndarray:
    return _pack_affine(values, Q5_1, top=31)


def pack_q8_0(values: np.ndarray) -> np.ndarray:
    d = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scaled = values * _reciprocal(d)
    blocks = np.empty(len(values), Q8_0)
    blocks["d"] = d[:, 0]
    blocks["qs"] = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))  # halves away from zero
    return blocks


def _pack_symmetric(values: np.ndarray, layout: np.dtype, zero: int) -> np.ndarray:
    # The weight of largest magnitude, with its sign, gets the code that reaches furthest: 0, meaning -zero.
    extreme = np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1)
    d = extreme / np.float32(-zero)
    quants = np.trunc(values * _reciprocal(d) + np.float32(zero + 0.5)).clip(0, 2 * zero - 1)
    blocks = np.empty(len(values), layout)
    blocks["d"] = d[:, 0]
    _fill_quants(blocks, quants.astype(np.uint8))
    return blocks


def _pack_affine(values: np.ndarray, layout: np.dtype, top: int) -> np.ndarray:
    low = values.min(axis=1, keepdims=True)
    d = (values.max(axis=1, keepdims=True) - low) / np.float32(top)
    quants = np.trunc((values - low) * _reciprocal(d) + np.float32(0.5)).clip(0, top)
    blocks = np.empty(len(values), layout)
    blocks["d"], blocks["m"] = d[:, 0], low[:, 0]
    _fill_quants(blocks, quants.astype(np.uint8))
    return blocks


def _unpack(blocks: np.ndarray) -> np.ndarray:
    quants = np.concatenate([blocks["qs"] & np.uint8(15), blocks["qs"] >> np.uint8(4)], axis=1)
    if "qh" in blocks.dtype.names:
        quants |= np.unpackbits(blocks["qh"], axis=1, bitorder="little") << np.uint8(4)
    return quants


def _fill_quants(blocks: np.ndarray, quants: np.ndarray) -> None:
    nibbles = quants & np.uint8(15)
    blocks["qs"] = nibbles[:, :16] | nibbles[:, 16:] << np.uint8(4)
    if "qh" in blocks.dtype.names:
        blocks["qh"] = np.packbits(quants >> np.uint8(4), axis=1, bitorder="little")


def _f32(scales: np.ndarray) -> np.ndarray:
    return scales.astype(np.float32)[:, None]


def _reciprocal(d: np.ndarray) -> np.ndarray:
    """1 / d, and 0 for zeros and subnormals, whose reciprocal could overflow (in f16 they are zeros)."""
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=np.abs(d) >= np.finfo(np.float32).tiny)
