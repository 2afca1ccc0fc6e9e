"""The epilogue "rope": a product with the matrices of q, k and v leaves as rotated queries and as rows of the
KV cache.

It does what `minfer.cuda.elementwise.rope_store` does to the f16 result of the same product, with the same
roundings and so to the same bits, without a pass that reads and writes q, k and v. RoPE is Su et al. 2021
(RoFormer); the angles come from its table (`rope_table`).

A tile is finished in pieces of 64 columns that hold both columns of every pair: neighbouring columns where
pairs are interleaved; in NEOX order 32 of a head's first half and those that they are paired with, half a
head further on. So tiles need not hold whole heads, and the fastest one for a product (`choose`) can be kept:
for heads of more than 64 dims a tile of B is brought by a TMA load for every 32 rows, in this order.

A piece goes through shared memory as f16, which frees its accumulators, and comes back with 4 pairs of a row
in a lane: its angles and biases are whole vectors then, and so is what it stores. Angles held beside all sums
spilled, in registers and in steps; those of the first pieces are on their way while the last wgmmas run.

Measured at 2048 tokens of a 7B, on an H200 (predicted: 5 to 8 us saved a layer): the product alone takes 91.4
us, with the pass behind it 100.2, as one kernel 96.3; at the power limit 103.2, 114.0 and 110.1. So 3.9 us a
layer are saved either way, 0.3 percent of a prefill. The epilogue's 5 us are 800 instructions a thread and
tile and 26 MB of angles from L2; the producer's seven loads a k-tile instead of two are 1 us of them. Where
the fastest tile cannot rotate (144 columns at 512 and 1024 tokens), one that can loses 3 to 14 us.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from minfer.cuda import ptx
from minfer.cuda.checks import check_choice, check_types
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.tile.hopper import write_chunk_f16

#: Columns of a piece, and of one half of its pairs in NEOX order.
PIECE, RUN = 64, 32
HEAD_DIMS = (64, 128, 256)


@dataclass(frozen=True)
class Heads:
    """The rows of q, k and v, one matrix above the other.

    Attributes:
        heads: of the queries.
        kv_heads: of the keys, and of the values.
        head_dim: dims of a head, all of them rotated.
        interleaved: pairs (2i, 2i + 1); else NEOX, (i, i + head_dim / 2).
        bias: a bias is added before the rotation.
    """

    heads: int
    kv_heads: int
    head_dim: int
    interleaved: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        check_types("gemm_hopper rope", self)
        check_choice("gemm_hopper rope", "head_dim", self.head_dim, HEAD_DIMS)
        if self.kv_heads < 1 or self.heads < 1 or self.heads % self.kv_heads:
            raise ConfigRefused(
                f"gemm_hopper rope: {self.heads} heads on {self.kv_heads} kv heads; take a multiple of the "
                "kv heads"
            )

    def __str__(self) -> str:
        kind = "interleaved" if self.interleaved else "neox"
        return f"{kind} heads={self.heads}/{self.kv_heads} hd={self.head_dim}{' bias' if self.bias else ''}"

    @property
    def width(self) -> int:
        """Columns of the product."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def parts(self) -> int:
        """Pieces of a head."""
        return self.head_dim // PIECE

    @property
    def split(self) -> bool:
        """Whether a piece is two runs of columns that are no neighbours."""
        return not self.interleaved and self.parts > 1


@functools.cache
def run_starts(heads: Heads) -> DeviceFunction:
    """Factory: (piece) -> the first columns of its two runs."""
    head_dim, half = heads.head_dim, heads.head_dim // 2
    shift, mask = _shift_and_mask(heads)

    @device_function
    def starts(piece):
        first = (piece >> shift) * head_dim + (piece & mask) * RUN
        return first, first + half

    return starts


def _shift_and_mask(heads: Heads) -> tuple[int, int]:
    """What makes a head's number, and the number of its part, of a piece's number."""
    return heads.parts.bit_length() - 1, heads.parts - 1


