"""How a block's rows of a product are cut into tiles: up to 16 neighbouring rows, 8 of gate and 8 of up for
gated activations, or 8 slices of long rows. Everyone in the block counts through the same tiles in the same
order.

A bulk copy occupies the copy engine for some 70 ns, however small it is: whole rows are one copy.
"""

from __future__ import annotations

from numba.cuda.types import int32

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.instruction import device_function
from minfer.cuda.token.config import (
    PITCH,
    SLICE_UNITS,
    SLICED_ROWS,
    SLOT_BYTES,
    TILE_ROWS,
    WHOLE_UNITS,
)
from minfer.cuda.token.records import RUN, WEIGHTS
from minfer.cuda.token.schedule import PAIRS, SIX_BIT

Q4_BYTES, Q6_BYTES = (BLOCKS[format].row_bytes(WEIGHTS) for format in ("Q4_K", "Q6_K"))
Q4_SLICE, Q6_SLICE = SLICE_UNITS["Q4_K"], SLICE_UNITS["Q6_K"]


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
def cut(flags, units):
    """(outputs of a tile, bytes of a block of weights, slices of a row of `units` blocks, blocks of a slice,
    bytes from row to row in a slot)."""
    unit = int32(Q4_BYTES)
    most = int32(Q4_SLICE)
    if flags & SIX_BIT:
        unit = int32(Q6_BYTES)
        most = int32(Q6_SLICE)
    if units > WHOLE_UNITS:
        slices = int32(ptx.udiv_u32(units + most - 1, most))
        share = int32(ptx.udiv_u32(units + slices - 1, slices))
        return int32(SLICED_ROWS), unit, slices, share, int32(PITCH)
    pitch = units * unit
    each = int32(TILE_ROWS)
    if flags & PAIRS:
        each = int32(TILE_ROWS // 2)
    elif flags & SIX_BIT:
        each = int32(min(each, int32(ptx.udiv_u32(int32(SLOT_BYTES - 32), pitch))))
    return each, unit, int32(1), units, pitch


@device_function
def slice_of(units, share, s):
    """(first block of weights, number of them) of slice s; the last one may have fewer than `share`."""
    first = s * share
    return first, int32(min(share, units - first))
