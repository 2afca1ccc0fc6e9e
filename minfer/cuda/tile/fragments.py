"""wmma's operations on fragments: load_matrix_sync, mma_sync, fill_fragment, store_matrix_sync.

A fragment is a stretch of a local array: `array`, from index `first`, `Fragment.registers` long (u32 for
operands, f32 or s32 for accumulators). The operations are device functions made for a fragment by factories
of the same names; inlined and unrolled, the arrays are registers. They are executed by whole warps.

    a = Fragment("matrix_a", "f16")
    load_a = load_matrix_sync(a)
    ...
    registers = cuda.local.array(2 * 4, types.uint32)       # in the kernel: two A fragments
    load_a(registers, 4, address, leading_bytes)            # the second one
"""

from __future__ import annotations

import functools

from numba import cuda

from minfer.cuda import ptx
from minfer.cuda.checks import check_whole
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.tile.maps import ACCUMULATORS, Fragment
from minfer.cuda.tile.shared import SharedTile


@functools.cache
def load_matrix_sync(fragment: Fragment, tile: SharedTile | None = None) -> DeviceFunction:
    """Factory: load an operand fragment from shared memory by one ldmatrix.x4 (transposing where its layout
    asks).

    Without a tile, wmma's own form: (array, first, address, leading_bytes), with the shared address of the
    fragment's first element and the bytes from a memory row to the next. With a tile: (array, first, base,
    row, byte), with the shared address of the tile and the position of the fragment's first element in it,
    row a multiple of 8 and byte of 16."""
    if fragment.use == "accumulator":
        raise ConfigRefused("load_matrix_sync: an accumulator starts from fill_fragment, it is not loaded")
    load = ptx.ldmatrix_x4_trans if fragment.transposed else ptx.ldmatrix_x4
    # Fragment.source, one of two forms, as compile-time constants.
    sixteen_rows = fragment.source(8)[0] == 8

    @device_function
    def source(lane):
        if sixteen_rows:
            return lane & 15, (lane >> 4) << 4
        return (lane & 7) + ((lane >> 4) << 3), ((lane >> 3) & 1) << 4

    if tile is None:

        @device_function
        def load_fragment(array, first, address, leading_bytes):
            row, byte = source(cuda.threadIdx.x & 31)
            r0, r1, r2, r3 = load(address + row * leading_bytes + byte)
            array[first], array[first + 1], array[first + 2], array[first + 3] = r0, r1, r2, r3

        return load_fragment

    at = tile.address

    @device_function
    def load_from_tile(array, first, base, row, byte):
        lane_row, lane_byte = source(cuda.threadIdx.x & 31)
        r0, r1, r2, r3 = load(base + at(row + lane_row, byte + lane_byte))
        array[first], array[first + 1], array[first + 2], array[first + 3] = r0, r1, r2, r3

    return load_from_tile


@functools.cache
def mma_sync(dtype: str) -> DeviceFunction:
    """Factory: (c, c_first, a, a_first, b, b_first): C[16, 16] += A[16, k] B[k, 16], two mma instructions.

    `dtype` "f16" or "bf16" (k = 16, C f32) or "s8" (k = 32, C s32)."""
    if dtype not in ACCUMULATORS:
        raise ConfigRefused(f"mma_sync: no product of {dtype}: take one of {', '.join(ACCUMULATORS)}")
    mma = {"f16": ptx.mma_m16n8k16_f16, "bf16": ptx.mma_m16n8k16_bf16, "s8": ptx.mma_m16n8k32_s8}[dtype]

    @device_function
    @unrolled
    def multiply(c, c_first, a, a_first, b, b_first):
        for half in unroll(2):
            o = c_first + 4 * half
            d = mma(
                a[a_first],
                a[a_first + 1],
                a[a_first + 2],
                a[a_first + 3],
                b[b_first + 2 * half],
                b[b_first + 2 * half + 1],
                c[o],
                c[o + 1],
                c[o + 2],
                c[o + 3],
            )
            c[o], c[o + 1], c[o + 2], c[o + 3] = d

    return multiply


@functools.cache
def fill_fragment(count: int = 1) -> DeviceFunction:
    """Factory: (array, value): fill the first `count` accumulator fragments of the array."""
    check_whole("fill_fragment", count, 1)
    registers = 8 * count

    @device_function
    @unrolled
    def fill(array, value):
        for i in unroll(registers):
            array[i] = value

    return fill


@functools.cache
def accumulator_to_operand(dtype: str = "f16") -> DeviceFunction:
    """Factory: (operand, operand_first, c, c_first): an f32 accumulator fragment becomes the A fragment of
    the next product, by the identity of their maps (`minfer.cuda.tile.maps`)."""
    pack = {"f16": ptx.pack_f16x2, "bf16": ptx.pack_bf16x2}[dtype]

    @device_function
    @unrolled
    def convert(operand, operand_first, c, c_first):
        for i in unroll(4):
            operand[operand_first + i] = pack(c[c_first + 2 * i], c[c_first + 2 * i + 1])

    return convert


@functools.cache
def store_matrix_sync(dtype: str = "f32", layout: str = "row_major") -> DeviceFunction:
    """Factory: (array, first, address, leading_bytes): store an accumulator fragment to shared memory.

    `dtype` is what is stored: "f32", "s32", "f16" or "bf16". Row-major pairs leave as one access: the address
    and `leading_bytes` must be multiples of 8 (4 for 16-bit types)."""
    packed = dtype in ("f16", "bf16")
    if dtype not in ("f32", "s32", "f16", "bf16") or (layout == "col_major" and packed):
        raise ConfigRefused(
            f"store_matrix_sync: {dtype} {layout}: store 32-bit types, or 16-bit types row-major"
        )
    width = 2 if packed else 4
    if packed:
        pack = {"f16": ptx.pack_f16x2, "bf16": ptx.pack_bf16x2}[dtype]

        @device_function
        def store_pair(address, low, high):
            ptx.st_shared_u32(address, pack(low, high))

    elif dtype == "f32":
        store_pair, store_one = ptx.st_shared_v2_f32, ptx.st_shared_f32
    else:
        store_pair, store_one = ptx.st_shared_v2_u32, ptx.st_shared_u32

    if layout == "row_major":

        @device_function
        @unrolled
        def store(array, first, address, leading_bytes):
            lane = cuda.threadIdx.x & 31
            row, column = lane >> 2, (lane & 3) * 2
            for i in unroll(4):
                place = address + (row + 8 * (i % 2)) * leading_bytes + (column + 8 * (i // 2)) * width
                store_pair(place, array[first + 2 * i], array[first + 2 * i + 1])

        return store

    @device_function
    @unrolled
    def store_columns(array, first, address, leading_bytes):
        lane = cuda.threadIdx.x & 31
        row, column = lane >> 2, (lane & 3) * 2
        for i in unroll(8):
            place = address + (column + i % 2 + 8 * (i // 4)) * leading_bytes
            store_one(place + (row + 8 * (i // 2 % 2)) * width, array[first + i])

    return store_columns


def accumulator(dtype: str) -> Fragment:
    """The accumulator fragment of operands of this type."""
    return Fragment("accumulator", ACCUMULATORS[dtype])
