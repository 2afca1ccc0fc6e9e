"""How blocks hand activations to each other: sums (the residual stream, the attention's row) and records.

"barrier": what is stored is told by a counter in memory, after the stores; all blocks wait for it and load.
Before a block may tell, memory has to confirm its stores, which takes 1 to 3 us while weights stream.

"tags": whatever is stored carries the number of its step, in the same 8 bytes, which memory takes and gives
whole. Nobody waits for a confirmation, and whoever loads sees whether it has come. A sum is (f32, tag); a run
of 16 activations is 4 pairs of (4 int8, 16 bits of its scale and sum with 16 bits of the tag above them).
What lies there before is of the step that has written there last, so that a tag need only differ from that
one; and no block overwrites what another still waits for, since everything that it needs to make its own
depends on all blocks' work of the step between. NCCL's LL protocol does the same.

"bits": so little is told by a tag that its last two bits do, in place of the last two of a sum's mantissa:
half the bytes of a sum and its tag, for a relative error of 2**-21 at most. Records are as with "tags".

Looking takes bandwidth from the weights, and most blocks would look for long. So there is a counter with
tags, too, which blocks add to without waiting for their stores: a hint. Who waits looks for tags when all
blocks but `early` percent have added; with all of them early there is no counter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.elementwise.rows import warp_sum
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.config import TokenConfig
from minfer.cuda.token.records import Layout, make_quantize, quantize_run


class Exchange(NamedTuple):
    """Device functions; a tag is a step's number, `of` the address of the first sum or record.

    Attributes:
        store_sum: (of, index, value, tag).
        load_sum: (of, index): one of a step that is over.
        load_four: (local f32 array, at, of, index, tag): sums index ... index + 3 (a multiple of 4) to the
            array's at ... at + 3; not 0 where one is of another step.
        load_sums: (local f32 array, of, tag): this thread's fours of the residual stream.
        store_run: (of, index, dim, v0, v1, v2, v3, tag): quantizes and stores activations `index` ... `index
            + 3` (a multiple of 4) of `dim`. All 32 lanes call it, neighbouring lanes with neighbouring fours.
            Past `dim` nothing is stored.
    """

    store_sum: Callable
    load_sum: Callable
    load_four: Callable
    load_sums: Callable
    store_run: Callable


def make_exchange(config: TokenConfig) -> Exchange:
    """The functions of `config.exchange`."""
    dim, threads = config.hidden, config.threads
    return (
        _tagged(dim, threads, _short_sums() if config.exchange == "bits" else _paired_sums())
        if config.tagged
        else _plain(dim, threads, config.layout)
    )


def sum_rounds(dim: int, threads: int) -> int:
    """Fours of the residual stream that a thread takes, one after the other."""
    return -(-dim // (4 * threads))


@device_function
def load_four_f32(values, at, address):
    """Four f32 to a local array's at ... at + 3."""
    v0, v1, v2, v3 = ptx.ld_global_v4_f32(address)
    values[at] = v0
    values[at + 1] = v1
    values[at + 2] = v2
    values[at + 3] = v3


def make_load(dim: int, threads: int) -> Callable:
    """Device function (local f32 array, address): this thread's fours of `dim` f32."""
    fours, rounds = dim // 4, sum_rounds(dim, threads)

    @device_function
    @unrolled
    def load_fours(values, x):
        for i in unroll(rounds):
            four = int32(cuda.threadIdx.x) + int32(i * threads)
            if four < fours:
                load_four_f32(values, i * 4, x + uint64(four) * uint64(16))

    return load_fours


def _plain(dim: int, threads: int, layout: Layout) -> Exchange:
    load_fours = make_load(dim, threads)
    pitch, run_at, scale_at, sum_behind = layout.pitch, layout.run_at, layout.scale_at, layout.sum_behind

    @device_function
    def store_sum(of, index, value, tag):
        ptx.st_global_f32(of + uint64(index) * uint64(4), value)

    @device_function
    def load_sum(of, index):
        return ptx.ld_global_f32(of + uint64(index) * uint64(4))

    @device_function
    def load_four(values, at, of, index, tag):
        load_four_f32(values, at, of + uint64(index * 4))
        return uint32(0)

    @device_function
    def load_sums(values, of, tag):
        load_fours(values, of)

    @device_function
    def store_run(of, index, dim, v0, v1, v2, v3, tag):
        word, scale, total = quantize_run(v0, v1, v2, v3)
        if index >= dim:
            return
        run = (index >> 4) & 15
        base = of + uint64((index >> 8) * pitch)
        ptx.st_global_u32(base + uint64(run_at(run) + (index & 15)), word)
        if (index & 15) == 0:
            tail = base + uint64(scale_at(run))
            ptx.st_global_f32(tail, scale)
            ptx.st_global_f32(tail + uint64(sum_behind), total)

    return Exchange(store_sum, load_sum, load_four, load_sums, store_run)


class TaggedSums(NamedTuple):
    """How a sum carries a tag.

    Attributes:
        store: device function (of, index, value, tag).
        load_old: device function (of, index): one of a step that is over.
        load_four: as `Exchange.load_four`.
    """

    store: Callable
    load_old: Callable
    load_four: Callable


