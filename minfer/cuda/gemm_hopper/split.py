"""Split-k: two blocks multiply a tile, each half of its depth.

A product of few tokens has few tiles, and if it is deep, each takes long while multiprocessors are idle. Two
blocks a tile fill them. What it costs is the exchange, some 8000 cycles: a block finishes the rows of one of
its two consumers, and hands the other one's sums to the block that finishes those. They are stored to a
workspace, which stays in L2, and a word counts the warps that have done so. The other block's producer waits
for that and brings them into two stages of the ring, as if they were two more k-tiles; so its consumer adds
them from shared memory, where sums loaded from L2 into registers left too few of these for wgmma.

Measured for 3584 rows of 18944 on an H200, in bursts: 65.7 -> 41.7 us at 128 tokens, 60.7 -> 53.9 at 256; for
3584 rows of 3584 at 128 tokens 14.6 -> 11.7, at 256 no gain.

A sum has two parts, so their order does not matter to its bits. Both blocks of a tile must be on the GPU at
once: `GemmHopperConfig.grid` refuses more blocks than multiprocessors, and launches that may run at the same
time need a workspace each.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.gemm_hopper.config import split_sums
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.tile.hopper import MbarrierRing

#: Bytes of a row of the workspace: 16 of each thread of a consumer.
ROW_BYTES = 2048
WARPS = 4


def split_workspace(multiprocessors: int) -> tuple[int, int]:
    """f32 elements and counters for launches with split_k one after the other (`GemmHopperConfig.grid`
    refuses what takes more); counters are zero between launches."""
    tiles = multiprocessors // 2
    return split_sums(multiprocessors), 2 * tiles


@device_function
def share(place, tiles, k_tiles):
    """(tile, part, first k-tile, k-tiles) of the block at a place. All first halves come first: neighbours
    read the same k-tiles of A and B."""
    part = int32(place >= tiles)
    middle = int32(k_tiles >> 1)
    return int32(place - part * tiles), part, int32(part * middle), int32(middle + part * (k_tiles & 1))


@dataclass(frozen=True)
class Halves:
    """The exchange of a config: `accumulators` sums a thread, in a ring of stages of `stage_bytes`."""

    accumulators: int
    stage_bytes: int
    ring: MbarrierRing

    @property
    def rows(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(first row, rows) of a consumer's sums in the workspace that each of two stages takes."""
        every = self.accumulators // 4
        return (0, every // 2), (every // 2, every - every // 2)

    @functools.cached_property
    def place(self) -> DeviceFunction:
        """(parts, ready, tile, consumer) -> addresses of a consumer's sums in the workspace, and of the word
        that counts them."""
        part_bytes = ROW_BYTES * self.accumulators // 4

        @device_function
        def place(parts, ready, tile, consumer):
            number = uint32(tile * 2 + consumer)
            return parts + uint64(number) * uint64(part_bytes), ready + uint64(4 * number)

        return place

    @functools.cached_property
    def give(self) -> DeviceFunction:
        """(sums, place, counter, thread): a consumer hands its sums over; thread of 128."""
        rows = self.accumulators // 4

        @device_function
        @unrolled
        def give(sums, place, counter, thread):
            own = place + uint64(uint32(thread) * uint32(16))
            for i in unroll(rows):
                at = own + uint64(ROW_BYTES * i)
                ptx.st_global_v4_f32(at, sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3])
            ptx.syncwarp()
            if thread & 31 == 0:
                ptx.red_add_release_u32(counter, uint32(1))

        return give

    @functools.cached_property
    def fetch(self) -> DeviceFunction:
        """(place, counter, base, barriers, stage, parity): the producer's thread brings what the other block
        hands over into the next two stages, and clears the counter."""
        firsts, counts = zip(*self.rows, strict=True)
        stage_bytes, empty, advance = self.stage_bytes, 8 * self.ring.stages, self.ring.advance

        @device_function
        @unrolled
        def fetch(place, counter, base, barriers, stage, parity):
            ptx.wait_global_u32(counter, uint32(WARPS))
            ptx.st_global_u32(counter, uint32(0))
            ptx.fence_proxy_async_global()
            for half in unroll(2):
                full = barriers + 8 * stage
                ptx.mbarrier_wait(full + empty, parity)
                ptx.mbarrier_arrive_expect_tx(full, counts[half] * ROW_BYTES)
                source = place + uint64(firsts[half] * ROW_BYTES)
                ptx.bulk_load(base + stage * stage_bytes, source, uint32(counts[half] * ROW_BYTES), full)
                stage, parity = advance(stage, parity)

        return fetch

    @functools.cached_property
    def add(self) -> DeviceFunction:
        """(sums, base, barriers, stage, parity, thread): a consumer adds what its producer has fetched."""
        firsts, counts = zip(*self.rows, strict=True)
        stage_bytes, advance = self.stage_bytes, self.ring.advance

        @device_function
        @unrolled
        def add(sums, base, barriers, stage, parity, thread):
            for half in unroll(2):
                ptx.mbarrier_wait(barriers + 8 * stage, parity)
                at = base + stage * stage_bytes + thread * 16
                for i in unroll(counts[half]):
                    o = 4 * (firsts[half] + i)
                    v0, v1, v2, v3 = ptx.ld_shared_v4_f32(at + ROW_BYTES * i)
                    sums[o] += v0
                    sums[o + 1] += v1
                    sums[o + 2] += v2
                    sums[o + 3] += v3
                stage, parity = advance(stage, parity)

        return add
