"""The warps that bring weights: blocks of a tile's rows into a ring of slots, by TMA. When they have landed
the warps expand the scales of every row to f16.
"""

from __future__ import annotations

from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.tile.scheduler import tile_xy
from minfer.cuda.w4a16.config import W4A16Config
from minfer.cuda.w4a16.packed_tile import MOVERS

THREADS = 32 * MOVERS


def _copy_boxes(config: W4A16Config) -> DeviceFunction:
    """(source, slot, landed, row, block, od, pitch): by one thread, the blocks of the tile's rows from `row`
    on, gated: as many from `od + row` on."""
    packed, gated = config.packed, config.gated
    folded, box_columns, box_bytes = packed.folded, packed.box_columns, packed.box_bytes
    halves, half_bytes = packed.halves, packed.half_bytes
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
                target = types.uint32(place + half * half_bytes)
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
    slots, slot_bytes, rows, outputs = config.slots, config.slot_bytes, config.rows, config.outputs
    place, expand, copy = config.packed.place, config.packed.expand, _copy_boxes(config)
    advance = config.slot_ring.advance

    @device_function
    @unrolled
    def finish(slot, thread):
        """Expand the scales of all rows."""
        for first in unroll(0, rows, THREADS):
            if first + THREADS <= rows or thread < rows - first:
                block, scales = place(slot, types.int32(first + thread))
                expand(block, scales)

    @device_function
    def move(
        source, first, landed, ready, tile, step, token_tiles, output_tiles, blocks, od, pitch, group, thread
    ):
        tiles = types.int32(token_tiles * output_tiles)
        total = types.int32(ptx.udiv_u32(tiles - tile + step - 1, step) * blocks)
        # Blocks are copied slots - 1 ahead of where they are expanded: into the slot before that one.
        slot, parity = types.uint32(1), types.uint32(1)
        row, block = types.int32(0), types.int32(0)
        done = types.int32(1 - slots)
        while done < total:
            if done >= 0:
                ptx.mbarrier_wait(landed + 8 * slot, parity)
                finish(types.uint32(first + slot * slot_bytes), thread)
                ptx.syncwarp()
                ptx.mbarrier_arrive_if(ready + 8 * slot, (thread & 31) == 0)
            if tile < tiles:
                if block == 0:
                    _, column = tile_xy(tile, token_tiles, output_tiles, group)
                    row = types.int32(column * outputs)
                wraps = types.uint32(slot == 0)
                before = ptx.select_u32(wraps, slots - 1, slot - 1)
                ptx.mbarrier_wait(landed + 8 * (slots + before), parity ^ wraps)
                if thread == 0:
                    # Scales were written where TMA writes next.
                    ptx.fence_proxy_async()
                    target = types.uint32(first + before * slot_bytes)
                    copy(source, target, landed + 8 * before, row, block, od, pitch)
                block = types.int32(block + 1)
                if block == blocks:
                    block = types.int32(0)
                    tile = types.int32(tile + step)
            slot, parity = advance(slot, parity)
            done = types.int32(done + 1)

    return move
