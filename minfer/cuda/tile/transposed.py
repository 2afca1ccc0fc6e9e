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
from minfer.cuda.tile.hopper import chunk_starts

#: Rows of C (columns of D) in a chunk of the epilogue.
CHUNK_ROWS = 64


def chunk_bytes(outputs: int) -> int:
    """A chunk of a warpgroup's `outputs` columns of C, f16."""
    return CHUNK_ROWS * outputs * 2


@functools.cache
def store_tile_transposed(
    columns: int, buffers: int, combine: DeviceFunction | None = None
) -> DeviceFunction:
    """Factory: a warpgroup's 64 x `columns` f32 accumulators, transposed, to an f16 matrix: through shared
    memory (stmatrix.trans) and by TMA.

    (array, tensor map address, buffer, row, column, thread, barrier, constant): column j of the accumulators
    becomes row `row + j` of the matrix, its 64 elements from `column` on. `buffer` is the shared address of
    the warpgroup's `buffers` buffers of `chunk_bytes`, aligned to 1024 bytes; `thread` counts 0 to 127;
    `barrier` is a named barrier of the warpgroup's own. The tensor map has boxes of 64 x 64 with the 128-byte
    swizzle; the store drops what lies outside the matrix. Stores drain while the warpgroup goes on; its
    thread 0 must execute `ptx.bulk_wait_group_read(0)` before the block ends.

    With `combine` (x, y, constant) -> value, a warp's rows g and g + 8 make one: 32 elements a row, boxes of
    64 x 32 with the 64-byte swizzle. Its constant is an f32 at the shared address `constant`, read anew for
    each chunk, so that the assembler does not start on the next chunk early and run out of registers.

    Raises ValueError unless columns is a multiple of 8 from 64 on and there is a buffer."""
    if columns < CHUNK_ROWS or columns % 8 or buffers < 1:
        raise ValueError(
            f"store_tile_transposed: {columns} columns in {buffers} buffers: take a multiple of 8 from 64, "
            "and at least one buffer"
        )
    outputs = 64 if combine is None else 32
    combines = combine is not None
    # What a chunk adds to those before it, in groups of 8 columns.
    fresh = (*range(0, columns // 8, 8), columns // 8)
    starts = chunk_starts(columns)
    chunks = len(starts)
    size = chunk_bytes(outputs)
    wait_all, wait_one = ptx.bulk_wait_group_read(0), ptx.bulk_wait_group_read(buffers - 1)

    @device_function
    @unrolled
    def write_half(array, first, place, thread):
        """As `write_chunk`, of the warp's upper 8 rows."""
        lane, warp = thread & 31, thread >> 5
        line = place + lane * 64 + ((warp ^ ((lane >> 1) & 3)) << 4)
        for j in unroll(2):
            o = first + 16 * j
            ptx.stmatrix_x4_trans(
                line + j * 2048,
                ptx.pack_f16x2(array[o], array[o + 1]),
                ptx.pack_f16x2(array[o + 4], array[o + 5]),
                ptx.pack_f16x2(array[o + 8], array[o + 9]),
                ptx.pack_f16x2(array[o + 12], array[o + 13]),
            )

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

    write = write_chunk if outputs == 64 else write_half

    @device_function
    @unrolled
    def store(array, tensor_map, buffer, row, column, thread, barrier, constant):
        for c in unroll(chunks):
            place = buffer + (c % buffers) * size
            if c == 0:
                if thread == 0:
                    wait_all()
                ptx.bar_sync(barrier, 128)
            if c >= buffers:
                if thread == 0:
                    wait_one()
                ptx.bar_sync(barrier, 128)
            if combines:
                factor = ptx.ld_shared_f32(constant)
                for j in unroll(fresh[c], fresh[c + 1]):
                    array[4 * j] = combine(array[4 * j], array[4 * j + 2], factor)
                    array[4 * j + 1] = combine(array[4 * j + 1], array[4 * j + 3], factor)
            write(array, starts[c] // 2, place, thread)
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
