"""Pipelines and epilogues for Hopper: a ring of TMA stages guarded by mbarriers, stmatrix and TMA stores.

A ring has `stages` stages. Each has two mbarriers: `full`, completed by the bytes that the producer's TMA
loads bring, and `empty`, completed by the consumers' arrivals. A cursor (stage, parity) walks the ring; a
consumer starts at parity 0, a producer at parity 1 (a fresh `empty` passes).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled

#: Columns of a 16-bit matrix in the 128-byte rows that TMA and wgmma swizzle.
BOX_COLUMNS = 64
ALIGNMENT = 1024
#: A chunk of the epilogue: 16 rows of 128 bytes.
BUFFER_BYTES = 2048


@dataclass(frozen=True)
class MbarrierRing:
    """The mbarriers of a ring: `full` of stage s at 8 s from their start, `empty` at 8 (stages + s).

    A phase of `full` takes `producers` arrivals (one, expecting the bytes, where TMA brings them), one of
    `empty` takes `consumers`."""

    stages: int
    consumers: int
    producers: int = 1

    @property
    def size_bytes(self) -> int:
        """Shared memory of the mbarriers."""
        return 16 * self.stages

    @functools.cached_property
    def initialise(self) -> DeviceFunction:
        """(mbarriers' address): by one thread, before a barrier of the block or cluster."""
        stages, consumers, producers = self.stages, self.consumers, self.producers

        @device_function
        def initialise(barriers):
            for stage in range(stages):
                ptx.mbarrier_init(barriers + 8 * stage, producers)
                ptx.mbarrier_init(barriers + 8 * (stages + stage), consumers)
            ptx.fence_mbarrier_init()

        return initialise

    @functools.cached_property
    def advance(self) -> DeviceFunction:
        """(stage, parity) -> the next cursor."""
        from numba.cuda import types

        last = self.stages - 1

        @device_function
        def advance(stage, parity):
            wraps = types.uint32(stage == last)
            return ptx.select_u32(wraps, 0, stage + 1), types.uint32(parity ^ wraps)

        return advance


@functools.cache
def store_tile(columns: int, buffers: int, out: str = "f16", add: bool = False) -> DeviceFunction:
    """Factory: a warp's 16 x `columns` f32 accumulators of wgmma to an f16 or f32 matrix, through shared
    memory by TMA; with `add` (f32 only) added to what is there.

    (array, tensor map address, buffer, row, column, lane): `buffer` is the shared address of the warp's own
    `buffers` buffers of `BUFFER_BYTES`, aligned to 1024 bytes. The tensor map has boxes of 16 rows x
    `chunk_columns(out)` columns with the 128-byte swizzle; the store drops what lies outside the matrix.
    Chunks of so many columns leave in two batches if there is a buffer for each, else one by one; if
    `columns` is no multiple of them the last chunk overlaps the one before (the same values; zeros with
    `add`). Stores drain while the warp goes on: the function first waits until the last tile's have read
    their buffers. One lane must execute `ptx.bulk_wait_group_read(0)` before the block ends.

    Raises ValueError unless columns is a multiple of 8 that fills a chunk and there is a buffer."""
    width = chunk_columns(out)
    if columns < width or columns % 8 or buffers < 1 or (add and out != "f32"):
        raise ValueError(
            f"store_tile: {columns} columns of {out} in {buffers} buffers: a multiple of 8 from {width}, "
            "1 buffer; only f32 is added"
        )
    starts = chunk_starts(columns, width)
    chunks = len(starts)
    if buffers >= chunks:
        halves = [(0, chunks // 2), (chunks // 2, chunks)]
        batches = [(first, end) for first, end in halves if first < end]
    else:
        batches = [(c, c + 1) for c in range(chunks)]
    batch_count = len(batches)
    firsts, ends = tuple(first for first, _ in batches), tuple(end for _, end in batches)
    wait_all, wait_one = ptx.bulk_wait_group_read(0), ptx.bulk_wait_group_read(max(0, buffers - 1))
    send = ptx.tma_add_2d if add else ptx.tma_store_2d
    write, write_last = _writers(columns, out, add)

    @device_function
    @unrolled
    def store(array, tensor_map, buffer, row, column, lane):
        if lane == 0:
            wait_all()
        ptx.syncwarp()
        for batch in unroll(batch_count):
            for c in unroll(firsts[batch], ends[batch]):
                if c >= buffers:
                    if lane == 0:
                        wait_one()
                    ptx.syncwarp()
                if c == chunks - 1:
                    write_last(array, starts[c] // 2, buffer + (c % buffers) * BUFFER_BYTES, lane)
                else:
                    write(array, starts[c] // 2, buffer + (c % buffers) * BUFFER_BYTES, lane)
            ptx.fence_proxy_async()
            ptx.syncwarp()
            if lane == 0:
                for c in unroll(firsts[batch], ends[batch]):
                    source = buffer + (c % buffers) * BUFFER_BYTES
                    send(tensor_map, source, column + starts[c], row)
                ptx.bulk_commit_group()

    return store


@functools.cache
def store_chunk(columns: int, buffers: int, out: str = "f16", add: bool = False) -> DeviceFunction:
    """Factory: one chunk of what `store_tile` stores, without a branch, for what runs under wgmma in flight.

    (array, tensor map address, buffer, row, column, lane, number): chunks of several arrays that follow each
    other have numbers from 0 on, those of the second array behind the first one's. Buffers take turns; number
    0 waits for all of them. All lanes must execute `ptx.bulk_wait_group_read(0)` before the block ends."""
    from numba.cuda import types

    width = chunk_columns(out)
    chunks = len(chunk_starts(columns, width))
    wait_all, wait_oldest = ptx.bulk_wait_group_read(0), ptx.bulk_wait_group_read(buffers - 1)
    send = ptx.tma_add_2d_if if add else ptx.tma_store_2d_if
    write, write_last = _writers(columns, out, add)

    @device_function
    def store(array, tensor_map, buffer, row, column, lane, number):
        if number == 0:
            wait_all()
        elif number >= buffers:
            wait_oldest()
        ptx.syncwarp()
        chunk, place = number % chunks, buffer + (number % buffers) * BUFFER_BYTES
        start = min(types.int32(chunk * width), types.int32(columns - width))
        if chunk == chunks - 1:
            write_last(array, start // 2, place, lane)
        else:
            write(array, start // 2, place, lane)
        ptx.fence_proxy_async()
        ptx.syncwarp()
        send(tensor_map, place, column + start, row, types.uint32(lane == 0))
        ptx.bulk_commit_group()

    return store


def _writers(columns: int, out: str, add: bool) -> tuple[DeviceFunction, DeviceFunction]:
    """What writes a chunk, and the last chunk: of that one, what the chunk before holds already is zeros if
    it is added."""
    if out == "f16":
        return write_chunk_f16, write_chunk_f16
    width = chunk_columns(out)
    return _write_f32(0), _write_f32((width - columns % width) % width // 8 if add else 0)


@device_function
@unrolled
def write_chunk_f16(array, first, place, lane):
    """16 rows x 64 columns: chunks of 16 bytes XORed with the row, as the tensor map's swizzle says."""
    line = place + (lane & 15) * 128
    for j in unroll(4):
        o = first + 8 * j
        ptx.stmatrix_x4(
            line + (((2 * j + (lane >> 4)) ^ (lane & 7)) << 4),
            ptx.pack_f16x2(array[o], array[o + 1]),
            ptx.pack_f16x2(array[o + 2], array[o + 3]),
            ptx.pack_f16x2(array[o + 4], array[o + 5]),
            ptx.pack_f16x2(array[o + 6], array[o + 7]),
        )


@functools.cache
def _write_f32(zeros: int) -> DeviceFunction:
    """16 rows x 32 columns, the first `zeros` groups of 8 columns as zeros; swizzled like f16."""
    from numba.cuda import types

    @device_function
    @unrolled
    def write(array, first, place, lane):
        row, pair = lane >> 2, lane & 3
        line = place + row * 128 + (pair & 1) * 8
        for j in unroll(4):
            at = line + (((2 * j + (pair >> 1)) ^ row) << 4)
            if j < zeros:
                ptx.st_shared_v2_f32(at, types.float32(0), types.float32(0))
                ptx.st_shared_v2_f32(at + 1024, types.float32(0), types.float32(0))
            else:
                o = first + 4 * j
                ptx.st_shared_v2_f32(at, array[o], array[o + 1])
                ptx.st_shared_v2_f32(at + 1024, array[o + 2], array[o + 3])

    return write


def chunk_columns(out: str) -> int:
    """Columns of f16 or f32 in the 128 bytes of a chunk's row."""
    return {"f16": 64, "f32": 32}[out]


def chunk_starts(columns: int, width: int = BOX_COLUMNS) -> tuple[int, ...]:
    """First columns of the chunks of `width` that cover `columns`; the last one ends there."""
    return tuple(min(c, columns - width) for c in range(0, columns, width))
