"""mbarriers, bulk and TMA copies (sm_90), and what goes with them: fences, clusters, register budgets.

A load by TMA lands no earlier than some thread waits for its mbarrier, so that reads before the wait see
old bytes. A store reads its shared memory when its group is waited for; the bytes must be what they were
when it was issued.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from minfer.cuda.simulator.errors import AsyncHazard, InvalidInstruction
from minfer.cuda.simulator.lanes import Lane, current_lane
from minfer.cuda.simulator.memory import check_aligned
from minfer.cuda.simulator.semantics.arithmetic import signed32
from minfer.cuda.simulator.semantics.copies import land
from minfer.cuda.simulator.semantics.table import semantics
from minfer.cuda.simulator.tensor_map import TensorMap, swizzle_units
from minfer.cuda.trace.ops import Op, pack_mbarrier

if TYPE_CHECKING:
    from minfer.cuda.simulator.executor import Block

_MASK = 0xFFFFFFFF


class MBarrier:
    """A barrier in shared memory: phases that complete after so many arrivals and all expected bytes."""

    def __init__(self, block: Block, address: int, count: int) -> None:
        self.block = block
        self.address = address
        self.count = count
        self.pending = count
        self.bytes = 0  # expected and not yet landed
        self.phase = 0
        self.waiting: list[Lane] = []
        self.flights: list[tuple[Lane, int, bytes]] = []

    def arrive(self, lane: Lane) -> None:
        if self.pending == 0:
            self.land()
        if self.pending == 0:
            raise InvalidInstruction(
                f"mbarrier at {self.address:#x}: more arrivals than its count of {self.count} in one phase",
                address=self.address,
            )
        if lane.trace is not None:
            lane.trace.record(lane, Op.MBARRIER_ARRIVE, self.address, self.block.rank, self.phase)
        self.pending -= 1
        self.progress()

    def progress(self) -> None:
        """Complete the phase if nothing is missing; loads land only where somebody waits for them."""
        if self.waiting and self.flights:
            self.land()
            return
        if self.pending or self.bytes:
            return
        self.phase += 1
        self.pending = self.count
        self.block.launch.ready.extend(self.waiting)
        self.waiting = []

    def land(self) -> None:
        flights, self.flights = self.flights, []
        for lane, address, data in flights:
            self.block.shared.write(address, data)
            self.bytes -= len(data)
            if lane.trace is not None:
                lane.trace.record(
                    lane,
                    Op.TMA_LAND,
                    address,
                    len(data),
                    pack_mbarrier(self.address, self.block.rank, self.phase),
                )
        self.progress()

    def send(self, lane: Lane, address: int, data: bytes) -> None:
        """A load that will land in this block's shared memory and count its bytes here."""
        self.block.shared.find(address, len(data))
        if lane.trace is not None:
            lane.trace.record(
                lane,
                Op.TMA_ISSUE,
                address,
                len(data),
                pack_mbarrier(self.address, self.block.rank, self.phase),
            )
        self.flights.append((lane, address, data))
        chooser = lane.launch.random
        if self.waiting or (chooser is not None and chooser.random() < 0.5):
            self.land()

    def wait(self, lane: Lane, parity: int) -> None:
        while self.phase & 1 == parity:
            self.land()
            if self.phase & 1 == parity:
                self.waiting.append(lane)
                lane.suspend(
                    f"mbarrier_wait({self.address:#x}, {parity}) [{self.pending} arrivals and {self.bytes} "
                    f"bytes missing in phase {self.phase}]"
                )
        if lane.trace is not None:
            lane.trace.record(lane, Op.MBARRIER_WAIT, self.address, self.block.rank, self.phase)


def _find(block: Block, address: Any, name: str) -> MBarrier:
    address = int(address) & _MASK
    barrier = block.mbarriers.get(address)
    if barrier is None:
        block.shared.find(address, 8)
        raise InvalidInstruction(f"{name}: no mbarrier was initialised at {address:#x}", address=address)
    return barrier


@semantics
def mbarrier_init(address, count):
    lane = current_lane("mbarrier_init")
    address, count = int(address) & _MASK, int(count)
    lane.block.shared.find(address, 8)
    check_aligned(address, 8, "mbarrier_init")
    if not 1 <= count < 1 << 20:
        raise InvalidInstruction(f"mbarrier_init: a count of {count}; 1 to {(1 << 20) - 1} are allowed")
    known = lane.block.mbarriers.get(address)
    if known is not None and known.waiting:
        raise InvalidInstruction(f"mbarrier_init at {address:#x} while threads wait for it", address=address)
    lane.block.shared.write(address, bytes(8))
    lane.block.mbarriers[address] = MBarrier(lane.block, address, count)
    if lane.trace is not None:
        lane.trace.record(lane, Op.MBARRIER_INIT, address, lane.block.rank, count)


