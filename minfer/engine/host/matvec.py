"""Kernels that read quantized weights: a matrix times one vector, and rows of a matrix to float32.

Per format they are compiled from one source each (see `blocks`). A row of weights is a whole number of
blocks; for F16, BF16 and F32 a "block" is one vector of 16 weights.
"""

from __future__ import annotations

from functools import cache

from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type

from minfer.engine.host.blocks import WALKS, dot_walk, write_walk
from minfer.engine.host.compile import Kernel, specialise
from minfer.engine.host.simd import load_f32, load_i64, prefetch, store_f32, sum_lanes, zero
from minfer.engine.host.team import share
from minfer.engine.host.tiles import store_sums

SUPPORTED = tuple(WALKS)
# Bound anew for each format, see `specialise`.
BLOCK_SIZE = BLOCK_BYTES = 0
walk = None

FLOATS = (Type.F16, Type.BF16, Type.F32)


def matvec(part, parts, out, x, weight, row_bytes, rows, blocks, bias, residual, halves):
    """out[r] = weight[r] . x + bias[r], or + out[r] instead if residual; float32. Parts share out the rows.

    bias: float32 (rows,), zeros if there is none; halves: address of `blocks.HALVES`. Four rows at a time:
    four sums are in flight and share the loads of x. Parts begin at multiples of four, so that a sum is added
    up in the same order however many parts there are.
    """
    begin, end = share((rows + 3) // 4, part, parts)
    begin, end = 4 * begin, min(4 * end, rows)
    base = out if residual != 0 else bias
    ahead = 4 * row_bytes
    row = begin
    while row + 4 <= end:
        a = weight + row * row_bytes
        b = a + row_bytes
        c = b + row_bytes
        d = c + row_bytes
        sum_a = zero()
        sum_b = zero()
        sum_c = zero()
        sum_d = zero()
        for block in range(blocks):
            at = block * BLOCK_BYTES
            here = x + block * (4 * BLOCK_SIZE)
            for line in range(0, BLOCK_BYTES, 64):
                prefetch(a + ahead + at + line)
                prefetch(b + ahead + at + line)
                prefetch(c + ahead + at + line)
                prefetch(d + ahead + at + line)
            sum_a = walk(a + at, here, sum_a, halves)
            sum_b = walk(b + at, here, sum_b, halves)
            sum_c = walk(c + at, here, sum_c, halves)
            sum_d = walk(d + at, here, sum_d, halves)
        store_sums(out + 4 * row, base + 4 * row, sum_a, sum_b, sum_c, sum_d)
        row += 4
    while row < end:
        total = zero()
        for block in range(blocks):
            here = x + block * (4 * BLOCK_SIZE)
            total = walk(weight + row * row_bytes + block * BLOCK_BYTES, here, total, halves)
        store_f32(out + 4 * row, load_f32(base + 4 * row) + sum_lanes(total))
        row += 1


def unpack_rows(part, parts, out, weight, row_bytes, rows, blocks, indices, halves):
    """out[r] = weight[indices[r]] (or weight[r] if indices is 0) as float32, shape (rows, columns)."""
    begin, end = share(rows, part, parts)
    row_floats = blocks * BLOCK_SIZE
    for row in range(begin, end):
        source = row
        if indices != 0:
            source = load_i64(indices + 8 * row)
        start = weight + source * row_bytes
        for block in range(blocks):
            target = out + 4 * (row * row_floats + block * BLOCK_SIZE)
            walk(start + block * BLOCK_BYTES, target, zero(), halves)


def format_geometry(kind: Type) -> dict[str, int]:
    """BLOCK_SIZE (weights) and BLOCK_BYTES of a format, as its kernels see them."""
    size, size_bytes = GGML_QUANT_SIZES[kind]
    if kind in FLOATS:  # a "block" is one vector
        size, size_bytes = 16, 16 * size_bytes
    return {"BLOCK_SIZE": size, "BLOCK_BYTES": size_bytes}


@cache
def matvec_kernel(kind: Type) -> Kernel:
    """The `matvec` kernel of one format."""
    return Kernel(specialise(matvec, f"matvec_{kind.name}", walk=dot_walk(kind), **format_geometry(kind)))


@cache
def unpack_kernel(kind: Type) -> Kernel:
    """The `unpack_rows` kernel of one format."""
    return Kernel(
        specialise(unpack_rows, f"unpack_{kind.name}", walk=write_walk(kind), **format_geometry(kind))
    )


def blocks_in_row(kind: Type, columns: int) -> int:
    """How many blocks of `kind` hold `columns` weights (columns: a multiple of the block size)."""
    return columns // format_geometry(kind)["BLOCK_SIZE"]
