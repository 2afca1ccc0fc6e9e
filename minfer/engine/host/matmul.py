"""A quantized matrix times many vectors: strips of it are unpacked into a core's cache and multiplied."""

from __future__ import annotations

from functools import cache

from gguf.constants import GGMLQuantizationType as Type

from minfer.engine.host.blocks import write_walk
from minfer.engine.host.compile import Kernel, helper, specialise
from minfer.engine.host.matvec import format_geometry
from minfer.engine.host.simd import fma, load, load_f32, store_f32, sum_lanes, zero
from minfer.engine.host.team import share
from minfer.engine.host.tiles import dot_tile_1, dot_tile_4

STRIP_ROWS = 32
STRIP_COLUMNS = 2048  # with STRIP_ROWS: 256 KiB of float32, an eighth of a big core's second-level cache
STRIP_FLOATS = STRIP_ROWS * STRIP_COLUMNS

# Bound anew for each format, see `specialise`.
BLOCK_SIZE = BLOCK_BYTES = 1
walk = None


def matmul(
    part, parts, out, out_stride, x, x_stride, tokens, weight, row_bytes, rows, columns, bias, residual,
    scratch, halves,
):  # fmt: skip
    """out[t, r] = weight[r] . x[t] + bias[r], or + out[t, r] instead if residual.

    out, x: float32 rows with strides in bytes; bias: float32 (rows,), zeros if there is none. scratch:
    STRIP_FLOATS float32 for each part; halves: address of `blocks.HALVES`. Parts share out strips of
    STRIP_ROWS rows.
    """
    strip = scratch + 4 * STRIP_FLOATS * part
    begin, end = share((rows + STRIP_ROWS - 1) // STRIP_ROWS, part, parts)
    for number in range(begin, end):
        first = number * STRIP_ROWS
        count = min(STRIP_ROWS, rows - first)
        for start in range(0, columns, STRIP_COLUMNS):
            width = min(STRIP_COLUMNS, columns - start)
            for row in range(count):
                source = weight + (first + row) * row_bytes + start // BLOCK_SIZE * BLOCK_BYTES
                target = strip + 4 * row * width
                for block in range(width // BLOCK_SIZE):
                    walk(source + block * BLOCK_BYTES, target + 4 * block * BLOCK_SIZE, zero(), halves)
            here = out + 4 * first
            if start > 0 or residual != 0:
                multiply_strip(
                    here, out_stride, x + 4 * start, x_stride, tokens, strip, count, width, here, out_stride
                )
            else:
                multiply_strip(
                    here,
                    out_stride,
                    x + 4 * start,
                    x_stride,
                    tokens,
                    strip,
                    count,
                    width,
                    bias + 4 * first,
                    0,
                )


@helper
def multiply_strip(out, out_stride, x, x_stride, tokens, strip, rows, columns, base, base_stride):
    """out[t, r] = base[t, r] + x[t] . strip[r] for `rows` rows of `columns` floats."""
    vectors = columns // 16
    row_stride = 4 * columns
    whole_rows = rows // 4 * 4
    token = 0
    while token + 4 <= tokens:
        source = x + token * x_stride
        for row in range(0, whole_rows, 4):
            dot_tile_4(
                source, x_stride, strip + row * row_stride, row_stride, vectors,
                out + token * out_stride + 4 * row, out_stride,
                base + token * base_stride + 4 * row, base_stride,
            )  # fmt: skip
        token += 4
    while token < tokens:
        for row in range(0, whole_rows, 4):
            dot_tile_1(
                x + token * x_stride, x_stride, strip + row * row_stride, row_stride, vectors,
                out + token * out_stride + 4 * row, out_stride,
                base + token * base_stride + 4 * row, base_stride,
            )  # fmt: skip
        token += 1
    for row in range(whole_rows, rows):
        for token in range(tokens):
            total = zero()
            for i in range(0, row_stride, 64):
                total = fma(load(x + token * x_stride + i), load(strip + row * row_stride + i), total)
            start = load_f32(base + token * base_stride + 4 * row)
            store_f32(out + token * out_stride + 4 * row, start + sum_lanes(total))


@cache
def matmul_kernel(kind: Type) -> Kernel:
    """The `matmul` kernel of one format."""
    return Kernel(specialise(matmul, f"matmul_{kind.name}", walk=write_walk(kind), **format_geometry(kind)))
