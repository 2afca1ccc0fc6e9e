"""How a block's rows of a product are cut into tiles: as many neighbouring rows as a slot of the ring holds,
16 at most, half of them of gate and half of up for gated activations. Everyone in the block counts through
the same tiles in the same order.

Neighbouring rows are one piece of memory and so one bulk copy: a copy occupies the copy engine for some
70 ns, however small it is.
"""

from __future__ import annotations

from numba.cuda.types import int32

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.instruction import device_function
from minfer.cuda.token.config import SLOT_BYTES, TILE_ROWS
from minfer.cuda.token.records import RUN, WEIGHTS
from minfer.cuda.token.schedule import PAIRS, SIX_BIT

Q4_BYTES, Q6_BYTES = (BLOCKS[format].row_bytes(WEIGHTS) for format in ("Q4_K", "Q6_K"))


@device_function
def block_rows(flags, rows, block, blocks):
    """(first, last) output of a block; whole runs of gated activations."""
    grain = int32(1)
    if flags & PAIRS:
        grain = int32(RUN)
    grains = int32(ptx.udiv_u32(rows, grain))
    first = int32(ptx.udiv_u32(block * grains, blocks)) * grain
    return first, int32(ptx.udiv_u32((block + 1) * grains, blocks)) * grain


@device_function
def unit_bytes(flags):
    """Bytes of a block of weights."""
    unit = int32(Q4_BYTES)
    if flags & SIX_BIT:
        unit = int32(Q6_BYTES)
    return unit


@device_function
def cut(flags, units):
    """(outputs of a tile, rows of weights of an output, bytes of a row of `units` blocks)."""
    pitch = units * unit_bytes(flags)
    each = int32(min(int32(TILE_ROWS), int32(ptx.udiv_u32(int32(SLOT_BYTES - 32), pitch))))
    if flags & PAIRS:
        return each >> 1, int32(2), pitch
    return each, int32(1), pitch
