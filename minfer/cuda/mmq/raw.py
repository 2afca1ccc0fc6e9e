"""Raw weights: the blocks' own bytes in shared memory, unpacked in registers at the mma.

A B fragment needs, of row g, the four weights 4t ... 4t + 3 of a chunk in one word and the four 16 further on
in another: every format keeps them in bytes of one or two words. Rows past the matrix repeat its last one
(their products are not stored); chunks past a row's end meet activations that are zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.blocks import spread_bits
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.mmq.config import ALIGNED_TYPES, CHUNK, MmqConfig

LOW = 0x0F0F0F0F
ONES = 0x01010101
SIGNS = 0x80808080


@device_function
def _word(address):
    """Four bytes at a 2-byte aligned shared address; touches no word that holds none of them."""
    base = address & uint32(0xFFFFFFFC)
    odd = address & uint32(2)
    return ptx.shf_r_wrap(ptx.ld_shared_u32(base), ptx.ld_shared_u32(base + odd * uint32(2)), odd * uint32(8))


# ---- unpackers: (block, sub, t) -> (weights 4t ... 4t + 3, weights 16 + 4t ... 16 + 4t + 3) of chunk `sub` of
# the block at a shared address, as signed bytes. Bytewise (q + 128 - z) ^ 128 = q - z, and nothing carries.


@device_function
def _unpack_q8_0(block, sub, t):
    return _word(block + uint32(2 + 4 * t)), _word(block + uint32(18 + 4 * t))


@device_function
def _unpack_q4_0(block, sub, t):
    word = _word(block + uint32(2 + 4 * t))
    up, signs = uint32(0x78787878), uint32(SIGNS)
    return ((word & uint32(LOW)) + up) ^ signs, (((word >> uint32(4)) & uint32(LOW)) + up) ^ signs


@device_function
def _unpack_q4_1(block, sub, t):
    word = ptx.ld_shared_u32(block + uint32(4 + 4 * t))
    return word & uint32(LOW), (word >> uint32(4)) & uint32(LOW)


@device_function
def _five_bits(quants, fifth, t):
    """Nibbles of a word with their fifth bits out of a block's 32."""
    low = (quants & uint32(LOW)) | (spread_bits(fifth >> uint32(4 * t)) << uint32(4))
    high = ((quants >> uint32(4)) & uint32(LOW)) | (spread_bits(fifth >> uint32(16 + 4 * t)) << uint32(4))
    return low, high


@device_function
def _unpack_q5_0(block, sub, t):
    low, high = _five_bits(_word(block + uint32(6 + 4 * t)), _word(block + uint32(2)), t)
    up, signs = uint32(0x70707070), uint32(SIGNS)
    return (low + up) ^ signs, (high + up) ^ signs


@device_function
def _unpack_q5_1(block, sub, t):
    quants, fifth = ptx.ld_shared_u32(block + uint32(8 + 4 * t)), ptx.ld_shared_u32(block + uint32(4))
    return _five_bits(quants, fifth, t)


@device_function
def _unpack_q6_k(block, sub, t):
    half, part = sub >> 2, sub & 3
    low = block + uint32(half * 64 + (part & 1) * 32 + 4 * t)
    high = block + uint32(128 + half * 32 + 4 * t)
    nibble, pair = uint32((part >> 1) * 4), uint32(part * 2)
    up, signs = uint32(0x60606060), uint32(SIGNS)
    first = ((_word(low) >> nibble) & uint32(LOW)) | (
        ((_word(high) >> pair) & uint32(0x03030303)) << uint32(4)
    )
    second = ((_word(low + uint32(16)) >> nibble) & uint32(LOW)) | (
        ((_word(high + uint32(16)) >> pair) & uint32(0x03030303)) << uint32(4)
    )
    return (first + up) ^ signs, (second + up) ^ signs


@device_function
def _unpack_q4_k(block, sub, t):
    at, shift = block + uint32(16 + (sub >> 1) * 32 + 4 * t), uint32((sub & 1) * 4)
    low = uint32(LOW)
    return (ptx.ld_shared_u32(at) >> shift) & low, (ptx.ld_shared_u32(at + uint32(16)) >> shift) & low


@device_function
def _fifth_k(word, sub):
    return ((word >> uint32(sub)) & uint32(ONES)) << uint32(4)


@device_function
def _unpack_q5_k(block, sub, t):
    first, second = _unpack_q4_k(block + uint32(32), sub, t)
    fifth = block + uint32(16 + 4 * t)
    return (
        first | _fifth_k(ptx.ld_shared_u32(fifth), sub),
        second | _fifth_k(ptx.ld_shared_u32(fifth + uint32(16)), sub),
    )


UNPACK: dict[str, Callable] = {
    "Q4_0": _unpack_q4_0,
    "Q4_1": _unpack_q4_1,
    "Q5_0": _unpack_q5_0,
    "Q5_1": _unpack_q5_1,
    "Q8_0": _unpack_q8_0,
    "Q4_K": _unpack_q4_k,
    "Q5_K": _unpack_q5_k,
    "Q6_K": _unpack_q6_k,
}


