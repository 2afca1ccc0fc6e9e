"""The stream of weights: one warp's work, of which one lane does all.

Weights depend on nothing, so that the next tile is asked for as soon as a slot is free, whatever phase it
belongs to: while blocks wait for each other, and while they attend, the ring fills with the weights of the
phases to come. When it has been full for a while, the next tiles are brought into L2 (`TokenConfig.ahead`):
memory goes on, and what waits in L2 comes faster than memory delivers. Not where several blocks attend to a
long context: they read its rows then.

A block has few tiles in flight (`TokenConfig.in_flight`): two of 32 KB sustain the bandwidth, and what it
hands on to the others waits behind what all have asked memory for. From a phase's last tiles to the next
one's activations it has one (`TokenConfig.quiet`): memory rests a little, and what is handed on comes sooner.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function, unrolled
from minfer.cuda.token.addresses import POSITIONS, WEIGHTS, address_of, join
from minfer.cuda.token.config import ENTRY_BYTES, TokenConfig
from minfer.cuda.token.prefetch import make_prefetch
from minfer.cuda.token.schedule import ATTENTION, PAIRS
from minfer.cuda.token.tiles import make_block_rows, tile_shape, unit_bytes

ENTRY, BEGIN, LAST, EACH, PITCH = range(5)
"""Of a cursor: the entry; the next tile's first output, the block's last; outputs a tile, bytes a row."""
PATIENCE_NS = 512  # half of what memory needs for a tile of every multiprocessor
ROWS, APART = range(2)
"""Of its addresses: the matrix; from gate to up, 0: no pairs."""


def make_stream(config: TokenConfig) -> Callable:
    """Device function (shared, block), for one thread."""
    entries, slots, ahead, alone = config.entries, config.slots, config.ahead, config.one_block_rows
    block_rows = make_block_rows(config)
    in_flight, quiet, limited, hushed = config.in_flight, config.quiet, config.limited, config.hushed
    full_at, done_at, quiet_at, slot_bytes = (
        config.full_at, config.done_at, config.quiet_at, config.slot_bytes
    )  # fmt: skip
    addresses_at, table_at, ring_at = config.addresses_at, config.table_at, config.ring_at
    prefetches, prefetch = config.prefetch, make_prefetch(config)

    @device_function
    @unrolled
    def start(cursor):
        """Before the first tile."""
        cursor[ENTRY] = int32(-1)
        cursor[BEGIN] = int32(0)
        cursor[LAST] = int32(0)

    @device_function
    @unrolled
    def seek(cursor, addresses, table, weights, block):
        """Go on to the next entry of which this block has outputs, if there are none left of this one."""
        while cursor[BEGIN] >= cursor[LAST] and cursor[ENTRY] < entries:
            cursor[ENTRY] += int32(1)
            if cursor[ENTRY] < entries:
                at = table + uint32(cursor[ENTRY] * ENTRY_BYTES)
                low, high, _, _ = ptx.ld_shared_v4_u32(at)
                rows, _, word, shape = ptx.ld_shared_v4_u32(at + uint32(16))
                flags = int32(word)
                if not flags & ATTENTION:
                    first, last = block_rows(flags, int32(rows), block)
                    units, each = tile_shape(shape)
                    cursor[BEGIN] = first
                    cursor[LAST] = last
                    cursor[EACH] = each
                    cursor[PITCH] = units * unit_bytes(flags)
                    addresses[ROWS] = weights + join(low, high)
                    addresses[APART] = uint64(0)
                    if flags & PAIRS:
                        addresses[APART] = uint64(rows) * uint64(cursor[PITCH])

    @device_function
    @unrolled
    def take(cursor, addresses):
        """(where the cursor's tile begins, rounded down to 16; its bytes; those to copy), and go on."""
        address = addresses[ROWS] + uint64(cursor[BEGIN]) * uint64(cursor[PITCH])
        length = uint32(int32(min(cursor[EACH], cursor[LAST] - cursor[BEGIN])) * cursor[PITCH])
        line = address & uint64(0xFFFFFFFFFFFFFFF0)
        cursor[BEGIN] += cursor[EACH]
        return line, length, (uint32(address - line) + length + uint32(15)) & uint32(0xFFFFFFF0)

    @device_function
    @unrolled
    def warm(cursor, addresses):
        """Bring the cursor's tile into L2, and go on."""
        apart = addresses[APART]
        line, _, size = take(cursor, addresses)
        ptx.bulk_prefetch_l2(line, size)
        if apart != 0:
            ptx.bulk_prefetch_l2(line + apart, size)

    @device_function
    @unrolled
    def wait_for_earlier(shared, number, parity):
        """Wait until as many tiles are in flight as may be beside slot `number`'s; parity: of the pass
        before."""
        earlier = int32(number) - int32(in_flight)
        if hushed and ptx.mbarrier_test(shared + uint32(quiet_at), uint32(0)) != uint32(0):
            earlier = int32(number) - int32(quiet)
        if earlier < 0:
            earlier += int32(slots)
        else:
            parity ^= uint32(1)
        ptx.mbarrier_wait(shared + uint32(full_at + earlier * 8), parity)

    @device_function
    def comes_free(done, parity):
        """Whether the slot of this mbarrier is free or will soon be. A short wait at the mbarrier takes two
        microseconds at least."""
        begin = uint32(ptx.globaltimer())
        free = ptx.mbarrier_test(done, parity)
        while free == uint32(0) and uint32(uint32(ptx.globaltimer()) - begin) < uint32(PATIENCE_NS):
            free = ptx.mbarrier_test(done, parity)
        return free != uint32(0)

    @device_function
    def stream(shared, block):
        weights = address_of(shared + uint32(addresses_at), WEIGHTS)
        table = shared + uint32(table_at)
        cursor = cuda.local.array(5, int32)
        addresses = cuda.local.array(2, uint64)
        start(cursor)
        seek(cursor, addresses, table, weights, block)
        later = cuda.local.array(5, int32)  # the first tile that is not on its way
        later_addresses = cuda.local.array(2, uint64)
        if ahead > 0:
            start(later)
            seek(later, later_addresses, table, weights, block)
        # It may be the token's before: this warp does not wait for the kernel before.
        position = int32(ptx.ld_global_u32(address_of(shared + uint32(addresses_at), POSITIONS)))
        reach = int32(ahead)
        if position >= alone:
            reach = int32(0)
        passed = int32(0)  # entries whose vectors and rows are on their way to L2
        lead = int32(0)  # tiles from the next one to that
        number = uint32(0)
        parity = uint32(1)
        while cursor[ENTRY] < entries:
            full = shared + uint32(full_at) + number * uint32(8)
            done = shared + uint32(done_at) + number * uint32(8)
            slot = shared + uint32(ring_at) + number * uint32(slot_bytes)
            if ahead > 0:
                while lead < reach and later[ENTRY] < entries and not comes_free(done, parity):
                    warm(later, later_addresses)
                    seek(later, later_addresses, table, weights, block)
                    lead += int32(1)
                if lead > 0:
                    lead -= int32(1)
                else:
                    later[BEGIN] += later[EACH]
                    seek(later, later_addresses, table, weights, block)
            if prefetches:
                prefetch(shared + uint32(addresses_at), table, passed, cursor[ENTRY] + 1, position, block)
                passed = int32(cursor[ENTRY] + 1)
            apart = addresses[APART]
            line, length, size = take(cursor, addresses)
            ptx.mbarrier_wait(done, parity)
            if limited:
                wait_for_earlier(shared, number, parity)
            if apart != 0:
                ptx.mbarrier_arrive_expect_tx(full, size * uint32(2))
                ptx.bulk_load(slot + length, line + apart, size, full)
            else:
                ptx.mbarrier_arrive_expect_tx(full, size)
            ptx.bulk_load(slot, line, size, full)
            number += uint32(1)
            if number == uint32(slots):
                number = uint32(0)
                parity ^= uint32(1)
            seek(cursor, addresses, table, weights, block)

    return stream
