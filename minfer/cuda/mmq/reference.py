"""What the MMQ kernels compute, in NumPy: the chunks' integer sums bit for bit, and the product.

Weights are taken apart byte by byte after GGML's block layouts (ggml-common.h), independently of the kernels'
unpacking of words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.mmq.config import BLOCK_BYTES, CHUNK
from minfer.cuda.reference import pack_pad40, unpack_pad40


@dataclass(frozen=True)
class Integers:
    """A quantized matrix as the kernels see it: weight = scales * quants + minima, run by run.

    Attributes:
        quants: int32 [rows, runs, weights a run] (16 for Q6_K, else 32).
        scales, minima: float64 [rows, runs].
    """

    quants: NDArray[np.int32]
    scales: NDArray[np.float64]
    minima: NDArray[np.float64]


def _half(block: NDArray[np.uint8], at: int) -> NDArray[np.float64]:
    return np.ascontiguousarray(block[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float64)


def _nibbles(quants: NDArray[np.uint8]) -> NDArray[np.int32]:
    """[..., n] bytes -> [..., 2, n]: low nibbles, high nibbles."""
    return np.stack([quants & 15, quants >> 4], axis=-2).astype(np.int32)


def _legacy(name: str, b: NDArray[np.uint8]) -> Integers:
    minimum, fifth = name.endswith("_1"), name.startswith("Q5")
    if name == "Q8_0":
        quants = b[..., 2:].view(np.int8).astype(np.int32)
        return Integers(quants, _half(b, 0), np.zeros(b.shape[:-1]))
    head = 4 if minimum else 2
    quants = _nibbles(b[..., head + 4 * fifth :]).reshape(*b.shape[:-1], CHUNK)
    if fifth:
        bits = np.unpackbits(b[..., head : head + 4], axis=-1, bitorder="little").astype(np.int32)
        quants |= bits << 4
    if minimum:
        return Integers(quants, _half(b, 0), _half(b, 2))
    return Integers(quants - (16 if fifth else 8), _half(b, 0), np.zeros(b.shape[:-1]))


def _k_quant(name: str, b: NDArray[np.uint8]) -> Integers:
    packed = b[..., 4:16].astype(np.int32)
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=-1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=-1)
    fifth = name == "Q5_K"
    quants = b[..., 48 if fifth else 16 :].reshape(*b.shape[:-1], 4, 32)
    quants = _nibbles(quants).reshape(*b.shape[:-1], 8, 32)
    if fifth:
        bits = b[..., None, 16:48].astype(np.int32) >> np.arange(8)[:, None]
        quants |= (bits & 1) << 4
    rows = b.shape[0]
    return Integers(
        quants.reshape(rows, -1, 32),
        (_half(b, 0)[..., None] * scales).reshape(rows, -1),
        (-_half(b, 2)[..., None] * minima).reshape(rows, -1),
    )


def _q6_k(b: NDArray[np.uint8]) -> Integers:
    rows = b.shape[0]
    low = _nibbles(b[..., :128].reshape(*b.shape[:-1], 2, 64))  # half, nibble, 64 bytes
    low = low.reshape(*b.shape[:-1], 8, 32)
    high = (
        b[..., 128:192].reshape(*b.shape[:-1], 2, 1, 32).astype(np.int32) >> np.array([0, 2, 4, 6])[:, None]
    )
    quants = (low | ((high & 3) << 4).reshape(*b.shape[:-1], 8, 32)) - 32
    scales = b[..., 192:208].view(np.int8).astype(np.float64) * _half(b, 208)[..., None]
    return Integers(
        quants.reshape(rows, -1, 16), scales.reshape(rows, -1), np.zeros((rows, scales.shape[1] * 16))
    )


def folded_quants(matrix: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Q6_K weights times their 8-bit scales, int32 [rows, runs, 32]."""
    blocks = np.ascontiguousarray(matrix).reshape(len(matrix), -1, BLOCK_BYTES["Q6_K"])
    scales = blocks[..., 192:208].view(np.int8).astype(np.int32).reshape(len(matrix), -1, 1)
    return (_q6_k(blocks).quants * scales).reshape(len(matrix), -1, CHUNK)


def integers(weight_type: str, matrix: NDArray[np.uint8]) -> Integers:
    """The integers and scales of a matrix of blocks, uint8 [rows, row bytes]."""
    if weight_type not in BLOCK_BYTES:
        raise ConfigRefused(f"mmq: no blocks of {weight_type}; {', '.join(BLOCK_BYTES)} are known")
    blocks = np.ascontiguousarray(matrix).reshape(matrix.shape[0], -1, BLOCK_BYTES[weight_type])
    if weight_type == "Q6_K":
        return _q6_k(blocks)
    return (_k_quant if weight_type.endswith("_K") else _legacy)(weight_type, blocks)


def pad40(q: ArrayLike, d: ArrayLike) -> NDArray[np.uint8]:
    """Chunks [nt, id / 32, 40] from int8 [nt, id] and d [nt, id / 32] (stored as f16)."""
    values = np.asarray(q, np.int8)
    sums = values.reshape(len(values), -1, CHUNK).sum(axis=-1, dtype=np.int32)
    return pack_pad40(values, np.asarray(d, np.float16), sums)


def unpad40(activations: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """(int8 values as int32 [nt, chunks, 32], d [nt, chunks]) of `pad40` chunks."""
    values, d, _ = unpack_pad40(activations)
    return values.reshape(*d.shape, CHUNK).astype(np.int32), d.astype(np.float64)


def integer_sums(
    weight_type: str, matrix: NDArray[np.uint8], activations: NDArray[np.uint8], folded: bool = False
) -> NDArray[np.int32]:
    """Integer accumulators [nt, rows, runs]: what out="sums" must give, bit for bit; with Q6_K's scales
    folded in where the variant does that."""
    quants = folded_quants(matrix) if folded else integers(weight_type, matrix).quants
    values, _ = unpad40(activations)
    runs = values.reshape(values.shape[0], quants.shape[1], quants.shape[2])
    return np.einsum("trk,ork->tor", runs, quants, optimize=True).astype(np.int32)


def product(
    weight_type: str, matrix: NDArray[np.uint8], activations: NDArray[np.uint8]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(C, the sum of the magnitudes of C's terms), float64 [nt, rows]."""
    w = integers(weight_type, matrix)
    values, d = unpad40(activations)
    x = (values * d[..., None]).reshape(values.shape[0], -1)
    dense = (w.quants * w.scales[..., None]).reshape(w.quants.shape[0], -1)
    sums = x.reshape(x.shape[0], w.minima.shape[1], -1).sum(axis=-1)
    magnitude = np.abs(x) @ np.abs(dense).T + np.abs(sums) @ np.abs(w.minima).T
    return x @ dense.T + sums @ w.minima.T, magnitude
