"""Weights as expanded words (R1): int8 in shared memory, unpacked on their way in.

A unit is 16 neighbouring weights of a row, as `minfer.cuda.tile.quantized` decodes them: loaded through
registers while a k-tile is computed, written as 16 signed bytes with its scale when the chunk is done. The
unpacking is done once a block and not once a warp, but its arithmetic stands between two barriers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function
from minfer.cuda.mmq.config import CHUNK, MmqConfig
from minfer.cuda.tile.quantized import DECODERS

UNIT = 16
_ZERO_POINT = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 128, "Q6_K": 32}


@dataclass(frozen=True)
class WordWeights:
    """How a config expands and reads its weights."""

    config: MmqConfig

    @property
    def registers(self) -> int:
        """Words of a unit between `fetch` and `deposit`."""
        return DECODERS[self.config.weight_type].words

    @property
    def units(self) -> int:
        """Units of a thread a k-tile."""
        return self.config.rows_tile * self.config.kd * 2 // self.config.threads

    @property
    def per_step(self) -> int:
        """Units of a thread while one chunk is computed."""
        return -(-self.units // self.config.kd)

    @functools.cached_property
    def fetch(self) -> DeviceFunction:
        """(words, o, matrix, row_bytes, first_row, od, chunks, k_tile, unit, thread): load a thread's unit of a
        k-tile. Rows and chunks past the matrix repeat its last ones."""
        config = self.config
        load, size, weights = DECODERS[config.weight_type].fetch, config.block_bytes, config.block_weights
        kd, threads, per_row = config.kd, config.threads, config.kd * 2

        @device_function
        def fetch(words, o, matrix, row_bytes, first_row, od, chunks, k_tile, unit, thread):
            own = thread + unit * threads
            row = min(first_row + own // per_row, od - 1)
            k = min(int32(k_tile * (kd * CHUNK) + own % per_row * UNIT), int32(chunks * CHUNK - UNIT))
            block = k // weights
            load(
                words,
                o,
                matrix + uint64(row) * uint64(row_bytes) + uint64(block) * uint64(size),
                int32(k - block * weights),
            )

        return fetch

    @functools.cached_property
    def deposit(self) -> DeviceFunction:
        """(words, o, tile, scales, chunks, k_tile, unit, thread): decode a unit into the tile and the scales at
        shared addresses."""
        config = self.config
        decode, weights = DECODERS[config.weight_type].decode, config.block_weights
        kd, threads, per_row, row_bytes = config.kd, config.threads, config.kd * 2, config.word_row_bytes
        up = (128 - _ZERO_POINT.get(config.weight_type, 0)) * 0x01010101
        signed = config.weight_type in _ZERO_POINT
        pitch, second = config.scale_row, config.kd * config.scale_row * 4
        minimum, two = config.has_minimum, config.two_scales

        @device_function
        def signed_bytes(word):
            if signed:
                return uint32((word + uint32(up)) ^ uint32(0x80808080))
            return uint32(word)

        @device_function
        def deposit(words, o, tile, scales, chunks, k_tile, unit, thread):
            own = thread + unit * threads
            row, part = own // per_row, own % per_row
            k = min(int32(k_tile * (kd * CHUNK) + part * UNIT), int32(chunks * CHUNK - UNIT))
            w0, w1, w2, w3, _, scale, shift = decode(words, o, int32(k % weights))
            ptx.st_shared_v4_u32(
                uint32(tile + row * row_bytes + part * UNIT),
                signed_bytes(w0),
                signed_bytes(w1),
                signed_bytes(w2),
                signed_bytes(w3),
            )
            at = uint32(scales + ((part >> 1) * pitch + row) * 4)
            if two:
                ptx.st_shared_f32(at + uint32((part & 1) * second), scale)
            elif part & 1 == 0:
                ptx.st_shared_f32(at, scale)
                if minimum:
                    ptx.st_shared_f32(at + uint32(second), shift)

        return deposit

    @functools.cached_property
    def fragments(self) -> DeviceFunction:
        """(words, tile, row, i, lane): the B fragments of chunk i of 16 rows from `row` on."""
        staged = self.config.word_row_bytes

        @device_function
        def fragments(words, tile, row, i, lane):
            own = row + (lane & 7) + ((lane >> 4) << 3)
            w0, w1, w2, w3 = ptx.ldmatrix_x4(
                uint32(tile + own * staged + i * CHUNK + ((lane >> 3) & 1) * UNIT)
            )
            words[0], words[1], words[2], words[3] = w0, w1, w2, w3

        return fragments