@dataclass(frozen=True)
class RawWeights:
    """How a config stages and reads its weights as they are."""

    config: MmqConfig

    @property
    def aligned(self) -> bool:
        return self.config.weight_type in ALIGNED_TYPES

    @property
    def units(self) -> int:
        """Copies of 16 bytes a row and k-tile."""
        config = self.config
        if config.halved:
            return 4 if config.weight_type == "Q4_K" else 6
        if self.aligned:
            return config.block_bytes // 16
        tile = config.block_bytes if config.k_quant else config.kd * config.block_bytes
        return -(-(tile + 14) // 16)

    @functools.cached_property
    def tile_offset(self) -> DeviceFunction:
        """(k_tile) -> bytes from a row's start to the first block of a k-tile."""
        size = self.config.block_bytes
        step = 1 if not self.config.k_quant else self.config.kd
        per_tile = self.config.kd if not self.config.k_quant else 1

        @device_function
        def tile_offset(k_tile):
            if per_tile > 1:
                return k_tile * (per_tile * size)
            return (k_tile * step >> 3) * size

        return tile_offset

    @functools.cached_property
    def copy(self) -> DeviceFunction:
        """(stage, matrix, row_bytes, first_row, od, k_tile, thread): issue the copies of a k-tile."""
        config = self.config
        threads, rows, row_bytes_staged = config.threads, config.rows_tile, config.raw_row_bytes
        per_row, units, aligned, halved = threads // rows, self.units, self.aligned, config.halved
        rounds, exact = -(-units // per_row), units % per_row == 0
        fifths = 2 if config.weight_type == "Q5_K" else 0
        offset = self.tile_offset

        @device_function
        @unrolled
        def copy(stage, matrix, row_bytes, first_row, od, k_tile, thread):
            row, part = thread // per_row, thread % per_row
            matrix_row = min(first_row + row, od - 1)
            source = matrix + uint64(matrix_row) * uint64(row_bytes) + uint64(offset(k_tile))
            target = uint32(stage + row * row_bytes_staged + part * 16)
            if aligned:
                for j in unroll(rounds):
                    u = part + j * per_row
                    if exact or u < units:
                        at = u
                        if halved:
                            # Past the header; Q5_K's fifth bits serve both halves; then this half's nibbles.
                            at = 1 + u if u < fifths else 1 + u + 4 * (k_tile & 1)
                        ptx.cp_async_cg_16(
                            target + uint32(j * per_row * 16), source + uint64(at * 16), uint32(16)
                        )
            else:
                end = matrix + uint64(od) * uint64(row_bytes)
                line = source & uint64(0xFFFFFFFFFFFFFFF0)
                left = int32(min(end - line, uint64(16 * units)))
                for j in unroll(rounds):
                    u = part + j * per_row
                    if exact or u < units:
                        ptx.cp_async_cg_16(
                            target + uint32(j * per_row * 16),
                            line + uint64(u * 16),
                            uint32(max(0, min(16, left - u * 16))),
                        )

        return copy

    @functools.cached_property
    def fragments(self) -> DeviceFunction:
        """(words, stage, matrix_low, row_bytes, first_row, od, row, k_tile, i, lane): the B fragments of chunk
        i of 16 rows of the tile from `row` on: words[0], words[1] of the first 8, words[2], words[3] of the
        others. `matrix_low` is the matrix's address, of which the low bits count."""
        config = self.config
        if config.layout == "padded" and self.aligned:
            return self._fragments_by_ldmatrix
        staged, kd, k_quant = config.raw_row_bytes, config.kd, config.k_quant
        unpack, aligned, size, offset = (
            UNPACK[config.weight_type],
            self.aligned,
            config.block_bytes,
            self.tile_offset,
        )

        @device_function
        def block_of(stage, row_bytes, first_row, od, row, k_tile, i):
            """The shared address of the block with chunk i of a row, and which of its chunks that is."""
            block, sub = uint32(stage + row * staged), int32(0)
            if k_quant:
                sub = int32((k_tile * kd + i) & 7)
            else:
                block += uint32(i * size)
            if not aligned:
                matrix_row = min(first_row + row, od - 1)
                block += uint32(matrix_row * row_bytes + offset(k_tile)) & uint32(15)
            return block, sub

        @device_function
        def fragments(words, stage, row_bytes, first_row, od, row, k_tile, i, lane):
            own, t = row + (lane >> 2), lane & 3
            block, sub = block_of(stage, row_bytes, first_row, od, own, k_tile, i)
            words[0], words[1] = unpack(block, sub, t)
            block, sub = block_of(stage, row_bytes, first_row, od, own + 8, k_tile, i)
            words[2], words[3] = unpack(block, sub, t)

        return fragments

    @property
    def _fragments_by_ldmatrix(self) -> DeviceFunction:
        """32 bytes of a row hold two chunks: ldmatrix.x4 reads them of 16 rows."""
        config = self.config
        staged, kd, halved = config.raw_row_bytes, config.kd, config.halved
        fifth = config.weight_type == "Q5_K"
        nibbles = (32 if fifth else 0) + (0 if halved else 16)

        @device_function
        def fragments(words, stage, row_bytes, first_row, od, row, k_tile, i, lane):
            own = row + (lane & 7) + ((lane >> 4) << 3)
            line = uint32(stage + own * staged + ((lane >> 3) & 1) * 16)
            w0, w1, w2, w3 = ptx.ldmatrix_x4(line + uint32(nibbles + (i >> 1) * CHUNK))
            shift, low = uint32((i & 1) * 4), uint32(LOW)
            words[0], words[1] = (w0 >> shift) & low, (w1 >> shift) & low
            words[2], words[3] = (w2 >> shift) & low, (w3 >> shift) & low
            if fifth:
                sub = (k_tile * kd + i) & 7
                w0, w1, w2, w3 = ptx.ldmatrix_x4(line + uint32(0 if halved else 16))
                words[0], words[1] = words[0] | _fifth_k(w0, sub), words[1] | _fifth_k(w1, sub)
                words[2], words[3] = words[2] | _fifth_k(w2, sub), words[3] | _fifth_k(w3, sub)

        return fragments
