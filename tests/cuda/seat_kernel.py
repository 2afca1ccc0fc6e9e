"""A kernel of nothing but seats."""

from __future__ import annotations

from numba import cuda

from minfer.cuda import ptx
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.tile.seats import seated, take_seat


def seat_takers() -> Kernel:
    """taken[block] = its place. The seats are not declared to be clear, so that nothing looks before."""

    def take_seats(seats, taken):
        if cuda.threadIdx.x == 0:
            taken[cuda.blockIdx.x] = take_seat(ptx.global_address(seats))
            seated(ptx.global_address(seats))

    arguments = Argument("seats", "inout", "uint32"), Argument("taken", "out", "uint32")
    return Kernel("take_seats", None, take_seats, 32, 0, arguments)
