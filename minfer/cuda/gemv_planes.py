"""Q6_K repacked at load time: the same bytes in planes, as the decode GEMV's lanes read them.

A Q6_K block has 210 bytes: it starts at any even address, so that 4 lanes take it in words that are shifted
into place, 27 loads from shared memory a lane. Repacked, a slice of a row (the blocks that one copy brings)
holds, one behind the other and each aligned to 16 bytes:

    64 bytes a block    ql of the sub-blocks of 32 with even numbers (low nibbles), 16 bytes a lane
    64 bytes a block    ql of those with odd numbers
    64 bytes a block    qh, as it was
    16 bytes a block    the scales, 4 a lane
     2 bytes a block    d

Lane (half, j) of 4 takes columns 16 j ... 16 j + 15 of its half's four sub-blocks: 16 weights of one scale
each, in 11 loads, those of weights without conflicts. A slice ends on 16 bytes; nothing else is added.

On an H200 the 7B's down matrix takes 14.7 us in planes, 16.0 in blocks (its bytes alone 12.2), the output
matrix 107 and 108. No engine repacks: the kernel for a whole token (`minfer.cuda.token`) reads blocks as they
are.
"""

from __future__ import annotations

import numpy as np
from numba.cuda.types import float32, int32, uint32

from minfer.cuda import ptx
from minfer.cuda.block_dots import LOW, BlockDot
from minfer.cuda.instruction import device_function

BLOCK_BYTES = 210
_ALIGNMENT = 16


def slice_bytes(blocks: int) -> int:
    """Bytes of a slice of so many blocks."""
    return -(-blocks * BLOCK_BYTES // _ALIGNMENT) * _ALIGNMENT


def repack_q6_k(raw: np.ndarray, slice_blocks: int) -> np.ndarray:
    """Q6_K rows, uint8 (rows, bytes) as in a file, with slices of `slice_blocks` blocks (the last one of a
    row may have fewer) in planes: uint8 (rows, bytes)."""
    blocks = raw.reshape(len(raw), -1, BLOCK_BYTES)
    starts = range(0, blocks.shape[1], slice_blocks)
    return np.concatenate([_planes(blocks[:, s : s + slice_blocks]) for s in starts], axis=1)


def _planes(blocks: np.ndarray) -> np.ndarray:
    rows, count, _ = blocks.shape
    low = blocks[..., :128].reshape(rows, count, 2, 2, 32)  # half, even or odd sub-block
    scales = blocks[..., 192:208].reshape(rows, count, 2, 4, 2)  # half, sub-block, j
    planes = (
        low[:, :, :, 0],
        low[:, :, :, 1],
        blocks[..., 128:192],
        scales.swapaxes(3, 4),
        blocks[..., 208:],
    )
    packed = np.zeros((rows, slice_bytes(count)), np.uint8)
    packed[:, : count * BLOCK_BYTES] = np.concatenate([p.reshape(rows, -1) for p in planes], axis=1)
    return packed


@device_function
def _four(low, high, values, total):
    """Four weights times four int8: nibbles `low`, the two bits above them in place in `high`, less 32, which
    is -32 times the int8."""
    weights = low | (high & uint32(0x30303030))
    return ptx.dp4a_u8s8(weights, values, ptx.dp4a(uint32(0xE0E0E0E0), values, total))


@device_function
def _sixteen(low, high, at, total):
    """16 weights, as their nibbles and the two bits above them in place, times the 16 int8 at `at`."""
    a0, a1, a2, a3 = ptx.ld_shared_v4_u32(at)
    total = _four(low[0], high[0], a0, total)
    total = _four(low[1], high[1], a1, total)
    total = _four(low[2], high[2], a2, total)
    return _four(low[3], high[3], a3, total)


@device_function
def _low(words):
    mask = uint32(LOW)
    return words[0] & mask, words[1] & mask, words[2] & mask, words[3] & mask


@device_function
def _right(words, bits):
    n = uint32(bits)
    return words[0] >> n, words[1] >> n, words[2] >> n, words[3] >> n


@device_function
def _left(words, bits):
    n = uint32(bits)
    return words[0] << n, words[1] << n, words[2] << n, words[3] << n


@device_function
def _scale(word, place):
    """A signed byte of a word."""
    return int32(word << uint32(24 - 8 * place)) >> 24


@device_function
def _dot_planes(start, count, index, x, part):
    """Block `index` of the `count` of a slice times the records at x, this lane's part."""
    lane = uint32(index * 64 + part * 16)
    even = ptx.ld_shared_v4_u32(start + lane)
    odd = ptx.ld_shared_v4_u32(start + uint32(count * 64) + lane)
    high = ptx.ld_shared_v4_u32(start + uint32(count * 128) + lane)
    scales = ptx.ld_shared_u32(start + uint32(count * 192 + index * 16 + part * 4))
    d = ptx.ld_shared_u16(start + uint32(count * 208 + index * 2))
    record = x + uint32((part >> 1) * 160)
    at = record + uint32((part & 1) * 16)
    d0, d1 = ptx.ld_shared_v2_f32(record + uint32(64))
    v = _sixteen(_low(even), _left(high, 4), at, 0)
    total = d0 * ptx.cvt_rn_f32_s32(v * _scale(scales, 0))
    v = _sixteen(_low(odd), _left(high, 2), at + uint32(32), 0)
    total += d1 * ptx.cvt_rn_f32_s32(v * _scale(scales, 1))
    d0, d1 = ptx.ld_shared_v2_f32(record + uint32(144))
    v = _sixteen(_low(_right(even, 4)), high, at + uint32(80), 0)
    total += d0 * ptx.cvt_rn_f32_s32(v * _scale(scales, 2))
    v = _sixteen(_low(_right(odd, 4)), _right(high, 2), at + uint32(112), 0)
    total += d1 * ptx.cvt_rn_f32_s32(v * _scale(scales, 3))
    return float32(ptx.unpack_f16x2_lo(d) * total)


PLANES = {"Q6_K": BlockDot(lanes=4, weights=256, quantized=True, dot=_dot_planes)}
"""What the GEMV can read repacked, and how."""
