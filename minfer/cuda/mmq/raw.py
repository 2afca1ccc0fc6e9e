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


# ---- unpackers: (block, sub, t) -> (weights 4t ... 4t + 3, weights 16 + 4t ... 16 + 4t + 3) of chunk `sub`
# of the block at a shared address, as signed bytes. Bytewise (q + 128 - z) ^ 128 = q - z, and nothing
# carries.


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
        tile_bytes, size = self.config.kd * self.config.block_bytes, self.config.block_bytes
        k_quant, blocks_shift = self.config.k_quant, 0 if self.config.kd == 8 else 1

        @device_function
        def tile_offset(k_tile):
            if k_quant:
                return int32((k_tile >> blocks_shift) * size)
            return int32(k_tile * tile_bytes)

        return tile_offset

    @functools.cached_property
    def start(self) -> DeviceFunction:
        """(matrix, row_bytes, first_row, od, thread): the address of a thread's row (u64), the last one past
        the matrix."""
        per_row = self.config.threads // self.config.rows_tile

        @device_function
        def start(matrix, row_bytes, first_row, od, thread):
            row = min(int32(first_row + thread // per_row), int32(od - 1))
            return uint64(matrix + uint64(row) * uint64(row_bytes))

        return start

    @functools.cached_property
    def copy(self) -> DeviceFunction:
        """(stage, row_source, end, k_tile, thread): issue the copies of a k-tile; nothing past the address
        `end` is read."""
        config = self.config
        row_bytes_staged = config.raw_row_bytes
        per_row, units, aligned, halved = (
            config.threads // config.rows_tile,
            self.units,
            self.aligned,
            config.halved,
        )
        rounds, exact = -(-units // per_row), units % per_row == 0
        fifths = 2 if config.weight_type == "Q5_K" else 0
        offset = self.tile_offset

        @device_function
        @unrolled
        def copy(stage, row_source, end, k_tile, thread):
            row, part = uint32(thread // per_row), uint32(thread % per_row)
            source = row_source + uint64(offset(k_tile))
            target = uint32(stage + row * row_bytes_staged + part * 16)
            if halved:
                # Past the header; Q5_K's fifth bits serve both halves; then this half's nibbles.
                half = uint32((k_tile & 1) * 64)
                for j in unroll(rounds):
                    u = uint32(part + j * per_row)
                    if exact or u < units:
                        at = uint32(16 + u * 16 + half)
                        if fifths:
                            at = uint32(16 + u * 16 + (half if u >= fifths else 0))
                        ptx.cp_async_cg_16(target + uint32(j * per_row * 16), source + uint64(at), uint32(16))
            else:
                line = source & uint64(0xFFFFFFFFFFFFFFF0)
                left = int32(16 * units)
                if not aligned:
                    left = int32(min(end - line, uint64(16 * units)))
                for j in unroll(rounds):
                    u = uint32(part + j * per_row)
                    if exact or u < units:
                        count = uint32(16)
                        if not aligned:
                            count = uint32(max(0, min(16, left - u * 16)))
                        ptx.cp_async_cg_16(target + uint32(j * per_row * 16), line + uint64(u * 16), count)

        return copy

    @functools.cached_property
    def own(self) -> DeviceFunction:
        """(row, lane): offset in a stage of what a lane reads for the warp's first row (`row` in the
        tile)."""
        staged, by_ldmatrix = self.config.raw_row_bytes, self.by_ldmatrix

        @device_function
        def own(row, lane):
            if by_ldmatrix:
                return uint32((row + (lane & 7) + ((lane >> 4) << 3)) * staged + ((lane >> 3) & 1) * 16)
            return uint32((row + (lane >> 2)) * staged)

        return own

    @property
    def by_ldmatrix(self) -> bool:
        """32 aligned bytes of a row hold two chunks: one ldmatrix.x4 reads them of 16 rows."""
        return self.config.layout == "padded" and self.aligned

    @functools.cached_property
    def fragments(self) -> DeviceFunction:
        """(words, stage, j, k_tile, i, lane, matrix_row, od, row_bytes): the B fragments of chunk i of the
        warp's j-th 16 rows: words[0], words[1] of the first 8, words[2], words[3] of the others. `stage`
        includes `own`; blocks that are not whole 16 bytes lie where the matrix's row (`matrix_row`: the
        lane's first) puts them."""
        if self.by_ldmatrix:
            return self._fragments_by_ldmatrix
        config = self.config
        staged, kd, k_quant = config.raw_row_bytes, config.kd, config.k_quant
        unpack, aligned, size = UNPACK[config.weight_type], self.aligned, config.block_bytes
        offset = self.tile_offset

        @device_function
        def block_of(stage, matrix_row, od, row_bytes, k_tile, i):
            """The shared address of the block with chunk i of a row."""
            block = stage
            if not k_quant:
                block = stage + uint32(i * size)
            if not aligned:
                block += uint32(min(int32(matrix_row), int32(od - 1)) * row_bytes + offset(k_tile)) & uint32(
                    15
                )
            return block

        @device_function
        def fragments(words, stage, j, k_tile, i, lane, matrix_row, od, row_bytes):
            t, sub = uint32(lane & 3), uint32(0)
            if k_quant:
                sub = uint32(k_tile * kd + i) & uint32(7)
            line = stage + uint32(16 * j * staged)
            first = block_of(line, matrix_row + 16 * j, od, row_bytes, k_tile, i)
            words[0], words[1] = unpack(first, sub, t)
            second = block_of(line + uint32(8 * staged), matrix_row + 16 * j + 8, od, row_bytes, k_tile, i)
            words[2], words[3] = unpack(second, sub, t)

        return fragments

    @property
    def _fragments_by_ldmatrix(self) -> DeviceFunction:
        config = self.config
        staged, kd, halved, masked = config.raw_row_bytes, config.kd, config.halved, config.masked
        fifth = config.weight_type == "Q5_K"
        nibbles = (32 if fifth else 0) + (0 if halved else 16)

        @device_function
        def fragments(words, stage, j, k_tile, i, lane, matrix_row, od, row_bytes):
            line = stage + uint32(16 * j * staged)
            w0, w1, w2, w3 = ptx.ldmatrix_x4(line + uint32(nibbles + (i >> 1) * CHUNK))
            shift = uint32((i & 1) * 4)
            if masked:
                mask = uint32(uint32(LOW) << shift)
                words[0], words[1], words[2], words[3] = w0 & mask, w1 & mask, w2 & mask, w3 & mask
            else:
                low = uint32(LOW)
                words[0], words[1] = (w0 >> shift) & low, (w1 >> shift) & low
                words[2], words[3] = (w2 >> shift) & low, (w3 >> shift) & low
            if fifth:
                sub = uint32(k_tile * kd + i) & uint32(7)
                w0, w1, w2, w3 = ptx.ldmatrix_x4(line + uint32(0 if halved else 16))
                words[0], words[1] = words[0] | _fifth_k(w0, sub), words[1] | _fifth_k(w1, sub)
                words[2], words[3] = words[2] | _fifth_k(w2, sub), words[3] | _fifth_k(w3, sub)

        return fragments
