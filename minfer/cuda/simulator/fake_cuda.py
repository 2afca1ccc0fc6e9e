"""What the name `cuda` means in a simulated kernel: the part of numba.cuda that kernels use."""

from __future__ import annotations

import math
import operator
import sys
from typing import Any

import numpy as np

from minfer.cuda.simulator.arrays import LocalArray, SharedArray, shape_of
from minfer.cuda.simulator.lanes import WARP, current_lane
from minfer.cuda.simulator.memory import SHARED_BASE
from minfer.cuda.simulator.scalars import dtype_name
from minfer.cuda.trace.source import call_chain


class _ThreadIndex:
    """threadIdx: blocks are one-dimensional."""

    y = 0
    z = 0

    @property
    def x(self) -> int:
        return current_lane("cuda.threadIdx").thread


class _BlockIndex:
    @property
    def x(self) -> int:
        return current_lane("cuda.blockIdx").block.index[0]

    @property
    def y(self) -> int:
        return current_lane("cuda.blockIdx").block.index[1]

    @property
    def z(self) -> int:
        return current_lane("cuda.blockIdx").block.index[2]


class _BlockSize:
    y = 1
    z = 1

    @property
    def x(self) -> int:
        return current_lane("cuda.blockDim").launch.threads


class _GridSize:
    @property
    def x(self) -> int:
        return current_lane("cuda.gridDim").launch.grid[0]

    @property
    def y(self) -> int:
        return current_lane("cuda.gridDim").launch.grid[1]

    @property
    def z(self) -> int:
        return current_lane("cuda.gridDim").launch.grid[2]


class _Local:
    @staticmethod
    def array(shape: Any, dtype: Any) -> LocalArray:
        return LocalArray(shape_of(shape), dtype_name(dtype))


class _Shared:
    @staticmethod
    def array(shape: Any, dtype: Any, alignment: int | None = None) -> SharedArray:
        shared = current_lane("cuda.shared.array").block.shared
        shape, name = shape_of(shape), dtype_name(dtype)
        itemsize = np.dtype(name).itemsize
        if shape == (0,):  # the dynamic bytes
            return SharedArray(shared, SHARED_BASE, (shared.dynamic_bytes // itemsize,), name)
        return SharedArray(
            shared, shared.allocate(call_chain(sys._getframe()), math.prod(shape) * itemsize), shape, name
        )


class _Atomic:
    """Read-modify-write of one element; lanes never run at the same time, so a plain update is atomic."""

    @staticmethod
    def add(array: Any, index: Any, value: Any) -> Any:
        return array.update(index, operator.add, value)

    @staticmethod
    def max(array: Any, index: Any, value: Any) -> Any:
        return array.update(index, max, value)

    @staticmethod
    def min(array: Any, index: Any, value: Any) -> Any:
        return array.update(index, min, value)


class FakeCuda:
    """Stands for the module `numba.cuda`; an attribute that it lacks is named in the error."""

    threadIdx = _ThreadIndex()
    blockIdx = _BlockIndex()
    blockDim = _BlockSize()
    gridDim = _GridSize()
    local = _Local()
    shared = _Shared()
    atomic = _Atomic()
    warpsize = WARP

    @property
    def laneid(self) -> int:
        return current_lane("cuda.laneid").index

    def grid(self, dimensions: int) -> Any:
        """This thread's number in the grid, or (x, y), or (x, y, z)."""
        block, thread = self.blockIdx, self.threadIdx
        x = block.x * self.blockDim.x + thread.x
        return x if dimensions == 1 else (x, block.y, block.z)[:dimensions]

    def gridsize(self, dimensions: int) -> Any:
        """Threads in the grid, in as many dimensions."""
        size = self.gridDim
        x = size.x * self.blockDim.x
        return x if dimensions == 1 else (x, size.y, size.z)[:dimensions]

    @staticmethod
    def syncthreads() -> None:
        lane = current_lane("cuda.syncthreads")
        lane.block.barrier(lane, 0, None, True, "cuda.syncthreads")

    @staticmethod
    def syncwarp() -> None:
        from minfer.cuda.simulator.semantics import SEMANTICS

        SEMANTICS["syncwarp"]()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the simulator has no cuda.{name}; it has threadIdx, blockIdx, blockDim, gridDim, grid, "
            f"gridsize, laneid, warpsize, syncthreads, syncwarp, local.array, shared.array and "
            f"atomic.add/max/min"
        )
