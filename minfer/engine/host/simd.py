"""Sixteen-lane vectors for numba on the CPU.

LLVM does not keep vector accumulators across the blocks of a quantized row on its own, so the kernels say
what they mean: `f32x16` and `i32x16` are numba types that lower to LLVM's `<16 x float>` and `<16 x i32>`.
LLVM legalises them for whatever the machine has (one AVX-512 register, two AVX2, four NEON or SSE).

Memory is addressed by plain int64 byte addresses, with no alignment assumed. Nothing is bounds-checked: the
callers in this package own the shapes.
"""

from __future__ import annotations

import inspect

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

LANES = 16


class _Vector(types.Type):
    """A 16-lane vector of one LLVM element type."""


f32x16 = _Vector("f32x16")
i32x16 = _Vector("i32x16")

_FLOAT = ir.FloatType()
_HALF = ir.HalfType()
_I8, _I16, _I32, _I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_F32V = ir.VectorType(_FLOAT, LANES)
_I32V = ir.VectorType(_I32, LANES)


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, _F32V if fe_type is f32x16 else _I32V)


def _operation(result, *parameters):
    """Make an intrinsic of fixed signature from a function (builder, *values) -> value that emits LLVM IR."""
    signature = result(*parameters)

    def wrap(emit):
        def codegen(context, builder, _, arguments):
            value = emit(builder, *arguments)
            return context.get_dummy_value() if result is types.void else value

        def typed(typingctx, *_):
            return signature, codegen

        typed.__name__ = typed.__qualname__ = emit.__name__
        typed.__doc__ = emit.__doc__
        # the caller's names and their number: numba would take `*_` for one tuple
        typed.__signature__ = inspect.signature(emit)
        return intrinsic(typed)

    return wrap


def _splat(builder, value, vector):
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(_I32V, [0] * LANES))


def _load(builder, address, element):
    return builder.load(builder.inttoptr(address, element.as_pointer()), align=1)


def _call(builder, name, returns, arguments):
    function_type = ir.FunctionType(returns, [a.type for a in arguments])
    module = builder.module
    function = module.globals.get(name) or ir.Function(module, function_type, name)
    return builder.call(function, arguments)


# --- scalars ---------------------------------------------------------------------------------------------


@_operation(types.int64, types.int64)
def load_i64(builder, address):
    """The int64 at `address`."""
    return _load(builder, address, _I64)


@_operation(types.float32, types.int64)
def load_f32(builder, address):
    """The float32 at `address`."""
    return _load(builder, address, _FLOAT)


@_operation(types.float32, types.int64)
def load_f16(builder, address):
    """The float16 at `address`, widened."""
    return builder.fpext(_load(builder, address, _HALF), _FLOAT)


@_operation(types.float32, types.int64, types.int64)
def half_at(builder, table, address):
    """The float16 at `address`, looked up in a table of all 65536 float16 as float32."""
    index = builder.zext(_load(builder, address, _I16), _I64)
    return _load(builder, builder.add(table, builder.shl(index, _I64(2))), _FLOAT)


@_operation(types.int64, types.int64)
def load_s8(builder, address):
    """The signed byte at `address`."""
    return builder.sext(_load(builder, address, _I8), _I64)


@_operation(types.int64, types.int64)
def load_u32(builder, address):
    """The uint32 at `address`."""
    return builder.zext(_load(builder, address, _I32), _I64)


@_operation(types.void, types.int64, types.int64)
def store_i64(builder, address, value):
    """Write an int64."""
    builder.store(value, builder.inttoptr(address, _I64.as_pointer()), align=1)


@_operation(types.void, types.int64, types.float32)
def store_f32(builder, address, value):
    """Write a float32."""
    builder.store(value, builder.inttoptr(address, _FLOAT.as_pointer()), align=1)


@_operation(types.float32, types.int64)
def f32_of_bits(builder, bits):
    """The float32 whose bits are the low half of `bits`: how kernels receive float arguments."""
    return builder.bitcast(builder.trunc(bits, _I32), _FLOAT)


@_operation(types.void, types.int64)
def prefetch(builder, address):
    """Ask for the cache line of `address`, which need not be mapped."""
    pointer = builder.inttoptr(address, _I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])  # to read, to be kept, data


# --- float vectors ---------------------------------------------------------------------------------------


@_operation(f32x16)
def zero(builder):
    """All lanes 0."""
    return ir.Constant(_F32V, [0.0] * LANES)


@_operation(f32x16, types.float32)
def splat(builder, value):
    """All lanes `value`."""
    return _splat(builder, value, _F32V)


@_operation(f32x16, types.int64)
def load(builder, address):
    """16 float32."""
    return _load(builder, address, _F32V)


@_operation(f32x16, types.int64)
def load_halves(builder, address):
    """16 float16, widened."""
    return builder.fpext(_load(builder, address, ir.VectorType(_HALF, LANES)), _F32V)


@_operation(f32x16, types.int64)
def load_bfloats(builder, address):
    """16 bfloat16, widened: the high halves of float32."""
    words = builder.zext(_load(builder, address, ir.VectorType(_I16, LANES)), _I32V)
    return builder.bitcast(builder.shl(words, _splat(builder, _I32(16), _I32V)), _F32V)


@_operation(types.void, types.int64, f32x16)
def store(builder, address, value):
    """Write 16 float32."""
    builder.store(value, builder.inttoptr(address, _F32V.as_pointer()), align=1)


