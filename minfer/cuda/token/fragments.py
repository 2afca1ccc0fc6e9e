"""One warp's 16 cache rows on tensor cores: the heads that share a kv head against K and V.

Lane (g, t) = (lane / 4, lane % 4) of an mma fragment. Scores are heads by rows, A = Q, B = K^T; the output is
dims by heads, A = V^T, B = P^T: the second operand is what the score fragment already holds. Which dims a
lane's registers stand for is free as long as both operands agree, so that lanes take 16-byte pieces of the
rows as they lie in the cache. Eight heads at most: an mma's rows 8 to 15 of Q are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function, unroll, unrolled


class Fragments(NamedTuple):
    """Device functions; `words` are local u32 arrays, rows are cache rows."""

    load_keys: Callable
    load_values: Callable
    put_new_row: Callable
    scores: Callable
    add_values: Callable
    put_sums: Callable


def make_fragments(served: int, kv_heads: int, head_dim: int) -> Fragments:
    """The functions for `served` heads of `head_dim` on one of `kv_heads` kv heads."""
    pieces = head_dim // 32  # 16-byte pieces of a row that a lane takes for the scores
    per_lane = head_dim // 8  # dims that a lane has for the output
    pitch = kv_heads * head_dim * 2
    slot = (head_dim + 4) * 4  # bytes of a head's sums, maximum, sum of weights

    @device_function
    @unrolled
    def load_keys(keys, words, first, end):
        """Rows first + g and first + 8 + g of this lane, dims 32 j + 8 t ...; zeros from `end` on."""
        g = int32(ptx.lane_id()) >> 2
        column = keys + uint64((int32(ptx.lane_id()) & 3) * 16)
        for tile in unroll(2):
            row = int32(first + tile * 8 + g)
            at = column + uint64(row) * uint64(pitch)
            for j in unroll(pieces):
                w0 = uint32(0)
                w1 = uint32(0)
                w2 = uint32(0)
                w3 = uint32(0)
                if row < end:
                    w0, w1, w2, w3 = ptx.ld_global_v4_u32(at + uint64(j * 64))
                words[(tile * pieces + j) * 4] = w0
                words[(tile * pieces + j) * 4 + 1] = w1
                words[(tile * pieces + j) * 4 + 2] = w2
                words[(tile * pieces + j) * 4 + 3] = w3

    @device_function
    @unrolled
    def load_values(values, words, first, end):
        """Rows first + 2t, + 1, + 8, + 9 of this lane, dims per_lane g ...; zeros from `end` on."""
        g = int32(ptx.lane_id()) >> 2
        t = int32(ptx.lane_id()) & 3
        for r in unroll(4):
            row = int32(first + 2 * t + (r & 1) + (r >> 1) * 8)
            at = values + uint64(row) * uint64(pitch) + uint64(g * (per_lane * 2))
            for j in unroll(per_lane // 8):
                w0 = uint32(0)
                w1 = uint32(0)
                w2 = uint32(0)
                w3 = uint32(0)
                if row < end:
                    w0, w1, w2, w3 = ptx.ld_global_v4_u32(at + uint64(j * 16))
                words[r * (per_lane // 2) + j * 4] = w0
                words[r * (per_lane // 2) + j * 4 + 1] = w1
                words[r * (per_lane // 2) + j * 4 + 2] = w2
                words[r * (per_lane // 2) + j * 4 + 3] = w3

    @device_function
    @unrolled
    def put_new_row(fresh, key_words, value_words, first, position):
        """The new token's key and value (shared, one behind the other), where this lane's rows are its."""
        g = int32(ptx.lane_id()) >> 2
        t = int32(ptx.lane_id()) & 3
        for tile in unroll(2):
            if int32(first + tile * 8 + g) == position:
                for j in unroll(pieces):
                    w0, w1, w2, w3 = ptx.ld_shared_v4_u32(fresh + uint32(j * 64 + t * 16))
                    key_words[(tile * pieces + j) * 4] = w0
                    key_words[(tile * pieces + j) * 4 + 1] = w1
                    key_words[(tile * pieces + j) * 4 + 2] = w2
                    key_words[(tile * pieces + j) * 4 + 3] = w3
        for r in unroll(4):
            if int32(first + 2 * t + (r & 1) + (r >> 1) * 8) == position:
                for j in unroll(per_lane // 8):
                    at = fresh + uint32(head_dim * 2 + g * (per_lane * 2) + j * 16)
                    w0, w1, w2, w3 = ptx.ld_shared_v4_u32(at)
                    value_words[r * (per_lane // 2) + j * 4] = w0
                    value_words[r * (per_lane // 2) + j * 4 + 1] = w1
                    value_words[r * (per_lane // 2) + j * 4 + 2] = w2
                    value_words[r * (per_lane // 2) + j * 4 + 3] = w3

    @device_function
    @unrolled
    def scores(queries, key_words, out):
        """Q K^T of 16 rows: head g, rows 2t, 2t + 1, 8 + 2t, 9 + 2t. Queries f16 [8, head_dim] in shared
        memory: they are read for every turn, registers are scarcer."""
        none = uint32(0)
        lane = int32(ptx.lane_id())
        at = queries + uint32((lane >> 2) * (head_dim * 2) + (lane & 3) * 16)
        for i in unroll(4):
            out[i] = float32(0)
        for j in unroll(pieces):
            q0, q1, q2, q3 = ptx.ld_shared_v4_u32(at + uint32(j * 64))
            for tile in unroll(2):
                k = (tile * pieces + j) * 4
                c0, c1, _, _ = ptx.mma_m16n8k16_f16(
                    q0, none, q1, none, key_words[k], key_words[k + 1],
                    out[tile * 2], out[tile * 2 + 1], float32(0), float32(0),
                )  # fmt: skip
                c0, c1, _, _ = ptx.mma_m16n8k16_f16(
                    q2, none, q3, none, key_words[k + 2], key_words[k + 3], c0, c1, float32(0), float32(0)
                )
                out[tile * 2] = c0
                out[tile * 2 + 1] = c1

    @device_function
    @unrolled
    def add_values(value_words, p_low, p_high, sums):
        """sums += V^T P^T: tile i has dims per_lane g + 2i and + 1, heads 2t and 2t + 1."""
        half = per_lane // 2
        for i in unroll(per_lane // 2):
            w0 = value_words[i]
            w1 = value_words[half + i]
            w8 = value_words[2 * half + i]
            w9 = value_words[3 * half + i]
            low = uint32(0x5410)
            high = uint32(0x7632)
            c0, c1, c2, c3 = ptx.mma_m16n8k16_f16(
                ptx.prmt(w0, w1, low), ptx.prmt(w0, w1, high), ptx.prmt(w8, w9, low), ptx.prmt(w8, w9, high),
                p_low, p_high, sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3],
            )  # fmt: skip
            sums[i * 4] = c0
            sums[i * 4 + 1] = c1
            sums[i * 4 + 2] = c2
            sums[i * 4 + 3] = c3

    @device_function
    @unrolled
    def put_sums(place, sums, largest, weight):
        """This warp's part to shared memory."""
        g = int32(ptx.lane_id()) >> 2
        t = int32(ptx.lane_id()) & 3
        for h in unroll(2):
            if 2 * t + h < served:
                row = place + uint32((2 * t + h) * slot + g * (per_lane * 4))
                for i in unroll(per_lane // 4):
                    ptx.st_shared_v4_f32(
                        row + uint32(i * 16),
                        sums[i * 8 + h], sums[i * 8 + 2 + h], sums[i * 8 + 4 + h], sums[i * 8 + 6 + h],
                    )  # fmt: skip
        weight += ptx.shfl_xor_f32(weight, uint32(1))
        weight += ptx.shfl_xor_f32(weight, uint32(2))
        if t == 0 and g < served:
            ptx.st_shared_v2_f32(place + uint32(g * slot + head_dim * 4), largest, weight)

    return Fragments(load_keys, load_values, put_new_row, scores, add_values, put_sums)
