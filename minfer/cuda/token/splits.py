"""Putting the parts of a decode step's attention together: the warps of a block through shared memory, the
blocks of a head group through memory, by the last of them to finish."""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.attention.config import NEVER
from minfer.cuda.elementwise.rows import warp_sum
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.config import MOST_SPLITS

CHUNK = 8  # splits whose sums a thread has in flight


def make_gather(served: int, head_dim: int, parts: int) -> Callable:
    """Device function (sums, head, dim) -> (four sums, maximum, sum of weights): four dims of a head from
    `parts` parts in shared memory, each [served, head_dim + 4] f32: sums, maximum in log2 units, sum of
    weights, two unused."""
    slot = (head_dim + 4) * 4

    @device_function
    @unrolled
    def gather(sums, h, d):
        mine = sums + uint32(h * slot)
        top = float32(NEVER)
        for g in unroll(parts):
            top = ptx.max_f32(top, ptx.ld_shared_f32(mine + uint32(g * (served * slot) + head_dim * 4)))
        a0 = float32(0)
        a1 = float32(0)
        a2 = float32(0)
        a3 = float32(0)
        weight = float32(0)
        for g in unroll(parts):
            at = mine + uint32(g * (served * slot))
            largest, share = ptx.ld_shared_v2_f32(at + uint32(head_dim * 4))
            b0, b1, b2, b3 = ptx.ld_shared_v4_f32(at + uint32(d * 4))
            factor = ptx.ex2_approx(largest - top)
            weight += factor * share
            a0 += factor * b0
            a1 += factor * b1
            a2 += factor * b2
            a3 += factor * b3
        return a0, a1, a2, a3, top, weight

    return gather


def make_combine(served: int, head_dim: int, splits: int, warps: int) -> tuple[Callable, Callable]:
    """Device functions (factors, statistics, first head, active): what each split's sums are multiplied with,
    to [served, MOST_SPLITS] f32 in shared memory; and (factors, partial, first head, head, dim, active) ->
    four dims of a head, normalised, from all splits. partial f32 [heads, splits, head_dim], statistics f32
    [heads, splits, 2]."""

    rounds = -(-served // warps)

    @device_function
    def warp_max(v):
        for step in range(5):
            v = ptx.max_f32(v, ptx.shfl_xor_f32(v, uint32(1 << step)))
        return v

    @device_function
    @unrolled
    def split_factors(factors, statistics, first_head, active):
        lane = int32(ptx.lane_id())
        for i in unroll(rounds):
            h = int32((int32(cuda.threadIdx.x) >> 5) + int32(i * warps))
            if h < served:
                ours = statistics + uint64((first_head + h) * splits) * uint64(8)
                largest0 = float32(NEVER)
                weight0 = float32(0)
                largest1 = float32(NEVER)
                weight1 = float32(0)
                if lane < active:
                    largest0, weight0 = ptx.ld_global_v2_f32(ours + uint64(lane) * uint64(8))
                if lane + 32 < active:
                    largest1, weight1 = ptx.ld_global_v2_f32(ours + uint64(lane + 32) * uint64(8))
                top = warp_max(ptx.max_f32(largest0, largest1))
                factor0 = ptx.ex2_approx(largest0 - top)
                factor1 = ptx.ex2_approx(largest1 - top)
                inverse = ptx.rcp_approx(warp_sum(factor0 * weight0 + factor1 * weight1))
                row = factors + uint32(h * (MOST_SPLITS * 4) + lane * 4)
                ptx.st_shared_f32(row, factor0 * inverse)
                ptx.st_shared_f32(row + uint32(128), factor1 * inverse)

    @device_function
    @unrolled
    def combine(factors, partial, first_head, h, d, active):
        ours = partial + (uint64((first_head + h) * splits) * uint64(head_dim) + uint64(d)) * uint64(4)
        parts = cuda.local.array(32, float32)
        a0 = float32(0)
        a1 = float32(0)
        a2 = float32(0)
        a3 = float32(0)
        for base in range(0, active, CHUNK):
            for i in unroll(CHUNK):
                s = int32(min(base + i, active - 1))
                b0, b1, b2, b3 = ptx.ld_global_v4_f32(ours + uint64(s) * uint64(head_dim * 4))
                parts[i * 4] = b0
                parts[i * 4 + 1] = b1
                parts[i * 4 + 2] = b2
                parts[i * 4 + 3] = b3
            for i in unroll(CHUNK):
                if base + i < active:
                    factor = ptx.ld_shared_f32(factors + uint32((h * MOST_SPLITS + base + i) * 4))
                    a0 += factor * parts[i * 4]
                    a1 += factor * parts[i * 4 + 1]
                    a2 += factor * parts[i * 4 + 2]
                    a3 += factor * parts[i * 4 + 3]
        return a0, a1, a2, a3

    return split_factors, combine
