"""int8 activations of the token kernel: records of 256.

256 int8, in runs of 16; a run's f32 scale, q = x / scale; the f32 sum of its int8 times that. A block of
weights is multiplied with one such record. In runs of 16, 132 blocks can share out the 18944 inputs of a 7B's
down projection almost evenly (9 runs at most, 8.97 on average), so that whoever makes an activation also
quantizes it.

How a record lies in memory: `Layout`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from numba import cuda
from numba.cuda.types import float32, int32, uint32

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.q8 import largest_bits, quantize_four

WEIGHTS = 256  # a block's
RUN = 16  # activations that share a scale
FACTORS_AT = 256  # in a record, behind its int8


class Layout(NamedTuple):
    """Where things are in a record.

    Attributes:
        pitch: bytes from a record to the next.
        run_at: device function: the offset of a run's int8.
        scale_at: device function: the offset of a run's scale.
        sum_behind: bytes from there to its sum.
        load_factors: device function (shared address of a scale) -> (scale, sum).
        run_places, scale_places: what `run_at` and `scale_at` give, by run. From a run of the first half to
            that of the second it is always as far.
    """

    pitch: int
    run_at: Callable
    scale_at: Callable
    sum_behind: int
    load_factors: Callable
    run_places: tuple[int, ...]
    scale_places: tuple[int, ...]


def record_pitch(spread: bool) -> int:
    """Bytes from a record to the next."""
    return 400 if spread else 384


def record_layout(spread: bool) -> Layout:
    """Natural order: the runs, the scales, the sums. Every record begins on the same bank then, and up to 16
    lanes that load from records of their own meet there. `spread` puts records 4 banks apart, and runs, and
    pairs of a scale and a sum, in an order in which the lanes of `minfer.cuda.token.dots` do not meet."""
    pitch = record_pitch(spread)

    def run_place(run):
        """Two neighbouring records lie one place of 16 bytes apart, of 8 that are different banks. Lanes
        differ in bit 3 of the run and in bit 2 (Q4_K) or 1 (Q6_K), and take places 2 apart."""
        place = run
        if spread:
            place = (run & 1) | ((run ^ (run >> 1)) & 2) | ((run >> 1) & 4) | ((run & 2) << 2)
        return place * 16

    def scale_place(run):
        """As `run_at`, with places of 8 bytes: records are two apart, lanes differ in bits 0 and 3; of
        Q6_K with four lanes a block in bit 2 as well, so that two meet."""
        at = run * 4
        if spread:
            at = ((run >> 3) | ((run & 3) << 1) | (((run ^ (run >> 1)) & 2) << 2)) * 8
        return FACTORS_AT + at

    sum_behind = 4 if spread else 64

    @device_function
    @unrolled
    def load_factors(at):
        if spread:
            scale, total = ptx.ld_shared_v2_f32(at)
        else:
            scale = ptx.ld_shared_f32(at)
            total = ptx.ld_shared_f32(at + uint32(sum_behind))
        return scale, total

    run_places, scale_places = (tuple(place(run) for run in range(16)) for place in (run_place, scale_place))
    return Layout(
        pitch, device_function(run_place), device_function(scale_place), sum_behind, load_factors, run_places,
        scale_places,
    )  # fmt: skip


def make_quantize(fours: int) -> Callable:
    """Device function (values, words, scales, sums): so many fours of activations, each as one of
    `quantize_run`; `values` f32, `words` u32, `scales` and `sums` f32 are local arrays. Side by side: one
    after the other each would wait for its own shuffles."""

    @device_function
    @unrolled
    def quantize(values, words, scales, sums):
        tops = cuda.local.array(fours, uint32)
        totals = cuda.local.array(fours, uint32)
        for i in unroll(fours):
            tops[i] = largest_bits(values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3])
        for step in unroll(2):
            for i in unroll(fours):
                tops[i] = max(tops[i], ptx.shfl_xor_u32(tops[i], 1 + step))
        for i in unroll(fours):
            top = ptx.bitcast_f32_u32(tops[i])
            inverse = float32(0)
            if tops[i] != 0:
                inverse = float32(127) * ptx.rcp_approx(top)
            word, part = quantize_four(
                values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3], inverse
            )
            words[i] = word
            totals[i] = uint32(part)
            scales[i] = top * float32(1.0 / 127.0)
        for step in unroll(2):
            for i in unroll(fours):
                totals[i] = uint32(totals[i] + ptx.shfl_xor_u32(totals[i], 1 + step))
        for i in unroll(fours):
            sums[i] = scales[i] * ptx.cvt_rn_f32_s32(int32(totals[i]))

    return quantize


_quantize_four = make_quantize(1)


@device_function
def quantize_run(v0, v1, v2, v3):
    """(word, scale, sum) of four activations: their int8, the scale of their run of 16, and its sum of int8
    times that. All 32 lanes call it, neighbouring lanes with neighbouring fours: 4 lanes share a run. A NaN
    makes its run's scale NaN, an infinity makes it infinite."""
    values = cuda.local.array(4, float32)
    values[0] = v0
    values[1] = v1
    values[2] = v2
    values[3] = v3
    words = cuda.local.array(1, uint32)
    scales = cuda.local.array(1, float32)
    sums = cuda.local.array(1, float32)
    _quantize_four(values, words, scales, sums)
    return words[0], scales[0], sums[0]
