"""The warps that bring weights: blocks of a tile's rows into a ring of slots, and their scales as f16.

Q4_K blocks of 144 bytes are one TMA box of 128 rows. Q6_K blocks have 210 bytes and start anywhere at even
addresses, which TMA cannot copy: the warps copy the 14 aligned chunks of 16 bytes that a block lies in by
cp.async, and note where in them it starts.
"""

from __future__ import annotations

from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function
from minfer.cuda.tile.scheduler import tile_xy
from minfer.cuda.w4a16.config import MOVERS, W4A16Config
from minfer.cuda.w4a16.formats import ROWS, SCALE_BYTES, SCALES_BYTES

THREADS = 32 * MOVERS
#: The named barrier of these warps.
BARRIER = 3


def row_start(config: W4A16Config) -> DeviceFunction:
    """(slot, row) -> shared address of the row's block."""
    pitch, starts = config.packed.pitch, config.packed_bytes + SCALES_BYTES

    @device_function
    def fixed(slot, row):
        return types.uint32(slot + row * pitch)

    @device_function
    def noted(slot, row):
        return types.uint32(ptx.ld_shared_u32(slot + starts + row * 4))

    return fixed if config.packed.by_tma else noted


def _copy_box(config: W4A16Config) -> DeviceFunction:
    block_bytes, packed_bytes, gated = config.packed.block_bytes, config.packed_bytes, config.gated

    @device_function
    def copy(source, slot, landed, row, block, od, pitch, thread):
        if thread == 0:
            ptx.mbarrier_arrive_expect_tx(landed, packed_bytes)
            ptx.tma_load_2d(slot, source, landed, block * block_bytes, row)
            if gated:
                ptx.tma_load_2d(slot + packed_bytes // 2, source, landed, block * block_bytes, od + row)

    return copy


def _copy_chunks(config: W4A16Config) -> DeviceFunction:
    """Eight threads a row, two chunks each; rows past the matrix repeat its last one."""
    block_bytes, row_bytes = config.packed.block_bytes, config.packed.pitch
    starts = config.packed_bytes + SCALES_BYTES
    chunks, at_once = -(-(block_bytes + 14) // 16), THREADS // 8
    rest, gated = chunks - 8, config.gated

    @device_function
    def chunk(target, address, end):
        left = end - address
        ptx.cp_async_cg_16(target, address, types.uint32(min(left, types.uint64(16))))

    @device_function
    def copy(source, slot, landed, row, block, od, pitch, thread):
        end = source + types.uint64(od * (1 + gated)) * types.uint64(pitch)
        part = thread & 7
        line = types.int32(thread >> 3)
        while line < ROWS:
            weight_row = types.int32(min(row + line, od - 1))
            if gated and line >= ROWS // 2:
                weight_row = types.int32(od + min(row + line - ROWS // 2, od - 1))
            start = source + types.uint64(weight_row) * types.uint64(pitch)
            start += types.uint64(block * block_bytes)
            offset = types.uint32(start) & types.uint32(15)
            address = start - types.uint64(offset) + types.uint64(16 * part)
            target = types.uint32(slot + line * row_bytes + 16 * part)
            chunk(target, address, end)
            if part < rest:
                chunk(target + 128, address + types.uint64(128), end)
            if part == 0:
                ptx.st_shared_u32(slot + starts + line * 4, target + offset)
            line = types.int32(line + at_once)

    return copy


def move_weights(config: W4A16Config) -> DeviceFunction:
    """(source, first slot, landed, ready, tile, step, token_tiles, output_tiles, blocks, od, pitch, group,
    thread): bring the blocks of all tiles of this thread block. `source` is the address of the tensor map
    (Q4_K) or of the weights, whose rows are `pitch` bytes apart."""
    slots, slot_bytes, packed_bytes = config.slots, config.slot_bytes, config.packed_bytes
    by_tma, scales, outputs = config.packed.by_tma, config.packed.scales, config.outputs
    copy = _copy_box(config) if by_tma else _copy_chunks(config)
    advance, start = config.slot_ring.advance, row_start(config)
    wait_copies = ptx.cp_async_wait_group(slots - 2)

    @device_function
    def expand(slot, thread):
        """The scales of all rows."""
        row = types.int32(thread)
        while row < ROWS:
            scales(start(slot, row), types.uint32(slot + packed_bytes + row * SCALE_BYTES))
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
                place = types.uint32(first + slot * slot_bytes)
                if by_tma:
                    ptx.mbarrier_wait(landed + 8 * slot, parity)
                else:
                    wait_copies()
                    ptx.bar_sync(BARRIER, THREADS)
                expand(place, thread)
                ptx.syncwarp()
                ptx.mbarrier_arrive_if(ready + 8 * slot, (thread & 31) == 0)
                slot, parity = advance(slot, parity)
            if tile < tiles:
                if block == 0:
                    _, column = tile_xy(tile, token_tiles, output_tiles, group)
                    row = types.int32(column * outputs)
                ptx.mbarrier_wait(landed + 8 * (slots + next_slot), next_parity)
                place = types.uint32(first + next_slot * slot_bytes)
                copy(source, place, landed + 8 * next_slot, row, block, od, pitch, thread)
                next_slot, next_parity = advance(next_slot, next_parity)
                block = types.int32(block + 1)
                if block == blocks:
                    block = types.int32(0)
                    tile = types.int32(tile + step)
            if not by_tma:
                ptx.cp_async_commit()
            done = types.int32(done + 1)

    return move