def _paired_sums() -> TaggedSums:
    @device_function
    def store(of, index, value, tag):
        ptx.st_pair(of + uint64(index) * uint64(8), ptx.bitcast_u32_f32(value), tag)

    @device_function
    def load_old(of, index):
        return ptx.bitcast_f32_u32(ptx.ld_relaxed_u32(of + uint64(index) * uint64(8)))

    @device_function
    @unrolled
    def load_four(values, at, of, index, tag):
        wrong = uint32(0)
        for i in unroll(2):
            v0, t0, v1, t1 = ptx.ld_two_pairs(of + uint64(index * 8 + i * 16))
            values[at + i * 2] = ptx.bitcast_f32_u32(v0)
            values[at + i * 2 + 1] = ptx.bitcast_f32_u32(v1)
            wrong = uint32(wrong | (t0 ^ tag) | (t1 ^ tag))
        return wrong

    return TaggedSums(store, load_old, load_four)


def _short_sums() -> TaggedSums:
    last = 3  # the last two bits

    @device_function
    def store(of, index, value, tag):
        word = (ptx.bitcast_u32_f32(value) & uint32(~last)) | (tag & uint32(last))
        ptx.st_relaxed_u32(of + uint64(index) * uint64(4), word)

    @device_function
    def load_old(of, index):
        return ptx.bitcast_f32_u32(ptx.ld_relaxed_u32(of + uint64(index) * uint64(4)) & uint32(~last))

    @device_function
    @unrolled
    def load_four(values, at, of, index, tag):
        w0, w1, w2, w3 = ptx.ld_relaxed_v4_u32(of + uint64(index * 4))
        values[at] = ptx.bitcast_f32_u32(w0 & uint32(~last))
        values[at + 1] = ptx.bitcast_f32_u32(w1 & uint32(~last))
        values[at + 2] = ptx.bitcast_f32_u32(w2 & uint32(~last))
        values[at + 3] = ptx.bitcast_f32_u32(w3 & uint32(~last))
        return ((w0 ^ tag) | (w1 ^ tag) | (w2 ^ tag) | (w3 ^ tag)) & uint32(last)

    return TaggedSums(store, load_old, load_four)


def _tagged(dim: int, threads: int, sums: TaggedSums) -> Exchange:
    fours, rounds = dim // 4, sum_rounds(dim, threads)
    load_four = sums.load_four

    @device_function
    @unrolled
    def load_sums(values, of, tag):
        polls = uint32(0)
        wrong = uint32(1)
        while wrong != uint32(0):
            wrong = uint32(0)
            for i in unroll(rounds):
                four = int32(cuda.threadIdx.x) + int32(i * threads)
                if four < fours:
                    wrong = uint32(wrong | load_four(values, i * 4, of, four * 4, tag))
            if wrong != uint32(0):
                polls = uint32(polls + uint32(1))
                ptx.poll_again(polls)

    @device_function
    def store_run(of, index, dim, v0, v1, v2, v3, tag):
        word, scale, total = quantize_run(v0, v1, v2, v3)
        if index >= dim:
            return
        factor = ptx.bitcast_u32_f32(scale)
        if index & 8:
            factor = ptx.bitcast_u32_f32(total)
        if index & 4:
            factor >>= uint32(16)
        # The lower halves of the factor and of the tag.
        ptx.st_pair(of + uint64(index) * uint64(2), word, ptx.prmt(factor, tag, uint32(0x5410)))

    return Exchange(sums.store, sums.load_old, load_four, load_sums, store_run)


