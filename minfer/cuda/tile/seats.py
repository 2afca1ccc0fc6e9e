"""Seats: which place in the order of tiles a block takes, by the multiprocessor that it runs on.

A kernel that may start before the one before it has ended (`minfer.cuda.dependent`) gets its blocks wherever
room becomes free first: their numbers do not say which of them are neighbours and share what they read on
its way from L2. Here every multiprocessor has a seat, and every seat a place. A block takes the seat of its
multiprocessor, or, if another block has it, the next free one; so each place is taken once, wherever blocks
run. That costs one atomic operation, while the block makes its mbarriers.

The seats lie in global memory: WORDS words with a bit for each seat that is taken, a counter, and from ORDER
on the place of each seat. Bits and counter are zero between launches: the block that is seated last clears
them, before any kernel that depends on this one may start. So the launches of one stream share an array;
launches that may run at the same time need one each. Launches check the array's size, checked mode and the
simulator that it is clear (`Argument.per_block`, `cleared`). Elsewhere a kernel whose array has too few seats
left ends as a fault: a block looks at each seat once, and in a clear array finds a free one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import cuda
from numba.cuda.types import uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function

WORDS = 8
COUNTER = 8
ORDER = 16
MOST_SEATS = 32 * WORDS


def make_seats(places: Sequence[int]) -> np.ndarray:
    """The array of a launch of `len(places)` blocks: places[i] is that of multiprocessor i's seat.

    Raises ValueError unless each place from 0 on comes once, for none, or for more than MOST_SEATS.
    """
    if not 1 <= len(places) <= MOST_SEATS:
        raise ValueError(f"{len(places)} seats: at most {MOST_SEATS}, at least one")
    if sorted(places) != list(range(len(places))):
        raise ValueError(f"places of {len(places)} seats must be 0 to {len(places) - 1}, each once")
    seats = np.zeros(ORDER + len(places), np.uint32)
    seats[ORDER:] = places
    return seats


@device_function
def take_seat(seats):
    """This block's place; one thread calls it. seats: address of an array with as many seats as the grid has
    blocks."""
    count = uint32(cuda.gridDim.x)
    seat = ptx.multiprocessor()
    taken, place, looked = uint32(1), uint32(0), uint32(0)
    while taken != uint32(0):
        if looked == count:  # not `trap`: an exit here costs every kernel 80 instructions and registers
            seats = uint64(0)  # nothing lies there: a fault
        looked = uint32(looked + uint32(1))
        while seat >= count:
            seat = uint32(seat - count)
        place = ptx.ld_global_u32(seats + uint64(4) * uint64(uint32(ORDER) + seat))
        bit = uint32(1) << (seat & uint32(31))
        taken = ptx.atom_or_global_u32(seats + uint64(4) * uint64(seat >> uint32(5)), bit) & bit
        seat = uint32(seat + uint32(1))
    return place


@device_function
def seated(seats):
    """The thread that has called `take_seat` does this next: dependent kernels may start once all blocks have
    a seat."""
    before = ptx.atom_add_global_u32(seats + uint64(4 * COUNTER), uint32(1))
    if before == uint32(cuda.gridDim.x) - uint32(1):
        for word in range(COUNTER + 1):
            ptx.st_global_u32(seats + uint64(4 * word), uint32(0))
        ptx.fence_gpu()
    ptx.griddepcontrol_launch_dependents()