@functools.cache
def store_heads(heads: Heads, columns: int) -> DeviceFunction:
    """Factory: a warp's 16 x `columns` f32 sums of wgmma, rounded, biased and rotated, to the queries and the
    caches.

    (array, target, buffer, row, column, lane): `target` is (bias, table, q, k_cache, v_cache, nt, position),
    global addresses as `rope_store` takes them (no bias: any), the rows of the product, and where in the
    context the first of them is. `buffer` is the shared address of the warp's own `BUFFER_BYTES`, aligned to
    1024 bytes. `column` counts pieces of 64. Rows from nt on and columns past the last head are dropped."""
    from numba import cuda
    from numba.cuda import types

    from minfer.cuda.elementwise.rotary import load_angles, rotate_adjacent, rotate_halves

    int32, uint64, zero = types.int32, types.uint64, types.float32(0)
    head_dim, half, parts = heads.head_dim, heads.head_dim // 2, heads.parts
    shift, mask = _shift_and_mask(heads)
    pieces, interleaved, biased = columns // PIECE, heads.interleaved, heads.bias
    queries, keys, everything = heads.heads, heads.heads + heads.kv_heads, heads.heads + 2 * heads.kv_heads
    # Bytes of a row.
    query_pitch, cache_pitch = 2 * queries * head_dim, 2 * heads.kv_heads * head_dim
    table_pitch = 4 * head_dim
    # Pieces that are the same part of their heads have the same angles: they follow each other.
    order = tuple(p for first in range(min(parts, pieces)) for p in range(first, pieces, parts))
    # Dims of a head from part to part, from lane to lane, and from a lane's first four to its second.
    part_dims, lane_dims, apart = (PIECE, 8, 4) if interleaved else (RUN, 4, half)
    rotate = rotate_adjacent if interleaved else rotate_halves
    # Of 16 rows a lane takes a first one and those 2, 8 and 10 further on: the 16 lanes that read shared
    # memory at a time then read different banks.
    later = (0, 2, 8, 10)

    @device_function
    def load_pairs(place, i):
        """A row's two fours: `place` is the first one in the lane's first row; units of 16 bytes are XORed
        with the row's number."""
        at = (place ^ ((later[i] & 2) << 4)) + later[i] * 128
        if interleaved:
            w0, w1, w2, w3 = ptx.ld_shared_v4_u32(at)
        else:
            w0, w1 = ptx.ld_shared_v2_u32(at)
            w2, w3 = ptx.ld_shared_v2_u32(at ^ 64)
        return w0, w1, w2, w3

    @device_function
    def store_pairs(to, w0, w1, w2, w3):
        if interleaved:
            ptx.st_global_v4_u32(to, w0, w1, w2, w3)
        else:
            ptx.st_global_v2_u32(to, w0, w1)
            ptx.st_global_v2_u32(to + uint64(2 * apart), w2, w3)

    @device_function
    def load_biases(bias):
        if not biased:
            return zero, zero, zero, zero, zero, zero, zero, zero
        c0, c1, c2, c3 = ptx.ld_global_nc_v4_f32(bias)
        d0, d1, d2, d3 = ptx.ld_global_nc_v4_f32(bias + uint64(4 * apart))
        return c0, c1, c2, c3, d0, d1, d2, d3

    @device_function
    @unrolled
    def load_part(angles, table, rows):
        """The angles of the lane's 4 pairs in each of its rows."""
        for i in unroll(4):
            if later[i] < rows:
                load_angles(angles, 8 * i, table + uint64(later[i] * table_pitch))

    @device_function
    @unrolled
    def finish_piece(place, angles, biases, to, pitch, rows, rotated):
        """The lane's pairs, out of shared memory and to where they belong."""
        c0, c1, c2, c3, d0, d1, d2, d3 = biases
        for i in unroll(4):
            if later[i] < rows:
                w0, w1, w2, w3 = load_pairs(place, i)
                a0, a1 = ptx.unpack_f16x2_lo(w0) + c0, ptx.unpack_f16x2_hi(w0) + c1
                a2, a3 = ptx.unpack_f16x2_lo(w1) + c2, ptx.unpack_f16x2_hi(w1) + c3
                b0, b1 = ptx.unpack_f16x2_lo(w2) + d0, ptx.unpack_f16x2_hi(w2) + d1
                b2, b3 = ptx.unpack_f16x2_lo(w3) + d2, ptx.unpack_f16x2_hi(w3) + d3
                if rotated:
                    a0, a1, a2, a3, b0, b1, b2, b3 = rotate(angles, 8 * i, a0, a1, a2, a3, b0, b1, b2, b3)
                w0, w1 = ptx.pack_f16x2(a0, a1), ptx.pack_f16x2(a2, a3)
                w2, w3 = ptx.pack_f16x2(b0, b1), ptx.pack_f16x2(b2, b3)
                store_pairs(to + uint64(later[i]) * uint64(pitch), w0, w1, w2, w3)

    @device_function
    @unrolled
    def store(array, target, buffer, row, column, lane):
        bias, table, q, k_cache, v_cache, nt, position = target
        angles = cuda.local.array(32, dtype=types.float32)
        unit, lane_row = int32(lane & 7), int32((lane >> 4) + ((lane >> 3) & 1) * 4)
        first_piece, own_row = int32(column >> 6), int32(row + lane_row)
        rows, context_row = int32(nt - own_row), int32(position + own_row)
        own_table = table + uint64(context_row) * uint64(table_pitch) + uint64(32 * unit)
        if interleaved:
            place = buffer + lane_row * 128 + ((unit ^ lane_row) << 4)
        else:
            place = buffer + lane_row * 128 + (((unit >> 1) ^ lane_row) << 4) + (unit & 1) * 8
        for turn in unroll(pieces):
            p = order[turn]
            piece = int32(first_piece + p)
            head, part = piece >> shift, piece & mask
            dim = int32(head * head_dim + part * part_dims + unit * lane_dims)
            if head < everything:
                biases = load_biases(bias + uint64(4 * dim))
                ptx.syncwarp()
                write_chunk_f16(array, RUN * p, buffer, lane)
                ptx.syncwarp()
            if p < parts:
                load_part(angles, own_table + uint64(part * (8 * RUN)), rows)
            if head < everything:
                to, to_row, pitch = q, own_row, int32(query_pitch)
                if head >= queries:
                    to, to_row, pitch = k_cache, context_row, int32(cache_pitch)
                    dim -= int32(queries * head_dim)
                if head >= keys:
                    to = v_cache
                    dim -= int32((keys - queries) * head_dim)
                to += uint64(to_row) * uint64(pitch) + uint64(2 * dim)
                if head < keys:
                    finish_piece(place, angles, biases, to, pitch, rows, True)
                else:
                    finish_piece(place, angles, biases, to, pitch, rows, False)

    return store
