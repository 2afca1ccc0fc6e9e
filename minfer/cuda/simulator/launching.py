"""From a `Kernel` and NumPy arrays to a simulated launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
from greenlet import getcurrent

from minfer.cuda.kernel import Argument, Kernel, grid_shape
from minfer.cuda.simulator.arrays import Pointer
from minfer.cuda.simulator.executor import Launch
from minfer.cuda.simulator.fake_cuda import FakeCuda
from minfer.cuda.simulator.lanes import Lane
from minfer.cuda.simulator.memory import GlobalMemory, offset_in_memory
from minfer.cuda.simulator.rebinding import Rebinder
from minfer.cuda.simulator.scalars import CASTS, dtype_name
from minfer.cuda.simulator.tensor_map import TensorMap
from minfer.cuda.trace import LaunchInfo, Trace, TracedArray

#: dtypes that NumPy keeps under another name
_SAME_BITS = {"bfloat16": ("uint16",), "bool": ("uint8",)}


class TensorMapArgument:
    """A tensor map as a kernel sees it: something with an address."""

    def __init__(self, address: int) -> None:
        self.address = address


def launch(
    kernel: Kernel,
    grid: int | tuple[int, ...],
    *args: Any,
    trace: Trace | None = None,
    blocks: Iterable[int | tuple[int, ...]] | None = None,
    seed: int | None = None,
    strict: bool = True,
) -> None:
    """Run `kernel` over `grid` blocks. NumPy arrays among `args` are global memory, modified in place.

    Args:
        grid: blocks along x, or (x, y, z).
        args: C-contiguous arrays for pointers, numbers for scalars, `TensorMap`s for tensor maps.
        trace: records what every lane does.
        blocks: run only these blocks (indices along x, or (x, y, z)).
        seed: run threads in an arbitrary order, and let asynchronous copies land early now and then, as
            drawn from this seed: what a missing barrier allows shows up in the results.
        strict: reads of shared memory that nothing has written raise.

    Raises:
        SimulatorError: a fault in the kernel, with block, thread and source line.
        TypeError, ValueError: arguments that do not fit the kernel's signature.
    """
    shape = grid_shape(grid)
    if min(shape) < 1:
        raise ValueError(f"{kernel.name}: a grid of {shape} has no blocks")
    if shape[0] % kernel.cluster:
        raise ValueError(
            f"{kernel.name}: {shape[0]} blocks along x; clusters need a multiple of {kernel.cluster}"
        )
    rebinder = Rebinder(FakeCuda())
    memory = GlobalMemory()
    run = Launch(
        name=kernel.name,
        function=rebinder.function(kernel.function),
        rebinder=rebinder,
        grid=shape,
        threads=kernel.threads,
        shared_bytes=kernel.shared_bytes,
        cluster=kernel.cluster,
        memory=memory,
        arguments=_bind(kernel, shape, args, memory),
        trace=trace,
        strict=strict,
        seed=seed,
    )
    if trace is not None:
        trace.begin(
            LaunchInfo(
                kernel=kernel.name,
                config=str(kernel.config),
                grid=shape,
                threads=kernel.threads,
                shared_bytes=kernel.shared_bytes,
                cluster=kernel.cluster,
                arrays=tuple(TracedArray(region.name, region.base, region.size) for region in memory.regions),
            )
        )
    try:
        clusters = _clusters(shape, kernel.cluster, blocks)
        if kernel.cooperative:  # all at once
            clusters = [[block for cluster in clusters for block in cluster]]
        for cluster in clusters:
            run.run(cluster)
    finally:
        run.close()


def _clusters(
    grid: tuple[int, int, int], size: int, blocks: Iterable[int | tuple[int, ...]] | None
) -> Iterable[list[tuple[int, int, int]]]:
    """The blocks to run, cluster by cluster; a chosen block brings its whole cluster."""
    if blocks is None:
        firsts: Iterable[tuple[int, int, int]] = (
            (x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(0, grid[0], size)
        )
    else:
        chosen: dict[tuple[int, int, int], None] = {}
        for block in blocks:
            index = (block,) if isinstance(block, int | np.integer) else tuple(block)
            x, y, z = (*map(int, index), *((0,) * (3 - len(index))))
            if not (0 <= x < grid[0] and 0 <= y < grid[1] and 0 <= z < grid[2]):
                raise ValueError(f"block {block} is not in the grid {grid}")
            chosen[x // size * size, y, z] = None
        firsts = chosen
    for x, y, z in firsts:
        yield [(x + rank, y, z) for rank in range(size)]


def _bind(
    kernel: Kernel, grid: tuple[int, int, int], args: tuple[Any, ...], memory: GlobalMemory
) -> tuple[Any, ...]:
    """The parameters as the kernel function sees them: pointers, wrapped integers, float32 scalars; None and
    zeros for what is not present.

    Arrays of kind "in" are read-only, unless the same memory is also passed as an output.
    """
    passed = kernel.passed
    if len(passed) != len(args):
        names = ", ".join(argument.name for argument in passed)
        raise TypeError(f"{kernel.name} takes {len(passed)} arguments ({names}), {len(args)} were given")
    values = iter(args)
    bound = tuple(
        _argument(kernel, argument, numba_type, next(values), memory)
        if argument.present
        else _absent(argument)
        for argument, numba_type in zip(kernel.arguments, kernel.signature().args, strict=True)
    )
    for argument, value in zip(passed, args, strict=True):
        if isinstance(value, np.ndarray):
            argument.check_size(kernel, value.size, math.prod(grid))
            argument.check_cleared(kernel, value.ravel()[: argument.cleared])
    outputs = {
        id(memory.region_of(value))
        for argument, value in zip(passed, args, strict=True)
        if isinstance(value, np.ndarray) and argument.kind != "in"
    }
    for argument, value in zip(passed, args, strict=True):
        if isinstance(value, np.ndarray) and argument.kind == "in":
            region = memory.region_of(value)
            region.writable = region.writable and id(region) in outputs
    return bound


def _absent(argument: Argument) -> Any:
    return CASTS[argument.dtype](0) if argument.kind == "scalar" else None


def _argument(kernel: Kernel, argument: Argument, numba_type: Any, value: Any, memory: GlobalMemory) -> Any:
    name = f"{kernel.name}: {argument.name}"
    element = getattr(numba_type, "dtype", None)  # of a pointer
    if argument.kind.startswith("tensor_map"):
        if not isinstance(value, TensorMap):
            raise TypeError(f"{name} is a tensor map; pass minfer.cuda.simulator.tensor_map(array, ...)")
        address = memory.add_object(value)
        return TensorMapArgument(address) if element is not None else address
    if isinstance(value, np.ndarray):
        accepted = (argument.dtype, *_SAME_BITS.get(argument.dtype, ()))
        if argument.dtype is not None and value.dtype.name not in accepted:
            raise TypeError(
                f"{name} takes {argument.dtype}, got an array of {value.dtype.name}: convert or .view() it"
            )
        if not value.dtype.isnative:
            raise TypeError(f"{name}: the array's {value.dtype} are in the other byte order: convert them")
        offset = offset_in_memory(value)
        if offset % argument.align:
            raise ValueError(
                f"{name} begins {offset} bytes into its memory, no multiple of {argument.align}: "
                "pass whole rows of an aligned array, or a copy"
            )
        region = memory.add(value, argument.name)
        if element is not None:
            return Pointer(region, dtype_name(element))
        if dtype_name(numba_type) == "uint64":
            return region.base
        raise TypeError(f"{name} is {numba_type}, and got an array")
    if element is not None:
        raise TypeError(f"{name} is {numba_type}, and got {type(value).__name__}; pass a NumPy array")
    kind = dtype_name(numba_type)
    wanted = Real if kind.startswith("float") else bool | np.bool_ if kind == "bool" else Integral
    if not isinstance(value, wanted):
        raise TypeError(f"{name} is {numba_type}, and got {value!r}")
    converted = CASTS[kind](value)
    if not kind.startswith("float") and converted != value:
        raise ValueError(f"{name} is {numba_type}, and {value} does not fit")
    return converted


def rebind(function: Callable) -> Callable:
    """A callable that runs `function` as kernel source inside a simulated launch, and as it is elsewhere."""

    def call(*args: Any) -> Any:
        lane = getcurrent()
        if type(lane) is Lane:
            return lane.launch.rebinder.function(function)(*args)
        return function(*args)

    return call
