"""Addresses, loads and stores of global and shared memory."""

from __future__ import annotations

import operator
from collections.abc import Callable
from zlib import crc32

import numpy as np

from minfer.cuda.simulator.errors import Deadlock, InvalidInstruction
from minfer.cuda.simulator.lanes import current_lane
from minfer.cuda.simulator.memory import check_aligned, check_writable
from minfer.cuda.simulator.scalars import CASTS
from minfer.cuda.simulator.semantics.table import register, semantics
from minfer.cuda.trace.ops import Op

_ADDRESS = (1 << 64) - 1

#: suffix of a load or store -> (view of the region, bytes an element, cast of what is stored)
_KINDS = {
    "u8": ("u8", 1, CASTS["uint8"]),
    "s8": ("s8", 1, CASTS["int8"]),
    "u16": ("u16", 2, CASTS["uint16"]),
    "u32": ("u32", 4, CASTS["uint32"]),
    "s32": ("s32", 4, CASTS["int32"]),
    "u64": ("u64", 8, CASTS["uint64"]),
    "f32": ("f32", 4, CASTS["float32"]),
}


@semantics
def shared_address(array):
    return array.address


@semantics
def global_address(pointer):
    return 0 if pointer is None else pointer.address


def _make_load(name: str, space: str, kind: str, count: int):
    view, width, _ = _KINDS[kind]
    size = width * count
    shared = space == "shared"
    op = Op.LOAD_SHARED if shared else Op.LOAD_GLOBAL

    def load(address):
        lane = current_lane(name)
        address = int(address) & _ADDRESS
        region = lane.block.shared.find(address, size) if shared else lane.launch.memory.find(address, size)
        if address % size:
            check_aligned(address, size, name)
        if lane.trace is not None:
            lane.trace.record(lane, op, address, size)
        if region.valid is not None:
            region.check_written(address, size)
        first = (address - region.base) // width
        if count == 1:
            return getattr(region, view)[first]
        return tuple(getattr(region, view)[first : first + count].tolist())

    if kind == "f32" and count > 1:

        def load_floats(address):
            return tuple(map(np.float32, load(address)))

        return load_floats
    return load


def _make_store(name: str, space: str, kind: str, count: int):
    view, width, cast = _KINDS[kind]
    size = width * count
    shared = space == "shared"
    op = Op.STORE_SHARED if shared else Op.STORE_GLOBAL

    def store(address, *values):
        lane = current_lane(name)
        address = int(address) & _ADDRESS
        region = lane.block.shared.find(address, size) if shared else lane.launch.memory.find(address, size)
        if address % size:
            check_aligned(address, size, name)
        if len(values) != count:
            raise TypeError(f"{name} stores {count} values, got {len(values)}")
        if lane.trace is not None:
            what = 1 + crc32(np.array([*map(cast, values)])) if shared else 0
            lane.trace.record(lane, op, address, size, what)
        if not region.writable:
            check_writable(region)
        first = (address - region.base) // width
        target = getattr(region, view)
        for i, value in enumerate(values, first):
            target[i] = cast(value)
        if region.valid is not None:
            region.mark_written(address, size)

    return store


for _space in ("global", "shared"):
    for _kind, _count in (
        ("u8", 1), ("s8", 1), ("u16", 1), ("u32", 1), ("s32", 1), ("u64", 1), ("f32", 1),
        ("u32", 2), ("u32", 4), ("f32", 2), ("f32", 4),
    ):  # fmt: skip
        _suffix = _kind if _count == 1 else f"v{_count}_{_kind}"
        for _path in ("", "nc_", "stream_") if _space == "global" else ("",):
            _name = f"ld_{_space}_{_path}{_suffix}"
            register(_name, _make_load(_name, _space, _kind, _count))
        _name = f"st_{_space}_{_suffix}"
        register(_name, _make_store(_name, _space, _kind, _count))


