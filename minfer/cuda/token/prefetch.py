"""What the phases read besides weights is brought into L2 when the stream of weights passes it: gains and
biases, angles and, if one block attends to all of them, the older rows of the caches. They were read a token
ago for the last time, or a layer ago, and would come from memory when they are waited for. Many rows are left
to the blocks that attend: 8192 of them take 40 us more of a token otherwise.

All blocks share a layer's cache rows; entries of the schedule take turns in whose the vectors are.
"""

from __future__ import annotations

from collections.abc import Callable

from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function
from minfer.cuda.token.addresses import KEYS, ROPE_TABLE, VALUES, VECTORS, address_of, join
from minfer.cuda.token.config import ENTRY_BYTES, TokenConfig
from minfer.cuda.token.schedule import ATTENTION, NORM, WAIT


def make_prefetch(config: TokenConfig) -> Callable:
    """Device function (addresses, table, first, last, position, block): bring into L2 what the entries first
    ... last - 1 read besides weights. `position` is a hint: it may be an earlier one."""
    blocks, biased = config.blocks, config.bias
    gains_bytes, angles_bytes = config.hidden * 4, config.rotary * 4
    bias_bytes, row_bytes = config.row.width * 4, config.kv_heads * config.head_dim * 2
    normed, most_rows = NORM | WAIT, config.one_block_rows

    @device_function
    def prefetch_angles(addresses, position):
        angles = address_of(addresses, ROPE_TABLE) + uint64(position) * uint64(angles_bytes)
        ptx.bulk_prefetch_l2(angles, uint32(angles_bytes))

    @device_function
    def prefetch_rows(addresses, keys, values, position, block):
        """This block's share of the rows of a layer's caches."""
        row = int32(ptx.udiv_u32(block * position, blocks))
        rows = int32(ptx.udiv_u32((block + 1) * position, blocks)) - row
        if rows > 0 and position < most_rows:
            begin, size = uint64(row) * uint64(row_bytes), uint32(rows * row_bytes)
            ptx.bulk_prefetch_l2(address_of(addresses, KEYS) + keys + begin, size)
            ptx.bulk_prefetch_l2(address_of(addresses, VALUES) + values + begin, size)

    @device_function
    def prefetch(addresses, table, first, last, position, block):
        for e in range(first, last):
            at = table + uint32(e * ENTRY_BYTES)
            keys_low, keys_high, low, high = ptx.ld_shared_v4_u32(at)
            values_low, values_high, word, _ = ptx.ld_shared_v4_u32(at + uint32(16))
            flags = int32(word)
            vector = address_of(addresses, VECTORS) + join(low, high)
            turn = block == int32(e) - int32(ptx.udiv_u32(e, blocks)) * int32(blocks)
            if turn and flags & normed == normed:
                ptx.bulk_prefetch_l2(vector, uint32(gains_bytes))
            if flags & ATTENTION:
                if turn:
                    prefetch_angles(addresses, position)
                    if biased:
                        ptx.bulk_prefetch_l2(vector, uint32(bias_bytes))
                keys, values = join(keys_low, keys_high), join(values_low, values_high)
                prefetch_rows(addresses, keys, values, position, block)

    return prefetch
