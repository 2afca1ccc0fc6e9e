"""What a warp does with a staged k-tile: fragments of activations times fragments of weights."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import int32, uint32

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.mmq.activations import Activations
from minfer.cuda.mmq.config import MmqConfig
from minfer.cuda.mmq.folded import FoldedWeights
from minfer.cuda.mmq.raw import RawWeights
from minfer.cuda.mmq.rescale import integer_product, rescaling, store_sums
from minfer.cuda.mmq.words import WordWeights


@dataclass(frozen=True)
class Multiply:
    """A config's products. In functions of their own the compiler's front end sees them once, not once a
    fragment."""

    config: MmqConfig
    activations: Activations
    weights: RawWeights | WordWeights | FoldedWeights

    @functools.cached_property
    def column(self) -> DeviceFunction:
        """(acc, o, a, ao, b, bo, d, s, scales, out, token, row, chunk, chunks, nt, od): one 16 x 8 fragment
        of a chunk; `scales` is the shared address of the lane's two rows' scales."""
        config = self.config
        two, sums_out, masked = config.two_scales, config.out == "sums", config.masked
        minimum_fma = config.has_minimum and config.minimum == "fma"
        count_of_sums = 8 if two or config.variant == "folded" else 4
        second_scale = config.second_scale
        product, rescale = integer_product(config), rescaling(config)

        @device_function
        @unrolled
        def multiply_column(acc, o, a, ao, b, bo, d, s, scales, out, token, row, chunk, chunks, nt, od):
            sums = cuda.local.array(count_of_sums, int32)
            product(sums, a, ao, b, bo)
            if sums_out:
                for half in unroll(2 if two else 1):
                    index, count = (2 * chunk + half, 2 * chunks) if two else (chunk, chunks)
                    shift = (chunk & 1) * 4 if masked else 0
                    if chunk < chunks:
                        store_sums(sums, 4 * half, shift, out, token, row, index, count, nt, od)
            else:
                w0, w1 = ptx.ld_shared_v2_f32(scales)
                rescale(acc, o, sums, 0, d, s, w0, w1)
                if two:
                    w0, w1 = ptx.ld_shared_v2_f32(scales + uint32(second_scale))
                    rescale(acc, o, sums, 4, d, s, w0, w1)
                if minimum_fma:
                    w0, w1 = ptx.ld_shared_v2_f32(scales + uint32(second_scale))
                    acc[o] = ptx.fma_rn_f32(w0, d[s + 4], acc[o])
                    acc[o + 1] = ptx.fma_rn_f32(w1, d[s + 4], acc[o + 1])
                    acc[o + 2] = ptx.fma_rn_f32(w0, d[s + 5], acc[o + 2])
                    acc[o + 3] = ptx.fma_rn_f32(w1, d[s + 5], acc[o + 3])

        return multiply_column

    @functools.cached_property
    def chunk(self) -> DeviceFunction:
        """(acc, a, b, d, tokens, tile, scales, row_bytes, token, row, lane, k_tile, i, chunks, out, nt, od):
        chunk i of a k-tile: the warp's fragments of 16 tokens times pairs of 8 rows. `tokens`, `tile`,
        `scales`: shared addresses of what the lane reads first (`Activations.quarter`); `token`, `row`: the
        warp's first ones."""
        config = self.config
        (m_fragments, pairs), kd = self.fragments, config.kd
        token_step, chunk_step = 16 * config.token_bytes, self.activations.chunk_step
        pitch = config.scale_row * 4
        quarter_of, load_activations = self.activations.quarter, self.activations.load
        fragments, multiply_column = self.weights.fragments, self.column

        @device_function
        @unrolled
        def multiply_chunk(
            acc, a, b, d, tokens, tile, scales, row_bytes, token, row, lane, k_tile, i, chunks, out, nt, od
        ):  # fmt: skip
            quarter = quarter_of(tokens, lane)
            low = uint32(tokens - quarter) + uint32(i * chunk_step)
            for m in unroll(m_fragments):
                load_activations(a, 4 * m, d, 6 * m, low + uint32(m * token_step), quarter)
            line = scales + uint32(i * pitch)
            for j in unroll(pairs):
                fragments(b, tile, j, k_tile, i, lane, row + (lane >> 2), od, row_bytes)
                for n in unroll(2):
                    for m in unroll(m_fragments):
                        multiply_column(
                            acc,
                            8 * (m * pairs + j) + 4 * n,
                            a,
                            4 * m,
                            b,
                            2 * n,
                            d,
                            6 * m,
                            line + uint32(64 * j + 32 * n),
                            out,
                            token + (lane >> 2) + 16 * m,
                            row + 16 * j + 8 * n + (lane & 3) * 2,
                            k_tile * kd + i,
                            chunks,
                            nt,
                            od,
                        )

        return multiply_chunk

    @functools.cached_property
    def minima(self) -> DeviceFunction:
        """(acc, sums, tokens, minima): minima of four chunks times the activations' sums, on the tensor
        cores: all four products of the two parts of either in one mma of depth 16. `tokens`, `minima`: the
        shared addresses of chunk lane % 4 of the lane's first token and row (lane // 4)."""
        m_fragments, pairs = self.fragments
        token_step, load_sums = 16 * self.config.token_bytes, self.activations.load_sums

        @device_function
        @unrolled
        def multiply_minima(acc, sums, tokens, minima):
            for m in unroll(m_fragments):
                load_sums(sums, 2 * m, tokens + uint32(m * token_step))
            for j in unroll(2 * pairs):
                upper, lower = ptx.ld_shared_v2_u32(minima + uint32(64 * j))
                for m in unroll(m_fragments):
                    o, first, second = 8 * m * pairs + 4 * j, sums[2 * m], sums[2 * m + 1]
                    c0, c1, c2, c3 = ptx.mma_m16n8k16_bf16(
                        first, second, first, second, upper, lower, acc[o], acc[o + 1], acc[o + 2], acc[o + 3]
                    )
                    acc[o], acc[o + 1], acc[o + 2], acc[o + 3] = c0, c1, c2, c3

        return multiply_minima

    @property
    def fragments(self) -> tuple[int, int]:
        """A warp's fragments of 16 tokens, and its pairs of 8 rows."""
        tokens, rows = self.config.warp_tile
        return tokens // 16, rows // 16