@semantics
def st_cluster_v4_f32(address, cta, *values):
    """A remote store: what comes after it across a cluster barrier sees it. Not traced: a trace is of one
    block's memory."""
    lane = current_lane("st_cluster_v4_f32")
    blocks = lane.block.cluster.blocks
    if not 0 <= int(cta) < len(blocks):
        raise InvalidInstruction(f"st_cluster_v4_f32: block {int(cta)} of a cluster of {len(blocks)}")
    if blocks[int(cta)].live == 0:
        raise InvalidInstruction(f"st_cluster_v4_f32: block {int(cta)} of the cluster has exited")
    address = int(address) & _ADDRESS
    check_aligned(address, 16, "st_cluster_v4_f32")
    region = blocks[int(cta)].shared.find(address, 16)
    first = (address - region.base) // 4
    region.f32[first : first + 4] = [np.float32(value) for value in values]
    if region.valid is not None:
        region.mark_written(address, 16)


@semantics
def tensor_map_address(tensor_map):
    return tensor_map.address


@semantics
def prefetch_global_l2(address):
    current_lane("prefetch_global_l2").launch.memory.find(int(address) & _ADDRESS, 1)


def _atom(name: str, combine: Callable[[int, int], int]):
    def atom(address, value):
        lane = current_lane(name)
        address = int(address) & _ADDRESS
        region = lane.launch.memory.find(address, 4)
        check_aligned(address, 4, name)
        check_writable(region)
        at = (address - region.base) // 4
        before = int(region.u32[at])
        region.u32[at] = combine(before, int(value)) & 0xFFFFFFFF
        return before

    register(name, atom)
    return atom


atom_add_global_u32 = _atom("atom_add_global_u32", operator.add)
_atom("atom_or_global_u32", operator.or_)


@semantics
def fence_gpu():
    current_lane("fence_gpu")


@semantics
def red_add_release_u32(address, value):
    current_lane("red_add_release_u32")
    atom_add_global_u32(address, value)


@semantics
def red_add_u32(address, value):
    current_lane("red_add_u32")
    atom_add_global_u32(address, value)


@semantics
def red_max_u64(address, value):
    lane = current_lane("red_max_u64")
    address = int(address) & _ADDRESS
    region = lane.launch.memory.find(address, 8)
    check_aligned(address, 8, "red_max_u64")
    check_writable(region)
    at = (address - region.base) // 4
    low, high = (int(word) for word in region.u32[at : at + 2])
    most = max(low | high << 32, int(value))
    region.u32[at], region.u32[at + 1] = most & 0xFFFFFFFF, most >> 32


_store_two, _load_four = (
    _make_store("st_pair", "global", "u32", 2),
    _make_load("ld_two_pairs", "global", "u32", 4),
)
register("st_pair", _store_two)
register("ld_two_pairs", _load_four)
register("st_relaxed_u32", _make_store("st_relaxed_u32", "global", "u32", 1))
register("ld_relaxed_u32", _make_load("ld_relaxed_u32", "global", "u32", 1))
register("ld_relaxed_v4_u32", _make_load("ld_relaxed_v4_u32", "global", "u32", 4))

MOST_POLLS = 100_000


@semantics
def poll_again(polls):
    lane = current_lane("poll_again")
    others = lane.launch.ready
    if not others or int(polls) > MOST_POLLS:
        raise Deadlock(f"poll_again: looked {int(polls)} times, and {len(others)} threads are left to store")
    others.append(lane)
    lane.suspend("poll_again")


@semantics
def wait_global_u32(address, least):
    lane = current_lane("wait_global_u32")
    address = int(address) & _ADDRESS
    region = lane.launch.memory.find(address, 4)
    while int(region.u32[(address - region.base) // 4]) < int(least):
        others = lane.launch.ready
        if not others:
            found = int(region.u32[(address - region.base) // 4])
            raise Deadlock(
                f"wait_global_u32: {found} of {int(least)} at {address:#x}, and no thread is left to add"
            )
        others.append(lane)
        lane.suspend("wait_global_u32")
