"""The warps that bring weights: blocks of a tile's rows into a ring of slots; when they have landed the warps
expand the scales of every row to f16.

Q4_K blocks of 144 bytes are one TMA box of all rows. Q6_K blocks are copied by cp.async: seven threads a
row, two aligned chunks of 16 bytes each, and an mbarrier counts the copies as they land. A warp spends few
instructions on a row: what a multiprocessor has of them limits this, where the copies do not.
"""

from __future__ import annotations

from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.tile.scheduler import tile_xy
from minfer.cuda.w4a16.config import W4A16Config
from minfer.cuda.w4a16.formats import PackedFormat
from minfer.cuda.w4a16.packed_tile import MOVERS

THREADS = 32 * MOVERS


#: Threads that copy a row's 14 chunks, rows copied at once, and bytes from a thread's chunk to its other.
ROW_THREADS = 7
ROWS_AT_ONCE = THREADS // ROW_THREADS
FAR = 16 * ROW_THREADS


def matrix_row(config: W4A16Config) -> DeviceFunction:
    """(row, od) -> how many rows of the matrix a tile's row comes behind its first one: gated, the tile's
    second half are rows of the second matrix."""
    gated, half = config.gated, config.rows // 2

    @device_function
    def row_of(row, od):
        if gated and row >= half:
            return types.int32(row + (od - half))
        return types.int32(row)

    return row_of


def chunk_start(config: W4A16Config, packed: PackedFormat) -> DeviceFunction:
    """(source, row, od, pitch, block) -> in which byte of a chunk of 16 a block of the tile's row starts: the
    rows of the tiles before it are whole chunks."""
    row_of, block_bytes = matrix_row(config), packed.block_bytes

    @device_function
    def start(source, row, od, pitch, block):
        at = types.uint32(source) + types.uint32(row_of(row, od) * pitch + block * block_bytes)
        return types.uint32(at & types.uint32(15))

    return start


def _copy_box(config: W4A16Config, packed: PackedFormat) -> DeviceFunction:
    """One thread's box, or two; where copies of rows arrive in the same ring, all that these arrive, too."""
    block_bytes, half, gated = packed.block_bytes, config.outputs * packed.pitch, config.gated
    box_bytes, alone = config.rows * packed.pitch, config.landing_arrivals == 1

    @device_function
    def copy(source, slot, landed, row, block, od, pitch, thread):
        if thread == 0:
            ptx.mbarrier_arrive_expect_tx(landed, box_bytes)
            ptx.tma_load_2d(slot, source, landed, block * block_bytes, row)
            if gated:
                ptx.tma_load_2d(slot + half, source, landed, block * block_bytes, od + row)
        elif not alone:
            ptx.mbarrier_arrive(landed)

    return copy


def _copy_rows(config: W4A16Config, packed: PackedFormat, exact: bool) -> DeviceFunction:
    """(source, slot, row, block, od, pitch, line, part): a thread's chunks `part` and `part + 7` of a tile's
    rows `line`, `line + 13`, ... `exact`: some rows may lie past the matrix's end, or their chunks reach
    beyond it. Then rows past the end take the last row again: their outputs are not stored."""
    rows, gated, block_bytes = config.rows, config.gated, packed.block_bytes
    half, row_bytes, whole = rows // 2, packed.pitch, 0xFFFFFFFFFFFFFFF0
    row_of = matrix_row(config)

    @device_function
    @unrolled
    def copy(source, slot, row, block, od, pitch, line, part):
        within = types.uint64(types.uint32(block * block_bytes + 16 * part))
        target = types.uint32(slot + line * row_bytes)
        step = types.uint64(types.uint32(pitch))
        last = types.int32(od * (1 + gated) - 1)
        end = source + types.uint64(types.uint32(last + 1)) * step
        at = source + types.uint64(types.uint32(row + line)) * step + within
        for first in unroll(0, rows, ROWS_AT_ONCE):
            if first + ROWS_AT_ONCE <= rows or line < rows - first:
                if exact:
                    clamped = min(row + row_of(line + first, od), last)
                    at = source + types.uint64(types.uint32(clamped)) * step + within
                elif gated and first + ROWS_AT_ONCE > half:
                    at = source + types.uint64(types.uint32(row + row_of(line + first, od))) * step + within
                chunk = at & types.uint64(whole)
                place = types.uint32(target + first * row_bytes + 16 * part)
                ptx.cp_async_cg_16(place, chunk, 16)
                inside = types.uint32(16)
                if exact:
                    inside = types.uint32(min(end - chunk - types.uint64(FAR), types.uint64(16)))
                ptx.cp_async_cg_16(place + FAR, chunk + types.uint64(FAR), inside)
            at += types.uint64(types.uint32(ROWS_AT_ONCE * pitch))

    return copy


