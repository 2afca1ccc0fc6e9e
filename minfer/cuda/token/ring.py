"""The stream of weights: one warp's work, of which one lane does all.

Weights depend on nothing, so that the next tile is asked for as soon as a slot is free, whatever phase it
belongs to: while blocks wait for each other, and while they attend, the ring fills with the weights of the
phases to come.
"""

from __future__ import annotations

from collections.abc import Callable

from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function
from minfer.cuda.token.addresses import WEIGHTS, address_of, join
from minfer.cuda.token.config import ENTRY_BYTES, TokenConfig
from minfer.cuda.token.schedule import ATTENTION, PAIRS
from minfer.cuda.token.tiles import block_rows, tile_shape, unit_bytes


def make_stream(config: TokenConfig) -> Callable:
    """Device function (shared, block), for one thread."""
    entries, slots, blocks = config.entries, config.slots, config.blocks
    full_at, done_at, slot_bytes = config.full_at, config.done_at, config.slot_bytes
    addresses_at, table_at, ring_at = config.addresses_at, config.table_at, config.ring_at

    @device_function
    def stream(shared, block):
        weights = address_of(shared + uint32(addresses_at), WEIGHTS)
        number = uint32(0)
        parity = uint32(1)
        for e in range(entries):
            at = shared + uint32(table_at + e * ENTRY_BYTES)
            low, high, _, _ = ptx.ld_shared_v4_u32(at)
            rows, _, word, shape = ptx.ld_shared_v4_u32(at + uint32(16))
            flags = int32(word)
            if not flags & ATTENTION:
                first, last = block_rows(flags, int32(rows), block, blocks)
                units, each = tile_shape(shape)
                pitch = units * unit_bytes(flags)
                matrix = weights + join(low, high)
                apart = uint64(rows) * uint64(pitch)  # from gate to up
                for begin in range(first, last, each):
                    address = matrix + uint64(begin) * uint64(pitch)
                    length = uint32(int32(min(each, last - begin)) * pitch)
                    line = address & uint64(0xFFFFFFFFFFFFFFF0)
                    size = (uint32(address - line) + length + uint32(15)) & uint32(0xFFFFFFF0)
                    full = shared + uint32(full_at) + number * uint32(8)
                    slot = shared + uint32(ring_at) + number * uint32(slot_bytes)
                    ptx.mbarrier_wait(shared + uint32(done_at) + number * uint32(8), parity)
                    if flags & PAIRS:
                        ptx.mbarrier_arrive_expect_tx(full, size * uint32(2))
                        ptx.bulk_load(slot + length, line + apart, size, full)
                    else:
                        ptx.mbarrier_arrive_expect_tx(full, size)
                    ptx.bulk_load(slot, line, size, full)
                    number += uint32(1)
                    if number == uint32(slots):
                        number = uint32(0)
                        parity ^= uint32(1)

    return stream
