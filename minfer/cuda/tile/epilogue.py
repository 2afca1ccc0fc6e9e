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
    of 16 x 16 to a rows x columns matrix of f32 or f16 at a global address; what lies outside is dropped.
    Fragment (i, j) starts at index 8 * (i * m_fragments + j). Neighbouring columns leave as one access where
    every row allows it (even columns)."""
    element_bytes = 4 if out == "f32" else 2

    if out == "f32":
        store_pair, store_one = ptx.st_global_v2_f32, ptx.st_global_f32
    else:

        @device_function
        def store_pair(address, low, high):
            ptx.st_global_u32(address, ptx.pack_f16x2(low, high))

        @device_function
        def store_one(address, value):
            ptx.st_global_u16(address, ptx.pack_f16x2(value, types.float32(0)))

    # In functions of their own the compiler's front end sees these once, not once a pair.
    @device_function
    def store_columns(place, column, columns, paired, low, high):
        if paired:
            if column < columns:
                store_pair(place, low, high)
        else:
            if column < columns:
                store_one(place, low)
            if column + 1 < columns:
                store_one(place + types.uint64(element_bytes), high)

    @device_function
    @unrolled
    def store_row(array, first, line, first_column, columns, paired):
        for j in unroll(2 * m_fragments):
            o, column = first + 4 * j, first_column + 8 * j
            place = line + types.uint64(column * element_bytes)
            store_columns(place, column, columns, paired, array[o], array[o + 1])

    @device_function
    @unrolled
    def store(array, matrix, first_row, first_column, rows, columns):
        lane = cuda.threadIdx.x & 31
        lane_row, lane_column = first_row + (lane >> 2), first_column + (lane & 3) * 2
        paired = columns % 2 == 0
        for i in unroll(n_fragments):
            for half in unroll(2):
                row = lane_row + 16 * i + 8 * half
                if row < rows:
                    line = matrix + types.uint64(types.int64(row) * columns * element_bytes)
                    store_row(array, 8 * i * m_fragments + 2 * half, line, lane_column, columns, paired)

    return store