def make_norm(config: TokenConfig, load_sums: Callable) -> tuple[Callable, Callable, Callable]:
    """Device functions (records, gains), (records, scratch, residual, tag) and, for one thread behind a
    barrier, (scratch, eps).

    The first brings the gains into shared memory, behind where the records will be, before the activations
    are there; the second leaves the records of the residual stream times the gains at the shared address
    `records`, and the warps' sums of its squares in `scratch`; the third puts 1 / rms behind those, for what
    is made of the records."""
    warps, threads, dim, fours = config.warps, config.threads, config.hidden, config.hidden // 4
    rounds, gains_at = sum_rounds(config.hidden, threads), config.gains_at
    held, quantize = rounds * 4, make_quantize(rounds)
    pitch, run_at, scale_at, sum_behind = config.layout[:4]
    all_have_come = ptx.cp_async_wait_group(0)

    @device_function
    def store_run(records, index, word, scale, total):
        run = (index >> 4) & 15
        base = records + uint32((index >> 8) * pitch)
        ptx.st_shared_u32(base + uint32(run_at(run) + (index & 15)), word)
        if (index & 15) == 0:
            tail = base + uint32(scale_at(run))
            ptx.st_shared_f32(tail, scale)
            ptx.st_shared_f32(tail + uint32(sum_behind), total)

    @device_function
    @unrolled
    def prepare(records, gains):
        for i in unroll(rounds):  # a thread copies what it will multiply with
            four = int32(cuda.threadIdx.x) + int32(i * threads)
            if four < fours:
                place = records + uint32(gains_at) + uint32(four * 16)
                ptx.cp_async_cg_16(place, gains + uint64(four) * uint64(16), uint32(16))
        ptx.cp_async_commit()

    @device_function
    @unrolled
    def norm(records, scratch, residual, tag):
        values = cuda.local.array(held, float32)
        for i in unroll(held):
            values[i] = float32(0)
        load_sums(values, residual, tag)
        all_have_come()
        squares = float32(0)
        for i in unroll(held):
            squares += values[i] * values[i]
        for i in unroll(rounds):
            four = int32(cuda.threadIdx.x) + int32(i * threads)
            if four < fours:
                g0, g1, g2, g3 = ptx.ld_shared_v4_f32(records + uint32(gains_at) + uint32(four * 16))
                values[i * 4] *= g0
                values[i * 4 + 1] *= g1
                values[i * 4 + 2] *= g2
                values[i * 4 + 3] *= g3
        words = cuda.local.array(rounds, uint32)
        scales = cuda.local.array(rounds, float32)
        sums = cuda.local.array(rounds, float32)
        squares = warp_sum(squares)  # here: its shuffles are hidden by the others
        quantize(values, words, scales, sums)
        for i in unroll(rounds):
            four = int32(cuda.threadIdx.x) + int32(i * threads)
            if four < fours:
                store_run(records, four * 4, words[i], scales[i], sums[i])
        if ptx.lane_id() == 0:
            ptx.st_shared_f32(scratch + uint32((int32(cuda.threadIdx.x) >> 5) * 4), squares)

    @device_function
    @unrolled
    def put_scale(scratch, eps):
        total = float32(0)
        for w in unroll(warps):
            total += ptx.ld_shared_f32(scratch + uint32(w * 4))
        scale = ptx.rsqrt_approx(total * float32(1.0 / dim) + eps)
        ptx.st_shared_f32(scratch + uint32(warps * 4), scale)

    return prepare, norm, put_scale


def make_copy(config: TokenConfig, dim: int) -> Callable:
    """Device function (records, source, tag): `dim` activations, as other blocks have stored them, to records
    at a shared address. Plain loads: the copy engine does not see what another block has just written."""
    return _copy_tagged(config, dim) if config.tagged else _copy_plain(config, dim)


def _copy_plain(config: TokenConfig, dim: int) -> Callable:
    threads, chunks = config.threads, config.record_bytes(dim) // 16
    rounds = -(-chunks // threads)
    held = 4 * rounds

    @device_function
    @unrolled
    def copy(records, source, tag):
        words = cuda.local.array(held, uint32)
        for i in unroll(rounds):
            at = int32(cuda.threadIdx.x) + int32(i * threads)
            if at < chunks:
                w0, w1, w2, w3 = ptx.ld_global_v4_u32(source + uint64(at) * uint64(16))
                words[i * 4] = w0
                words[i * 4 + 1] = w1
                words[i * 4 + 2] = w2
                words[i * 4 + 3] = w3
        for i in unroll(rounds):
            at = int32(cuda.threadIdx.x) + int32(i * threads)
            if at < chunks:
                place = records + uint32(at * 16)
                ptx.st_shared_v4_u32(
                    place, words[i * 4], words[i * 4 + 1], words[i * 4 + 2], words[i * 4 + 3]
                )

    return copy


def _copy_tagged(config: TokenConfig, dim: int) -> Callable:
    threads, chunks = config.threads, dim // 8  # half a run each, and its scale or its sum
    rounds = -(-chunks // threads)
    held = 4 * rounds
    pitch, run_at, scale_at, sum_behind = config.layout[:4]

    @device_function
    @unrolled
    def copy(records, source, tag):
        words = cuda.local.array(held, uint32)
        wanted = uint32(tag << uint32(16))
        polls = uint32(0)
        wrong = uint32(0x10000)
        while wrong >= uint32(0x10000):
            wrong = uint32(0)
            for i in unroll(rounds):
                at = int32(cuda.threadIdx.x) + int32(i * threads)
                if at < chunks:
                    w0, f0, w1, f1 = ptx.ld_two_pairs(source + uint64(at) * uint64(16))
                    words[i * 4] = w0
                    words[i * 4 + 1] = f0
                    words[i * 4 + 2] = w1
                    words[i * 4 + 3] = f1
                    wrong = uint32(wrong | (f0 ^ wanted) | (f1 ^ wanted))
            if wrong >= uint32(0x10000):
                polls = uint32(polls + uint32(1))
                ptx.poll_again(polls)
        for i in unroll(rounds):
            at = int32(cuda.threadIdx.x) + int32(i * threads)
            if at < chunks:
                run = (at >> 1) & 15
                second = at & 1
                record = records + uint32((at >> 5) * pitch)
                ptx.st_shared_v2_u32(
                    record + uint32(run_at(run) + second * 8), words[i * 4], words[i * 4 + 2]
                )
                factor = ptx.prmt(words[i * 4 + 1], words[i * 4 + 3], uint32(0x5410))
                ptx.st_shared_u32(record + uint32(scale_at(run) + second * sum_behind), factor)

    return copy
