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
from minfer.cuda.mmq.scales import store_minimum
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

    @property
    def rows_apart(self) -> int:
        """Rows from a thread's unit to its next one: its units lie at one place of their rows."""
        return self.config.threads // (2 * self.config.kd)

    @functools.cached_property
    def start(self) -> DeviceFunction:
        """(row_bytes, first_row, thread): bytes from the matrix's start to the row of a thread's first
        unit."""
        per_row = 2 * self.config.kd

        @device_function
        def start(row_bytes, first_row, thread):
            return uint32(uint32(first_row + thread // per_row) * uint32(row_bytes))

        return start

    @functools.cached_property
    def locate(self) -> DeviceFunction:
        """(row, chunks, k_tile, thread): the address of the block that a thread's units of a k-tile lie in
        (of its first row), and which of the block's weights they begin at. Past the row its last unit
        repeats."""
        size, weights, kd = self.config.block_bytes, self.config.block_weights, self.config.kd
        per_row = 2 * kd

        @device_function
        def locate(row, chunks, k_tile, thread):
            k = min(int32(k_tile * (kd * CHUNK) + thread % per_row * UNIT), int32(chunks * CHUNK - UNIT))
            block = int32(k // weights)
            return uint32(row + uint32(block) * uint32(size)), int32(k - block * weights)

        return locate

    @functools.cached_property
    def fetch(self) -> DeviceFunction:
        """(words, o, matrix, source, at, row_bytes, rows_left, unit): load a thread's unit, `locate`d. Rows
        past the matrix repeat its last one; `rows_left` counts from the thread's first row."""
        load, apart = DECODERS[self.config.weight_type].fetch, self.rows_apart

        @device_function
        def fetch(words, o, matrix, source, at, row_bytes, rows_left, unit):
            ahead = int32(min(int32(unit * apart), int32(rows_left - 1))) * row_bytes
            load(words, o, matrix + uint64(uint32(source + ahead)), at)

        return fetch

    @functools.cached_property
    def deposit(self) -> DeviceFunction:
        """(words, o, tile, scales, chunks, k_tile, unit, thread): decode a unit into the tile and the scales
        at shared addresses."""
        config = self.config
        decode = DECODERS[config.weight_type].decode
        per_row, row_bytes, apart = config.kd * 2, config.word_row_bytes, self.rows_apart
        up = (128 - _ZERO_POINT.get(config.weight_type, 0)) * 0x01010101
        signed = config.weight_type in _ZERO_POINT
        pitch, second = 4 * config.scale_row, config.second_scale
        second_pitch, second_size = config.second_pitch, 8 if config.minimum == "tensor" else 4
        minimum, two, store_second = config.has_minimum, config.two_scales, store_minimum(config)

        @device_function
        def signed_bytes(word):
            if signed:
                return uint32((word + uint32(up)) ^ uint32(0x80808080))
            return uint32(word)

        @device_function
        def deposit(words, o, tile, scales, at, unit, thread):
            row, part = uint32(thread // per_row + unit * apart), uint32(thread % per_row)
            w0, w1, w2, w3, _, scale, shift = decode(words, o, at)
            ptx.st_shared_v4_u32(
                uint32(tile + row * row_bytes + part * UNIT),
                signed_bytes(w0),
                signed_bytes(w1),
                signed_bytes(w2),
                signed_bytes(w3),
            )
            line = uint32(scales + (part >> 1) * pitch + row * 4)
            if two:
                ptx.st_shared_f32(line + uint32((part & 1) * second), scale)
            elif part & 1 == 0:
                ptx.st_shared_f32(line, scale)
                if minimum:
                    store_second(
                        uint32(scales + second + (part >> 1) * second_pitch + row * second_size), shift
                    )

        return deposit

    @functools.cached_property
    def own(self) -> DeviceFunction:
        """(row, lane): offset in the tile of what a lane reads for the warp's first row (`row` in the
        tile)."""
        staged = self.config.word_row_bytes

        @device_function
        def own(row, lane):
            return uint32((row + (lane & 7) + ((lane >> 4) << 3)) * staged + ((lane >> 3) & 1) * UNIT)

        return own

    @functools.cached_property
    def fragments(self) -> DeviceFunction:
        """(words, tile, j, k_tile, i, lane, matrix_row, od, row_bytes): the B fragments of chunk i of the
        warp's j-th 16 rows; `tile` includes `own` (the rest as of raw weights)."""
        staged = self.config.word_row_bytes

        @device_function
        def fragments(words, tile, j, k_tile, i, lane, matrix_row, od, row_bytes):
            w0, w1, w2, w3 = ptx.ldmatrix_x4(tile + uint32(16 * j * staged) + uint32(i * CHUNK))
            words[0], words[1], words[2], words[3] = w0, w1, w2, w3

        return fragments
