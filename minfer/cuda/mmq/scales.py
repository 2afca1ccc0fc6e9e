"""Scales and minima of raw weights: read from global memory while a k-tile is computed, in shared memory as
f32 when its successor is.

A thread serves one row and `per_thread` neighbouring chunks. What it reads waits in registers as it is; the
decoding comes after the products. Arrays in shared memory: [scale or minimum][chunk][row].
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.mmq.config import MmqConfig

# ---- formats: fetch(words, row, chunk, chunks) and decode(words, i, chunk) -> (scale, minimum or second
# scale) of the i-th chunk


def _k_quant(per_thread: int):
    """Q4_K, Q5_K: one header of 16 bytes for the 8 chunks of a super-block."""

    def make(size: int):
        @device_function
        def fetch(words, row, chunk, chunks):
            h0, h1, h2, h3 = ptx.ld_global_nc_v4_u32(row + uint64(chunk >> 3) * uint64(size))
            words[0], words[1], words[2], words[3] = h0, h1, h2, h3

        return fetch

    @device_function
    def decode(words, i, chunk):
        sub = uint32(chunk + i) & uint32(7)
        byte = (sub & uint32(3)) << uint32(3)
        first, second, third = words[1] >> byte, words[2] >> byte, words[3] >> byte
        late = sub & uint32(4)
        scale = ptx.select_u32(
            late, (third & uint32(15)) | ((first >> uint32(2)) & uint32(48)), first & uint32(63)
        )
        minimum = ptx.select_u32(
            late,
            ((third >> uint32(4)) & uint32(15)) | ((second >> uint32(2)) & uint32(48)),
            second & uint32(63),
        )
        return (
            ptx.unpack_f16x2_lo(words[0]) * ptx.cvt_rn_f32_u32(scale),
            -(ptx.unpack_f16x2_hi(words[0]) * ptx.cvt_rn_f32_u32(minimum)),
        )

    return make, decode


def _q6_k(per_thread: int):
    """Q6_K: two bytes of scales a chunk, d at the block's end."""

    def make(size: int):
        @device_function
        @unrolled
        def fetch(words, row, chunk, chunks):
            block = row + uint64(chunk >> 3) * uint64(size)
            for i in unroll(per_thread):
                words[i] = ptx.ld_global_nc_u16(block + uint64(192 + 2 * ((chunk & 7) + i)))
            words[per_thread] = ptx.ld_global_nc_u16(block + uint64(208))

        return fetch

    @device_function
    def decode(words, i, chunk):
        d = ptx.unpack_f16x2_lo(words[per_thread])
        low, high = int32(words[i] & uint32(255)), int32(words[i] >> uint32(8))
        return (
            d * ptx.cvt_rn_f32_s32((low ^ 128) - 128),
            d * ptx.cvt_rn_f32_s32((high ^ 128) - 128),
        )

    return make, decode


def _legacy(minimum: bool):
    """Blocks of 32: d, maybe m behind it."""

    def family(per_thread: int):
        def make(size: int):
            @device_function
            @unrolled
            def fetch(words, row, chunk, chunks):
                for i in unroll(per_thread):
                    block = row + uint64(min(chunk + i, chunks - 1)) * uint64(size)
                    words[i] = ptx.ld_global_nc_u16(block)
                    if minimum:
                        words[i] = words[i] | (ptx.ld_global_nc_u16(block + uint64(2)) << uint32(16))

            return fetch

        @device_function
        def decode(words, i, chunk):
            return ptx.unpack_f16x2_lo(words[i]), ptx.unpack_f16x2_hi(words[i])

        return make, decode

    return family


_READERS = {
    "Q4_K": _k_quant,
    "Q5_K": _k_quant,
    "Q6_K": _q6_k,
    "Q4_0": _legacy(False),
    "Q5_0": _legacy(False),
    "Q8_0": _legacy(False),
    "Q4_1": _legacy(True),
    "Q5_1": _legacy(True),
}


def store_minimum(config: MmqConfig) -> DeviceFunction:
    """(at, value): a row's minimum to a shared address: an f32, or the B fragment of minimum="tensor": bf16
    pairs (upper, upper), (lower, lower)."""
    if config.minimum == "fma":
        return ptx.st_shared_f32

    @device_function
    def store(at, value):
        upper = ptx.pack_bf16x2(value, value)
        lower = float32(value - ptx.bitcast_f32_u32(upper & uint32(0xFFFF0000)))
        ptx.st_shared_v2_u32(at, upper, ptx.pack_bf16x2(lower, lower))

    return store


@dataclass(frozen=True)
class Scales:
    """The scales of a config's raw weights."""

    config: MmqConfig

    @property
    def per_thread(self) -> int:
        """Chunks of a row that a thread decodes a k-tile."""
        return self.config.kd * self.config.rows_tile // self.config.threads

    @property
    def registers(self) -> int:
        """Words that a thread holds between `fetch` and `deposit`."""
        return max(4, self.per_thread + 1)

    @functools.cached_property
    def start(self) -> DeviceFunction:
        """(matrix, row_bytes, first_row, od, thread): the address of a thread's row (u64); rows past the
        matrix repeat its last one."""
        rows = self.config.rows_tile

        @device_function
        def start(matrix, row_bytes, first_row, od, thread):
            row = min(int32(first_row + thread % rows), int32(od - 1))
            return uint64(matrix + uint64(row) * uint64(row_bytes))

        return start

    @functools.cached_property
    def fetch(self) -> DeviceFunction:
        """(words, row, chunks, k_tile, thread): load what a k-tile's scales are made of. Past the row the
        last ones repeat."""
        make, _ = _READERS[self.config.weight_type](self.per_thread)
        read, kd, per_thread = make(self.config.block_bytes), self.config.kd, self.per_thread
        rows, whole = self.config.rows_tile, self.config.k_quant

        @device_function
        @unrolled
        def fetch(words, row, chunks, k_tile, thread):
            chunk = int32(k_tile * kd + thread // rows * per_thread)
            if whole:
                chunk = min(chunk, int32(chunks - per_thread))
            read(words, row, chunk, chunks)

        return fetch

    @functools.cached_property
    def deposit(self) -> DeviceFunction:
        """(words, target, chunks, k_tile, thread): decode into the buffer at a shared address; chunks past
        the row get zeros."""
        _, decode = _READERS[self.config.weight_type](self.per_thread)
        kd, per_thread, rows = self.config.kd, self.per_thread, self.config.rows_tile
        pitch, second = 4 * self.config.scale_row, self.config.second_scale
        second_pitch, second_size = self.config.second_pitch, 8 if self.config.minimum == "tensor" else 4
        both, whole, masked = self.config.scale_arrays == 2, self.config.k_quant, self.config.masked
        store_second = store_minimum(self.config)

        @device_function
        @unrolled
        def deposit(words, target, chunks, k_tile, thread):
            own, row = uint32(thread // rows * per_thread), uint32(thread % rows)
            chunk = int32(k_tile * kd + own)
            at = uint32(target + own * pitch + row * 4)
            second_at = uint32(target + second + own * second_pitch + row * second_size)
            for i in unroll(per_thread):
                first, other = decode(words, i, chunk)
                if masked:
                    first = float32(first * (float32(0.0625) if (chunk + i) & 1 else float32(1)))
                if not whole:
                    inside = chunk + i < chunks
                    first = first if inside else float32(0)
                    other = other if inside else float32(0)
                ptx.st_shared_f32(at + uint32(i * pitch), first)
                if both:
                    store_second(second_at + uint32(i * second_pitch), other)

        return deposit
