"""The warps that bring weights: blocks of a tile's rows into a ring of slots, by TMA. When they have landed
the warps expand the scales of every row to f16.
"""

from __future__ import annotations

from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function
from minfer.cuda.tile.scheduler import tile_xy
from minfer.cuda.w4a16.config import W4A16Config
from minfer.cuda.w4a16.formats import HALF_BYTES, ROWS
from minfer.cuda.w4a16.packed_tile import MOVERS

THREADS = 32 * MOVERS


def _copy_boxes(config: W4A16Config) -> DeviceFunction:
    """(source, slot, landed, row, block, od, pitch): by one thread, the blocks of the tile's rows from `row`
    on, gated: as many from `od + row` on."""
    packed, gated = config.packed, config.gated
    folded, box_columns, halves, box_bytes = packed.folded, packed.box_columns, packed.halves, packed.box_bytes
    block_bytes, part = packed.block_bytes, config.outputs // packed.folded * packed.box_columns
    landing = folded * halves * part * (1 + gated)

    @device_function
    def copy(source, slot, landed, row, block, od, pitch):
        ptx.mbarrier_arrive_expect_tx(landed, landing)
        line, other = types.int32(row // folded), types.int32((od + row) // folded)
        x = types.int32(block * block_bytes)
        place = types.uint32(slot)
        for _i in range(folded):
            for half in range(halves):
                target = types.uint32(place + half * HALF_BYTES)
                ptx.tma_load_2d(target, source, landed, x + half * box_columns, line)
                if gated:
                    ptx.tma_load_2d(target + part, source, landed, x + half * box_columns, other)
            x = types.int32(x + pitch)
            place = types.uint32(place + box_bytes)

    return copy


def move_weights(config: W4A16Config) -> DeviceFunction:
    """(source, first slot, landed, ready, tile, step, token_tiles, output_tiles, blocks, od, pitch, group,
    thread): bring the blocks of all tiles of this thread block. `source` is the address of the weights'
    tensor map, `pitch` the bytes of a row of the matrix."""
    slots, slot_bytes, outputs = config.slots, config.slot_bytes, config.outputs
    place, expand, copy = config.packed.place, config.packed.expand, _copy_boxes(config)
    advance = config.slot_ring.advance

    @device_function
    def finish(slot, thread):
        """Expand the scales of all rows."""
        row = types.int32(thread)
        while row < ROWS:
            block, scales = place(slot, row)
            expand(block, scales)
            row = types.int32(row + THREADS)

    @device_function
    def move(
        source, first, landed, ready, tile, step, token_tiles, output_tiles, blocks, od, pitch, group, thread
    ):
        tiles = token_tiles * output_tiles
        total = types.int32(ptx.udiv_u32(tiles - tile + step - 1, step) * blocks)
        slot, parity = types.uint32(0), types.uint32(0)
        next_slot, next_parity = types.uint32(0), types.uint32(1)
        row, block = types.int32(0), types.int32(0)
        done = types.int32(1 - slots)
        while done < total:
            if done >= 0:
                ptx.mbarrier_wait(landed + 8 * slot, parity)
                finish(types.uint32(first + slot * slot_bytes), thread)
                ptx.syncwarp()
                ptx.mbarrier_arrive_if(ready + 8 * slot, (thread & 31) == 0)
                slot, parity = advance(slot, parity)
            if tile < tiles:
                if block == 0:
                    _, column = tile_xy(tile, token_tiles, output_tiles, group)
                    row = types.int32(column * outputs)
                ptx.mbarrier_wait(landed + 8 * (slots + next_slot), next_parity)
                if thread == 0:
                    # Scales were written where TMA writes next.
                    ptx.fence_proxy_async()
                    target = types.uint32(first + next_slot * slot_bytes)
                    copy(source, target, landed + 8 * next_slot, row, block, od, pitch)
                next_slot, next_parity = advance(next_slot, next_parity)
                block = types.int32(block + 1)
                if block == blocks:
                    block = types.int32(0)
                    tile = types.int32(tile + step)
            done = types.int32(done + 1)

    return move