@semantics
def mbarrier_arrive(address):
    lane = current_lane("mbarrier_arrive")
    _find(lane.block, address, "mbarrier_arrive").arrive(lane)


@semantics
def mbarrier_arrive_if(address, condition):
    if int(condition) & _MASK:
        mbarrier_arrive(address)


@semantics
def cp_async_mbarrier_arrive(address):
    """The copies land and the arrival counts at once, as the hardware is free to do."""
    lane = current_lane("cp_async_mbarrier_arrive")
    while lane.copy_groups:
        land(lane, lane.copy_groups.popleft())
    land(lane, lane.copies)
    lane.copies = []
    _find(lane.block, address, "cp_async_mbarrier_arrive").arrive(lane)


@semantics
def mbarrier_arrive_cluster(address, cta):
    lane = current_lane("mbarrier_arrive_cluster")
    blocks = lane.block.cluster.blocks
    if not 0 <= int(cta) < len(blocks):
        raise InvalidInstruction(f"mbarrier_arrive_cluster: block {int(cta)} of a cluster of {len(blocks)}")
    block = blocks[int(cta)]
    if block.live == 0:
        raise InvalidInstruction(f"mbarrier_arrive_cluster: block {int(cta)} of the cluster has exited")
    _find(block, address, "mbarrier_arrive_cluster").arrive(lane)


@semantics
def mbarrier_arrive_expect_tx(address, size):
    lane = current_lane("mbarrier_arrive_expect_tx")
    barrier = _find(lane.block, address, "mbarrier_arrive_expect_tx")
    if barrier.pending == 0:
        barrier.land()
    barrier.bytes += int(size)
    barrier.arrive(lane)


@semantics
def mbarrier_wait(address, parity):
    lane = current_lane("mbarrier_wait")
    _find(lane.block, address, "mbarrier_wait").wait(lane, int(parity) & 1)


@semantics
def mbarrier_test(address, parity):
    barrier = _find(current_lane("mbarrier_test").block, address, "mbarrier_test")
    barrier.land()
    return int(barrier.phase & 1 != int(parity) & 1)


# ---- copies


def _tensor_map(lane: Lane, address: Any, name: str) -> TensorMap:
    found = lane.launch.memory.objects.get(int(address))
    if not isinstance(found, TensorMap):
        raise InvalidInstruction(
            f"{name}: {int(address):#x} is not the address of a tensor map", address=int(address)
        )
    return found


