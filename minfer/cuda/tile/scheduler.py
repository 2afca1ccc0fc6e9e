"""Persistent scheduling: which output tile a block computes next.

A persistent block takes tiles b, b + blocks, b + 2 blocks, ... of one order: groups of `group` tile rows, so
that the tiles in flight at a time share few rows of A and few columns of B, and B passes through L2 once a
group; within a group column by column (`tile_xy`). The hardware fills one GPC of 16 or 18 multiprocessors
after the other with the blocks of such a launch: neighbours in this order are neighbours there, and their
reads of the same lines at the same time reach L2 as one. So 16 that follow each other should be 4 x 4 tiles:
`strip_xy` cuts a group of more than STRIP rows into strips of STRIP columns, each row by row. Where blocks
start in another order, they take seats (`minfer.cuda.tile.seats`).

Measured on an H200 in bursts, strips against columns of the whole group (8 or 11 rows), percent less time:
q+k+v of a 7B (3584 inputs) 0.6 at 8192 and at 2048 tokens, o 0.3 at 2048; gate+up, down and o at 8192 within
0.1. (W4A16 gained 0.4 to 1.0 at 8192 tokens, in two processes, and nothing at 2048; two of its tiles have no
registers left for it.) What lost: strips column by column in blocks of 4 x 4 (0.2 percent better to 0.4
worse), 6 x 3 (up to 0.8 worse) and 4 x 5; groups of 4 rows (as good, but 1 percent more at 2048 tokens for
q+k+v; of 16: 0.6 to 2.0 more); strips for groups of 4 rows or of 2 (0.9 to 1.9 percent more at 512 tokens),
and groups of 2 rows there (2.0 more).
"""

from numba.cuda.types import float32, int32, uint32

from minfer.cuda import ptx
from minfer.cuda.instruction import device_function

STRIP = 4
#: Numbers from here on may be too large for `quotient`.
MOST_TILES = 1 << 20


@device_function
def tiles_of(size, tile):
    """How many tiles cover so many rows or columns; of a constant `tile`."""
    return int32(uint32(size + (tile - 1)) // uint32(tile))


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
def quotient(dividend, divisor):
    """dividend // divisor of numbers below MOST_TILES, in a third of the instructions of a 32-bit division.
    Half, added to the dividend, keeps quotients farther from whole numbers than f32 is off."""
    half = float32(0.5)
    return int32((float32(int32(dividend)) + half) * ptx.rcp_approx(float32(int32(divisor))))


@device_function
def strip_xy(index, tile_rows, tile_columns, group):
    """As `tile_xy`, groups of more than STRIP rows in strips; of fewer than MOST_TILES tiles."""
    number = quotient(index, group * tile_columns)
    inside = int32(index - number * (group * tile_columns))
    rows = min(int32(group), int32(tile_rows - number * group))
    wide = int32(STRIP if rows > STRIP else 1)
    strip = quotient(inside, rows * wide)
    inside = int32(inside - strip * (rows * wide))
    width = min(wide, int32(tile_columns - strip * wide))
    row = quotient(inside, width)
    return int32(number * group + row), int32(strip * wide + inside - row * width)


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
