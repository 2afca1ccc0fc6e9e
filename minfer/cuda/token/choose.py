"""The choice of greedy decoding at the end of a token: the index of the largest logit is the next token, and
the token's state becomes that of the next one.

A logit and its index are one 64-bit number whose order is that of the choice
(`minfer.cuda.elementwise.greedy`): the largest is found by maxima, in any order.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.elementwise.greedy import NAN_KEY, order_key
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.token.addresses import BEST, CHOSEN, LENGTH, POSITION, POSITIONS, TOKEN, address_of, join
from minfer.cuda.token.config import TokenConfig


@device_function
def candidate(logit, index):
    """A logit and its index: above all smaller ones, and above equal ones of higher indices."""
    return join(uint32(0xFFFFFFFF) - uint32(index), order_key(ptx.bitcast_u32_f32(logit)))


def make_keep(config: TokenConfig) -> Callable:
    """Device function (shared, best): keep the best of a thread's candidates if it is better than what its
    warp has. All lanes call it."""
    best_at = config.best_at

    @device_function
    def keep(shared, best):
        for step in range(5):
            low = ptx.shfl_xor_u32(uint32(best), uint32(1 << step))
            high = ptx.shfl_xor_u32(uint32(best >> uint64(32)), uint32(1 << step))
            best = max(best, join(low, high))
        if ptx.lane_id() == 0:
            at = shared + uint32(best_at + (int32(cuda.threadIdx.x) >> 5) * 8)
            low, high = ptx.ld_shared_v2_u32(at)
            best = max(best, join(low, high))
            ptx.st_shared_v2_u32(at, uint32(best), uint32(best >> uint64(32)))

    return keep


def make_choose(config: TokenConfig, sync: Callable) -> tuple[Callable, Callable]:
    """Device functions (shared), for the threads that multiply: tell the best that their warps have kept; and
    (shared): make the best of all the next token, for one thread of the last block to tell."""
    warps, addresses_at, best_at = config.warps, config.addresses_at, config.best_at

    @device_function
    @unrolled
    def tell(shared):
        sync()
        if cuda.threadIdx.x == 0:
            best = uint64(0)
            for w in unroll(warps):
                low, high = ptx.ld_shared_v2_u32(shared + uint32(best_at + w * 8))
                best = max(best, join(low, high))
            ptx.red_max_u64(address_of(shared + uint32(addresses_at), BEST), best)

    @device_function
    def choose(shared):
        addresses = shared + uint32(addresses_at)
        best = address_of(addresses, BEST)
        low, high = ptx.ld_global_v2_u32(best)
        ptx.st_global_v2_u32(best, uint32(0), uint32(0))
        index = uint32(0xFFFFFFFF) - low
        if high == uint32(NAN_KEY):
            index = uint32(0xFFFFFFFF)
        position = uint32(address_of(addresses, POSITION))
        parity = uint64(position & uint32(1))
        ptx.st_global_u32(address_of(addresses, CHOSEN) + parity * uint64(4), index)
        token = uint32(index)
        if high == uint32(NAN_KEY):
            token = uint32(0)
        ptx.st_global_u32(address_of(addresses, TOKEN), token)
        ptx.st_global_u32(address_of(addresses, POSITIONS), uint32(position + uint32(1)))
        ptx.st_global_u32(address_of(addresses, LENGTH), uint32(position + uint32(2)))

    return tell, choose
