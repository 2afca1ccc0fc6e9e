"""How a block format goes through shared memory into wgmma's A fragments.

A consumer unpacks an eighth of a block, 32 weights a row, at a time. In a fragment of 16 columns of k, lane
4 g + t holds the columns 2t, 2t + 1, 2t + 8 and 2t + 9 of rows g and g + 8. Both formats (`q4_k`, `q6_k`)
keep the weights of 16 neighbouring k in 16 neighbouring bytes, so that two 16-bit loads bring a lane its four
bytes, without bank conflicts, and the activations keep their natural order.

A small unsigned number becomes f16 without a conversion: OR-ed into the mantissa of 1024 (0x6400) it is
1024 + q, and the subtraction that follows is exact.

Unpacking goes in three steps. `fetch` loads a quarter's bytes a k-tile before they are needed, so that
nothing waits for shared memory. `prepare` makes the numbers q in registers of its own: it may run while the
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
        slot_bytes: the blocks of a tile and their expanded scales.
        words: registers of packed weights that `fetch` fills and `prepare` takes.
        magic: a constant that `prepare` finds in the last of these, 0: none. The assembler must not know it:
            it would make it prmt's immediate operand, and copy the other constant, the selector, into a
            register before each of them.
        place: (slot, row, start): where the row's block is, and its expanded scales; `start` is the byte of
            a chunk in which the block starts.
        expand: (block, scales): the block's scales as f16, from its place to theirs.
        fetch: (raw, pairs, first, second, first_scales, second_scales, quarter): load a quarter's bytes and
            scales. `first` and `second` are byte 2t of the blocks of the lane's rows g and g + 8, `raw` is a
            local array of `words`. Quarters come in order.
        prepare: (numbers, raw, quarter): the f16 numbers of the words of A of what was fetched last.
        finish: (a, numbers, pairs): the words of A.
    """

    block_bytes: int
    pitch: int
    by_tma: bool
    slot_bytes: int
    words: int
    magic: int
    place: DeviceFunction
    expand: DeviceFunction
    fetch: DeviceFunction
    prepare: DeviceFunction
    finish: DeviceFunction


@device_function
@unrolled
def load_two_runs(raw, at, first, second):
    """The lane's bytes 2t, 2t + 1 and 2t + 8, 2t + 9 of two neighbouring runs of 16, of both rows:
    raw[at], ... raw[at + 7] in the order of runs, then rows."""
    for part in unroll(2):
        for far in unroll(2):
            raw[at + 4 * part + far] = ptx.ld_shared_u16(first + (16 * part + 8 * far))
            raw[at + 4 * part + 2 + far] = ptx.ld_shared_u16(second + (16 * part + 8 * far))


@device_function
def join_run(near, far):
    """A lane's four bytes of a run, 2t, 2t + 8, 2t + 1 and 2t + 9, from what was loaded."""
    return ptx.prmt(near, far, 0x5140)


#: (a & b) | c
and_or = ptx.lop3(0xEA)
