"""The kernel's pointers and the token's position, in shared memory: a thread keeps those in registers that it
needs at the moment."""

from __future__ import annotations

from numba.cuda.types import uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function

(
    WEIGHTS, VECTORS, KEYS, VALUES, RESIDUAL, QKV, ATTENDED_RECORDS, ACTIVATED_RECORDS, LOGITS, POSITIONS,
    ROPE_TABLE, PARTIAL, STATISTICS, COUNTERS, BARRIERS, POSITION,
    BEST, CHOSEN, TOKEN, LENGTH,
) = range(20)  # fmt: skip
ADDRESSES_BYTES = 8 * 20


@device_function
def put_address(at, n, address):
    """Store address n; `at` is where the addresses lie in shared memory."""
    ptx.st_shared_v2_u32(at + uint32(n * 8), uint32(address), uint32(address >> uint64(32)))


@device_function
def join(low, high):
    """A 64-bit number from its halves."""
    return uint64(low) | (uint64(high) << uint64(32))


@device_function
def address_of(at, n):
    """Address n."""
    low, high = ptx.ld_shared_v2_u32(at + uint32(n * 8))
    return join(low, high)
