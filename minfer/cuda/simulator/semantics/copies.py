"""cp.async: copies from global to shared memory that land when their group is waited for.

Between issue and landing the shared bytes keep their old contents, so that a missing wait is a wrong
result. Under a `seed` a copy may also land at once, as the hardware is free to do.
"""

from __future__ import annotations

from minfer.cuda.simulator.errors import InvalidInstruction
from minfer.cuda.simulator.lanes import Lane, current_lane
from minfer.cuda.simulator.memory import check_aligned
from minfer.cuda.simulator.semantics.table import register, semantics
from minfer.cuda.trace.ops import Op


def _make_copy(name: str, size: int):
    def copy(shared_address, global_address, source_bytes=size):
        lane = current_lane(name)
        shared_address = int(shared_address) & 0xFFFFFFFF
        global_address = int(global_address) & 0xFFFFFFFFFFFFFFFF
        source_bytes = int(source_bytes)
        if not 0 <= source_bytes <= size:
            raise InvalidInstruction(f"{name} with a source of {source_bytes} bytes; 0 to {size} are allowed")
        lane.block.shared.find(shared_address, size)
        check_aligned(shared_address, size, f"{name} to shared memory")
        data = b""
        if source_bytes:
            check_aligned(global_address, size, f"{name} from global memory")
            data = lane.launch.memory.find(global_address, source_bytes).read(global_address, source_bytes)
        if lane.trace is not None:
            if source_bytes:
                lane.trace.record(lane, Op.COPY_READ, global_address, size)
            lane.trace.record(lane, Op.COPY_ISSUE, shared_address, size)
        data += bytes(size - source_bytes)
        chooser = lane.launch.random
        if chooser is not None and chooser.random() < 0.5:
            lane.block.shared.write(shared_address, data)
        lane.copies.append((shared_address, data))

    return copy


for _cache, _size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
    register(f"cp_async_{_cache}_{_size}", _make_copy(f"cp_async_{_cache}_{_size}", _size))


@semantics
def cp_async_commit():
    lane = current_lane("cp_async_commit")
    lane.copy_groups.append(lane.copies)
    lane.copies = []
    if lane.trace is not None:
        lane.trace.record(lane, Op.COPY_COMMIT)


@semantics
def cp_async_wait_group(n):
    lane = current_lane("cp_async_wait_group")
    while len(lane.copy_groups) > n:
        land(lane, lane.copy_groups.popleft())
    if lane.trace is not None:
        lane.trace.record(lane, Op.COPY_WAIT, 0, 0, n)


def land(lane: Lane, group: list[tuple[int, bytes]]) -> None:
    """Write what these copies bring."""
    shared = lane.block.shared
    for address, data in group:
        shared.write(address, data)
        if lane.trace is not None:
            lane.trace.record(lane, Op.COPY_LAND, address, len(data))
