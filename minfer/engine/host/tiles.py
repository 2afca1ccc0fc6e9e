"""Register tiles of float32 matrix products, for prefill: blocks of C stay in registers over a whole sum.

Why not a BLAS: its threads wait by spinning and its work is cut up beforehand, so on a machine with other
work on its cores a product of microseconds can take a scheduler's time slice, thousands of times a prompt.
These tiles run as parts of the team's steps, and the order of a sum does not depend on the number of tokens
or threads.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from minfer.engine.host.simd import LANES, f32x16

TILE = 4
"""Tokens and weight rows of a dot tile; queries and vectors of an outer tile: 16 accumulators."""

_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_FOUR = ir.VectorType(_FLOAT, TILE)


def _load(builder, address, kind):
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _store(builder, value, address):
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def _splat(builder, value):
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))


def _multiply_add(builder, a, b, total):
    """total += a * b, where total is a stack slot that LLVM turns into a register."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v16f32")
    builder.store(builder.call(function, [a, b, builder.load(total)]), total)


def _totals(builder, rows: int, columns: int):
    zero = ir.Constant(_VECTOR, [0.0] * LANES)
    slots = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(columns)] for _ in range(rows)]
    for slot in (slot for row in slots for slot in row):
        builder.store(zero, slot)
    return slots


def _sums(builder, vectors):
    """<4 x float>: the sum of the lanes of each of four vectors, by adding neighbours until four are left."""

    def add_neighbours(a, b):
        width = a.type.count + (b.type.count if b is not a else 0)
        halves = [
            builder.shuffle_vector(
                a, b, ir.Constant(ir.VectorType(_I32, width // 2), list(range(start, width, 2)))
            )
            for start in (0, 1)
        ]
        return builder.fadd(*halves)

    a, b, c, d = vectors
    total = add_neighbours(add_neighbours(a, b), add_neighbours(c, d))
    while total.type.count > TILE:
        total = add_neighbours(total, total)
    return total


def _dot_tile(tokens: int):
    """Make the intrinsic of a tile of `tokens` x 4 dot products of rows that are contiguous."""

    def tile(typingctx, x, x_stride, weights, weight_stride, vectors, out, out_stride, base, base_stride):
        signature = types.void(*[types.int64] * 9)

        def codegen(context, builder, _, arguments):
            x, x_stride, weights, weight_stride, vectors, out, out_stride, base, base_stride = arguments
            totals = _totals(builder, tokens, TILE)
            with cgutils.for_range(builder, vectors) as loop:
                at = builder.mul(loop.index, _I64(4 * LANES))

                def operand(start, stride, index):
                    row = builder.add(start, builder.mul(stride, _I64(index)))
                    return _load(builder, builder.add(row, at), _VECTOR)

                rows = [operand(weights, weight_stride, j) for j in range(TILE)]
                for i in range(tokens):
                    token = operand(x, x_stride, i)
                    for j in range(TILE):
                        _multiply_add(builder, token, rows[j], totals[i][j])
            for i in range(tokens):
                sums = _sums(builder, [builder.load(slot) for slot in totals[i]])
                start = _load(builder, builder.add(base, builder.mul(base_stride, _I64(i))), _FOUR)
                target = builder.add(out, builder.mul(out_stride, _I64(i)))
                _store(builder, builder.fadd(start, sums), target)
            return context.get_dummy_value()

        return signature, codegen

    tile.__doc__ = f"""out[i, j] = base[i, j] + x[i] . weights[j] for i < {tokens}, j < 4.

    Rows of 16 * vectors float32; all strides in bytes; base may be out.
    """
    return intrinsic(tile)


def _outer_tile(rows: int, vectors: int):
    """Make the intrinsic of a tile of C = A . B: `rows` rows of A, 16 * `vectors` columns of B."""

    def tile(typingctx, a, a_stride, b, b_stride, depth, out, out_stride):
        signature = types.void(*[types.int64] * 7)

        def codegen(context, builder, _, arguments):
            a, a_stride, b, b_stride, depth, out, out_stride = arguments
            totals = _totals(builder, rows, vectors)
            with cgutils.for_range(builder, depth) as loop:
                row = builder.add(b, builder.mul(loop.index, b_stride))
                columns = [_load(builder, builder.add(row, _I64(64 * j)), _VECTOR) for j in range(vectors)]
                at = builder.mul(loop.index, _I64(4))
                for i in range(rows):
                    start = builder.add(a, builder.mul(a_stride, _I64(i)))
                    factor = _splat(builder, _load(builder, builder.add(start, at), _FLOAT))
                    for j in range(vectors):
                        _multiply_add(builder, factor, columns[j], totals[i][j])
            for i in range(rows):
                target = builder.add(out, builder.mul(out_stride, _I64(i)))
                for j in range(vectors):
                    _store(builder, builder.load(totals[i][j]), builder.add(target, _I64(64 * j)))
            return context.get_dummy_value()

        return signature, codegen

    tile.__doc__ = (
        f"""out[:{rows}, :{16 * vectors}] = a[:{rows}, :depth] . b[:depth], float32, strides in bytes."""
    )
    return intrinsic(tile)


@intrinsic
def store_sums(typingctx, out, base, a, b, c, d):
    """out[:4] = base[:4] + the lane sums of four vectors; addresses of float32, base may be out."""

    def codegen(context, builder, _, arguments):
        out, base, *vectors = arguments
        _store(builder, builder.fadd(_load(builder, base, _FOUR), _sums(builder, vectors)), out)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, f32x16, f32x16, f32x16, f32x16), codegen


dot_tile_4 = _dot_tile(TILE)
dot_tile_1 = _dot_tile(1)
outer_tile_4x4 = _outer_tile(TILE, TILE)
outer_tile_4x1 = _outer_tile(TILE, 1)
outer_tile_1x4 = _outer_tile(1, TILE)
outer_tile_1x1 = _outer_tile(1, 1)
