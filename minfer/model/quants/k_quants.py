"""Q4_K, Q5_K and Q6_K: 256 weights a block, in sub-blocks with small integer scales under one f16 scale.

    Q4_K  144 B   d[2] dmin[2] scales[12] qs[128]          8 sub-blocks of 32:  w = d sc q - dmin m
    Q5_K  176 B   d[2] dmin[2] scales[12] qh[32] qs[128]   8 sub-blocks of 32:  w = d sc q - dmin m
    Q6_K  210 B   ql[128] qh[64] scales[16] d[2]          16 sub-blocks of 16:  w = d sc (q - 32)

Q4_K, Q5_K: the 32 bytes qs[32 p ..] hold sub-block 2p in their low and 2p + 1 in their high nibbles. Bit s of
qh[l] is the fifth bit of weight l of sub-block s. `scales` packs eight 6-bit scales `sc` and minima `m`:

    byte 0-3    sc[0-3] in bits 0-5, bits 4-5 of sc[4-7] in bits 6-7
    byte 4-7    m[0-3]  in bits 0-5, bits 4-5 of m[4-7]  in bits 6-7
    byte 8-11   bits 0-3 of sc[4-7] in the low, of m[4-7] in the high nibble

Q6_K, each half of 128 weights (64 bytes of ql, 32 of qh): weight 32 g + l, g = 0..3, has its lower four bits
in ql[32 (g mod 2) + l], the low nibble for g < 2, the high one for g >= 2, and its upper two in bits 2g and
2g + 1 of qh[l]. `scales` are signed bytes. Blocks of 210 bytes: aligned to 2 bytes only.

Packing takes each sub-block's range; ggml's search for the scales of least squared error is not done here.
"""

from __future__ import annotations

import numpy as np

Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
Q5_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)])
Q6_K = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])

_BIT_OF_SUB_BLOCK = np.arange(8, dtype=np.uint8)[:, None]
_SHIFT_OF_GROUP = np.array([0, 2, 4, 6], np.uint8)[:, None]


