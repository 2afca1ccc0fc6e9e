"""From accumulator registers to a ragged row-major matrix in global memory."""

from __future__ import annotations

import functools

from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled


@functools.cache
def store_accumulators(n_fragments: int, m_fragments: int, out: str = "f32") -> DeviceFunction:
    """Factory: (array, matrix, first_row, first_column, rows, columns): a warp's n x m accumulator fragments
    of 16 x 16 to a rows x columns matrix of f32 or f16 at a global address; what lies outside is dropped. All
    lanes of the warp call it. Fragment (i, j) starts at index 8 * (i * m_fragments + j); first_column is a
    multiple of 16.

    A lane stores 8 bytes at a time, and four lanes a whole sector, where every row is aligned to that (f32:
    even columns; f16: columns a multiple of 4); else one element at a time."""
    strided = store_strided(n_fragments, m_fragments, out)

    @device_function
    def store(array, matrix, first_row, first_column, rows, columns):
        strided(array, matrix, first_row, first_column, rows, columns, columns)

    return store


@functools.cache
def store_strided(n_fragments: int, m_fragments: int, out: str = "f32") -> DeviceFunction:
    """As `store_accumulators`, into columns of a wider matrix: (array, matrix, first_row, first_column, rows,
    columns, stride), `matrix` the address of its first element and `stride` the elements from a row to the
    next."""
    half = out == "f16"
    element_bytes = 2 if half else 4
    # Columns that must divide a row for the wide stores.
    granule = 8 // element_bytes

    # In functions of their own the compiler's front end sees these once, not once a fragment.

    @device_function
    @unrolled
    def wide_f32(array, o, line, column, columns, inside, lane):
        """Two columns of each 8-column half of a fragment's row."""
        for j in unroll(2):
            place = column + 8 * j + (lane & 3) * 2
            if inside and place < columns:
                at = line + types.uint64(place * 4)
                ptx.st_global_v2_f32(at, array[o + 4 * j], array[o + 4 * j + 1])

    @device_function
    def wide_f16(array, o, line, column, columns, inside, lane):
        """Neighbouring lanes exchange a pair, so that each has four columns of one 8-column half: an even
        lane of the first, an odd lane of the second."""
        first, second = ptx.pack_f16x2(array[o], array[o + 1]), ptx.pack_f16x2(array[o + 4], array[o + 5])
        odd = lane & 1
        other = ptx.shfl_xor_u32(ptx.select_u32(odd, first, second), 1)
        place = column + odd * 8 + ((lane & 2) << 1)
        if inside and place < columns:
            at = line + types.uint64(place * 2)
            ptx.st_global_v2_u32(at, ptx.select_u32(odd, other, first), ptx.select_u32(odd, second, other))

    @device_function
    def store_one(line, column, columns, inside, value):
        if inside and column < columns:
            at = line + types.uint64(column * element_bytes)
            if half:
                ptx.st_global_u16(at, ptx.pack_f16x2(value, types.float32(0)))
            else:
                ptx.st_global_f32(at, value)

    @device_function
    @unrolled
    def narrow(array, o, line, column, columns, inside, lane):
        for j in unroll(2):
            place = column + 8 * j + (lane & 3) * 2
            store_one(line, place, columns, inside, array[o + 4 * j])
            store_one(line, place + 1, columns, inside, array[o + 4 * j + 1])

    wide = wide_f16 if half else wide_f32

    @device_function
    @unrolled
    def store_row(array, first, line, first_column, columns, aligned, inside, lane):
        if aligned:
            for j in unroll(m_fragments):
                wide(array, first + 8 * j, line, first_column + 16 * j, columns, inside, lane)
        else:
            for j in unroll(m_fragments):
                narrow(array, first + 8 * j, line, first_column + 16 * j, columns, inside, lane)

    @device_function
    @unrolled
    def store(array, matrix, first_row, first_column, rows, columns, stride):
        lane = cuda.threadIdx.x & 31
        aligned = (columns | stride) % granule == 0 and (matrix & types.uint64(7)) == 0
        for i in unroll(n_fragments):
            for low in unroll(2):
                row = first_row + (lane >> 2) + 16 * i + 8 * low
                line = matrix + types.uint64(types.int64(row) * stride * element_bytes)
                first = 8 * i * m_fragments + 2 * low
                store_row(array, first, line, first_column, columns, aligned, row < rows, lane)

    return store
