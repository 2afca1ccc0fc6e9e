"""The stream of weights: one warp's work, of which one lane does all.

Weights depend on nothing, so that the next tile is asked for as soon as a slot is free, whatever phase it
belongs to: while blocks wait for each other, and while they attend, the ring fills with the weights of the
phases to come. When it has been full for a while, the next tiles are brought into L2 (`TokenConfig.ahead`):
memory goes on, and what waits in L2 comes faster than memory delivers.

Memory does not deliver to all multiprocessors alike. Of the gated activations and of the logits, a part is
nobody's at first (`TokenConfig.dealt`): whose stream has come to the end of its own rows claims some more,
until none are left. So everyone is told what a slot holds (`multiply`).
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function, unrolled
from minfer.cuda.token.addresses import DEALS, POSITIONS, WEIGHTS, address_of, join
from minfer.cuda.token.config import ENTRY_BYTES, TokenConfig
from minfer.cuda.token.prefetch import make_prefetch
from minfer.cuda.token.schedule import ATTENTION, DEALT, PAIRS, ROW_BITS
from minfer.cuda.token.tiles import dealt_grain, own_rows, tile_shape, unit_bytes

ENTRY, BEGIN, LAST, EACH, PITCH, OUTPUTS, GRAIN, DEALT_FROM, CLAIMED = range(9)
CURSOR = 9
"""Of a cursor: the entry; the next tile's first output, the last of its piece; outputs a tile, bytes a row;
the entry's outputs; how many are dealt out at once, from which on (NOT_DEALT: none, or none any more); the
number of the grain that the block has claimed."""
NOT_DEALT = 1 << 30
PATIENCE_NS = 1000  # memory needs a microsecond for a tile of every multiprocessor
ROWS, APART = range(2)
"""Of its addresses: the matrix; from gate to up, 0: no pairs."""


def make_stream(config: TokenConfig) -> Callable:
    """Device function (shared, block), for one thread."""
    entries, slots, blocks, ahead = config.entries, config.slots, config.blocks, config.ahead
    full_at, done_at, told_at, slot_bytes = config.full_at, config.done_at, config.told_at, config.slot_bytes
    addresses_at, table_at, ring_at = config.addresses_at, config.table_at, config.ring_at
    prefetches, prefetch = config.prefetch, make_prefetch(config)

    @device_function
    @unrolled
    def start(cursor):
        """Before the first tile."""
        cursor[ENTRY] = int32(-1)
        cursor[BEGIN] = int32(0)
        cursor[LAST] = int32(0)
        cursor[DEALT_FROM] = int32(NOT_DEALT)

    @device_function
    @unrolled
    def next_entry(cursor, addresses, table, weights, block):
        """Go on to this block's own outputs of the next entry, if there are any."""
        cursor[ENTRY] += int32(1)
        if cursor[ENTRY] < entries:
            at = table + uint32(cursor[ENTRY] * ENTRY_BYTES)
            low, high, _, _ = ptx.ld_shared_v4_u32(at)
            rows, own, word, shape = ptx.ld_shared_v4_u32(at + uint32(16))
            flags = int32(word)
            if not flags & ATTENTION:
                first, last = own_rows(flags, int32(rows), own, block, blocks)
                units, each = tile_shape(shape)
                cursor[BEGIN] = first
                cursor[LAST] = last
                cursor[EACH] = each
                cursor[PITCH] = units * unit_bytes(flags)
                cursor[OUTPUTS] = int32(rows)
                cursor[GRAIN] = dealt_grain(flags, each)
                cursor[DEALT_FROM] = int32(NOT_DEALT)
                if flags & DEALT:
                    cursor[DEALT_FROM] = int32(own) * int32(blocks)
                addresses[ROWS] = weights + join(low, high)
                addresses[APART] = uint64(0)
                if flags & PAIRS:
                    addresses[APART] = uint64(rows) * uint64(cursor[PITCH])

    @device_function
    @unrolled
    def seek_own(cursor, addresses, table, weights, block):
        """Go on to the next entry of which this block has outputs from the first, if there are none left of
        this one."""
        while cursor[BEGIN] >= cursor[LAST] and cursor[ENTRY] < entries:
            next_entry(cursor, addresses, table, weights, block)

    @device_function
    @unrolled
    def claim(cursor, deals):
        """Claim a grain, if all else of the entry is taken. Every block claims until there is none left: the
        counter is zero again then."""
        if cursor[BEGIN] >= cursor[LAST] and cursor[DEALT_FROM] < NOT_DEALT:
            left = cursor[OUTPUTS] - cursor[DEALT_FROM] + cursor[GRAIN] - 1
            grains = int32(ptx.udiv_u32(left, cursor[GRAIN]))
            counter = deals + uint64(cursor[ENTRY]) * uint64(4)
            cursor[CLAIMED] = int32(ptx.atom_inc_u32(counter, uint32(grains + (blocks - 1))))

    @device_function
    @unrolled
    def seek(cursor, addresses, table, weights, deals, block):
        """As `seek_own`, by way of what the block has claimed."""
        while cursor[BEGIN] >= cursor[LAST] and cursor[ENTRY] < entries:
            if cursor[DEALT_FROM] < NOT_DEALT:
                cursor[BEGIN] = cursor[DEALT_FROM] + cursor[CLAIMED] * cursor[GRAIN]
                cursor[LAST] = int32(min(cursor[BEGIN] + cursor[GRAIN], cursor[OUTPUTS]))
                if cursor[BEGIN] >= cursor[OUTPUTS]:
                    cursor[DEALT_FROM] = int32(NOT_DEALT)
            else:
                next_entry(cursor, addresses, table, weights, block)
                claim(cursor, deals)

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
    def stream(shared, block):
        weights = address_of(shared + uint32(addresses_at), WEIGHTS)
        deals = address_of(shared + uint32(addresses_at), DEALS)
        table = shared + uint32(table_at)
        cursor = cuda.local.array(CURSOR, int32)
        addresses = cuda.local.array(2, uint64)
        start(cursor)
        seek(cursor, addresses, table, weights, deals, block)
        later = cuda.local.array(CURSOR, int32)  # the block's first own tile that is not on its way
        later_addresses = cuda.local.array(2, uint64)
        if ahead > 0:
            start(later)
            seek_own(later, later_addresses, table, weights, block)
        # It may be the token's before: this warp does not wait for the kernel before.
        position = int32(ptx.ld_global_u32(address_of(shared + uint32(addresses_at), POSITIONS)))
        passed = int32(0)  # entries whose vectors and rows are on their way to L2
        lead = int32(0)  # own tiles from the next one to that
        number = uint32(0)
        parity = uint32(1)
        while cursor[ENTRY] < entries:
            full = shared + uint32(full_at) + number * uint32(8)
            done = shared + uint32(done_at) + number * uint32(8)
            told = shared + uint32(told_at) + number * uint32(4)
            slot = shared + uint32(ring_at) + number * uint32(slot_bytes)
            word = uint32(((cursor[ENTRY] + 1) << ROW_BITS) | cursor[BEGIN])
            own = cursor[BEGIN] < cursor[DEALT_FROM]
            apart = addresses[APART]
            line, length, size = take(cursor, addresses)
            claim(cursor, deals)  # it will be known when the tile is on its way
            if ahead > 0:
                while (
                    lead < ahead
                    and later[ENTRY] < entries
                    and ptx.mbarrier_wait_for(done, parity, uint32(PATIENCE_NS)) == uint32(0)
                ):
                    warm(later, later_addresses)
                    seek_own(later, later_addresses, table, weights, block)
                    lead += int32(1)
                if own:
                    if lead > 0:
                        lead -= int32(1)
                    else:
                        later[BEGIN] += later[EACH]
                        seek_own(later, later_addresses, table, weights, block)
            if prefetches:
                prefetch(shared + uint32(addresses_at), table, passed, cursor[ENTRY] + 1, position, block)
                passed = int32(cursor[ENTRY] + 1)
            ptx.mbarrier_wait(done, parity)
            ptx.st_shared_relaxed_u32(told, word)
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
            seek(cursor, addresses, table, weights, deals, block)
        ptx.mbarrier_wait(shared + uint32(done_at) + number * uint32(8), parity)
        end = uint32((entries + 1) << ROW_BITS)
        ptx.st_shared_relaxed_u32(shared + uint32(told_at) + number * uint32(4), end)

    return stream
