"""Split-k: two blocks multiply a tile, each half of its depth, or four.

A product of few tokens has few tiles, and if it is deep, each takes long while multiprocessors are idle. Two
blocks a tile fill them. What it costs is the exchange, some 8000 cycles: a block finishes the rows of one of
its two consumers, and hands the other one's sums to the block that finishes those. They are stored to a
workspace, which stays in L2, and a word counts the warps that have done so. The other block's producer waits
for that and brings them into two stages of the ring, as if they were two more k-tiles; so its consumer adds
them from shared memory, where sums loaded from L2 into registers left too few of these for wgmma.

Four blocks finish half of a consumer's sums each, and are handed those by three others: half as much again
goes through L2. For W4A16 (`minfer.cuda.w4a16.kernel`), whose weights should be unpacked in few tiles.

Measured on an H200 in bursts, two blocks, f16 weights: 3584 rows of 18944 65.7 -> 41.7 us at 128 tokens,
60.7 -> 53.9 at 256; 3584 rows of 3584 at 128 tokens 14.6 -> 11.7, at 256 no gain.

With a lead the exchange passes under wgmmas. Each of two blocks multiplies more than half of the depth with
the rows that it finishes, and less with those that it hands over; so one consumer is done first, and its sums
are on their way while the other one goes on alone, for 2 * lead k-tiles of which half of A is loaded. Two
blocks that share 128 x 224 move 27 percent fewer bytes than two of 128 x 112, where 12 k-tiles for a consumer
alone take 1,500 cycles more than 6 for both. Predicted for 3584 rows of 18944 at 512 tokens, a lead of 6: 138
kilocycles where 128 x 112 takes 146 in bursts, and 4 percent less energy. Measured, in bursts and under a
load of its own: 151.5 and 144.3 kilocycles (128 x 112 146.2 and 139.4, no lead 155.8 and 147.4), and yet 1.5
and 5.3 percent less time than 128 x 112, 0.4 and 3.1 less than cuBLAS, at clocks of 1552 and 1275 MHz (1475
and 1166). The energy is the same, 79.9 mJ (79.2, cuBLAS 79.5): it takes 705 W (663, 680). The k-tiles take
the cycles that were predicted; 10,000 of a launch lie outside of them, 6,000 where no tile is shared. At 384
tokens 128 x 168 takes 6.6 and 8.4 percent less time than 128 x 96. Leads of 4, 8 and 12 took 0.4, 0.1 and 0.8
percent longer in bursts, 0.6, 1.5 and 1.5 under a load.

What lost: 128 x 224 with a lead of 4 for 3584 rows of 3584 at 512 tokens (16 and 11 percent slower than
128 x 112); 128 x 144 for 4608 rows of 3584 at 256 tokens (2.7 and 2.6); for 3584 rows of 18944 a lead of 128
x 112 at 256 tokens (0.2 to 0.9 percent slower than none, and 2 to 6) and of 128 x 64 at 128 (0.6 and 1.4).

Parts are added in one order, so a sum has the same bits each time; with a lead they depend on which consumer
has its row, as the depth is cut elsewhere for each. All blocks of a tile must be on the GPU at once: the
configs' `grid` refuses more blocks than multiprocessors, and launches that may run at the same time need a
workspace each. So the launches are cooperative ones for the driver, which do not overlap with the kernel
before. Without that 3584 rows of 3584 take 11.5 us at 128 tokens instead of 12.6 (in bursts, a lead of 4;
11.2 with none), those of 18944 42.1 instead of 44.0, and at 512 tokens nothing changes; but two such launches
on two streams, of two engines of a process, could each hold half of the GPU and wait for ever.
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


@functools.cache
def share_among(parts: int) -> DeviceFunction:
    """(place, tiles, k_tiles) -> (tile, part, first k-tile, k-tiles) of the block at a place; 2 or 4 share a
    tile. All first parts come first: neighbours read the same k-tiles of A and B. A block behind the last
    part has a tile behind the last, which is none."""
    shift = parts // 2

    @device_function
    def share(place, tiles, k_tiles):
        part = min(int32(ptx.udiv_u32(place, tiles)), int32(parts - 1))
        first = int32((part * k_tiles) >> shift)
        count = int32((((part + 1) * k_tiles) >> shift) - first)
        return int32(place - part * tiles), part, first, count

    return share


@functools.cache
def share_with_lead(lead: int) -> DeviceFunction:
    """(part, k_tiles) -> (first k-tile, k-tiles, those for both consumers) of one of two blocks that share a
    tile. Part 0 takes the first k-tiles for both, part 1 as many of the last ones. Those in the middle, 2
    `lead` or one more, come last in both blocks, each time for one consumer; as the first part's come before
    them, a block's k-th k-tile is then simply the k-th."""

    @device_function
    def share(part, k_tiles):
        both = max(int32((k_tiles >> 1) - lead), int32(1))
        return int32(part * (k_tiles - both)), int32(k_tiles - both), both

    return share


