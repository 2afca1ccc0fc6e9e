"""Quantized block formats as the kernels read them: sizes, and four neighbouring weights out of a block.

Layouts are GGML's (ggml-common.h): d and dmin f16, 32 weights a block for Q4_0 to Q8_0, 256 for the K
formats. Only the K formats with 144 and 176 bytes, and Q4_1, Q5_1, keep 4-byte alignment from block to
block; the others are 2-byte aligned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import ConfigRefused


@dataclass(frozen=True)
class Block:
    """A format: `weights` in a block of `size` bytes."""

    weights: int
    size: int

    def row_bytes(self, dim: int) -> int:
        """Bytes of a row of dim weights."""
        return dim // self.weights * self.size


BLOCKS = {
    "F32": Block(1, 4),
    "F16": Block(1, 2),
    "BF16": Block(1, 2),
    "Q4_0": Block(32, 18),
    "Q4_1": Block(32, 20),
    "Q5_0": Block(32, 22),
    "Q5_1": Block(32, 24),
    "Q8_0": Block(32, 34),
    "Q4_K": Block(256, 144),
    "Q5_K": Block(256, 176),
    "Q6_K": Block(256, 210),
}


def block_of(family: str, format: str, dim: int | None = None) -> Block:
    """The format's block; refuses a format that has no kernel here, and rows that are not whole blocks."""
    if format not in BLOCKS:
        raise ConfigRefused(f"{family}: no kernel reads {format}; the formats are {', '.join(BLOCKS)}")
    block = BLOCKS[format]
    if dim is not None and (dim <= 0 or dim % block.weights):
        raise ConfigRefused(f"{family}: rows of {dim} {format} weights; take a multiple of {block.weights}")
    return block


@device_function
def load_f16(address):
    """The f16 at a global address, as f32."""
    return ptx.unpack_f16x2_lo(ptx.ld_global_nc_u16(address))


@device_function
def _word(address):
    """Four bytes at a 2-byte aligned global address."""
    low = ptx.ld_global_nc_u16(address)
    return uint32(low | (ptx.ld_global_nc_u16(address + uint64(2)) << uint32(16)))


@device_function
def _byte(word, i):
    return ptx.cvt_rn_f32_u32((word >> uint32(8 * i)) & uint32(255))


@device_function
def spread_bits(bits):
    """The low 4 bits of a word, one a byte."""
    return uint32(((bits & uint32(15)) * uint32(0x00204081)) & uint32(0x01010101))


@device_function
def _affine(word, d, shift):
    """d * byte + shift of each of the four bytes."""
    return (
        d * _byte(word, 0) + shift,
        d * _byte(word, 1) + shift,
        d * _byte(word, 2) + shift,
        d * _byte(word, 3) + shift,
    )


@device_function
def _four_f32(block, i):
    return ptx.ld_global_nc_v4_f32(block)


@device_function
def _four_f16(block, i):
    low, high = ptx.ld_global_nc_v2_u32(block)
    return (
        ptx.unpack_f16x2_lo(low),
        ptx.unpack_f16x2_hi(low),
        ptx.unpack_f16x2_lo(high),
        ptx.unpack_f16x2_hi(high),
    )


@device_function
def _four_bf16(block, i):
    low, high = ptx.ld_global_nc_v2_u32(block)
    top = uint32(0xFFFF0000)
    return (
        ptx.bitcast_f32_u32(low << uint32(16)),
        ptx.bitcast_f32_u32(low & top),
        ptx.bitcast_f32_u32(high << uint32(16)),
        ptx.bitcast_f32_u32(high & top),
    )


@device_function
def _nibbles(quants, i):
    """The four nibbles of weights i .. i + 3 of a 32-weight block whose 16 bytes of nibbles are at
    `quants`."""
    return (_word(quants + uint64(i & 15)) >> uint32((i >> 4) * 4)) & uint32(0x0F0F0F0F)


@device_function
def _four_q4_0(block, i):
    d = load_f16(block)
    return _affine(_nibbles(block + uint64(2), i), d, d * float32(-8))


@device_function
def _four_q4_1(block, i):
    return _affine(_nibbles(block + uint64(4), i), load_f16(block), load_f16(block + uint64(2)))


