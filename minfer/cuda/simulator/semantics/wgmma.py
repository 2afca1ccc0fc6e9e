"""wgmma: asynchronous matrix multiply-accumulate of a warpgroup (PTX ISA 9.7.15).

Operands in shared memory are found through descriptors, with the swizzles of the canonical layouts
(9.7.15.5.1). A result lands in the accumulators when its group is waited for; until then reading or writing
them raises, and the shared bytes that it reads must not change.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minfer.cuda.simulator.arrays import LocalArray
from minfer.cuda.simulator.errors import (
    AsyncHazard,
    Divergence,
    InvalidInstruction,
    OutOfBounds,
    UninitializedShared,
)
from minfer.cuda.simulator.lanes import Group, Lane, current_lane
from minfer.cuda.simulator.memory import SHARED_BASE
from minfer.cuda.simulator.semantics.table import semantics
from minfer.cuda.simulator.tensor_map import swizzle_units
from minfer.cuda.trace.ops import Op

#: dtype -> elements in 4 bytes
_PACKING = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4}
_LANES = 128


@dataclass
class _InFlight:
    """One group: what it read and where its result goes."""

    group: Group
    number: int  # ascending in the group
    reads: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # units, their bytes at issue
    accumulators: list[LocalArray] = field(default_factory=list)
    sources: list[LocalArray] = field(default_factory=list)
    checked: bool = False

    def ranges(self) -> list[tuple[int, int]]:
        """The shared memory that it reads as (address, size) of contiguous pieces."""
        pieces = []
        for units, _ in self.reads:
            sorted_units = np.unique(units)
            for run in np.split(sorted_units, np.flatnonzero(np.diff(sorted_units) != 1) + 1):
                pieces.append((SHARED_BASE + 16 * int(run[0]), 16 * len(run)))
        return pieces


@functools.lru_cache(maxsize=64)
def _k_major_units(
    rows: int, offsets: tuple[int, ...], swizzle: int, stride: int, leading: int
) -> np.ndarray:
    """Logical 16-byte units of an operand with k contiguous, relative to its start: (rows, 2 a k step)."""
    row = np.arange(rows)[:, None, None]
    step = np.asarray(offsets)[None, :, None] // 16
    half = np.arange(2)[None, None, :]
    if swizzle:
        units = row // 8 * (stride // 16) + row % 8 * (swizzle // 16) + step + half
    else:
        units = row // 8 * (stride // 16) + row % 8 + step + half * (leading // 16)
    return units.reshape(rows, 2 * len(offsets))


@functools.lru_cache(maxsize=64)
def _n_major_units(n: int, offsets: tuple[int, ...], swizzle: int, stride: int, leading: int) -> np.ndarray:
    """Logical 16-byte units of a 16-bit B with n contiguous, relative to its start: (16 rows of k a step, n
    / 8)."""
    step = np.asarray(offsets)[:, None, None] // 16
    k = np.arange(16)[None, :, None]
    unit = np.arange(n // 8)[None, None, :]
    if swizzle:
        atom = swizzle // 16  # units of n in a swizzle atom
        units = unit // atom * (leading // 16) + unit % atom + k % 8 * atom + k // 8 * (stride // 16)
    else:
        units = unit * (stride // 16) + k % 8 + k // 8 * (leading // 16)
    return (units + step).reshape(16 * len(offsets), n // 8)


def _read_units(flight: _InFlight, descriptor: int, units: np.ndarray, swizzle: int) -> np.ndarray:
    """Bytes of the operand's units, (..., 16), and a note of what was read."""
    shared = flight.group.block.shared
    start = descriptor & 0x3FFF
    placed = swizzle_units(units + start, swizzle) - SHARED_BASE // 16
    if placed.min() < 0 or (placed.max() + 1) * 16 > shared.size:
        low, high = int(placed.min()) * 16, (int(placed.max()) + 1) * 16
        raise OutOfBounds(
            f"wgmma reads bytes {low} to {high - 1} of shared memory; the block has {shared.size} bytes",
            address=start * 16,
        )
    if shared.valid is not None:
        written = np.frombuffer(shared.valid, np.uint8)[: shared.size // 16 * 16].reshape(-1, 16)
        if not written[placed].all():
            first = int(placed[~written[placed].all(axis=-1)].min()) * 16
            raise UninitializedShared(
                f"wgmma reads shared memory byte {first}, which nothing has written",
                address=SHARED_BASE + first,
            )
    memory = np.frombuffer(shared.raw, np.uint8)[: shared.size // 16 * 16].reshape(-1, 16)
    data = memory[placed]
    flight.reads.append((placed, data))
    return data


def _numbers(data: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes (rows, bytes) as the numbers that they are, float64 for integers and float32 otherwise."""
    data = np.ascontiguousarray(data)
    if dtype in ("s8", "u8"):
        return data.view(np.int8 if dtype == "s8" else np.uint8).astype(np.float64)
    if dtype == "f16":
        return data.view(np.float16).astype(np.float32)
    if dtype == "bf16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return (data.view(np.uint32) & 0xFFFFE000).view(np.float32)


def _gather_registers(words: np.ndarray, dtype: str, k_steps: int) -> np.ndarray:
    """A fragments of a warpgroup, (128 lanes, 4 words a k step), as numbers (64, k)."""
    per = _PACKING[dtype]
    values = _numbers(words.view(np.uint8), dtype)
    lanes = values.reshape(4, 8, 4, k_steps, 2, 2, per)  # warp, g, t, step, column half, row half, element
    return lanes.transpose(0, 5, 1, 3, 4, 2, 6).reshape(64, k_steps * 8 * per)


def gather_tile(rows: np.ndarray) -> np.ndarray:
    """Accumulators of a warpgroup of one block of rows, (128 lanes, n / 2), as (64, n)."""
    n = 2 * rows.shape[1]
    return rows.reshape(4, 8, 4, n // 8, 2, 2).transpose(0, 4, 1, 3, 2, 5).reshape(64, n)


def scatter_tile(tile: np.ndarray) -> np.ndarray:
    """(64, n) as the accumulators of a warpgroup, (128 lanes, n / 2)."""
    n = tile.shape[1]
    return tile.reshape(4, 2, 8, n // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(_LANES, n // 2)


def _uniform(arguments: list[Any], position: int, what: str) -> int:
    value = arguments[0][position]
    for thread, argument in enumerate(arguments):
        if argument[position] != value:
            raise Divergence(
                f"wgmma: {what} differs between thread 0 ({value:#x}) and thread {thread} of the group"
            )
    return value


def _execute(group: Group, arguments: list[Any], p: dict[str, Any]) -> list[Any]:
    flight = _InFlight(group, group.synchronizations)
    blocks = p["row_blocks"]
    count = blocks * p["n"] // 2
    integer = p["dtype"] in ("s8", "u8")
    flight.accumulators = [argument[0] for argument in arguments]
    if p["a"] == "shared":
        a_word = _uniform(arguments, 1, "the descriptor of A")
        units = _k_major_units(
            64 * blocks, p["a_offsets"], p["swizzle"], p["stride_bytes"], (a_word >> 16 & 0x3FFF) * 16
        )
        data = _read_units(flight, a_word, units, p["swizzle"])
        a = _numbers(data.reshape(64 * blocks, -1), p["dtype"])
    else:
        flight.sources = [argument[1] for argument in arguments]
        words = np.array([source.initialized(4 * p["k_steps"]) for source in flight.sources], np.uint32)
        a = _gather_registers(words, p["dtype"], p["k_steps"])
        for source in flight.sources:
            source.readers += 1
    b_word = _uniform(arguments, 2, "the descriptor of B")
    layout = _n_major_units if p["transpose_b"] else _k_major_units
    units = layout(p["n"], p["b_offsets"], p["swizzle"], p["stride_bytes"], (b_word >> 16 & 0x3FFF) * 16)
    data = _read_units(flight, b_word, units, p["swizzle"])
    b_dtype = "s8" if p["dtype"] == "u8" else p["dtype"]
    b = _numbers(data.reshape(len(units), -1), b_dtype)
    # not BLAS: its threads cost more than a product of this size
    product = np.einsum("mk,kn->mn" if p["transpose_b"] else "mk,nk->mn", a, b)
    if integer:
        product = product.astype(np.int64)
    if p["accumulate"] is True or (p["accumulate"] == "operand" and _uniform(arguments, 3, "accumulate")):
        old = [accumulator.initialized(count) for accumulator in flight.accumulators]
        parts = np.split(np.array(old, np.int64 if integer else np.float32), blocks, axis=1)
        product = product + np.concatenate([gather_tile(part) for part in parts])
    product = product.astype(np.int32) if integer else product
    rows = np.concatenate([scatter_tile(part) for part in np.split(product, blocks)], axis=1)
    for accumulator, row in zip(flight.accumulators, rows, strict=True):
        if len(accumulator.values) < count:
            raise OutOfBounds(
                f"wgmma: {64 * blocks} x {p['n']} needs {count} accumulators, "
                f"the array has {len(accumulator)}"
            )
        accumulator.future = row.tolist() if integer else list(row)
        accumulator.in_flight += 1
    trace = group.block.launch.trace
    if trace is not None:
        for start, size in flight.ranges():
            trace.record(group.lanes[0], Op.WGMMA_READ_BEGIN, start, size, flight.number)
    return [flight] * _LANES


def _land(lane: Lane, flight: _InFlight) -> None:
    shared = flight.group.block.shared
    if not flight.checked:
        flight.checked = True
        memory = np.frombuffer(shared.raw, np.uint8)[: shared.size // 16 * 16].reshape(-1, 16)
        for units, data in flight.reads:
            if not np.array_equal(memory[units], data):
                changed = int(units[(memory[units] != data).any(axis=-1)].min()) * 16
                raise AsyncHazard(
                    f"shared memory byte {changed} changed while wgmma in flight still read it",
                    address=SHARED_BASE + changed,
                )
        if lane.trace is not None:
            for start, size in flight.ranges():
                lane.trace.record(lane, Op.WGMMA_READ_END, start, size, flight.number)
    thread = lane.thread % _LANES
    accumulator = flight.accumulators[thread]
    accumulator.in_flight -= 1
    if not accumulator.in_flight:
        accumulator.values[: len(accumulator.future)] = accumulator.future
    if flight.sources:
        flight.sources[thread].readers -= 1
    if lane.trace is not None:
        lane.trace.record(lane, Op.WGMMA_WAIT, extra=flight.number)


def _wait(lane: Lane, pending: int) -> None:
    while len(lane.wgmmas) > pending:
        _land(lane, lane.wgmmas.popleft())


@functools.lru_cache(maxsize=64)
def _executor(items: tuple[tuple[str, Any], ...]):
    parameters = dict(items)

    def execute(group, arguments):
        return _execute(group, arguments, parameters)

    return execute


@semantics
def wgmma(accumulators, a, b, /, *accumulate, **parameters):
    lane = current_lane("wgmma")
    word = parameters["high"]
    if word is not None:
        *accumulate, high_a, high_b = accumulate
        if (int(high_a), int(high_b)) != (word, word):
            raise InvalidInstruction(
                f"wgmma: descriptors' high words {high_a:#x}, {high_b:#x}, not {word:#x}"
            )
    if lane.trace is not None:
        lane.trace.record(lane, Op.WGMMA, extra=parameters["n"])
    operand = a if isinstance(a, LocalArray) else int(a) & 0xFFFFFFFF
    argument = (accumulators, operand, int(b) & 0xFFFFFFFF, *(int(x) & 0xFFFFFFFF != 0 for x in accumulate))
    execute = _executor(tuple(parameters.items()))
    lane.wgmmas.append(lane.warpgroup.collective(lane, "wgmma", argument, execute))
    if parameters["wait"] is not None:
        _wait(lane, parameters["wait"])


@semantics
def wgmma_wait(accumulators, /, pending, count, dtype):
    wgmma_wait_read(pending)


@semantics
def wgmma_wait_read(pending):
    lane = current_lane("wgmma_wait")
    lane.warp.collective(lane, "wgmma_wait", None, lambda group, arguments: None)
    _wait(lane, pending)


@semantics
def pin(values, /, count, dtype):
    if len(values.values) < count:
        raise OutOfBounds(f"pin of {count} registers of a local array of {len(values.values)}")
