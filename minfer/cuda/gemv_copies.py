"""How the decode GEMV's operands reach shared memory: by cp.async, or (with pdl) by bulk copies.

A warp has a ring of slots of its own. One copy fills a slot: with a slice of a row group, from the 16-byte
line that its first byte is in. cp.async is for every architecture: each lane copies 16 bytes at a time,
some 20 instructions of a warp for 512 bytes. Bulk copies are sm_90's: one lane starts a single copy for a
whole slot, and an mbarrier behind the slot's bytes completes with it. The activations come by cp.async in
either case: so they need not queue behind the ring's bulk copies (1-2 % of a GEMV), and the first product
waits for them and for its own slot only.

They arrive behind whatever the block has asked for before them. Behind a ring of 150 KB they were there 3.2
microseconds after the kernel before had ended, 1.9 after they were asked for (median, an H200); so half of
the ring is asked for first (`GemvConfig.early`), then the activations, there after 2.3, then the other half.

Tried and out again (H200): asking L2 for the copies behind the ring (`cp.async.bulk.prefetch.L2`) while the
block waits for the kernel before: 5-15 % slower, as many requests again; asking L2, behind a block's last
copy, for what the next launch reads first: 8 % slower; letting the next kernel's blocks start only when the
last copies are on their way: 1-20 % slower; blocks of half an SM, so that the next kernel's are there with a
full ring: slower too, for want of bytes in flight; shares that grow or shrink with a block's number, by 2 to
15 %, so that blocks do not all end at once: 0-5 % slower, with two blocks an SM no faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from numba import cuda
from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.gemv_config import GemvConfig
from minfer.cuda.instruction import device_function


class Copies(NamedTuple):
    """Device functions of one way to copy; all threads of a block call them.

    Attributes:
        place: (matrix, row, part): the address of slice `part` of a row.
        begin: (ring): before the first copy; `ring` is this warp's.
        copy: (slot, matrix, od, group, part, wanted): start the copy of a row group's slice, if wanted.
        stage: (shared, x): start the copy of the activations, after `GemvConfig.early` slots' copies.
        staged: (): after the ring's first copies: wait for the activations.
        arrived: (slot, parity): wait for a slot's copy; the parity is 0 in the ring's first round, then 1.
    """

    place: Callable
    begin: Callable
    copy: Callable
    stage: Callable
    staged: Callable
    arrived: Callable


def copies(config: GemvConfig) -> Copies:
    """The way of this config."""
    place = _place(config)
    span = _span(config, place)
    ways = _bulk_copies(config, span) if config.pdl else _line_copies(config, span)
    return Copies(place, *ways)


def make_deal(rows: int, warps: int) -> Callable:
    """Device function (od, warp) -> (a warp's first group of `rows` rows, from one to the next, how many).
    They are dealt to the blocks in turn, a block's to its warps: at any time all of them read neighbouring
    rows."""

    @device_function
    def deal(od, warp):
        groups = int32((od + (rows - 1)) // rows)
        first = int32(cuda.blockIdx.x) + warp * int32(cuda.gridDim.x)
        stride = warps * int32(cuda.gridDim.x)
        turns = int32(0)
        if first < groups:
            turns = int32(ptx.udiv_u32(groups - first + (stride - 1), stride))
        return first, stride, turns

    return deal


def _place(config: GemvConfig) -> Callable:
    row_bytes, part_bytes = config.row_bytes, config.slice_bytes

    @device_function
    def place(matrix, row, part):
        return matrix + uint64(row) * uint64(row_bytes) + uint64(part * part_bytes)

    return place


def _span(config: GemvConfig, place: Callable) -> Callable:
    """Device function (matrix, od, group, part): (the line in which a row group's slice starts, bytes from
    there to the slice's end)."""
    rows, slices, row_bytes, part_bytes = config.rows, config.slices, config.row_bytes, config.slice_bytes

    @device_function
    def span(matrix, od, group, part):
        row = group * rows
        address = place(matrix, row, part)
        length = int32(min(rows, od - row)) * row_bytes
        if slices > 1:
            length = min(int32(part_bytes), int32(row_bytes - part * part_bytes))
        line = address & uint64(0xFFFFFFFFFFFFFFF0)
        return line, int32(address - line) + length

    return span


def _stage(config: GemvConfig) -> Callable:
    """Device function (shared, x): copy the activations by cp.async, as one group."""
    x_bytes, threads = config.x_bytes, config.threads
    x_rounds = -(-(x_bytes // 16) // threads)

    @device_function
    def stage(shared, x):
        for i in range(x_rounds):
            chunk = int32(cuda.threadIdx.x) + i * threads
            if chunk < x_bytes // 16:
                ptx.cp_async_cg_16(shared + uint32(chunk * 16), x + uint64(chunk * 16), uint32(16))
        ptx.cp_async_commit()

    return stage


def _line_copies(config: GemvConfig, span: Callable) -> tuple[Callable, ...]:
    """(begin, copy, stage, staged, arrived) by cp.async: a copy is a group, and x is one, behind `early`."""
    row_bytes = config.row_bytes
    copy_rounds = -(-(config.body_bytes // 16) // 32)
    wait_x = ptx.cp_async_wait_group(config.slots - config.early)
    wait_oldest = ptx.cp_async_wait_group(config.slots - 1)
    stage = _stage(config)

    @device_function
    def begin(ring):
        """Nothing to prepare."""

    @device_function
    def copy(slot, matrix, od, group, part, wanted):
        if wanted:
            line, size = span(matrix, od, group, part)
            left = int32(min(matrix + uint64(od) * uint64(row_bytes) - line, uint64(0x40000000)))
            for i in range(copy_rounds):
                at = (int32(ptx.lane_id()) + i * 32) * 16
                if at < size:
                    ptx.cp_async_cg_16(slot + uint32(at), line + uint64(at), uint32(min(16, left - at)))
        ptx.cp_async_commit()  # wanted or not: waiting counts the groups

    @device_function
    def staged():
        wait_x()
        cuda.syncthreads()

    @device_function
    def arrived(slot, parity):
        wait_oldest()
        ptx.syncwarp()

    return begin, copy, stage, staged, arrived


def make_bulk_copy(row_bytes: int) -> Callable:
    """Device function (slot, full, line, size, end), for one thread: start the bulk copy of `size` bytes from
    line `line` of a matrix that ends at `end`, of rows of so many bytes; the mbarrier `full` counts it."""
    ragged = row_bytes % 16 != 0

    @device_function
    def bulk_copy(slot, full, line, size, end):
        whole = (size + 15) & ~15
        if ragged and end - line < uint64(whole):  # the matrix ends within a line: halves of it, then zeros
            whole -= 16
            for i in range(8):
                at = whole + 2 * i
                value = uint32(0)
                if at < size:
                    value = ptx.ld_global_u16(line + uint64(at))
                ptx.st_shared_u16(slot + uint32(at), value)
        ptx.mbarrier_arrive_expect_tx(full, uint32(whole))
        ptx.bulk_load(slot, line, uint32(whole), full)

    return bulk_copy


def _bulk_copies(config: GemvConfig, span: Callable) -> tuple[Callable, ...]:
    """(begin, copy, stage, staged, arrived) by bulk copies; the block overlaps the kernel before."""
    row_bytes, body_bytes, slot_bytes = config.row_bytes, config.body_bytes, config.slot_bytes
    slots, bulk_copy = config.slots, make_bulk_copy(row_bytes)
    copy_x, wait_all = _stage(config), ptx.cp_async_wait_group(0)

    @device_function
    def begin(ring):
        ptx.griddepcontrol_launch_dependents()
        if ptx.lane_id() == uint32(0):
            for n in range(slots):
                ptx.mbarrier_init(ring + uint32(n * slot_bytes + body_bytes), uint32(1))
        ptx.fence_mbarrier_init()
        ptx.syncwarp()

    @device_function
    def copy(slot, matrix, od, group, part, wanted):
        if wanted and ptx.lane_id() == uint32(0):
            line, size = span(matrix, od, group, part)
            end = matrix + uint64(od) * uint64(row_bytes)
            bulk_copy(slot, slot + uint32(body_bytes), line, size, end)

    @device_function
    def stage(shared, x):
        ptx.griddepcontrol_wait()
        copy_x(shared, x)

    @device_function
    def staged():
        wait_all()
        cuda.syncthreads()

    @device_function
    def arrived(slot, parity):
        ptx.mbarrier_wait(slot + uint32(body_bytes), parity)
        ptx.syncwarp()

    return begin, copy, stage, staged, arrived
