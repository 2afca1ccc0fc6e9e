"""Stream-K (Osama et al., 2023): the tiles of the last, partial wave are cut along k, the same share a block.

A block computes whole tiles b, b + blocks, ... as long as every block has one. Of what is left it takes an
equal run of k-tiles: the end of a tile, the beginning of the next, or a middle. The block with a tile's
beginning adds the other parts to its own, in their order along k (so that the sums are the same in every
run), out of a workspace; it waits for blocks of a lower index only, which the hardware starts first.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.mmq.config import MmqConfig


@device_function
def _share(position, steps, blocks):
    """The first of `steps` k-tiles that the block at a position takes; the next position's is its end."""
    return int32(ptx.udiv_u32(uint32(position) * uint32(steps), uint32(blocks)))


@device_function
def segment(index, block, blocks, waves, tiles, k_tiles):
    """(tile, first k-tile, end) of a block's index-th segment, of waves + 2: whole tiles, then a run of
    k-tiles in up to two parts. An empty one has its end at its beginning."""
    if index < waves:
        return int32(index * blocks + block), int32(0), int32(k_tiles)
    steps, position = int32((tiles - waves * blocks) * k_tiles), int32(blocks - 1 - block)
    begin, end = _share(position, steps, blocks), _share(position + 1, steps, blocks)
    tile = int32(ptx.udiv_u32(uint32(begin), uint32(k_tiles)))
    start = int32(tile * k_tiles)
    if index == waves:
        return int32(waves * blocks + tile), int32(begin - start), int32(min(end - start, k_tiles))
    return int32(waves * blocks + tile + 1), int32(0), int32(max(end - start - k_tiles, 0))


@dataclass(frozen=True)
class Parts:
    """How a config hands parts of a tile on: a workspace of a tile of f32 a block, and a word a block that
    says that its part is there; zero before a launch and after it."""

    config: MmqConfig

    @functools.cached_property
    def leave(self) -> DeviceFunction:
        """(acc, parts, ready, thread): store the block's part and say so."""
        accumulators, threads = self.config.accumulators, self.config.threads

        @device_function
        @unrolled
        def leave(acc, parts, ready, thread):
            position = uint32(cuda.gridDim.x - 1 - cuda.blockIdx.x)
            own = parts + uint64(position * uint32(4 * accumulators * threads) + thread * uint32(16))
            for i in unroll(accumulators // 4):
                at = own + uint64(16 * threads * i)
                ptx.st_global_v4_f32(at, acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3])
            cuda.syncthreads()
            if thread == 0:
                ptx.red_add_release_u32(ready + uint64(4 * position), uint32(1))

        return leave

    @functools.cached_property
    def collect(self) -> DeviceFunction:
        """(acc, parts, ready, waves, tile, tiles, k_tiles, thread): add the other parts of the block's
        tile."""
        accumulators, threads = self.config.accumulators, self.config.threads

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
        def collect(acc, parts, ready, waves, tile, tiles, k_tiles, thread):
            blocks, part_bytes = int32(cuda.gridDim.x), uint32(4 * accumulators * threads)
            steps = int32((tiles - waves * blocks) * k_tiles)
            limit = int32((tile - waves * blocks + 1) * k_tiles)
            position = int32(blocks - cuda.blockIdx.x)
            begin = _share(position, steps, blocks)
            while begin < limit:
                end = _share(position + 1, steps, blocks)
                if begin < end:
                    if thread == 0:
                        flag = ready + uint64(4 * position)
                        ptx.wait_global_u32(flag, uint32(1))
                        ptx.st_global_u32(flag, uint32(0))
                    cuda.syncthreads()
                    add(acc, parts + uint64(uint32(position) * part_bytes + thread * 16))
                begin = end
                position += 1

        return collect
