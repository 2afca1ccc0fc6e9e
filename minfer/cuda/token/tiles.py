"""How a block's rows of a product are cut into tiles: as many neighbouring rows as a slot of the ring holds,
16 at most, half of them of gate and half of up for gated activations. Everyone in the block counts
through the same tiles in the same order.

Neighbouring rows are one piece of memory and so one bulk copy: a copy occupies the copy engine for some
70 ns, however small it is.
"""

from __future__ import annotations

from collections.abc import Callable

from numba.cuda.types import int32

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function
from minfer.cuda.token.config import TokenConfig
from minfer.cuda.token.records import RUN
from minfer.cuda.token.schedule import ATTENDED, PAIRS, Q4_BYTES, Q6_BYTES, SIX_BIT, TO_QKV


def make_block_rows(config: TokenConfig) -> Callable:
    """Device function (flags, rows, block) -> (first, last) output of a block; whole runs of gated
    activations, none of q, k and v, nor perhaps of the output projection, for those that `config.spared`
    counts."""
    blocks, spared = config.blocks, config.spared
    spared_of = TO_QKV | ATTENDED if config.spare_o else TO_QKV

    @device_function
    def block_rows(flags, rows, block):
        grain, among = int32(1), int32(blocks)
        if flags & PAIRS:
            grain = int32(RUN)
        grains = int32(ptx.udiv_u32(rows, grain))
        if flags & spared_of:
            if block < spared:
                grains = int32(0)
            among = int32(blocks - spared)
            block = int32(max(block - spared, 0))
        first = int32(ptx.udiv_u32(block * grains, among))
        return int32(first * grain), int32(int32(ptx.udiv_u32((block + 1) * grains, among)) * grain)

    return block_rows


@device_function
def unit_bytes(flags):
    """Bytes of a block of weights."""
    unit = int32(Q4_BYTES)
    if flags & SIX_BIT:
        unit = int32(Q6_BYTES)
    return unit


@device_function
def tile_shape(shape):
    """(blocks of weights a row, outputs of a tile), from a word of the schedule."""
    return int32(shape) & 255, (int32(shape) >> 8) & 63


def make_groups(group_units: int) -> Callable:
    """Device function (units) -> warps that share a row of so many blocks of weights."""

    @device_function
    def row_groups(units):
        return int32((units + (group_units - 1)) // group_units)

    return row_groups
