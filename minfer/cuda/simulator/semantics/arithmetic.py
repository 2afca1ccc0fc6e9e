"""Register arithmetic: packed halves, byte permutation, dot products, approximations, conversions."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable

import numpy as np

from minfer.cuda.simulator.semantics.table import register, semantics

_MASK = 0xFFFFFFFF
_f32 = np.float32
_pack_f32, _unpack_f32 = struct.Struct("<f").pack, struct.Struct("<f").unpack
_pack_u32, _unpack_u32 = struct.Struct("<I").pack, struct.Struct("<I").unpack
_pack_f16x2, _unpack_f16x2 = struct.Struct("<ee").pack, struct.Struct("<ee").unpack
_unpack_s8x4 = struct.Struct("<4b").unpack


def signed32(value: int) -> int:
    """The low 32 bits as a signed integer."""
    return ((int(value) + 0x80000000) & _MASK) - 0x80000000


def f32_bits(value: float) -> int:
    """Bits of a float32."""
    return _unpack_u32(_pack_f32(_f32(value)))[0]


def bits_f32(bits: int) -> np.float32:
    """The float32 with these bits (a NaN's payload may change)."""
    return _f32(_unpack_f32(_pack_u32(int(bits) & _MASK))[0])


@semantics
def bitcast_f32_u32(bits):
    return bits_f32(bits)


@semantics
def bitcast_u32_f32(value):
    return f32_bits(value)


# ---- pairs of 16-bit floats


def _halves(pair) -> tuple[float, float]:
    """The low and the high half as doubles, in which sums and products of two halves are exact."""
    return _unpack_f16x2(_pack_u32(int(pair) & _MASK))


def _pair(lo: float, hi: float) -> int:
    """Two doubles rounded to a pair of halves, each once."""
    if lo != lo or hi != hi:  # every NaN becomes 0x7fff
        halves = [0x7FFF if x != x else _pair(x, 0.0) for x in (lo, hi)]
        return halves[0] | halves[1] << 16
    try:
        return _unpack_u32(_pack_f16x2(lo, hi))[0]
    except OverflowError:  # struct refuses what rounds past the largest f16, 65504
        bounded = (math.copysign(math.inf, x) if abs(x) >= 65520 else x for x in (lo, hi))
        return _unpack_u32(_pack_f16x2(*bounded))[0]


@semantics
def pack_f16x2(lo, hi):
    return _pair(float(_f32(lo)), float(_f32(hi)))


@semantics
def unpack_f16x2_lo(pair):
    return _f32(_halves(pair)[0])


@semantics
def unpack_f16x2_hi(pair):
    return _f32(_halves(pair)[1])


def _bf16(value) -> int:
    bits = f32_bits(value)
    if bits & 0x7FFFFFFF > 0x7F800000:
        return 0x7FFF
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) & 0xFFFF


@semantics
def pack_bf16x2(lo, hi):
    return _bf16(lo) | _bf16(hi) << 16


@semantics
def hadd2(a, b):
    (a_lo, a_hi), (b_lo, b_hi) = _halves(a), _halves(b)
    return _pair(a_lo + b_lo, a_hi + b_hi)


@semantics
def hsub2(a, b):
    (a_lo, a_hi), (b_lo, b_hi) = _halves(a), _halves(b)
    return _pair(a_lo - b_lo, a_hi - b_hi)


@semantics
def hmul2(a, b):
    (a_lo, a_hi), (b_lo, b_hi) = _halves(a), _halves(b)
    return _pair(a_lo * b_lo, a_hi * b_hi)


@semantics
def hfma2(a, b, c):
    # Product and sum are exact wherever float16 does not saturate or swallow the smaller one.
    (a_lo, a_hi), (b_lo, b_hi), (c_lo, c_hi) = _halves(a), _halves(b), _halves(c)
    return _pair(a_lo * b_lo + c_lo, a_hi * b_hi + c_hi)


@semantics
def hfma2_pair(a, pair):
    low, high = pair & 0xFFFF, int(pair) >> 16 & 0xFFFF
    return hfma2(a, low * 0x10001, high * 0x10001)


@semantics
def hmul2_low(a, pair):
    return hmul2(a, (pair & 0xFFFF) * 0x10001)


@semantics
def hmul2_high(a, pair):
    return hmul2(a, (int(pair) >> 16 & 0xFFFF) * 0x10001)


# ---- integers


