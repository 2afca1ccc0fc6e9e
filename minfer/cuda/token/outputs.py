"""What becomes of the tiles: one warp adds up what the others have made of them, and writes the outputs."""

from __future__ import annotations

from collections.abc import Callable

from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.elementwise.activation import silu_product
from minfer.cuda.instruction import device_function
from minfer.cuda.token.addresses import ACTIVATED_RECORDS, BARRIERS, LOGITS, QKV, X, address_of
from minfer.cuda.token.config import ENTRY_BYTES, TokenConfig, row_groups
from minfer.cuda.token.records import store_record
from minfer.cuda.token.schedule import ADD, ARRIVE, ATTENTION, PAIRS, TO_QKV
from minfer.cuda.token.tiles import block_rows, cut


def make_finish(config: TokenConfig) -> Callable:
    """Device function (shared, block, blocks), for one warp."""
    entries, slots, outputs = config.entries, config.slots, config.outputs
    done_at, free_at = config.done_at, config.free_at
    addresses_at, table_at = config.addresses_at, config.table_at
    partials_at, partial_bytes, outputs_at = config.partials_at, config.partial_bytes, config.outputs_at

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
    def finish(shared, block, blocks):
        addresses = shared + uint32(addresses_at)
        lane = int32(ptx.lane_id())
        number = uint32(0)
        parity = uint32(0)
        for e in range(entries):
            at = shared + uint32(table_at + e * ENTRY_BYTES + 16)
            rows, shape, word, _ = ptx.ld_shared_v4_u32(at)
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
                    ptx.mbarrier_wait(shared + uint32(done_at) + number * uint32(8), parity)
                    total = float32(0)
                    if lane < count * pieces:
                        partials = shared + uint32(partials_at) + number * uint32(partial_bytes)
                        total = add_up(partials, lane, groups)
                    ptx.syncwarp()
                    if lane == 0:
                        ptx.mbarrier_arrive(shared + uint32(free_at) + number * uint32(8))
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

    return finish
