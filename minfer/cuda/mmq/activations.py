"""The activations' side: chunks of 40 bytes (pad40) copied as they are, and A fragments read straight from
them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.mmq.config import CHUNK_BYTES, SUM_BYTE, MmqConfig


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

    @property
    def step_bytes(self) -> int:
        """Bytes of a token's k-tile."""
        return self.config.kd * CHUNK_BYTES

    @functools.cached_property
    def copy(self) -> DeviceFunction:
        """(stage, source, chunks, tokens_left, chunks_left, thread): issue the copies of the k-tile at this
        address (the block's first token's), of rows of `chunks`. Tokens and chunks that do not exist become
        zero, scale included; their bytes are not read."""
        unit, per_token = self.unit, self.threads_per_token
        token_bytes, chunk_step = self.config.token_bytes, self.chunk_step
        row_units, units, whole = self.step_bytes // unit, CHUNK_BYTES // unit, self.config.k_quant
        rounds, exact = -(-row_units // per_token), row_units % per_token == 0
        copy_unit = ptx.cp_async_cg_16 if unit == 16 else ptx.cp_async_ca_8
        contiguous = self.config.layout == "padded"

        @device_function
        @unrolled
        def copy(stage, source, chunks, tokens_left, chunks_left, thread):
            token, part = uint32(thread // per_token), uint32(thread % per_token)
            first = source + uint64(uint32(token * uint32(chunks * CHUNK_BYTES) + part * unit))
            row = uint32(stage + token * token_bytes)
            own = uint32(row + part * unit)
            inside = int32(token) < tokens_left
            count = uint32(unit if inside else 0)
            for j in unroll(rounds):
                u = uint32(part + j * per_token)
                if exact or u < row_units:
                    if not whole:
                        count = uint32(unit if inside and int32(u // units) < chunks_left else 0)
                    target = own + uint32(j * per_token * unit)
                    if not contiguous:
                        target = uint32(row + u // units * chunk_step + u % units * unit)
                    copy_unit(target, first + uint64(j * per_token * unit), count)

        return copy

    @functools.cached_property
    def quarter(self) -> DeviceFunction:
        """(word, lane): 4 * (lane % 4), where `word` is the shared address of a token's first chunk and so
        many bytes: read off the address where tokens lie at multiples of 16 bytes, so that it waits in no
        register."""
        aligned = self.config.layout == "padded"

        @device_function
        def quarter(word, lane):
            if aligned:
                return uint32(word & uint32(12))
            return uint32((lane & 3) * 4)

        return quarter

    @functools.cached_property
    def load(self) -> DeviceFunction:
        """(words, o, scales, s, low, quarter): a chunk of two tokens, the one at the shared address `low` (a
        lane's own: the warp's first + lane // 4) and the one 8 further on. The A fragment into words[o ...
        o + 3]; what its rescaling needs into scales[s ... s + 5]: d of both tokens, `config.correction` * d
        (rescale="magic"), d * sum (minimum="fma")."""
        eight, magic = 8 * self.config.token_bytes, self.config.rescale == "magic"
        correction = self.config.correction
        sums = self.config.has_minimum and self.config.minimum == "fma"

        @device_function
        def load(words, o, scales, s, low, quarter):
            high, own = low + uint32(eight), low + quarter
            words[o] = ptx.ld_shared_u32(own + uint32(4))
            words[o + 1] = ptx.ld_shared_u32(own + uint32(4 + eight))
            words[o + 2] = ptx.ld_shared_u32(own + uint32(20))
            words[o + 3] = ptx.ld_shared_u32(own + uint32(20 + eight))
            first = ptx.unpack_f16x2_lo(ptx.ld_shared_u32(low))
            second = ptx.unpack_f16x2_lo(ptx.ld_shared_u32(high))
            scales[s], scales[s + 1] = first, second
            if magic:
                scales[s + 2], scales[s + 3] = first * float32(correction), second * float32(correction)
            if sums:
                scales[s + 4], scales[s + 5] = first * _sum(low), second * _sum(high)

        return load

    @functools.cached_property
    def load_sums(self) -> DeviceFunction:
        """(words, o, low): d * sum of the chunk at `low` and of the same one 8 tokens on, where lanes t = 0
        ... 3 hold four neighbouring chunks, as words[o], words[o + 1] of the A fragment of a bf16 product
        whose second half repeats them: the value rounded, and what is left of it."""
        eight = 8 * self.config.token_bytes

        @device_function
        def load_sums(words, o, low):
            high = low + uint32(eight)
            words[o] = _split(ptx.unpack_f16x2_lo(ptx.ld_shared_u32(low)) * _sum(low))
            words[o + 1] = _split(ptx.unpack_f16x2_lo(ptx.ld_shared_u32(high)) * _sum(high))

        return load_sums


@device_function
def _sum(chunk):
    """The chunk's sum as f32."""
    return ptx.cvt_rn_f32_s32(int32(ptx.ld_shared_u32(chunk + uint32(SUM_BYTE))))


@device_function
def _split(value):
    """A pair of bf16 whose sum is the value to 17 bits."""
    upper = ptx.pack_bf16x2(value, value)
    return ptx.pack_bf16x2(value, float32(value - ptx.bitcast_f32_u32(upper & uint32(0xFFFF0000))))
