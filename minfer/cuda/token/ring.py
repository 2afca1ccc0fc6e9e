"""The stream of weights, and what becomes of the tiles: one warp's work.

Weights depend on nothing, so that the next tile is asked for as soon as a slot is free, whatever phase it
belongs to: while blocks wait for each other, and while they attend, the ring fills with the weights of the
phases to come. The same warp adds up what the others have made of a tile, and writes the outputs.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.elementwise.activation import silu_product
from minfer.cuda.instruction import device_function, unrolled
from minfer.cuda.token.addresses import (
    ACTIVATED_RECORDS,
    BARRIERS,
    LOGITS,
    QKV,
    WEIGHTS,
    X,
    address_of,
    join,
)
from minfer.cuda.token.config import ENTRY_BYTES, SLOT_BYTES, TokenConfig, row_groups
from minfer.cuda.token.records import store_record
from minfer.cuda.token.schedule import ADD, ARRIVE, ATTENTION, PAIRS, TO_QKV
from minfer.cuda.token.tiles import block_rows, cut

ENTRY, BEGIN, LAST = range(3)
"""Of a cursor: entry, first output of the tile, end of the block's outputs."""


def make_stream(config: TokenConfig) -> Callable:
    """Device function (shared, block, blocks), for one warp."""
    entries, slots = config.entries, config.slots
    outputs = config.outputs
    full_at, done_at = 0, slots * 8
    addresses_at, table_at = config.addresses_at, config.table_at
    partials_at, partial_bytes, outputs_at, ring_at = (
        config.partials_at, config.partial_bytes, config.outputs_at, config.ring_at
    )  # fmt: skip

    @device_function
    def seek(cursor, table, block, blocks):
        """Bring the cursor to the next tile, past entries that have none for this block."""
        while cursor[ENTRY] < entries and cursor[BEGIN] >= cursor[LAST]:
            cursor[ENTRY] += int32(1)
            if cursor[ENTRY] < entries:
                at = table + uint32(cursor[ENTRY] * ENTRY_BYTES + 16)
                rows, _, flags, _ = ptx.ld_shared_v4_u32(at)
                if not int32(flags) & ATTENTION:
                    first, last = block_rows(int32(flags), int32(rows), block, blocks)
                    cursor[BEGIN] = first
                    cursor[LAST] = last

    @device_function
    def fetch(cursor, table, weights, slot, full, block, blocks):
        """Start the copies of the cursor's tile, one a lane, and go on to the next tile."""
        seek(cursor, table, block, blocks)
        if cursor[ENTRY] >= entries:
            ptx.mbarrier_arrive(full)
        else:
            at = table + uint32(cursor[ENTRY] * ENTRY_BYTES)
            low, high, _, _ = ptx.ld_shared_v4_u32(at)
            rows, shape, word, _ = ptx.ld_shared_v4_u32(at + uint32(16))
            each, pieces, pitch = cut(int32(word), int32(shape) & 255)
            lane = int32(ptx.lane_id())
            outputs = int32(min(each, cursor[LAST] - cursor[BEGIN]))
            if lane < pieces:
                row = cursor[BEGIN] + lane * int32(rows)
                address = weights + join(low, high) + uint64(row) * uint64(pitch)
                line = address & uint64(0xFFFFFFFFFFFFFFF0)
                length = uint32(outputs * pitch)
                size = (uint32(address - line) + length + uint32(15)) & uint32(0xFFFFFFF0)
                ptx.mbarrier_arrive_expect_tx(full, size)
                ptx.bulk_load(slot + uint32(lane * outputs * pitch), line, size, full)
            else:
                ptx.mbarrier_arrive(full)
            cursor[BEGIN] += each

    @device_function
    def add_up(partials, row, groups):
        """A row's sum over its groups."""
        total = float32(0)
        for g in range(groups):
            total += ptx.ld_shared_f32(partials + uint32((row * groups + int32(g)) * 4))
        return total

    @device_function
    def write_records(shared, activated, first, last):
        """The block's gated activations."""
        for base in range(0, outputs, 128):
            local = int32(base) + int32(ptx.lane_id()) * 4
            v0 = float32(0)
            v1 = float32(0)
            v2 = float32(0)
            v3 = float32(0)
            if local < last - first:
                v0, v1, v2, v3 = ptx.ld_shared_v4_f32(shared + uint32(outputs_at + local * 4))
            store_record(activated, first + local, last, v0, v1, v2, v3)

    @device_function
    @unrolled
    def stream(shared, block, blocks):
        addresses = shared + uint32(addresses_at)
        table = shared + uint32(table_at)
        weights = address_of(addresses, WEIGHTS)
        lane = int32(ptx.lane_id())
        cursor = cuda.local.array(3, int32)
        cursor[ENTRY] = int32(-1)
        cursor[BEGIN] = int32(0)
        cursor[LAST] = int32(0)
        ring = shared + uint32(ring_at)
        for n in range(slots):
            full = shared + uint32(full_at + n * 8)
            fetch(cursor, table, weights, ring + uint32(n * SLOT_BYTES), full, block, blocks)
        ptx.griddepcontrol_wait()
        number = uint32(0)
        parity = uint32(0)
        freed = int32(-1)  # a slot to be filled again
        for e in range(entries):
            rows, shape, word, _ = ptx.ld_shared_v4_u32(table + uint32(e * ENTRY_BYTES + 16))
            flags = int32(word)
            if not flags & ATTENTION:
                units = int32(shape) & 255
                first, last = block_rows(flags, int32(rows), block, blocks)
                each, pieces, _ = cut(flags, units)
                groups = int32(row_groups(units))
                y = address_of(addresses, LOGITS)
                if flags & ADD:
                    y = address_of(addresses, X)
                if flags & TO_QKV:
                    y = address_of(addresses, QKV) + uint64(int32(shape) >> 8) * uint64(4)
                for begin in range(first, last, each):
                    count = int32(min(each, last - begin))
                    row = int32(begin) + lane
                    old = float32(0)
                    if flags & ADD and lane < count:
                        old = ptx.ld_global_f32(y + uint64(row) * uint64(4))
                    if freed >= 0:
                        full = shared + uint32(full_at + freed * 8)
                        slot = ring + uint32(freed * SLOT_BYTES)
                        fetch(cursor, table, weights, slot, full, block, blocks)
                    ptx.mbarrier_wait(shared + uint32(done_at) + number * uint32(8), parity)
                    total = float32(0)
                    if lane < count * pieces:
                        partials = shared + uint32(partials_at) + number * uint32(partial_bytes)
                        total = add_up(partials, lane, groups)
                    ptx.syncwarp()
                    freed = int32(number)
                    number += uint32(1)
                    if number == uint32(slots):
                        number = uint32(0)
                        parity ^= uint32(1)
                    if flags & PAIRS:
                        up = ptx.shfl_idx_f32(total, uint32(lane + count) & uint32(31))
                        if lane < count:
                            place = uint32(outputs_at + (row - first) * 4)
                            ptx.st_shared_f32(shared + place, silu_product(total, up))
                    elif lane < count:
                        ptx.st_global_f32(y + uint64(row) * uint64(4), old + total)
                if flags & PAIRS:
                    ptx.syncwarp()
                    write_records(shared, address_of(addresses, ACTIVATED_RECORDS), first, last)
                if flags & ARRIVE:
                    ptx.syncwarp()
                    if lane == 0:
                        ptx.red_add_release_u32(address_of(addresses, BARRIERS), uint32(1))

    return stream