def _copy_chunks(config: W4A16Config, packed: PackedFormat) -> DeviceFunction:
    """Seven threads a row; the last five of all only arrive."""
    outputs, block_bytes = config.outputs, packed.block_bytes
    inner, outer = _copy_rows(config, packed, False), _copy_rows(config, packed, True)

    @device_function
    def copy(source, slot, landed, row, block, od, pitch, thread):
        line = types.int32(ptx.udiv_u32(thread, ROW_THREADS))
        part = types.int32(thread - ROW_THREADS * line)
        if line < ROWS_AT_ONCE:
            # A row's last block may end where memory ends, a tile of the last rows may have none.
            if row + outputs < od or (row + outputs == od and (block + 1) * block_bytes < pitch):
                inner(source, slot, row, block, od, pitch, line, part)
            else:
                outer(source, slot, row, block, od, pitch, line, part)
        ptx.cp_async_mbarrier_arrive(landed)

    return copy


def move_weights(config: W4A16Config, packed: PackedFormat, following: DeviceFunction) -> DeviceFunction:
    """(source, first slot, landed, ready, tile, step, last, token_tiles, output_tiles, origin, blocks, od,
    pitch, group, thread, slot, parity) -> (tile, slot, parity): bring a row's blocks from number `origin` on,
    `blocks` of them, of all tiles of this thread block, which come as `following`
    (`minfer.cuda.tile.scheduler`) says.

    `source` is the address of the weights' tensor map (Q4_K) or of the weights, whose rows are `pitch` bytes
    apart. The cursor (at first 1, 1) is that of the slot `slots` - 1 before the first block's; returned are
    the first tile past the last one, and the cursor for what follows."""
    slots, slot_bytes, rows, outputs = config.slots, config.slot_bytes, config.rows, config.outputs
    place, expand = packed.place, packed.expand
    copy = _copy_box(config, packed) if packed.by_tma else _copy_chunks(config, packed)
    advance, start, gated = config.slot_ring.advance, chunk_start(config, packed), config.gated

    @device_function
    @unrolled
    def finish(source, slot, od, pitch, block, thread):
        """Expand the scales of all rows."""
        # THREADS rows are whole chunks.
        within = start(source, thread, od, pitch, block)
        for first in unroll(0, rows, THREADS):
            if first + THREADS <= rows or thread < rows - first:
                row = types.int32(first + thread)
                if gated:
                    within = start(source, row, od, pitch, block)
                at, scales = place(slot, row, within)
                expand(at, scales)

    @device_function
    def move(
        source, first, landed, ready, tile, step, last, token_tiles, output_tiles, origin, blocks, od, pitch,
        group, thread, slot, parity,
    ):  # fmt: skip
        tiles = types.int32(token_tiles * output_tiles)
        total, each = types.int32(0), tile
        while each < tiles:
            total, each = types.int32(total + blocks), types.int32(following(each, step, last))
        # Blocks are copied slots - 1 ahead of where they are expanded: into the slot before that one.
        row, block, expanded = types.int32(0), types.int32(0), types.int32(0)
        done = types.int32(1 - slots)
        while done < total:
            if done >= 0:
                ptx.mbarrier_wait(landed + 8 * slot, parity)
                at = types.uint32(first + slot * slot_bytes)
                finish(source, at, od, pitch, types.int32(origin + expanded), thread)
                expanded = types.int32(0 if expanded + 1 == blocks else expanded + 1)
                ptx.syncwarp()
                ptx.mbarrier_arrive_if(ready + 8 * slot, (thread & 31) == 0)
            if tile < tiles:
                if block == 0:
                    _, column = tile_xy(tile, token_tiles, output_tiles, group)
                    row = types.int32(column * outputs)
                wraps = types.uint32(slot == 0)
                before = ptx.select_u32(wraps, slots - 1, slot - 1)
                ptx.mbarrier_wait(landed + 8 * (slots + before), parity ^ wraps)
                target = types.uint32(first + before * slot_bytes)
                number = types.int32(origin + block)
                copy(source, target, landed + 8 * before, row, number, od, pitch, thread)
                block = types.int32(block + 1)
                if block == blocks:
                    block = types.int32(0)
                    tile = types.int32(following(tile, step, last))
            slot, parity = advance(slot, parity)
            done = types.int32(done + 1)
        # The slot of a block that would come next: `slots` - 1 before it means one behind, a lap earlier.
        slot, parity = advance(slot, types.uint32(parity ^ 1))
        return tile, slot, parity

    return move
