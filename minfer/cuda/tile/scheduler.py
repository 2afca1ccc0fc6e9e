"""Persistent scheduling: which output tile a block computes next.

A persistent block takes tiles b, b + blocks, b + 2 blocks, ... of one order. `tile_xy` is that order: groups
of `group` tile rows, and within a group row by row of the group down each column, so that the tiles in flight
at a time share few rows of A and few columns of B, and B passes through L2 once a group. The hardware fills
one GPC after the other with the blocks of such a launch: neighbours in this order are neighbours there, and
their reads of the same lines at the same time reach L2 as one. Where blocks start in another order, they take
seats (`minfer.cuda.tile.seats`).
"""

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function


@device_function
def tile_xy(index, tile_rows, tile_columns, group):
    """(tile row, tile column) of the `index`-th tile of a tile_rows x tile_columns matrix of tiles; the last
    group may have fewer rows. Plain Python and device code; 32-bit divisions."""
    number = ptx.udiv_u32(index, group * tile_columns)
    inside = index - number * (group * tile_columns)
    rows = min(group, tile_rows - number * group)
    column = ptx.udiv_u32(inside, rows)
    return number * group + inside - column * rows, column


@device_function
def next_in_rounds(tile, step, last):
    """A thread block's tile after `tile`: `step` further."""
    return tile + step


@device_function
def last_reversed(tile, step, last):
    """As `next_in_rounds`, but the last round, tile `last` and those after it, is dealt in reverse: where
    tiles are in descending order of their cost, the blocks that began with the slowest ones end with the
    quickest ones, or with none."""
    following = tile + step
    if tile < last and following >= last:
        following = 2 * last + step - 1 - following
    return following


def reversed_rounds(tiles: int, blocks: int) -> list[list[int]]:
    """The tiles of each block, as `last_reversed` deals them."""
    last = (tiles - 1) // blocks * blocks
    dealt = []
    for block in range(blocks):
        own = [block]
        while (following := last_reversed(own[-1], blocks, last)) < tiles:
            own.append(following)
        dealt.append(own)
    return dealt
