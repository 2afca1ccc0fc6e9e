"""Register arithmetic: packed halves, bytes, bits and fast functions."""

import functools

from minfer.cuda.instruction import Instruction, f32, instruction, s32, u32

_CVT = "9.7.9.21 cvt"


@instruction("dp4a.s32.s32 $0, $1, $2, $3;", section="9.7.1.23 dp4a", arch=61, pure=True)
def dp4a(a: u32, b: u32, c: s32) -> s32:
    """c + the sum of the products of the four signed bytes of a and b."""


@instruction("dp4a.u32.s32 $0, $1, $2, $3;", section="9.7.1.23 dp4a", arch=61, pure=True)
def dp4a_u8s8(a: u32, b: u32, c: s32) -> s32:
    """c + the sum of the products of the four unsigned bytes of a and the four signed bytes of b."""


@instruction("div.u32 $0, $1, $2;", section="9.7.1.8 div", pure=True)
def udiv_u32(a: u32, b: u32) -> u32:
    """a // b in 32 bits. (numba's // is a call of a 64-bit division.)"""


@instruction("cvt.rn.f16x2.f32 $0, $2, $1;", section=_CVT, pure=True)
def pack_f16x2(low: f32, high: f32) -> u32:
    """Two f32 rounded to nearest even f16, the first in the low half."""


@instruction("cvt.rn.bf16x2.f32 $0, $2, $1;", section=_CVT, pure=True)
def pack_bf16x2(low: f32, high: f32) -> u32:
    """Two f32 rounded to nearest even bf16, the first in the low half."""


@instruction("{.reg .b16 l, h;\nmov.b32 {l, h}, $1;\ncvt.f32.f16 $0, l;}", section=_CVT, pure=True)
def unpack_f16x2_lo(packed: u32) -> f32:
    """The f16 in the low half, as f32 (exact)."""


@instruction("{.reg .b16 l, h;\nmov.b32 {l, h}, $1;\ncvt.f32.f16 $0, h;}", section=_CVT, pure=True)
def unpack_f16x2_hi(packed: u32) -> f32:
    """The f16 in the high half, as f32 (exact)."""


@instruction("prmt.b32 $0, $1, $2, $3;", section="9.7.9.7 prmt", pure=True)
def prmt(a: u32, b: u32, selector: u32) -> u32:
    """Four bytes picked from the eight of a (numbers 0-3) and b (4-7): nibble i of the selector picks result
    byte i; bit 3 of the nibble replicates the picked byte's sign instead."""


@instruction("shf.r.wrap.b32 $0, $1, $2, $3;", section="9.7.8.7 shf", pure=True)
def shf_r_wrap(low: u32, high: u32, shift: u32) -> u32:
    """Low 32 bits of the 64-bit value (high, low) shifted right by shift % 32."""


@functools.cache
def lop3(lut: int) -> Instruction:
    """Factory: any bitwise function of three words. `lut` is that function of 0xF0, 0xCC and 0xAA: (a & b) |
    c is 0xEA."""
    if not 0 <= lut <= 255:
        raise ValueError(f"lop3: lut {lut}: must be from 0 to 255")

    @instruction(
        f"lop3.b32 $0, $1, $2, $3, {lut};",
        name="lop3",
        section="9.7.8.6 lop3",
        pure=True,
        parameters={"lut": lut},
    )
    def build(a: u32, b: u32, c: u32) -> u32:
        """The bitwise function `lut` of three words."""

    return build


@instruction("fma.rn.f16x2 $0, $1, $2, $3;", section="9.7.4.4 fma (half precision)", pure=True)
def hfma2(a: u32, b: u32, c: u32) -> u32:
    """a * b + c in both f16 halves, rounded once."""


_HALVES = "{.reg .b16 l, h;\n.reg .b32 ll, hh;\nmov.b32 {l, h}, $2;\n"


@instruction(
    _HALVES + "mov.b32 ll, {l, l};\nmov.b32 hh, {h, h};\nfma.rn.f16x2 $0, $1, ll, hh;}",
    section="9.7.4.4 fma (half precision)",
    pure=True,
)
def hfma2_pair(a: u32, pair: u32) -> u32:
    """a * low + high in both f16 halves, for the two halves of `pair`, rounded once. (The assembler names the
    halves in the operand; copied by `prmt` they would cost two instructions more.)"""


@instruction(
    _HALVES + "mov.b32 ll, {l, l};\nmul.rn.f16x2 $0, $1, ll;}",
    section="9.7.4.3 mul (half precision)",
    pure=True,
)
def hmul2_low(a: u32, pair: u32) -> u32:
    """a times the low half of `pair`, in both f16 halves."""