@device_function
def _four_q5_0(block, i):
    d = load_f16(block)
    fifth = spread_bits(_word(block + uint64(2)) >> uint32(i))
    return _affine(_nibbles(block + uint64(6), i) | (fifth << uint32(4)), d, d * float32(-16))


@device_function
def _four_q5_1(block, i):
    fifth = spread_bits(_word(block + uint64(4)) >> uint32(i))
    word = _nibbles(block + uint64(8), i) | (fifth << uint32(4))
    return _affine(word, load_f16(block), load_f16(block + uint64(2)))


@device_function
def _four_q8_0(block, i):
    d = load_f16(block)
    # Signed bytes, moved up by 128.
    word = _word(block + uint64(2 + i)) ^ uint32(0x80808080)
    return _affine(word, d, d * float32(-128))


@device_function
def _scale_k4(scales, j):
    """(scale, minimum) of sub-block j of 8: 6 bits each, packed in 12 bytes (get_scale_min_k4)."""
    low = ptx.ld_global_nc_u8(scales + uint64(j & 3))
    middle = ptx.ld_global_nc_u8(scales + uint64(4 + (j & 3)))
    if j < 4:
        return low & uint32(63), middle & uint32(63)
    high = ptx.ld_global_nc_u8(scales + uint64(4 + j))
    scale = (high & uint32(15)) | ((low >> uint32(6)) << uint32(4))
    return scale, (high >> uint32(4)) | ((middle >> uint32(6)) << uint32(4))


@device_function
def _scaled_k4(block, i, word):
    scale, minimum = _scale_k4(block + uint64(4), i >> 5)
    d = load_f16(block) * ptx.cvt_rn_f32_u32(scale)
    return _affine(word, d, -(load_f16(block + uint64(2)) * ptx.cvt_rn_f32_u32(minimum)))


@device_function
def _nibbles_k(quants, i):
    """The four nibbles of weights i .. i + 3 of a Q4_K or Q5_K block: 32 bytes hold a low and a high run of
    32."""
    word = ptx.ld_global_nc_u32(quants + uint64((i >> 6) * 32 + (i & 31)))
    return (word >> uint32(((i >> 5) & 1) * 4)) & uint32(0x0F0F0F0F)


@device_function
def _four_q4_k(block, i):
    return _scaled_k4(block, i, _nibbles_k(block + uint64(16), i))


@device_function
def _four_q5_k(block, i):
    fifth = ptx.ld_global_nc_u32(block + uint64(16 + (i & 31))) >> uint32(i >> 5)
    word = _nibbles_k(block + uint64(48), i) | ((fifth & uint32(0x01010101)) << uint32(4))
    return _scaled_k4(block, i, word)


@device_function
def _four_q6_k(block, i):
    half = i >> 7
    part = (i >> 5) & 3
    at = i & 31
    low = _word(block + uint64(half * 64 + (part & 1) * 32 + at)) >> uint32((part >> 1) * 4)
    high = _word(block + uint64(128 + half * 32 + at)) >> uint32(part * 2)
    word = (low & uint32(0x0F0F0F0F)) | ((high & uint32(0x03030303)) << uint32(4))
    scale = int32(ptx.ld_global_nc_u8(block + uint64(192 + half * 8 + part * 2 + (at >> 4))))
    d = load_f16(block + uint64(208)) * ptx.cvt_rn_f32_s32((scale ^ 128) - 128)
    return _affine(word, d, d * float32(-32))


_FOUR = {
    "F32": _four_f32,
    "F16": _four_f16,
    "BF16": _four_bf16,
    "Q4_0": _four_q4_0,
    "Q4_1": _four_q4_1,
    "Q5_0": _four_q5_0,
    "Q5_1": _four_q5_1,
    "Q8_0": _four_q8_0,
    "Q4_K": _four_q4_k,
    "Q5_K": _four_q5_k,
    "Q6_K": _four_q6_k,
}


def four_weights(format: str) -> Callable:
    """Device function (row address u64, index int32, a multiple of 4) -> four f32 weights of a row."""
    four, weights, size = _FOUR[format], BLOCKS[format].weights, BLOCKS[format].size

    @device_function
    def quantized(row, index):
        block = index // weights
        return four(row + uint64(block) * uint64(size), index - block * weights)

    @device_function
    def plain(row, index):
        return four(row + uint64(index) * uint64(size), 0)

    return quantized if weights > 1 else plain
