"""How a block format goes through shared memory into wgmma's A fragments.

A consumer unpacks an eighth of a block, 32 weights a row, at a time. In a fragment of 16 columns of k, lane
4 g + t holds the columns 2t, 2t + 1, 2t + 8 and 2t + 9 of rows g and g + 8. Both formats (`q4_k`, `q6_k`)
keep the weights of 16 neighbouring k in 16 neighbouring bytes, so that two 16-bit loads bring a lane its four
bytes, without bank conflicts, and the activations keep their natural order.

A small unsigned number becomes f16 without a conversion: OR-ed into the mantissa of 1024 (0x6400) it is
1024 + q, and the subtraction that follows is exact.

Unpacking goes in two steps. `prepare` makes the numbers q in registers of its own: it may run while the
tensor cores still read the fragments that will be overwritten. `finish` scales them into the fragments. The
warps that bring the blocks have expanded the scales to f16 (`expand`).
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.cuda import ptx
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled

#: Words of A that a lane holds of a quarter of a block, 64 weights a row, and words of scales.
WORDS = 16
PAIRS = 4
#: k-tiles of 64 in a block of 256 weights.
QUARTERS = 4
#: A row's f16 scales of a quarter of a block.
SCALE_BYTES = 8


@dataclass(frozen=True)
class PackedFormat:
    """How a block format goes through shared memory.

    Attributes:
        block_bytes: a block of 256 weights.
        pitch: bytes from a row's block to the next row's in shared memory.
        by_tma: the blocks of a tile are one TMA box (rows of whole 16 bytes); else cp.async copies the
            aligned chunks that a block lies in.
        note_start: where in a slot it is noted in which byte of its chunk the first row's block starts.
        slot_bytes: the blocks of a tile, their expanded scales, and the notes.
        words: registers of packed weights that `prepare` keeps from an eighth to the next.
        magic: a constant that `prepare` finds in the last of these, 0: none. The assembler must not know it:
            it would make it prmt's immediate operand, and copy the other constant, the selector, into a
            register before each of them.
        read_by: the quarter with whose multiplication the last reads of a slot are over, but for the next
            block's first ones. (The quarter after it is unpacked then.)
        place: (slot, row, skew): where the row's block is, and its expanded scales; `skew` is how many bytes
            later in its chunk than the first row's it starts, modulo 16.
        expand: (block, scales): the block's scales as f16, from its place to theirs.
        begin: (raw, first, second, byte): load what `prepare` wants loaded before a block's first eighth.
        prepare: (numbers, pairs, raw, first, second, byte, first_scales, second_scales, eighth): the f16
            numbers of the words of A of two k16 steps, and the rows' scales; odd eighths to the second halves
            of `numbers`. `first`, `second` and their scales are the places of the lane's rows g and g + 8,
            `byte` is 2 t. `raw` is a local array of `words`. Eighths come in order.
        finish: (a, numbers, pairs): the words of A of a quarter.
    """

    block_bytes: int
    pitch: int
    by_tma: bool
    note_start: int
    slot_bytes: int
    words: int
    magic: int
    read_by: int
    place: DeviceFunction
    expand: DeviceFunction
    begin: DeviceFunction | None
    prepare: DeviceFunction
    finish: DeviceFunction


@device_function
def four_bytes(address):
    """The lane's bytes 2t, 2t + 8, 2t + 1, 2t + 9 of a run of 16, in this order, from the address of byte
    2t."""
    return ptx.prmt(ptx.ld_shared_u16(address), ptx.ld_shared_u16(address + 8), 0x5140)


@device_function
@unrolled
def load_two_runs(raw, at, first, second):
    """The lane's bytes of two neighbouring runs of 16, of both rows: raw[at], ... in the order of runs."""
    for part in unroll(2):
        raw[at + 2 * part] = four_bytes(first + 16 * part)
        raw[at + 2 * part + 1] = four_bytes(second + 16 * part)


#: (a & b) | c
and_or = ptx.lop3(0xEA)
