"""What a thread block does first: the mbarriers of its rings."""

from __future__ import annotations

from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.elementwise.activation import LOG2_E
from minfer.cuda.instruction import DeviceFunction, device_function
from minfer.cuda.tile.hopper import ALIGNMENT
from minfer.cuda.w4a16.packed_tile import PackedTile


def start_rings(config: PackedTile, ready_arrivals: int, word: int = 0) -> DeviceFunction:
    """(): (aligned start of shared memory, address of the mbarriers), all initialised, for all threads.

    `ready_arrivals` make a slot of weights ready. Gated products find silu's constant behind the mbarriers,
    and behind that all find `word`, if it is not 0.
    """
    slots, gated = config.slots, config.gated
    barriers_start, slot_barriers = config.barriers_start, config.ring.size_bytes
    ready_start, constant_start, minus_log2_e = config.ready_start, config.constant_start, -LOG2_E
    initialise, initialise_slots = config.ring.initialise, config.slot_ring.initialise

    @device_function
    def start():
        shared = ptx.shared_address(cuda.shared.array(0, dtype=types.uint8))
        base = types.uint32((shared + (ALIGNMENT - 1)) & (0x100000000 - ALIGNMENT))
        barriers = types.uint32(base + barriers_start)
        if cuda.threadIdx.x == 0:
            initialise(barriers)
            initialise_slots(barriers + slot_barriers)
            for slot in range(slots):
                ptx.mbarrier_init(barriers + ready_start + 8 * slot, ready_arrivals)
            ptx.fence_mbarrier_init()
            if gated:
                ptx.st_shared_f32(barriers + constant_start, types.float32(minus_log2_e))
            if word:
                ptx.st_shared_u32(barriers + constant_start + 4, types.uint32(word))
        cuda.syncthreads()
        return base, barriers

    return start
