"""How an operand's k-tiles get from global to shared memory: the stages of a cp.async pipeline.

A source stages `tile.rows` rows of a row-major matrix, one k-tile at a time. The kernel's loop is the same
for all of them:

    pointer, rows_left, ks_left = start(...)   # this thread's share
    copy(...) of the first stages - 1 k-tiles, committing each
    for each k-tile:
        wait until its group has landed
        settle(...)                            # what this thread copied becomes the f16 tile
        barrier
        copy(...) of the k-tile stages - 1 ahead; commit
        read the f16 tile

One barrier a k-tile is enough: a stage is refilled only after the barrier that follows its last reader.

The device functions of a source:
- start(matrix, leading, first_row, rows, ks, thread): the global address of the thread's first chunk (u64),
  and how many rows and elements of k the matrix has from there on. `matrix` is a global address, `leading`
  its row length in elements.
- copy(stage, pointer, leading, rows_left, ks_left, thread): issue the copies of one k-tile into the stage at
  this shared address. What lies past the matrix becomes zero. A chunk of 16 bytes is inside or outside as a
  whole: leading and ks are multiples of 8. The caller moves on by `step_bytes` and tile elements a k-tile.
- settle(stage, tile, thread): make the f16 tile at `tile` from what this thread copied to `stage`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.tile.shared import CHUNK, SharedTile


@dataclass(frozen=True)
class _Staged:
    """Common to all sources: `tile` is the f16 tile that the fragments read. Chunk c of the staged tile is
    copied by thread c % threads, so that the lanes of a warp ask for whole sectors."""

    tile: SharedTile
    threads: int

    def __post_init__(self):
        if self.threads % self.chunks_per_row:
            raise ConfigRefused(
                f"staging: {self.threads} threads for rows of {self.chunks_per_row} chunks: a round must be "
                "whole rows; use more threads or a smaller k-step"
            )

    @property
    def chunks_per_row(self) -> int:
        return self.staged.row_bytes // CHUNK

    @property
    def rows_per_round(self) -> int:
        """Rows that all threads together copy in one round."""
        return self.threads // self.chunks_per_row

    @property
    def rounds(self) -> int:
        """Chunks a thread copies a k-tile."""
        return -(-self.tile.rows // self.rows_per_round)

    @property
    def step_bytes(self) -> int:
        """Bytes from a k-tile to the next in a row of the matrix."""
        return self.staged.row_bytes

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage."""
        return self.staged.size_bytes

    @property
    def copied_bytes(self) -> int:
        """Bytes read from global memory a k-tile, zero fill aside."""
        return self.tile.rows * self.step_bytes

    @functools.cached_property
    def start(self) -> DeviceFunction:
        from numba.cuda import types

        per_row, element_bytes = self.chunks_per_row, self.element_bytes
        chunk_elements = CHUNK // element_bytes

        @device_function
        def start(matrix, leading, first_row, rows, ks, thread):
            row, k = first_row + thread // per_row, thread % per_row * chunk_elements
            offset = types.uint64((types.int64(row) * leading + k) * element_bytes)
            return types.uint64(matrix + offset), types.int32(rows - row), types.int32(ks - k)

        return start

    @functools.cached_property
    def copy(self) -> DeviceFunction:
        from numba.cuda import types

        at, per_row = self.staged.address, self.chunks_per_row
        rounds, rows_per_round = self.rounds, self.rows_per_round
        round_bytes = self.element_bytes * rows_per_round
        tile_rows, whole = self.tile.rows, self.tile.rows % self.rows_per_round == 0

        @device_function
        @unrolled
        def copy(stage, pointer, leading, rows_left, ks_left, thread):
            row, byte = thread // per_row, thread % per_row * CHUNK
            source, step = pointer, types.uint64(types.int64(leading) * round_bytes)
            for j in unroll(rounds):
                inside = j * rows_per_round < rows_left and ks_left > 0
                # Only the last round of a tile that is no multiple of a round can pass the tile's end.
                if whole or row < tile_rows - j * rows_per_round:
                    ptx.cp_async_cg_16(
                        stage + at(row + j * rows_per_round, byte), source, 16 if inside else 0
                    )
                source = types.uint64(source + step)

        return copy


@dataclass(frozen=True)
class StagedF16(_Staged):
    """An f16 matrix, copied straight into the tile that the fragments read: a stage is the tile."""

    element_bytes = 2
    element = "float16"
    alignment = 16
    #: f16 tiles that `settle` writes, besides the stages
    settled_tiles = 0

    @property
    def staged(self) -> SharedTile:
        """What the copies fill."""
        return self.tile

    @functools.cached_property
    def settle(self) -> DeviceFunction:
        @device_function
        def settle(stage, tile, thread):
            pass

        return settle


@dataclass(frozen=True)
class StagedF32(_Staged):
    """An f32 matrix through a mirror: its k-tile is copied as f32, and each thread converts what it copied
    itself.

    Since a thread reads back only its own chunks, it needs no barrier between the wait and the conversion,
    and the mirror lies in the order of threads, free of bank conflicts."""

    element_bytes = 4
    element = "float32"
    alignment = 16
    #: written at one k-step while the one before is still read
    settled_tiles = 2

    @property
    def staged(self) -> SharedTile:
        """What the copies fill: the mirror."""
        return SharedTile(self.tile.rows, 2 * self.tile.row_bytes)

    @functools.cached_property
    def settle(self) -> DeviceFunction:
        at, per_row = self.tile.address, self.chunks_per_row
        rounds, rows_per_round, threads = self.rounds, self.rows_per_round, self.threads
        tile_rows, whole = self.tile.rows, self.tile.rows % self.rows_per_round == 0

        @device_function
        def convert(mirror, target):
            x0, x1, x2, x3 = ptx.ld_shared_v4_f32(mirror)
            ptx.st_shared_v2_u32(target, ptx.pack_f16x2(x0, x1), ptx.pack_f16x2(x2, x3))

        @device_function
        @unrolled
        def settle(stage, tile, thread):
            row, byte = thread // per_row, thread % per_row * (CHUNK // 2)
            for j in unroll(rounds):
                if whole or row < tile_rows - j * rows_per_round:
                    convert(stage + (j * threads + thread) * CHUNK, tile + at(row + j * rows_per_round, byte))

        return settle