@_operation(types.void, types.int64, f32x16)
def store_halves(builder, address, value):
    """Write 16 float32 rounded to float16."""
    halves = ir.VectorType(_HALF, LANES)
    builder.store(builder.fptrunc(value, halves), builder.inttoptr(address, halves.as_pointer()), align=1)


@_operation(f32x16, f32x16, f32x16)
def add(builder, a, b):
    """a + b."""
    return builder.fadd(a, b)


@_operation(f32x16, f32x16, f32x16)
def sub(builder, a, b):
    """a - b."""
    return builder.fsub(a, b)


@_operation(f32x16, f32x16, f32x16)
def mul(builder, a, b):
    """a * b."""
    return builder.fmul(a, b)


@_operation(f32x16, f32x16, f32x16)
def div(builder, a, b):
    """a / b."""
    return builder.fdiv(a, b)


@_operation(f32x16, f32x16, f32x16, f32x16)
def fma(builder, a, b, c):
    """a * b + c, fused where the machine does that."""
    return _call(builder, "llvm.fmuladd.v16f32", _F32V, [a, b, c])


@_operation(f32x16, f32x16, f32x16)
def maximum(builder, a, b):
    """The larger of each pair of lanes."""
    return _call(builder, "llvm.maxnum.v16f32", _F32V, [a, b])


@_operation(f32x16, f32x16, f32x16)
def minimum(builder, a, b):
    """The smaller of each pair of lanes."""
    return _call(builder, "llvm.minnum.v16f32", _F32V, [a, b])


def _fold(builder, value, combine):
    """Reduce the lanes pairwise; `combine` takes two vectors of the same width."""
    width = LANES
    while width > 1:
        width //= 2
        low = ir.Constant(ir.VectorType(_I32, width), list(range(width)))
        high = ir.Constant(ir.VectorType(_I32, width), list(range(width, 2 * width)))
        value = combine(
            builder.shuffle_vector(value, value, low), builder.shuffle_vector(value, value, high), width
        )
    return builder.extract_element(value, _I32(0))


@_operation(types.float32, f32x16)
def sum_lanes(builder, value):
    """The sum of the 16 lanes, added pairwise."""
    return _fold(builder, value, lambda a, b, _: builder.fadd(a, b))


@_operation(types.float32, f32x16)
def max_lanes(builder, value):
    """The largest lane."""
    return _fold(
        builder, value, lambda a, b, width: _call(builder, f"llvm.maxnum.v{width}f32", a.type, [a, b])
    )


@_operation(f32x16, f32x16)
def round_even(builder, value):
    """Round each lane to the nearest integer, ties to even."""
    return _call(builder, "llvm.roundeven.v16f32", _F32V, [value])


@_operation(f32x16, f32x16)
def power_of_two(builder, exponent):
    """2 ** exponent for lanes that hold integers in [-126, 127]: the exponent goes straight into the bits."""
    biased = builder.add(builder.fptosi(exponent, _I32V), _splat(builder, _I32(127), _I32V))
    return builder.bitcast(builder.shl(biased, _splat(builder, _I32(23), _I32V)), _F32V)


# --- integer vectors: unpacking quantized blocks ---------------------------------------------------------


@_operation(i32x16, types.int64)
def load_bytes(builder, address):
    """16 unsigned bytes."""
    return builder.zext(_load(builder, address, ir.VectorType(_I8, LANES)), _I32V)


@_operation(i32x16, types.int64)
def load_signed_bytes(builder, address):
    """16 signed bytes."""
    return builder.sext(_load(builder, address, ir.VectorType(_I8, LANES)), _I32V)


@_operation(i32x16, types.int64)
def splat_bits(builder, bits):
    """All lanes the low 32 bits of `bits`."""
    return _splat(builder, builder.trunc(bits, _I32), _I32V)


@_operation(i32x16)
def lane_index(builder):
    """0, 1, ..., 15."""
    return ir.Constant(_I32V, list(range(LANES)))


@_operation(i32x16, i32x16, types.int64)
def bits_and(builder, value, mask):
    """value & mask."""
    return builder.and_(value, _splat(builder, builder.trunc(mask, _I32), _I32V))


@_operation(i32x16, i32x16, i32x16)
def bits_or(builder, a, b):
    """a | b."""
    return builder.or_(a, b)


@_operation(i32x16, i32x16, types.int64)
def shift_right(builder, value, count):
    """value >> count, unsigned."""
    return builder.lshr(value, _splat(builder, builder.trunc(count, _I32), _I32V))


@_operation(i32x16, i32x16, types.int64)
def shift_left(builder, value, count):
    """value << count."""
    return builder.shl(value, _splat(builder, builder.trunc(count, _I32), _I32V))


@_operation(i32x16, i32x16, i32x16)
def shift_right_lanes(builder, value, counts):
    """value >> counts, lane by lane, unsigned."""
    return builder.lshr(value, counts)


@_operation(i32x16, i32x16, types.int64)
def subtract(builder, value, constant):
    """value - constant."""
    return builder.sub(value, _splat(builder, builder.trunc(constant, _I32), _I32V))


@_operation(f32x16, i32x16)
def to_float(builder, value):
    """Each lane converted to float32."""
    return builder.sitofp(value, _F32V)
