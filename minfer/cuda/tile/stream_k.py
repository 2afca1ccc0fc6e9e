"""Stream-K (Osama et al., 2023): the tiles of the last, partial wave are cut along k, the same share a block.

A block computes whole tiles b, b + blocks, ... as many as every block has. Of what is left, each tile in some
steps along k, it takes an equal run of steps: the end of a tile, the beginning of the next, or a middle. The
block with a tile's beginning adds the other parts to its own, in their order along k (so that the sums are
the same in every run), out of a workspace; it waits for blocks of a lower index only, which the hardware
starts first.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled


@device_function
def _share(position, steps, blocks):
    """The first of all `steps` that the block at a position takes; the next position's is its end."""
    return int32(ptx.udiv_u32(uint32(position) * uint32(steps), uint32(blocks)))


@device_function
def segment(index, block, blocks, waves, tiles, tile_steps):
    """(tile, first step, end) of a block's index-th segment, of waves + 2: whole tiles of `tile_steps` steps,
    then a run of steps in up to two parts. An empty one has its end at its beginning."""
    if index < waves:
        return int32(index * blocks + block), int32(0), int32(tile_steps)
    steps, position = int32((tiles - waves * blocks) * tile_steps), int32(blocks - 1 - block)
    begin, end = _share(position, steps, blocks), _share(position + 1, steps, blocks)
    tile = int32(ptx.udiv_u32(uint32(begin), uint32(tile_steps)))
    start = int32(tile * tile_steps)
    if index == waves:
        return int32(waves * blocks + tile), int32(begin - start), int32(min(end - start, tile_steps))
    return int32(waves * blocks + tile + 1), int32(0), int32(max(end - start - tile_steps, 0))


@dataclass(frozen=True)
class Parts:
    """How blocks hand parts of a tile on, for themselves or each warpgroup for itself: a workspace of a tile
    of f32 a block, and a word a block (or warpgroup) that says that its part is there; zero before a launch
    and after it.

    Attributes:
        accumulators: f32 sums a thread holds of a tile.
        threads: that hand on together: of a block or a warpgroup.
        warpgroups: of a block that do; 0: the block does as one.
    """

    accumulators: int
    threads: int
    warpgroups: int = 0

    def workspace(self, blocks: int) -> tuple[int, int]:
        """f32 elements of `parts` and words of `ready` for so many blocks."""
        words = blocks * max(1, self.warpgroups)
        return words * self.accumulators * self.threads, words

    @functools.cached_property
    def _place(self) -> DeviceFunction:
        """(position of a block, warpgroup) -> place in the workspace."""
        warpgroups = self.warpgroups

        @device_function
        def place(position, warpgroup):
            if warpgroups == 0:
                return uint32(position)
            return uint32(position * warpgroups + warpgroup)

        return place

    @functools.cached_property
    def _meet(self) -> DeviceFunction:
        """(warpgroup): a barrier of all who hand on together; a warpgroup's is the named one behind its
        number."""
        warpgroups, threads = self.warpgroups, self.threads

        @device_function
        def meet(warpgroup):
            if warpgroups == 0:
                cuda.syncthreads()
            else:
                ptx.bar_sync(warpgroup + 1, threads)

        return meet

    @functools.cached_property
    def leave(self) -> DeviceFunction:
        """(acc, parts, ready, warpgroup, thread): store the part and say so."""
        accumulators, threads, place, meet = self.accumulators, self.threads, self._place, self._meet

        @device_function
        @unrolled
        def leave(acc, parts, ready, warpgroup, thread):
            own = place(uint32(cuda.gridDim.x - 1 - cuda.blockIdx.x), warpgroup)
            to = parts + uint64(own * uint32(4 * accumulators * threads) + thread * uint32(16))
            for i in unroll(accumulators // 4):
                at = to + uint64(16 * threads * i)
                ptx.st_global_v4_f32(at, acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3])
            meet(warpgroup)
            if thread == 0:
                ptx.red_add_release_u32(ready + uint64(4 * own), uint32(1))

        return leave

    @functools.cached_property
    def collect(self) -> DeviceFunction:
        """(acc, parts, ready, waves, tile, tiles, tile_steps, warpgroup, thread): add the other parts of the
        block's tile."""
        accumulators, threads, place, meet = self.accumulators, self.threads, self._place, self._meet

        @device_function
        @unrolled
        def add(acc, part):
            for i in unroll(accumulators // 4):
                v0, v1, v2, v3 = ptx.ld_global_v4_f32(part + uint64(16 * threads * i))
                acc[4 * i] += v0
                acc[4 * i + 1] += v1
                acc[4 * i + 2] += v2
                acc[4 * i + 3] += v3

        @device_function
        def collect(acc, parts, ready, waves, tile, tiles, tile_steps, warpgroup, thread):
            blocks, part_bytes = int32(cuda.gridDim.x), uint32(4 * accumulators * threads)
            steps = int32((tiles - waves * blocks) * tile_steps)
            limit = int32((tile - waves * blocks + 1) * tile_steps)
            position = int32(blocks - cuda.blockIdx.x)
            begin = _share(position, steps, blocks)
            while begin < limit:
                end = _share(position + 1, steps, blocks)
                if begin < end:
                    other = place(position, warpgroup)
                    if thread == 0:
                        flag = ready + uint64(4 * other)
                        ptx.wait_global_u32(flag, uint32(1))
                        ptx.st_global_u32(flag, uint32(0))
                    meet(warpgroup)
                    add(acc, parts + uint64(other * part_bytes + thread * 16))
                begin = end
                position += 1

        return collect