@semantics
def dp4a(a, b, c):
    x, y = _unpack_s8x4(_pack_u32(int(a) & _MASK)), _unpack_s8x4(_pack_u32(int(b) & _MASK))
    return signed32(int(c) + sum(p * q for p, q in zip(x, y, strict=True)))


@semantics
def dp4a_u8s8(a, b, c):
    x, y = (int(a) & _MASK).to_bytes(4, "little"), _unpack_s8x4(_pack_u32(int(b) & _MASK))
    return signed32(int(c) + sum(p * q for p, q in zip(x, y, strict=True)))


@semantics
def prmt(a, b, selector):
    source = (int(a) & _MASK) | (int(b) & _MASK) << 32
    result = 0
    for i in range(4):
        nibble = int(selector) >> (4 * i) & 15
        byte = source >> (8 * (nibble & 7)) & 0xFF
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << (8 * i)
    return result


@semantics
def shf_r_wrap(lo, hi, amount):
    return (((int(hi) & _MASK) << 32 | (int(lo) & _MASK)) >> (int(amount) & 31)) & _MASK


@functools.cache
def _lop3(lut: int) -> Callable[[int, int, int], int]:
    """The function of three words that has this truth table, as one expression."""
    minterms = (
        f"{'' if i & 4 else '~'}a & {'' if i & 2 else '~'}b & {'' if i & 1 else '~'}c"
        for i in range(8)
        if lut >> i & 1
    )
    return eval(f"lambda a, b, c: ({' | '.join(minterms) or 0}) & {_MASK}")


@semantics
def lop3(a, b, c, lut):
    return _lop3(lut)(int(a), int(b), int(c))


@semantics
def select_u32(condition, if_true, if_false):
    return int(if_true if int(condition) & _MASK else if_false) & _MASK


@semantics
def udiv_u32(a, b):
    divisor = int(b) & _MASK
    return (int(a) & _MASK) // divisor if divisor else _MASK


# ---- floats


@semantics
def fma_rn_f32(a, b, c):
    return _f32(float(_f32(a)) * float(_f32(b)) + float(_f32(c)))


@semantics
def div_rn_f32(a, b):
    with np.errstate(all="ignore"):
        return _f32(a) / _f32(b)


@semantics
def max_f32(a, b):
    a, b = _f32(a), _f32(b)
    x, y = float(a), float(b)
    return a if x > y or y != y or (x == y and math.copysign(1, x) > 0) else b  # +0 is more than -0


@semantics
def min_f32(a, b):
    a, b = _f32(a), _f32(b)
    x, y = float(a), float(b)
    return a if x < y or y != y or (x == y and math.copysign(1, x) < 0) else b


_SMALLEST_NORMAL = float(np.finfo(np.float32).smallest_normal)


def _flush(value: np.float32) -> float:
    value = float(value)
    return value if not abs(value) < _SMALLEST_NORMAL else math.copysign(0.0, value)


def _register_approximation(name: str, function: Callable[[float], float]) -> None:
    """The correctly rounded result with subnormals flushed (.ftz); the hardware is a few ulp off it."""

    def approximation(value):
        return _f32(_flush(_f32(function(_flush(_f32(value))))))

    register(name, approximation)


def _reciprocal(x: float) -> float:
    return 1 / x if x else math.copysign(math.inf, x)


_register_approximation("ex2_approx", lambda x: math.exp2(x) if x < 128 or x != x else math.inf)
_register_approximation("lg2_approx", lambda x: math.log2(x) if x > 0 else -math.inf if x == 0 else math.nan)
_register_approximation("rcp_approx", _reciprocal)
_register_approximation(
    "rsqrt_approx", lambda x: _reciprocal(math.sqrt(x)) if x > 0 else _reciprocal(x) if x == 0 else math.nan
)


@semantics
def cvt_rn_f32_s32(value):
    return _f32(signed32(value))


@semantics
def cvt_rn_f32_u32(value):
    return _f32(int(value) & _MASK)


@semantics
def cvt_rni_s32_f32(value):
    value = _f32(value)
    if np.isnan(value):
        return 0
    return int(np.clip(np.rint(np.float64(value)), -(2.0**31), 2.0**31 - 1))


@semantics
def cvt_rna_tf32_f32(value):
    bits = f32_bits(value)
    if bits & 0x7F800000 == 0x7F800000:
        return bits if bits & 0x7FFFFF == 0 else 0x7FFFFFFF
    return (bits + 0x1000) & 0xFFFFE000