@instruction(
    _HALVES + "mov.b32 hh, {h, h};\nmul.rn.f16x2 $0, $1, hh;}",
    section="9.7.4.3 mul (half precision)",
    pure=True,
)
def hmul2_high(a: u32, pair: u32) -> u32:
    """a times the high half of `pair`, in both f16 halves."""


@instruction("add.rn.f16x2 $0, $1, $2;", section="9.7.4.1 add (half precision)", pure=True)
def hadd2(a: u32, b: u32) -> u32:
    """a + b in both f16 halves. (`.rn`: not contracted into an fma.)"""


@instruction("mul.rn.f16x2 $0, $1, $2;", section="9.7.4.3 mul (half precision)", pure=True)
def hmul2(a: u32, b: u32) -> u32:
    """a * b in both f16 halves."""


@instruction("sub.rn.f16x2 $0, $1, $2;", section="9.7.4.2 sub (half precision)", pure=True)
def hsub2(a: u32, b: u32) -> u32:
    """a - b in both f16 halves."""


@instruction("ex2.approx.ftz.f32 $0, $1;", section="9.7.3.21 ex2", pure=True)
def ex2_approx(x: f32) -> f32:
    """2^x, at most 2 ulp off; subnormal inputs and results are zero."""


@instruction("lg2.approx.ftz.f32 $0, $1;", section="9.7.3.20 lg2", pure=True)
def lg2_approx(x: f32) -> f32:
    """log2 x, absolute error 2^-22 near 1; subnormal inputs are zero."""


@instruction("rcp.approx.ftz.f32 $0, $1;", section="9.7.3.13 rcp", pure=True)
def rcp_approx(x: f32) -> f32:
    """1 / x, at most 1 ulp off; subnormal inputs and results are zero."""


@instruction("rsqrt.approx.ftz.f32 $0, $1;", section="9.7.3.16 rsqrt", pure=True)
def rsqrt_approx(x: f32) -> f32:
    """1 / sqrt(x), relative error 2^-22.9; subnormal inputs are zero."""


@instruction("fma.rn.f32 $0, $1, $2, $3;", section="9.7.3.6 fma", pure=True)
def fma_rn_f32(a: f32, b: f32, c: f32) -> f32:
    """a * b + c, rounded once."""


@instruction("div.rn.f32 $0, $1, $2;", section="9.7.3.8 div", pure=True)
def div_rn_f32(a: f32, b: f32) -> f32:
    """a / b, rounded to nearest even; never flushed to zero. (numba's / is approximate under fastmath.)"""


@instruction("max.f32 $0, $1, $2;", section="9.7.3.12 max", pure=True)
def max_f32(a: f32, b: f32) -> f32:
    """The larger; the other one if one is NaN."""


@instruction("min.f32 $0, $1, $2;", section="9.7.3.11 min", pure=True)
def min_f32(a: f32, b: f32) -> f32:
    """The smaller; the other one if one is NaN."""


@instruction("cvt.rn.f32.s32 $0, $1;", section=_CVT, pure=True)
def cvt_rn_f32_s32(x: s32) -> f32:
    """The nearest f32."""


@instruction("cvt.rn.f32.u32 $0, $1;", section=_CVT, pure=True)
def cvt_rn_f32_u32(x: u32) -> f32:
    """The nearest f32."""


@instruction("cvt.rni.s32.f32 $0, $1;", section=_CVT, pure=True)
def cvt_rni_s32_f32(x: f32) -> s32:
    """The nearest integer, halves to even; out of range saturates, NaN gives 0."""


@instruction("cvt.rna.tf32.f32 $0, $1;", section=_CVT, pure=True)
def cvt_rna_tf32_f32(x: f32) -> u32:
    """Rounded to tf32 (10 bits of mantissa), halves away from zero, as bits of an f32."""


@instruction("mov.b32 $0, $1;", section="9.7.9.3 mov", pure=True)
def bitcast_f32_u32(bits: u32) -> f32:
    """The f32 with these bits."""


@instruction("mov.b32 $0, $1;", section="9.7.9.3 mov", pure=True)
def bitcast_u32_f32(value: f32) -> u32:
    """The bits of this f32."""


@instruction(
    "{.reg .pred p;\nsetp.ne.u32 p, $1, 0;\nselp.b32 $0, $2, $3, p;}", section="9.7.6.3 selp", pure=True
)
def select_u32(condition: u32, if_true: u32, if_false: u32) -> u32:
    """One of two words, without a branch (a divergent branch while wgmma is in flight serialises it:
    C7518)."""