def _permute(data: np.ndarray, address: int, swizzle: int) -> bytes:
    """Bytes in the order in which they lie from `address` on: 16-byte units permuted by the swizzle."""
    if not swizzle:
        return data.tobytes()
    units = data.reshape(-1, 16)
    logical = np.arange(len(units)) + address // 16
    placed = np.empty_like(units)
    placed[swizzle_units(logical, swizzle) - address // 16] = units
    return placed.tobytes()


def _check_box(address: int, tensor_map: TensorMap, name: str) -> None:
    check_aligned(address, 128, name)
    if tensor_map.swizzle and tensor_map.box_bytes % (8 * 16):
        raise InvalidInstruction(
            f"{name}: a swizzled box of {tensor_map.box_bytes} bytes; a multiple of 128 is needed"
        )


def _load(name: str, shared, tensor_map, mbarrier, x, y, ranks) -> None:
    lane = current_lane(name)
    shared = int(shared) & _MASK
    source = _tensor_map(lane, tensor_map, name)
    _check_box(shared, source, name)
    data = _permute(source.read_box(signed32(x), signed32(y)), shared, source.swizzle)
    blocks = lane.block.cluster.blocks
    for rank in ranks:
        if rank >= len(blocks):
            raise InvalidInstruction(f"{name}: block {rank} of a cluster of {len(blocks)}")
        _find(blocks[rank], mbarrier, name).send(lane, shared, data)


@semantics
def mbarrier_arrive_expect_tx_if(address, size, condition):
    if int(condition) & _MASK:
        mbarrier_arrive_expect_tx(address, size)


@semantics
def tma_load_2d(shared, tensor_map, mbarrier, x, y):
    lane = current_lane("tma_load_2d")
    _load("tma_load_2d", shared, tensor_map, mbarrier, x, y, [lane.block.rank])


@semantics
def tma_load_2d_if(shared, tensor_map, mbarrier, x, y, condition):
    if int(condition) & _MASK:
        tma_load_2d(shared, tensor_map, mbarrier, x, y)


@semantics
def tma_load_2d_multicast(shared, tensor_map, mbarrier, x, y, mask):
    ranks = [rank for rank in range(16) if int(mask) >> rank & 1]
    _load("tma_load_2d_multicast", shared, tensor_map, mbarrier, x, y, ranks)


@semantics
def bulk_load(shared, source, size, mbarrier):
    lane = current_lane("bulk_load")
    shared, source, size = int(shared) & _MASK, int(source), int(size) & _MASK
    for address, what in ((shared, "bulk_load to shared memory"), (source, "bulk_load from global memory")):
        check_aligned(address, 16, what)
    if size % 16 or not size:
        raise InvalidInstruction(f"bulk_load of {size} bytes; a positive multiple of 16 is needed")
    data = lane.launch.memory.find(source, size).read(source, size)
    if lane.trace is not None:
        lane.trace.record(lane, Op.BULK_GLOBAL_READ, source, size)
    _find(lane.block, mbarrier, "bulk_load").send(lane, shared, data)


@semantics
def bulk_prefetch_l2(source, size):
    lane = current_lane("bulk_prefetch_l2")
    source, size = int(source), int(size) & _MASK
    check_aligned(source, 16, "bulk_prefetch_l2")
    if size % 16 or not size:
        raise InvalidInstruction(f"bulk_prefetch_l2 of {size} bytes; a positive multiple of 16 is needed")
    lane.launch.memory.find(source, size)


@semantics
def tma_store_2d(tensor_map, shared, x, y):
    _bulk_store("tma_store_2d", tensor_map, shared, x, y, TensorMap.write_box)


@semantics
def tma_store_2d_if(tensor_map, shared, x, y, condition):
    if int(condition) & _MASK:
        tma_store_2d(tensor_map, shared, x, y)


@semantics
def tma_add_2d(tensor_map, shared, x, y):
    _bulk_store("tma_add_2d", tensor_map, shared, x, y, TensorMap.add_box)


@semantics
def tma_add_2d_if(tensor_map, shared, x, y, condition):
    if int(condition) & _MASK:
        tma_add_2d(tensor_map, shared, x, y)


def _bulk_store(name, tensor_map, shared, x, y, put):
    lane = current_lane(name)
    shared = int(shared) & _MASK
    target = _tensor_map(lane, tensor_map, name)
    _check_box(shared, target, name)
    if not target.array.flags.writeable:
        raise InvalidInstruction(f"{name} writes a matrix that is read-only")
    size = target.box_bytes
    lane.block.shared.find(shared, size).check_written(shared, size)
    if lane.trace is not None:
        lane.trace.record(lane, Op.BULK_READ_BEGIN, shared, size)
    data = lane.block.shared.read(shared, size)
    lane.bulk.append((name, put, target, shared, signed32(x), signed32(y), data))


@semantics
def bulk_commit_group():
    lane = current_lane("bulk_commit_group")
    lane.bulk_groups.append(lane.bulk)
    lane.bulk = []


@semantics
def bulk_wait_group_read(n):
    lane = current_lane("bulk_wait_group_read")
    while len(lane.bulk_groups) > n:
        for name, put, target, shared, x, y, data in lane.bulk_groups.popleft():
            if lane.block.shared.read(shared, len(data)) != data:
                raise AsyncHazard(
                    f"shared memory at {shared:#x} changed while {name} of {len(data)} bytes still read it",
                    address=shared,
                )
            units = np.frombuffer(data, np.uint8).reshape(-1, 16)
            logical = np.arange(len(units)) + shared // 16
            ordered = units[swizzle_units(logical, target.swizzle) - shared // 16]
            put(target, x, y, ordered)
            if lane.trace is not None:
                lane.trace.record(lane, Op.BULK_READ_END, shared, len(data))


@semantics
def prefetch_tensor_map(address):
    _tensor_map(current_lane("prefetch_tensor_map"), address, "prefetch_tensor_map")


# ---- fences, clusters, registers, dependent launches


@semantics
def fence_mbarrier_init():
    current_lane("fence_mbarrier_init")


@semantics
def fence_proxy_async_global():
    current_lane("fence_proxy_async_global")


@semantics
def fence_proxy_async():
    lane = current_lane("fence_proxy_async")
    if lane.trace is not None:
        lane.trace.record(lane, Op.FENCE_PROXY)


@semantics
def cluster_rank():
    return current_lane("cluster_rank").block.rank


@semantics
def cluster_sync():
    lane = current_lane("cluster_sync")
    lane.block.cluster.barrier(lane)


@semantics
def setmaxnreg(how, n):
    lane = current_lane("setmaxnreg")
    lane.warpgroup.collective(lane, f"setmaxnreg.{how} {n}", None, lambda group, arguments: None)


@semantics
def griddepcontrol_wait():
    current_lane("griddepcontrol_wait")


@semantics
def griddepcontrol_launch_dependents():
    current_lane("griddepcontrol_launch_dependents")
