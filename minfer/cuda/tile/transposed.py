"""Epilogues of transposed products: a warpgroup's accumulators D[64, n] become rows of C = D^T.

Where wgmma takes the weights as its A operand (the only one that may come from registers), a tile's rows are
outputs and its columns tokens, while C [tokens, outputs] is row-major: what lies along a column of D is
contiguous in memory.
"""

from __future__ import annotations

import functools

from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.tile.hopper import BOX_COLUMNS, chunk_starts

#: A chunk of 64 rows of C (columns of D) by a warpgroup's 64 outputs, f16.
CHUNK_ROWS = 64
CHUNK_BYTES = CHUNK_ROWS * BOX_COLUMNS * 2


@functools.cache
def store_tile_transposed(columns: int, buffers: int) -> DeviceFunction:
    """Factory: a warpgroup's 64 x `columns` f32 accumulators, transposed, to an f16 matrix: through shared
    memory (stmatrix.trans) and by TMA.

    (array, tensor map address, buffer, row, column, thread, barrier): column j of the accumulators becomes
    row `row + j` of the matrix, its 64 elements from `column` on. `buffer` is the shared address of the
    warpgroup's `buffers` buffers of CHUNK_BYTES, aligned to 1024 bytes; `thread` counts 0 to 127; `barrier`
    is a named barrier of the warpgroup's own. The tensor map has boxes of 64 x 64 with the 128-byte swizzle;
    the store drops what lies outside the matrix. Stores drain while the warpgroup goes on; its thread 0 must
    execute `ptx.bulk_wait_group_read(0)` before the block ends.

    Raises ValueError unless columns is a multiple of 8 from 64 on and there is a buffer."""
    if columns < CHUNK_ROWS or columns % 8 or buffers < 1:
        raise ValueError(
            f"store_tile_transposed: {columns} columns in {buffers} buffers: take a multiple of 8 from 64, "
            "and at least one buffer"
        )
    starts = chunk_starts(columns)
    chunks = len(starts)
    wait_all, wait_one = ptx.bulk_wait_group_read(0), ptx.bulk_wait_group_read(buffers - 1)

    @device_function
    @unrolled
    def write_chunk(array, first, place, thread):
        """Units of 16 bytes (8 outputs) XORed with the row, as the tensor map's swizzle says."""
        lane, warp = thread & 31, thread >> 5
        unit = ((2 * warp + ((lane >> 3) & 1)) ^ (lane & 7)) << 4
        line = place + ((lane & 7) + ((lane >> 4) << 3)) * 128 + unit
        for j in unroll(4):
            o = first + 8 * j
            ptx.stmatrix_x4_trans(
                line + j * 2048,
                ptx.pack_f16x2(array[o], array[o + 1]),
                ptx.pack_f16x2(array[o + 2], array[o + 3]),
                ptx.pack_f16x2(array[o + 4], array[o + 5]),
                ptx.pack_f16x2(array[o + 6], array[o + 7]),
            )

    @device_function
    @unrolled
    def store(array, tensor_map, buffer, row, column, thread, barrier):
        for c in unroll(chunks):
            place = buffer + (c % buffers) * CHUNK_BYTES
            if c == 0:
                if thread == 0:
                    wait_all()
                ptx.bar_sync(barrier, 128)
            if c >= buffers:
                if thread == 0:
                    wait_one()
                ptx.bar_sync(barrier, 128)
            write_chunk(array, starts[c] // 2, place, thread)
            ptx.fence_proxy_async()
            ptx.bar_sync(barrier, 128)
            if thread == 0:
                ptx.tma_store_2d(tensor_map, place, column, row + starts[c])
                ptx.bulk_commit_group()

    return store


@functools.cache
def store_accumulators_transposed(columns: int, out: str = "f32") -> DeviceFunction:
    """Factory: a warp's 16 x `columns` f32 accumulators, transposed, to a row-major matrix of f32 or f16 of
    any width.

    (array, matrix, leading, row, column, rows, end, lane): column j of the accumulators becomes row `row + j`
    of the matrix at a global address, whose rows are `leading` elements apart; its 16 elements lie from
    `column` on. Nothing is stored from row `rows` or column `end` on. Eight lanes write neighbouring
    elements: a whole sector of f32."""
    half = out == "f16"
    element_bytes = 2 if half else 4

    @device_function
    def one(address, inside, value):
        if inside:
            if half:
                ptx.st_global_u16(address, ptx.pack_f16x2(value, types.float32(0)))
            else:
                ptx.st_global_f32(address, value)

    @device_function
    @unrolled
    def store(array, matrix, leading, row, column, rows, end, lane):
        first = types.int32(column + (lane >> 2))
        token = types.int32(row + (lane & 3) * 2)
        pitch = types.uint64(leading) * types.uint64(element_bytes)
        address = matrix + types.uint64(token) * pitch + types.uint64(first) * types.uint64(element_bytes)
        low, high = first < end, first + 8 < end
        for j in unroll(columns // 8):
            near, far = token + 8 * j < rows, token + 8 * j + 1 < rows
            one(address, near and low, array[4 * j])
            one(address + pitch, far and low, array[4 * j + 1])
            one(address + types.uint64(8 * element_bytes), near and high, array[4 * j + 2])
            one(address + pitch + types.uint64(8 * element_bytes), far and high, array[4 * j + 3])
            address += types.uint64(8) * pitch

    return store
