"""The warps that bring weights: blocks of a tile's rows into a ring of slots.

Q4_K blocks of 144 bytes are one TMA box of 128 rows; when it has landed the warps expand the 6-bit scales
of every row to f16. Q6_K blocks have 210 bytes and start anywhere at even addresses, which TMA cannot copy:
the warps copy the 14 aligned chunks of 16 bytes that a block lies in by cp.async, note where in them it
starts, and wait for nothing: the mbarrier counts the copies as they land.
"""

from __future__ import annotations

from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.tile.scheduler import tile_xy
from minfer.cuda.w4a16.config import W4A16Config
from minfer.cuda.w4a16.formats import ROWS, SCALE_BYTES
from minfer.cuda.w4a16.packed_tile import MOVERS

THREADS = 32 * MOVERS


def row_start(config: W4A16Config) -> DeviceFunction:
    """(slot, row) -> shared address of the row's block."""
    pitch, starts = config.packed.pitch, config.packed_bytes

    @device_function
    def fixed(slot, row):
        return types.uint32(slot + row * pitch)

    @device_function
    def noted(slot, row):
        return types.uint32(ptx.ld_shared_u32(slot + starts + row * 4))

    return fixed if config.packed.by_tma else noted


def ready_arrivals(config: W4A16Config) -> int:
    """Arrivals that make a slot ready: one a warp, and each thread's copies."""
    return MOVERS if config.packed.by_tma else MOVERS + THREADS


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
    """Eight threads a row, two chunks each. Offsets of 32 bits from the last 16-byte boundary before the
    weights. Rows past the end take the last chunk again: their outputs are not stored."""
    block_bytes, row_bytes, gated = config.packed.block_bytes, config.packed.pitch, config.gated
    starts, at_once = config.packed_bytes, THREADS // 8
    rounds, rest = -(-ROWS // at_once), -(-(block_bytes + 14) // 16) - 8

    @device_function
    def chunk(target, base, at, end):
        at = min(types.int32(at), types.int32((end - 1) & -16))
        inside = types.uint32(min(types.int32(end - at), types.int32(16)))
        ptx.cp_async_cg_16(target, base + types.uint64(types.uint32(at)), inside)

    @device_function
    @unrolled
    def copy(source, slot, landed, row, block, od, pitch, thread):
        low = types.int32(types.uint32(source) & types.uint32(15))
        base = source - types.uint64(types.uint32(low))
        end = types.int32(low + od * (1 + gated) * pitch)
        part, line = types.int32(thread & 7), types.int32(thread >> 3)
        start = types.int32(low + (row + line) * pitch + block * block_bytes)
        target = types.uint32(slot + line * row_bytes)
        note = types.uint32(slot + starts + line * 4)
        for _i in unroll(rounds):
            if line < ROWS:
                at = start
                if gated and line >= ROWS // 2:
                    at = types.int32(start + (od - ROWS // 2) * pitch)
                first = types.int32((at & -16) + 16 * part)
                chunk(target + 16 * part, base, first, end)
                if part < rest:
                    chunk(target + 16 * part + 128, base, first + 128, end)
                if part == 0:
                    ptx.st_shared_u32(note, target + (at & 15))
            start = types.int32(start + at_once * pitch)
            line = types.int32(line + at_once)
            target = types.uint32(target + at_once * row_bytes)
            note = types.uint32(note + at_once * 4)

    return copy


def move_weights(config: W4A16Config) -> DeviceFunction:
    """(source, first slot, landed, ready, tile, step, token_tiles, output_tiles, blocks, od, pitch, group,
    thread): bring the blocks of all tiles of this thread block. `source` is the address of the tensor map
    (Q4_K) or of the weights, whose rows are `pitch` bytes apart."""
    slots, slot_bytes, packed_bytes = config.slots, config.slot_bytes, config.packed_bytes
    by_tma, expand, outputs = config.packed.by_tma, config.packed.expand, config.outputs
    copy = _copy_box(config) if by_tma else _copy_chunks(config)
    advance, start = config.slot_ring.advance, row_start(config)

    @device_function
    def finish(slot, thread):
        """Expand the scales of all rows."""
        row = types.int32(thread)
        while row < ROWS:
            expand(start(slot, row), types.uint32(slot + packed_bytes + row * SCALE_BYTES))
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
            if by_tma and done >= 0:
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
                place = types.uint32(first + next_slot * slot_bytes)
                copy(source, place, landed + 8 * next_slot, row, block, od, pitch, thread)
                if not by_tma:
                    ptx.cp_async_mbarrier_arrive(ready + 8 * next_slot)
                    ptx.syncwarp()
                    ptx.mbarrier_arrive_if(ready + 8 * next_slot, (thread & 31) == 0)
                next_slot, next_parity = advance(next_slot, next_parity)
                block = types.int32(block + 1)
                if block == blocks:
                    block = types.int32(0)
                    tile = types.int32(tile + step)
            done = types.int32(done + 1)

    return move
