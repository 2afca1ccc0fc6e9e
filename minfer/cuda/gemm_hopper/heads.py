"""The epilogue "rope": what leaves a product with the matrices of q, k and v are rotated queries, and the
tokens' rows of the KV cache.

It does what `minfer.cuda.elementwise.rope_store` does to the f16 result of the same product, with the same
roundings: the same bits, without a pass that reads and writes q, k and v. Su et al. 2021 (RoFormer); angles
come from its table (`rope_table`).

A tile is taken in pieces of 64 columns, in which both columns of a pair lie in the same lane: neighbours
where pairs are interleaved; in NEOX order a piece is 32 columns of a head's first half and the 32 that are
paired with them, so that tiles need not hold whole heads. With heads of 64 these are neighbours too; with
larger ones such a tile of B takes a TMA load for each 32 rows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from minfer.cuda import ptx
from minfer.cuda.checks import check_choice, check_types
from minfer.cuda.elementwise.rotary import load_angles, rotate_adjacent, rotate_halves
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.tile.hopper import write_chunk_f16

#: Columns of C that a warp finishes at once, and those of one half of their pairs in NEOX order.
PIECE, RUN = 64, 32
HEAD_DIMS = (64, 128, 256)


@dataclass(frozen=True)
class Heads:
    """The rows of q, k and v, one matrix above the other.

    Attributes:
        heads, kv_heads: of the queries, and of the keys and the values.
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
        check_types("gemm_hopper heads", self)
        check_choice("gemm_hopper heads", "head_dim", self.head_dim, HEAD_DIMS)
        if self.kv_heads < 1 or self.heads < 1 or self.heads % self.kv_heads:
            raise ConfigRefused(
                f"gemm_hopper heads: {self.heads} heads on {self.kv_heads} kv heads; take a multiple of the "
                "kv heads"
            )

    def __str__(self) -> str:
        kind = "interleaved" if self.interleaved else "neox"
        return f"{kind} heads={self.heads}/{self.kv_heads} hd={self.head_dim}{' bias' if self.bias else ''}"

    @property
    def width(self) -> int:
        """Columns of C."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def runs(self) -> bool:
        """Whether a piece is two runs of columns that are no neighbours."""
        return not self.interleaved and self.head_dim > PIECE


@functools.cache
def run_starts(heads: Heads) -> DeviceFunction:
    """Factory: (piece) -> the first columns of its two runs."""
    shift, mask, half = _parts(heads).bit_length() - 1, _parts(heads) - 1, heads.head_dim // 2

    @device_function
    def starts(piece):
        first = (piece >> shift) * (2 * half) + (piece & mask) * RUN
        return first, first + half

    return starts


def _parts(heads: Heads) -> int:
    """Pieces of a head."""
    return heads.head_dim // PIECE


@functools.cache
def store_heads(heads: Heads, columns: int) -> DeviceFunction:
    """Factory: a warp's 16 x `columns` f32 sums of wgmma, biased and rotated, to the queries and the caches.

    (array, target, buffer, row, column, lane): `target` is (bias, table, q, k_cache, v_cache, nt, position):
    global addresses as `rope_store` takes them (the bias's is not looked at where there is none), the rows of
    C, and the place of row 0 in the context. `buffer` is the shared address of a warp's own `BUFFER_BYTES`.
    `column` is the tile's first, of pieces: column 64 p is piece p. Rows from nt on are not stored."""
    from numba import cuda
    from numba.cuda import types

    int32, uint64 = types.int32, types.uint64
    head_dim, half, parts = heads.head_dim, heads.head_dim // 2, _parts(heads)
    shift, mask = parts.bit_length() - 1, parts - 1
    pieces, interleaved, biased = columns // PIECE, heads.interleaved, heads.bias
    queries, keys, everything = heads.heads, heads.heads + heads.kv_heads, heads.heads + 2 * heads.kv_heads
    query_pitch, cache_pitch, table_pitch = 2 * queries * head_dim, 2 * heads.kv_heads * head_dim, 4 * head_dim
    # Pieces that are the same part of their heads have the same angles: they follow each other.
    order = tuple(p for first in range(min(parts, pieces)) for p in range(first, pieces, parts))
    # A lane takes 4 pairs of every row: its columns' places in a head, those of the fours that it takes of a
    # piece, and bytes in a chunk's row from its first four to its second.
    part_columns, lane_columns, apart = (PIECE, 8, 4) if interleaved else (RUN, 4, half)
    rotate = rotate_adjacent if interleaved else rotate_halves

    # Of a chunk's 16 rows a lane takes a first one and those 2, 8 and 10 further on: the 16 lanes that read
    # shared memory at a time then read different banks.
    later = (0, 2, 8, 10)

    @device_function
    def fours(place, i):
        """4 pairs of a chunk's row, `place` being where the lane's first row has its first four: its units of
        16 bytes are XORed with the row's number."""
        at = (place ^ ((later[i] & 2) << 4)) + later[i] * 128
        if interleaved:
            w0, w1, w2, w3 = ptx.ld_shared_v4_u32(at)
        else:
            w0, w1 = ptx.ld_shared_v2_u32(at)
            w2, w3 = ptx.ld_shared_v2_u32(at ^ 64)
        return w0, w1, w2, w3

    @device_function
    def put(to, w0, w1, w2, w3):
        if interleaved:
            ptx.st_global_v4_u32(to, w0, w1, w2, w3)
        else:
            ptx.st_global_v2_u32(to, w0, w1)
            ptx.st_global_v2_u32(to + uint64(2 * half), w2, w3)

    @device_function
    @unrolled
    def finish_piece(place, angles, bias, to, pitch, rows, rotated):
        c0, c1, c2, c3 = types.float32(0), types.float32(0), types.float32(0), types.float32(0)
        d0, d1, d2, d3 = c0, c1, c2, c3
        if biased:
            c0, c1, c2, c3 = ptx.ld_global_nc_v4_f32(bias)
            d0, d1, d2, d3 = ptx.ld_global_nc_v4_f32(bias + uint64(4 * apart))
        for i in unroll(4):
            w0, w1, w2, w3 = fours(place, i)
            a0, a1 = ptx.unpack_f16x2_lo(w0), ptx.unpack_f16x2_hi(w0)
            a2, a3 = ptx.unpack_f16x2_lo(w1), ptx.unpack_f16x2_hi(w1)
            b0, b1 = ptx.unpack_f16x2_lo(w2), ptx.unpack_f16x2_hi(w2)
            b2, b3 = ptx.unpack_f16x2_lo(w3), ptx.unpack_f16x2_hi(w3)
            if biased:
                a0 += c0
                a1 += c1
                a2 += c2
                a3 += c3
                b0 += d0
                b1 += d1
                b2 += d2
                b3 += d3
            if rotated:
                a0, a1, a2, a3, b0, b1, b2, b3 = rotate(angles, 8 * i, a0, a1, a2, a3, b0, b1, b2, b3)
            w0, w1 = ptx.pack_f16x2(a0, a1), ptx.pack_f16x2(a2, a3)
            w2, w3 = ptx.pack_f16x2(b0, b1), ptx.pack_f16x2(b2, b3)
            if later[i] < rows:
                put(to + uint64(later[i]) * uint64(pitch), w0, w1, w2, w3)

    @device_function
    @unrolled
    def store(array, target, buffer, row, column, lane):
        bias, table, q, k_cache, v_cache, nt, position = target
        angles = cuda.local.array(32, dtype=types.float32)
        unit, lane_row = int32(lane & 7), int32((lane >> 4) + ((lane >> 3) & 1) * 4)
        lane_column, own_row = unit * lane_columns, int32(row + lane_row)
        rows = int32(nt - own_row)
        first_angles = table + uint64(position + own_row) * uint64(table_pitch)
        if interleaved:
            place = buffer + lane_row * 128 + ((unit ^ lane_row) << 4)
        else:
            place = buffer + lane_row * 128 + (((unit >> 1) ^ lane_row) << 4) + (unit & 1) * 8
        for turn in unroll(pieces):
            p = order[turn]
            piece = int32((column >> 6) + p)
            head, dim = piece >> shift, int32((piece & mask) * part_columns + lane_column)
            if head < everything:
                ptx.syncwarp()
                write_chunk_f16(array, RUN * p, buffer, lane)
                ptx.syncwarp()
            if p < parts:
                turned = uint64(8 * ((piece & mask) * RUN + unit * 4))
                for i in unroll(4):
                    if later[i] < rows:
                        load_angles(angles, 8 * i, first_angles + turned + uint64(later[i] * table_pitch))
            if head < everything:
                own = bias + uint64(4 * (head * head_dim + dim))
                to, pitch, first_row, before = q, int32(query_pitch), own_row, int32(0)
                if head >= queries:
                    to, pitch, first_row, before = k_cache, int32(cache_pitch), int32(position + own_row), int32(queries)
                if head >= keys:
                    to, before = v_cache, int32(keys)
                to += uint64(first_row) * uint64(pitch) + uint64(2 * ((head - before) * head_dim + dim))
                if head < keys:
                    finish_piece(place, angles, own, to, pitch, rows, True)
                else:
                    finish_piece(place, angles, own, to, pitch, rows, False)

    return store