@functools.cache
def make_share(split: bool, lead: int) -> DeviceFunction:
    """(place, tiles, k_tiles) -> (tile, (first k-tile, k-tiles, those for both consumers, part)) of the block
    at a place: its first tile, and what it multiplies of each."""
    share_tile, share_k = share_among(2), share_with_lead(lead)

    @device_function
    def share(place, tiles, k_tiles):
        tile, part, first, own, both = place, int32(0), int32(0), k_tiles, k_tiles
        if split:
            tile, part, first, own = share_tile(place, tiles, k_tiles)
            both = own
        if lead:
            first, own, both = share_k(part, k_tiles)
        return tile, (first, own, both, part)

    return share


@dataclass(frozen=True)
class Exchange:
    """Of a config with `accumulators` sums a thread of its two consumers, in a ring of stages of
    `stage_bytes`: `parts` blocks, 2 or 4, share a tile.

    Part p finishes the rows of consumer p % 2; of four parts a fraction of its sums, p / 2 of two. All others
    hand it those, and are added in the order of parts, so that the result has the same bits each time."""

    accumulators: int
    stage_bytes: int
    ring: MbarrierRing
    parts: int = 2

    @property
    def fractions(self) -> int:
        """Of a consumer's sums, each finished by another part."""
        return self.parts // 2

    @property
    def piece_rows(self) -> int:
        """Rows of the workspace that a consumer hands to a part."""
        return self.accumulators // 4 // self.fractions

    @property
    def piece_bytes(self) -> int:
        return ROW_BYTES * self.piece_rows

    @property
    def loads(self) -> tuple[tuple[int, int], ...]:
        """(first row, rows) that each of two stages, or three, takes of the pieces for a part: half of the
        only one, or one of three."""
        rows = self.piece_rows
        if self.parts == 2:
            return (0, rows // 2), (rows // 2, rows - rows // 2)
        return tuple((rows * piece, rows) for piece in range(self.parts - 1))

    @functools.cached_property
    def place(self) -> DeviceFunction:
        """(parts, ready, tile, part) -> addresses of what is handed to a part, in the workspace, and of the
        word that counts it."""
        count, part_bytes = self.parts, (self.parts - 1) * self.piece_bytes

        @device_function
        def place(parts, ready, tile, part):
            number = uint32(tile * count + part)
            return parts + uint64(number) * uint64(part_bytes), ready + uint64(4 * number)

        return place

    def give(self, fraction: int) -> DeviceFunction:
        """(sums, place, counter, thread): a consumer hands a fraction of its sums over; thread of 128."""
        rows, first = self.piece_rows, 4 * self.piece_rows * fraction

        @device_function
        @unrolled
        def give(sums, place, counter, thread):
            own = place + uint64(uint32(thread) * uint32(16))
            for i in unroll(rows):
                at, o = own + uint64(ROW_BYTES * i), first + 4 * i
                ptx.st_global_v4_f32(at, sums[o], sums[o + 1], sums[o + 2], sums[o + 3])
            ptx.syncwarp()
            if thread & 31 == 0:
                ptx.red_add_release_u32(counter, uint32(1))

        return give

    @functools.cached_property
    def fetch(self) -> DeviceFunction:
        """(place, counter, base, barriers, stage, parity): the producer's thread brings what the other blocks
        hand over into the next stages, and clears the counter."""
        (firsts, counts), loads = zip(*self.loads, strict=True), len(self.loads)
        arrivals = WARPS * (self.parts - 1)
        stage_bytes, empty, advance = self.stage_bytes, 8 * self.ring.stages, self.ring.advance

        @device_function
        @unrolled
        def fetch(place, counter, base, barriers, stage, parity):
            ptx.wait_global_u32(counter, uint32(arrivals))
            ptx.st_global_u32(counter, uint32(0))
            ptx.fence_proxy_async_global()
            for load in unroll(loads):
                full = barriers + 8 * stage
                ptx.mbarrier_wait(full + empty, parity)
                ptx.mbarrier_arrive_expect_tx(full, counts[load] * ROW_BYTES)
                source = place + uint64(firsts[load] * ROW_BYTES)
                ptx.bulk_load(base + stage * stage_bytes, source, uint32(counts[load] * ROW_BYTES), full)
                stage, parity = advance(stage, parity)

        return fetch

    def add(self, fraction: int) -> DeviceFunction:
        """(sums, base, barriers, stage, parity, thread): a consumer adds to a fraction of its sums what its
        producer has fetched."""
        (firsts, counts), loads = zip(*self.loads, strict=True), len(self.loads)
        rows = self.piece_rows
        stage_bytes, advance = self.stage_bytes, self.ring.advance
        starts = tuple(4 * (rows * fraction + first % rows) for first in firsts)

        @device_function
        @unrolled
        def add(sums, base, barriers, stage, parity, thread):
            for load in unroll(loads):
                ptx.mbarrier_wait(barriers + 8 * stage, parity)
                at = base + stage * stage_bytes + thread * 16
                for i in unroll(counts[load]):
                    o = starts[load] + 4 * i
                    v0, v1, v2, v3 = ptx.ld_shared_v4_f32(at + ROW_BYTES * i)
                    sums[o] += v0
                    sums[o + 1] += v1
                    sums[o + 2] += v2
                    sums[o + 3] += v3
                stage, parity = advance(stage, parity)

        return add
