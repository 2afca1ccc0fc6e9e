"""The activations' side: chunks of 40 bytes (pad40) copied as they are, and A fragments read straight from
them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.mmq.config import CHUNK_BYTES, MAGIC, SUM_BYTE, MmqConfig


@dataclass(frozen=True)
class Activations:
    """How a config stages and reads its activations."""

    config: MmqConfig

    @property
    def unit(self) -> int:
        """Bytes of a cp.async: 16 where a k-tile of a token is whole 16 bytes and each of its threads has as
        many, else 8."""
        wide = self.config.layout == "padded" and self.config.k_quant
        return 16 if wide and self.config.kd * CHUNK_BYTES // 16 % self.threads_per_token == 0 else 8

    @property
    def threads_per_token(self) -> int:
        return self.config.threads // self.config.tokens_tile

    @property
    def chunk_step(self) -> int:
        """Bytes from a token's chunk to its next one in a stage."""
        return CHUNK_BYTES if self.config.layout == "padded" else self.config.tokens_tile * CHUNK_BYTES

    @functools.cached_property
    def copy(self) -> DeviceFunction:
        """(stage, matrix, first_token, nt, chunks, k_tile, thread): issue the copies of a k-tile. Tokens and
        chunks that do not exist become zero, scale included; their bytes are not read."""
        unit, per_token = self.unit, self.threads_per_token
        token_bytes, chunk_step = self.config.token_bytes, self.chunk_step
        kd, whole = self.config.kd, self.config.k_quant
        row_units, units = kd * CHUNK_BYTES // unit, CHUNK_BYTES // unit
        rounds, exact = -(-row_units // per_token), row_units % per_token == 0
        copy_unit = ptx.cp_async_cg_16 if unit == 16 else ptx.cp_async_ca_8
        contiguous = self.config.layout == "padded"

        @device_function
        @unrolled
        def copy(stage, matrix, first_token, nt, chunks, k_tile, thread):
            token, part = thread // per_token, thread % per_token
            source = matrix + uint64(
                (uint64(first_token + token) * uint64(chunks) + uint64(k_tile * kd)) * uint64(CHUNK_BYTES)
                + uint64(part * unit)
            )
            inside = first_token + token < nt
            row = uint32(stage + uint32(token * token_bytes))
            for j in unroll(rounds):
                u = part + j * per_token
                if exact or u < row_units:
                    there = inside
                    if not whole:
                        there = there and k_tile * kd + u // units < chunks
                    if contiguous:
                        target = row + uint32(part * unit) + uint32(j * per_token * unit)
                    else:
                        target = uint32(row + u // units * chunk_step + u % units * unit)
                    copy_unit(target, source + uint64(j * per_token * unit), uint32(unit if there else 0))

        return copy

    @functools.cached_property
    def load(self) -> DeviceFunction:
        """(words, o, scales, s, low, t): the A fragment of a chunk of two tokens, the one at the shared address
        `low` (a lane's own: the warp's first + lane // 4) and the one 8 further on, into words[o ... o + 3], and what its rescaling needs into scales[s ... s + 5]:
        d of both tokens, -MAGIC * d (rescale="magic"), d * sum (minimum="fma")."""
        eight, magic = 8 * self.config.token_bytes, self.config.rescale == "magic"
        sums = self.config.has_minimum and self.config.minimum == "fma"

        @device_function
        def load(words, o, scales, s, low, t):
            high = low + uint32(eight)
            own = low + uint32(4 * t)
            words[o] = ptx.ld_shared_u32(own + uint32(4))
            words[o + 1] = ptx.ld_shared_u32(own + uint32(4 + eight))
            words[o + 2] = ptx.ld_shared_u32(own + uint32(20))
            words[o + 3] = ptx.ld_shared_u32(own + uint32(20 + eight))
            first = ptx.unpack_f16x2_lo(ptx.ld_shared_u32(low))
            second = ptx.unpack_f16x2_lo(ptx.ld_shared_u32(high))
            scales[s], scales[s + 1] = first, second
            if magic:
                scales[s + 2], scales[s + 3] = first * float32(-MAGIC), second * float32(-MAGIC)
            if sums:
                scales[s + 4], scales[s + 5] = first * _sum(low), second * _sum(high)

        return load

    @functools.cached_property
    def load_sums(self) -> DeviceFunction:
        """(words, o, low): d * sum of the chunk at `low` and of the same 8 tokens on, where lanes t = 0 ... 3 hold
        four neighbouring chunks, as the A fragment of a tf32 product of depth 8: the upper part of each value,
        then what is left of it."""
        eight = 8 * self.config.token_bytes

        @device_function
        def load_sums(words, o, low):
            high = low + uint32(eight)
            first = ptx.unpack_f16x2_lo(ptx.ld_shared_u32(low)) * _sum(low)
            second = ptx.unpack_f16x2_lo(ptx.ld_shared_u32(high)) * _sum(high)
            words[o], words[o + 2] = split_tf32(first)
            words[o + 1], words[o + 3] = split_tf32(second)

        return load_sums


@device_function
def _sum(chunk):
    """The chunk's sum as f32."""
    return ptx.cvt_rn_f32_s32(int32(ptx.ld_shared_u32(chunk + uint32(SUM_BYTE))))


@device_function
def split_tf32(value):
    """(upper, lower) as tf32 operands whose sum is the value to 21 bits: the tensor cores do not read the low
    13 bits. (cvt.rna.tf32 is a sequence of instructions on sm_90.)"""
    upper = ptx.bitcast_u32_f32(value) & uint32(0xFFFFE000)
    return upper, ptx.bitcast_u32_f32(float32(value - ptx.bitcast_f32_u32(upper)))
