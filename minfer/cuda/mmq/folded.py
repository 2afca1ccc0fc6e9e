"""Q6_K with its scales folded into the integers: every weight times its 8-bit scale, in two bytes.

(q - 32) * scale has 14 bits: 256 * high + low, high a signed byte and low an unsigned one. Two products of
depth 32 then take the place of two of depth 16 with a rescaling each, and only the block's d is left to
multiply with. The bytes are made once a block and k-tile: a thread serves 16 places of a row's half
super-block, where ql, ql + 32 and qh hold four weights each. Its loads wait at no barrier and in no register:
each warp expands while others multiply.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.mmq.config import BLOCK_BYTES, CHUNK, MmqConfig

SIZE = BLOCK_BYTES["Q6_K"]
GROUPS = 4
"""Chunks of a half super-block: they share the bytes that hold them."""


@device_function
def _quants(group, low, second, high):
    """Four weights of a group, 0 ... 63, out of the words of ql, ql + 32 and qh at their place."""
    if group == 0:
        return uint32((low & uint32(0x0F0F0F0F)) | ((high & uint32(0x03030303)) << uint32(4)))
    if group == 1:
        return uint32((second & uint32(0x0F0F0F0F)) | ((high & uint32(0x0C0C0C0C)) << uint32(2)))
    if group == 2:
        return uint32(((low >> uint32(4)) & uint32(0x0F0F0F0F)) | (high & uint32(0x30303030)))
    return uint32(((second >> uint32(4)) & uint32(0x0F0F0F0F)) | ((high >> uint32(2)) & uint32(0x30303030)))


@device_function
def _fold(quants, scale, bias):
    """(low bytes, high bytes) of four products. `bias` has (32768 - 32 * scale) in both halves: with it no
    half is negative, so that one multiplication serves two weights."""
    even = uint32((quants & uint32(0x00FF00FF)) * scale + bias)
    odd = uint32(ptx.prmt(quants, uint32(0), uint32(0x4341)) * scale + bias)
    return ptx.prmt(even, odd, uint32(0x6240)), ptx.prmt(even, odd, uint32(0x7351)) ^ uint32(0x80808080)


@device_function
def _window(words, address):
    """16 bytes at a 2-byte aligned global address, by two loads of the 16-byte lines that hold them: a
    request of a warp touches as many rows whatever its width. The lines end within the block."""
    line, offset = address & uint64(0xFFFFFFFFFFFFFFF0), uint32(address) & uint32(15)
    a0, a1, a2, a3 = ptx.ld_global_nc_v4_u32(line)
    b0, b1, b2, b3 = ptx.ld_global_nc_v4_u32(line + uint64(16))
    eight, four, two = offset & uint32(8), offset & uint32(4), (offset & uint32(2)) << uint32(3)
    a0, a1 = ptx.select_u32(eight, a2, a0), ptx.select_u32(eight, a3, a1)
    a2, a3 = ptx.select_u32(eight, b0, a2), ptx.select_u32(eight, b1, a3)
    b0, b1 = ptx.select_u32(eight, b2, b0), ptx.select_u32(eight, b3, b1)
    a0, a1 = ptx.select_u32(four, a1, a0), ptx.select_u32(four, a2, a1)
    a2, a3 = ptx.select_u32(four, a3, a2), ptx.select_u32(four, b0, a3)
    b0 = ptx.select_u32(four, b1, b0)
    words[0], words[1] = ptx.shf_r_wrap(a0, a1, two), ptx.shf_r_wrap(a1, a2, two)
    words[2], words[3] = ptx.shf_r_wrap(a2, a3, two), ptx.shf_r_wrap(a3, b0, two)


@device_function
def _swizzle(row):
    """What the numbers of a row's 16-byte parts are XORed with: 8 rows differ, for what reads a part of each;
    4 rows differ beyond the last bit, for what writes a pair of parts of each."""
    return uint32(((row << 1) & 6) | ((row >> 2) & 1))


@dataclass(frozen=True)
class FoldedWeights:
    """How a config expands and reads its folded weights: a tile of low bytes and one of high bytes, rows of
    128 bytes whose 16-byte parts are permuted so that no access conflicts."""

    config: MmqConfig

    @functools.cached_property
    def expand(self) -> DeviceFunction:
        """(matrix, row_bytes, first_row, od, k_tile, tile, scales, thread): a thread's weights of a k-tile
        into the tile at a shared address, and d beside it; rows past the matrix repeat its last one."""
        tile_row, second_tile, pin = self.config.word_row_bytes, self.config.high_bytes, ptx.pin(1)

        @device_function
        @unrolled
        def expand(matrix, row_bytes, first_row, od, k_tile, tile, scales, thread):
            low, second = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
            high, own = cuda.local.array(4, uint32), cuda.local.array(1, uint32)
            row, part = uint32(thread >> 1), uint32(thread & 1)
            source = uint32(min(int32(first_row + row), int32(od - 1))) * uint32(row_bytes)
            block, half = matrix + uint64(uint32(source + uint32(k_tile >> 1) * SIZE)), uint32(k_tile & 1)
            at = block + uint64(half * 64 + part * 16)
            _window(low, at)
            _window(second, at + uint64(32))
            _window(high, block + uint64(128 + half * 32 + part * 16))
            scale_at = block + uint64(192 + half * 8 + part)
            # Pinned, so that where to store is computed here: ahead of the loop over chunks, which has no
            # register to spare, all of these addresses would wait in registers.
            own[0] = thread
            pin(own)
            own_row, own_part = own[0] >> uint32(1), own[0] & uint32(1)
            line, swizzle = uint32(tile + own_row * tile_row), _swizzle(own_row)
            for group in unroll(GROUPS):
                byte = ptx.ld_global_nc_u8(scale_at + uint64(2 * group))
                scale = uint32((byte ^ uint32(128)) - uint32(128))
                bias = uint32((uint32(32768) - uint32(32) * scale) * uint32(0x00010001))
                l0, h0 = _fold(_quants(group, low[0], second[0], high[0]), scale, bias)
                l1, h1 = _fold(_quants(group, low[1], second[1], high[1]), scale, bias)
                l2, h2 = _fold(_quants(group, low[2], second[2], high[2]), scale, bias)
                l3, h3 = _fold(_quants(group, low[3], second[3], high[3]), scale, bias)
                target = uint32(line + ((uint32(2 * group + own_part) ^ swizzle) << uint32(4)))
                ptx.st_shared_v4_u32(target, l0, l1, l2, l3)
                ptx.st_shared_v4_u32(target + uint32(second_tile), h0, h1, h2, h3)
            if part == 0:
                d = ptx.unpack_f16x2_lo(ptx.ld_global_nc_u16(block + uint64(208)))
                ptx.st_shared_f32(uint32(scales + row * 4), d)

        return expand

    @functools.cached_property
    def own(self) -> DeviceFunction:
        """(row, lane): offset in the tile of what a lane reads for the warp's first row (`row` in the
        tile)."""
        row_bytes = self.config.word_row_bytes

        @device_function
        def own(row, lane):
            place = uint32(((lane >> 3) & 1) ^ _swizzle(lane))
            return uint32((row + (lane & 7) + ((lane >> 4) << 3)) * row_bytes + (place << uint32(4)))

        return own

    @functools.cached_property
    def fragments(self) -> DeviceFunction:
        """(words, tile, j, k_tile, i, lane, matrix_row, od, row_bytes): the B fragments of chunk i of the
        warp's j-th 16 rows, low bytes in words[0 ... 3], high ones in words[4 ... 7]; `tile` includes `own`
        (the rest as of raw weights)."""
        row_bytes, second_tile = self.config.word_row_bytes, self.config.high_bytes

        @device_function
        def fragments(words, tile, j, k_tile, i, lane, matrix_row, od, row_bytes_):
            line = (tile ^ uint32(i * CHUNK)) + uint32(16 * j * row_bytes)
            words[0], words[1], words[2], words[3] = ptx.ldmatrix_x4(line)
            words[4], words[5], words[6], words[7] = ptx.ldmatrix_x4(line + uint32(second_tile))

        return fragments
