"""The attention of the token kernel: bias and RoPE, the KV store, split-KV attention on tensor cores and the
combination of the splits.

One query row per head leaves tensor cores mostly idle, but the query heads that share a kv head are rows of
one matrix, and K and V are read once for all of them. What does not depend on the projection is on its way
before that is there: older rows of the cache, the angles, the biases. The last warps of a block turn the new
token's row in registers as it comes and put it where the scores read it, without a detour through the cache;
if there are few rows, they have none to wait for. Up to a few turns of rows are one block's work; longer
contexts are split, and the last block of a head group combines the splits, in their order, whoever it is.

Dao et al. 2023, "Flash-Decoding".
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.attention.config import LOG2_E, NEVER
from minfer.cuda.elementwise.rotary import load_angles, rotate_adjacent, rotate_halves
from minfer.cuda.elementwise.rotary_store import part_place
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.addresses import (
    ATTENDED_RECORDS,
    COUNTERS,
    KEYS,
    PARTIAL,
    POSITION,
    QKV,
    ROPE_TABLE,
    STATISTICS,
    VALUES,
    VECTORS,
    address_of,
)
from minfer.cuda.token.config import MOST_HEADS, TokenConfig
from minfer.cuda.token.exchange import Exchange, load_four_f32
from minfer.cuda.token.fragments import make_fragments
from minfer.cuda.token.splits import make_combine, make_gather


def make_attend(
    config: TokenConfig, exchange: Exchange, wait: Callable, arrive: Callable, sync: Callable
) -> Callable:
    """Device function (shared, addresses, block, counter, target, tag, keys, bias, values, scale), for the
    threads that multiply, in all blocks: `shared` is room for `config.attention_bytes`; keys, bias and values
    are offsets of the layer's; `tag` is the projection's. Without tags it waits for that by wait(counter,
    target). It tells by arrive(counter, times), in all as often as there are blocks; `sync` is the barrier of
    a block's threads."""
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    served, splits, groups = config.block_heads, config.splits, config.groups
    threads, warps = config.threads, config.attention_warps
    turn_rows, one_block = config.turn_rows, config.one_block_rows
    pieces = head_dim // 32  # 16-byte pieces of a row that a lane takes for the scores
    per_lane = head_dim // 8  # dims that a lane has for the output, and mma tiles of it
    lanes = head_dim // 8  # that stage a head
    pitch = kv_heads * head_dim * 2
    per_kv_head = heads // kv_heads // served
    key_at, value_at = MOST_HEADS * head_dim * 2, (MOST_HEADS + 1) * head_dim * 2
    flag_at, sums_at = value_at + head_dim * 2, config.query_bytes
    slot = (head_dim + 4) * 4  # bytes of a head's sums, maximum, sum of weights
    empty = (MOST_HEADS - served) * head_dim // 2
    clear_rounds = -(-empty // threads)
    units, unit_bits = (served + 2) * lanes, lanes.bit_length() - 1
    unit_rounds = -(-units // threads)
    # The last warps stage the row: some have no rows of the cache to wait for.
    stagers_at = max(0, threads - -(-units // 32) * 32)
    fours = served * head_dim // 4
    four_rounds = -(-fours // threads)
    key_words, value_words = 8 * pieces, 2 * per_lane
    tagged, blocks = config.tagged, config.blocks
    load_four, store_run = exchange.load_four, exchange.store_run
    place, rotate = part_place(config.row), rotate_adjacent if config.interleaved else rotate_halves
    unit_values = 8 * unit_rounds
    parts = make_fragments(served, kv_heads, head_dim)
    load_keys, load_values, put_new_row = parts.load_keys, parts.load_values, parts.put_new_row
    scores, add_values, put_sums = parts.scores, parts.add_values, parts.put_sums
    gather = make_gather(served, head_dim, warps)
    split_factors, combine = make_combine(served, head_dim, splits, config.warps)
    total, biased, rotary = heads * head_dim, config.bias, config.rotary

    @device_function
    def unit_place(i, kv_head, first_head):
        """(whether there is such a unit, its head in the stacked row, local head, part)."""
        unit = int32(int32(cuda.threadIdx.x) + int32(i * threads - stagers_at))
        inside = 0 <= unit < units
        if not inside:
            unit = int32(0)
        local = int32(unit >> unit_bits)
        head = int32(first_head + local)
        if local >= served:
            head = int32(heads + (local - served) * kv_heads + kv_head)
        return inside, head, local, int32(unit & (lanes - 1))

    @device_function
    @unrolled
    def prepare(angles, biases, bias, table, kv_head, first_head):
        """What the row is worked on with: it is there before the row is."""
        for i in unroll(unit_rounds):
            _, head, _, part = unit_place(i, kv_head, first_head)
            rotated, low, high = place(head, part)
            if rotated:
                load_angles(angles, i * 8, table + uint64(part * 32))
            if biased:
                column = bias + uint64(head * (head_dim * 4))
                load_four_f32(biases, i * 8, column + uint64(low * 4))
                load_four_f32(biases, i * 8 + 4, column + uint64(high * 4))

    @device_function
    @unrolled
    def load_row(values, row, kv_head, first_head, tag):
        """This thread's units of the projection, as soon as they are there."""
        polls = uint32(0)
        wrong = uint32(1)
        while wrong != uint32(0):
            wrong = uint32(0)
            for i in unroll(unit_rounds):
                inside, head, _, part = unit_place(i, kv_head, first_head)
                _, low, high = place(head, part)
                if inside:
                    column = head * head_dim
                    wrong = uint32(wrong | load_four(values, i * 8, row, column + low, tag))
                    wrong = uint32(wrong | load_four(values, i * 8 + 4, row, column + high, tag))
            if wrong != uint32(0):
                polls = uint32(polls + uint32(1))
                ptx.poll_again(polls)

    @device_function
    @unrolled
    def stage_row(shared, row, angles, biases, kv_head, first_head, tag):
        """Rotated queries and the new key and value as f16 to shared memory."""
        values = cuda.local.array(unit_values, float32)
        load_row(values, row, kv_head, first_head, tag)
        for i in unroll(unit_rounds):
            inside, head, local, part = unit_place(i, kv_head, first_head)
            rotated, low, high = place(head, part)
            if inside:
                if biased:
                    for j in unroll(8):
                        values[i * 8 + j] += biases[i * 8 + j]
                a0, a1, a2, a3 = values[i * 8], values[i * 8 + 1], values[i * 8 + 2], values[i * 8 + 3]
                b0, b1, b2, b3 = values[i * 8 + 4], values[i * 8 + 5], values[i * 8 + 6], values[i * 8 + 7]
                if rotated:
                    a0, a1, a2, a3, b0, b1, b2, b3 = rotate(angles, i * 8, a0, a1, a2, a3, b0, b1, b2, b3)
                at = shared + uint32(local * (head_dim * 2))
                if local >= served:
                    at = shared + uint32(key_at + (local - served) * (head_dim * 2))
                ptx.st_shared_v2_u32(at + uint32(low * 2), ptx.pack_f16x2(a0, a1), ptx.pack_f16x2(a2, a3))
                ptx.st_shared_v2_u32(at + uint32(high * 2), ptx.pack_f16x2(b0, b1), ptx.pack_f16x2(b2, b3))

    @device_function
    @unrolled
    def clear_columns(shared):
        """Columns without a head: zero."""
        for i in unroll(clear_rounds):
            at = int32(cuda.threadIdx.x) + int32(i * threads)
            if at < empty:
                ptx.st_shared_u32(shared + uint32(served * head_dim * 2 + at * 4), uint32(0))

    @device_function
    def store_row(shared, keys, values, position):
        """The new key and value to the cache, by the last warp: it may have no rows to attend to."""
        thread = int32(cuda.threadIdx.x) - int32(threads - 32)
        if 0 <= thread < lanes:
            at = uint64(position) * uint64(pitch) + uint64(thread * 16)
            w0, w1, w2, w3 = ptx.ld_shared_v4_u32(shared + uint32(key_at + thread * 16))
            ptx.st_global_v4_u32(keys + at, w0, w1, w2, w3)
            w0, w1, w2, w3 = ptx.ld_shared_v4_u32(shared + uint32(value_at + thread * 16))
            ptx.st_global_v4_u32(values + at, w0, w1, w2, w3)

    @device_function
    @unrolled
    def attend_rows(shared, keys, values, key_buffer, value_buffer, warp, first, end, position, scale):
        """One warp's rows first ..., every turn_rows: its sums to shared memory. The first turn's older keys
        and values are in the buffers."""
        t = int32(ptx.lane_id()) & 3
        sums = cuda.local.array(value_words, float32)
        for i in unroll(2 * per_lane):
            sums[i] = float32(0)
        found = cuda.local.array(4, float32)
        largest = float32(NEVER)
        weight = float32(0)
        factor = scale * float32(LOG2_E)
        old = int32(min(end, position))
        row = first
        while row < end:
            if row > first:
                load_keys(keys, key_buffer, row, old)
                load_values(values, value_buffer, row, old)
            put_new_row(shared + uint32(key_at), key_buffer, value_buffer, row, position)
            scores(shared, key_buffer, found)
            top = largest
            for i in unroll(4):
                found[i] = found[i] * factor
                if int32(row + 2 * t + (i & 1) + (i >> 1) * 8) >= end:
                    found[i] = float32(NEVER)
                top = ptx.max_f32(top, found[i])
            top = ptx.max_f32(top, ptx.shfl_xor_f32(top, uint32(1)))
            top = ptx.max_f32(top, ptx.shfl_xor_f32(top, uint32(2)))
            past = ptx.ex2_approx(largest - top)
            largest = top
            weight *= past
            for i in unroll(4):
                found[i] = ptx.ex2_approx(found[i] - top)
                weight += found[i]
            if row > first:
                past0 = ptx.shfl_idx_f32(past, uint32(t * 8))
                past1 = ptx.shfl_idx_f32(past, uint32(t * 8 + 4))
                for i in unroll(per_lane // 2):
                    sums[i * 4] *= past0
                    sums[i * 4 + 1] *= past1
                    sums[i * 4 + 2] *= past0
                    sums[i * 4 + 3] *= past1
            add_values(
                value_buffer, ptx.pack_f16x2(found[0], found[1]), ptx.pack_f16x2(found[2], found[3]), sums
            )
            row = int32(row + turn_rows)
        put_sums(shared + uint32(sums_at + warp * (served * slot)), sums, largest, weight)

    @device_function
    def put_out(shared, addresses, first_head, split, active, tag):
        """The warps' sums to the output if there is one split, else to the workspace."""
        out = address_of(addresses, ATTENDED_RECORDS)
        partial = address_of(addresses, PARTIAL)
        statistics = address_of(addresses, STATISTICS)
        # Whole warps go round together: the store shuffles.
        for i in range(four_rounds):
            item = int32(cuda.threadIdx.x) + i * threads
            inside = item < fours
            if not inside:
                item = int32(0)
            h = item * 4 // head_dim
            d = item * 4 - h * head_dim
            a0, a1, a2, a3, top, weight = gather(shared + uint32(sums_at), h, d)
            if active == 1:
                inverse = ptx.rcp_approx(weight)
                index = int32(total)
                if inside:
                    index = first_head * head_dim + item * 4
                store_run(
                    out, index, int32(total), a0 * inverse, a1 * inverse, a2 * inverse, a3 * inverse, tag
                )
            elif inside:
                place = uint64((first_head + h) * splits + split)
                target = partial + (place * uint64(head_dim) + uint64(d)) * uint64(4)
                ptx.st_global_v4_f32(target, a0, a1, a2, a3)
                if d == 0:
                    ptx.st_global_v2_f32(statistics + place * uint64(8), top, weight)

    @device_function
    def is_last(shared, counter, active):
        """Whether this block is the last of `active` ones that come here. The counter is zero again then."""
        sync()
        if cuda.threadIdx.x == 0:
            before = ptx.atom_add_global_u32(counter, uint32(1))
            last = uint32(0)
            if before == uint32(active - 1):
                last = uint32(1)
                ptx.st_global_u32(counter, uint32(0))
            ptx.st_shared_u32(shared + uint32(flag_at), last)
        sync()
        return ptx.ld_shared_u32(shared + uint32(flag_at)) == uint32(1)

    @device_function
    def combine_splits(shared, addresses, first_head, active, tag):
        """All splits' sums to the output."""
        out = address_of(addresses, ATTENDED_RECORDS)
        partial = address_of(addresses, PARTIAL)
        statistics = address_of(addresses, STATISTICS)
        factors = shared + uint32(sums_at)
        split_factors(factors, statistics, first_head, active)
        sync()
        for i in range(four_rounds):
            item = int32(cuda.threadIdx.x) + i * threads
            inside = item < fours
            if not inside:
                item = int32(0)
            h = item * 4 // head_dim
            a0, a1, a2, a3 = combine(factors, partial, first_head, h, item * 4 - h * head_dim, active)
            index = int32(total)
            if inside:
                index = first_head * head_dim + item * 4
            store_run(out, index, int32(total), a0, a1, a2, a3, tag)

    @device_function
    @unrolled
    def attend(shared, addresses, block, counter, target, tag, keys_at, bias_at, values_at, scale):
        warp = ptx.uniform(int32(cuda.threadIdx.x) >> 5)
        split = int32(ptx.udiv_u32(block, groups))
        group = block - split * int32(groups)
        first_head = group * served
        kv_head = group // per_kv_head
        keys = address_of(addresses, KEYS) + keys_at + uint64(kv_head * (head_dim * 2))
        values = address_of(addresses, VALUES) + values_at + uint64(kv_head * (head_dim * 2))
        bias = address_of(addresses, VECTORS) + bias_at
        position = int32(address_of(addresses, POSITION))
        rows = int32(position + 1)
        share = rows
        active = int32(1)
        if rows > one_block:
            share = int32(max(turn_rows, int32(ptx.udiv_u32(rows + (splits - 1), splits))))
            active = int32(ptx.udiv_u32(rows + (share - 1), share))
        begin = int32(split * share)
        end = int32(min(begin + share, rows))
        first = int32(begin + warp * 16)
        if split >= active:
            if not tagged:
                wait(counter, target)
        else:
            key_buffer = cuda.local.array(key_words, uint32)
            value_buffer = cuda.local.array(value_words, uint32)
            if warp < warps:
                old = int32(min(end, position))
                load_keys(keys, key_buffer, first, old)
                load_values(values, value_buffer, first, old)
            angles = cuda.local.array(unit_values, float32)
            biases = cuda.local.array(unit_values, float32)
            table = address_of(addresses, ROPE_TABLE) + uint64(position) * uint64(rotary * 4)
            prepare(angles, biases, bias, table, kv_head, first_head)
            clear_columns(shared)
            if not tagged:
                wait(counter, target)
            stage_row(shared, address_of(addresses, QKV), angles, biases, kv_head, first_head, tag)
            sync()
            if tagged and split == 0:
                # A hint that the output comes soon, by some who make it, for all blocks.
                arrive(counter, (group + 1) * blocks // groups - group * blocks // groups)
            if split == active - 1 and group == kv_head * per_kv_head:
                store_row(shared, keys, values, position)
            if warp < warps:
                attend_rows(shared, keys, values, key_buffer, value_buffer, warp, first, end, position, scale)
            sync()
            put_out(shared, addresses, first_head, split, active, tag + uint32(1))
            mine = address_of(addresses, COUNTERS) + uint64(group) * uint64(4)
            if active > 1 and is_last(shared, mine, active):
                combine_splits(shared, addresses, first_head, active, tag + uint32(1))
            sync()
        if not tagged:
            arrive(counter, uint32(1))

    return attend