def unpack_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The twelve scale bytes uint8 [n, 12] -> (sc, m), uint8 [n, 8] each, 0..63."""
    first, second, low = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    sc = np.concatenate([first & 63, (low & 15) | (first >> 6 << 4)], axis=1)
    m = np.concatenate([second & 63, (low >> 4) | (second >> 6 << 4)], axis=1)
    return sc, m


def pack_scales(sc: np.ndarray, m: np.ndarray) -> np.ndarray:
    """The inverse of `unpack_scales`."""
    low = (sc[:, 4:] & 15) | (m[:, 4:] & 15) << 4
    return np.concatenate([sc[:, :4] | sc[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, low], axis=1)


def dequantize_q4_k(blocks: np.ndarray) -> np.ndarray:
    return _scale_and_shift(blocks, _nibbles_of_sub_blocks(blocks["qs"]))


def dequantize_q5_k(blocks: np.ndarray) -> np.ndarray:
    fifth = blocks["qh"][:, None, :] >> _BIT_OF_SUB_BLOCK & 1
    return _scale_and_shift(blocks, _nibbles_of_sub_blocks(blocks["qs"]) | fifth << 4)


def dequantize_q6_k(blocks: np.ndarray) -> np.ndarray:
    n = len(blocks)
    ql = blocks["ql"].reshape(n, 2, 1, 64)
    lower = np.concatenate([ql & 15, ql >> 4], axis=2).reshape(n, 2, 4, 32)
    upper = blocks["qh"].reshape(n, 2, 1, 32) >> _SHIFT_OF_GROUP & 3
    quants = (lower | upper << 4).astype(np.int8) - np.int8(32)
    scales = blocks["d"].astype(np.float32)[:, None] * blocks["scales"].astype(np.float32)
    return (quants.reshape(n, 16, 16).astype(np.float32) * scales[:, :, None]).reshape(n, 256)


def pack_q4_k(values: np.ndarray) -> np.ndarray:
    blocks, quants = _pack_affine(values, Q4_K, top=15)
    _fill_nibbles(blocks, quants)
    return blocks


def pack_q5_k(values: np.ndarray) -> np.ndarray:
    blocks, quants = _pack_affine(values, Q5_K, top=31)
    _fill_nibbles(blocks, quants & 15)
    blocks["qh"] = np.bitwise_or.reduce(quants >> 4 << _BIT_OF_SUB_BLOCK, axis=1)
    return blocks


def pack_q6_k(values: np.ndarray) -> np.ndarray:
    n = len(values)
    parts = values.reshape(n, 16, 16)
    # Per sub-block the extreme weight gets code -32; per block the extreme scale gets code -128.
    scale = _extreme(parts) / np.float32(-32)
    d = (_extreme(scale) / np.float32(-128)).astype("<f2")
    blocks = np.empty(n, Q6_K)
    blocks["d"] = d
    sc = _divide(scale, d.astype(np.float32)[:, None])
    blocks["scales"] = np.rint(sc).clip(-128, 127)
    step = d.astype(np.float32)[:, None] * blocks["scales"].astype(np.float32)
    quants = (np.rint(_divide(parts, step[:, :, None])).clip(-32, 31) + 32).astype(np.uint8)
    groups = quants.reshape(n, 2, 4, 32)
    lower = (groups & 15).reshape(n, 2, 2, 64)
    blocks["ql"] = (lower[:, :, 0] | lower[:, :, 1] << 4).reshape(n, 128)
    blocks["qh"] = np.bitwise_or.reduce(groups >> 4 << _SHIFT_OF_GROUP, axis=2).reshape(n, 64)
    return blocks


def _nibbles_of_sub_blocks(qs: np.ndarray) -> np.ndarray:
    pairs = qs.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)


def _fill_nibbles(blocks: np.ndarray, quants: np.ndarray) -> None:
    pairs = quants.reshape(-1, 4, 2, 32)
    blocks["qs"] = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)


def _scale_and_shift(blocks: np.ndarray, quants: np.ndarray) -> np.ndarray:
    sc, m = unpack_scales(blocks["scales"])
    scale = blocks["d"].astype(np.float32)[:, None] * sc.astype(np.float32)
    shift = blocks["dmin"].astype(np.float32)[:, None] * m.astype(np.float32)
    values = quants.astype(np.float32)
    values *= scale[:, :, None]
    values -= shift[:, :, None]
    return values.reshape(-1, 256)


def _pack_affine(values: np.ndarray, layout: np.dtype, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks with their scales filled in, and the quants uint8 [n, 8, 32], 0..top."""
    parts = values.reshape(-1, 8, 32)
    low = np.minimum(parts.min(axis=2), np.float32(0))  # the format cannot express a minimum above zero
    step = (parts.max(axis=2).clip(min=0) - low) / np.float32(top)
    d = (step.max(axis=1) / np.float32(63)).astype("<f2")
    dmin = ((-low).max(axis=1) / np.float32(63)).astype("<f2")
    sc = np.rint(_divide(step, d.astype(np.float32)[:, None])).clip(0, 63).astype(np.uint8)
    m = np.rint(_divide(-low, dmin.astype(np.float32)[:, None])).clip(0, 63).astype(np.uint8)
    blocks = np.empty(len(parts), layout)
    blocks["d"], blocks["dmin"], blocks["scales"] = d, dmin, pack_scales(sc, m)
    scale = d.astype(np.float32)[:, None] * sc.astype(np.float32)
    shift = dmin.astype(np.float32)[:, None] * m.astype(np.float32)
    quants = np.rint(_divide(parts + shift[:, :, None], scale[:, :, None])).clip(0, top)
    return blocks, quants.astype(np.uint8)


def _extreme(values: np.ndarray) -> np.ndarray:
    """The element of largest magnitude along the last axis, with its sign."""
    index = np.abs(values).argmax(axis=-1, keepdims=True)
    return np.take_along_axis(values, index, axis=-1)[..., 0]


def _divide(values: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    """values / divisor, 0 where the divisor is 0."""
    divisor = np.broadcast_to(divisor, values.shape)
    return np.divide(values, divisor, out=np.zeros_like(values), where=divisor != 0)
