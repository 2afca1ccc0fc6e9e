"""A quantized operand, dequantized on its way into the f16 tile: no f16 copy of the weights in memory.

Blocks of 18, 22, 34 or 210 bytes are 2-byte aligned, which cp.async cannot copy. So the blocks pass through
registers: a k-tile's bytes are loaded while the tensor cores work on the tile before, and become f16
afterwards, in the other of two tiles. A thread's unit is 16 neighbouring weights: within a sub-block of every
format.

The weights are decoded in f32, as `minfer.model.quants` does it, and rounded to f16 once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.blocks import BLOCKS, Block, spread_bits
from minfer.cuda.instruction import DeviceFunction, device_function, unroll, unrolled
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.tile.shared import CHUNK, SharedTile

u32, u64, f32 = types.uint32, types.uint64, types.float32
UNIT = 16


# ---- 16 bytes from memory, and four bytes to f16


@device_function
def load_16(words, o, address):
    """16 bytes at a 2-byte aligned global address into words[o ...]: aligned words, shifted into place."""
    aligned = address & u64(0xFFFFFFFFFFFFFFFC)
    odd = u32(address) & u32(2)
    w0 = ptx.ld_global_nc_u32(aligned)
    w1 = ptx.ld_global_nc_u32(aligned + u64(4))
    w2 = ptx.ld_global_nc_u32(aligned + u64(8))
    w3 = ptx.ld_global_nc_u32(aligned + u64(12))
    # Of the fifth word only two bytes are needed, if the address is odd; more may not be in memory.
    w4 = ptx.ld_global_nc_u16(aligned + u64(12 + 2 * odd))
    words[o] = ptx.shf_r_wrap(w0, w1, 8 * odd)
    words[o + 1] = ptx.shf_r_wrap(w1, w2, 8 * odd)
    words[o + 2] = ptx.shf_r_wrap(w2, w3, 8 * odd)
    words[o + 3] = ptx.shf_r_wrap(w3, w4, 8 * odd)


@device_function
def _load_4(address):
    """4 bytes at a 2-byte aligned global address."""
    return u32(ptx.ld_global_nc_u16(address) | (ptx.ld_global_nc_u16(address + u64(2)) << 16))


@device_function
def _half(word, offset, scale, shift):
    """f16 pair of (byte - offset) * scale + shift for the low two bytes of a word."""
    low = ptx.cvt_rn_f32_u32(word & 255) - offset
    high = ptx.cvt_rn_f32_u32((word >> 8) & 255) - offset
    return ptx.pack_f16x2(low * scale + shift, high * scale + shift)


@device_function
def _write(target, low, high, w0, w1, w2, w3, offset, scale, shift):
    """The 16 bytes of four words to the two chunks at shared addresses `low` and `high` past `target`."""
    ptx.st_shared_v4_u32(
        target + low,
        _half(w0, offset, scale, shift),
        _half(w0 >> 16, offset, scale, shift),
        _half(w1, offset, scale, shift),
        _half(w1 >> 16, offset, scale, shift),
    )
    ptx.st_shared_v4_u32(
        target + high,
        _half(w2, offset, scale, shift),
        _half(w2 >> 16, offset, scale, shift),
        _half(w3, offset, scale, shift),
        _half(w3 >> 16, offset, scale, shift),
    )


# ---- formats: fetch(words, o, block, i) loads the unit that starts at weight i of a block; decode(words, o,
# i) gives ---- (four words of bytes, offset, scale, shift)


@dataclass(frozen=True)
class _Decoder:
    """`words` registers hold a unit between fetch and decode."""

    words: int
    fetch: DeviceFunction
    decode: DeviceFunction


@device_function
def _nibbles(word, i):
    """Low nibbles for the first 16 weights of a 32-weight block, high ones for the others."""
    return (word >> ((i >> 4) * 4)) & 0x0F0F0F0F


def _legacy(fifth: bool, minimum: bool) -> _Decoder:
    """Q4_0, Q4_1, Q5_0, Q5_1: d, maybe m, maybe 32 fifth bits, 16 bytes of nibbles."""
    head = 4 if minimum else 2
    offset = 0 if minimum else (16 if fifth else 8)
    quants = head + (4 if fifth else 0)

    @device_function
    def fetch(words, o, block, i):
        if minimum:
            words[o + 4] = _load_4(block)
        else:
            words[o + 4] = ptx.ld_global_nc_u16(block)
        if fifth:
            words[o + 5] = _load_4(block + u64(head))
        load_16(words, o, block + u64(quants))

    @device_function
    def decode(words, o, i):
        w0, w1 = _nibbles(words[o], i), _nibbles(words[o + 1], i)
        w2, w3 = _nibbles(words[o + 2], i), _nibbles(words[o + 3], i)
        if fifth:
            bits = words[o + 5] >> i
            w0, w1 = w0 | (spread_bits(bits) << 4), w1 | (spread_bits(bits >> 4) << 4)
            w2, w3 = w2 | (spread_bits(bits >> 8) << 4), w3 | (spread_bits(bits >> 12) << 4)
        shift = f32(0)
        if minimum:
            shift = ptx.unpack_f16x2_hi(words[o + 4])
        return u32(w0), u32(w1), u32(w2), u32(w3), f32(offset), ptx.unpack_f16x2_lo(words[o + 4]), shift

    return _Decoder(6 if fifth else 5, fetch, decode)


@device_function
def _fetch_q8_0(words, o, block, i):
    words[o + 4] = ptx.ld_global_nc_u16(block)
    load_16(words, o, block + u64(2 + i))


@device_function
def _decode_q8_0(words, o, i):
    """Signed bytes, moved up by 128."""
    flip = u32(0x80808080)
    w0, w1, w2, w3 = words[o] ^ flip, words[o + 1] ^ flip, words[o + 2] ^ flip, words[o + 3] ^ flip
    return u32(w0), u32(w1), u32(w2), u32(w3), f32(128), ptx.unpack_f16x2_lo(words[o + 4]), f32(0)


def _k_quant(fifth: bool) -> _Decoder:
    """Q4_K, Q5_K: d, dmin and the 6-bit scales are one 16-byte load; 16 bytes of nibbles, maybe of fifth
    bits."""
    quants = 48 if fifth else 16

    @device_function
    def fetch(words, o, block, i):
        h0, h1, h2, h3 = ptx.ld_global_nc_v4_u32(block)
        words[o + 4], words[o + 5], words[o + 6], words[o + 7] = h0, h1, h2, h3
        # 32 bytes hold a sub-block in their low nibbles and the next in their high ones.
        q0, q1, q2, q3 = ptx.ld_global_nc_v4_u32(block + u64(quants + (i >> 6) * 32 + (i & 16)))
        words[o], words[o + 1], words[o + 2], words[o + 3] = q0, q1, q2, q3
        if fifth:
            b0, b1, b2, b3 = ptx.ld_global_nc_v4_u32(block + u64(16 + (i & 16)))
            words[o + 8], words[o + 9], words[o + 10], words[o + 11] = b0, b1, b2, b3

    @device_function
    def bytes_of(words, o, j, i):
        word = (words[o + j] >> (((i >> 5) & 1) * 4)) & 0x0F0F0F0F
        if fifth:
            word = word | (((words[o + 8 + j] >> (i >> 5)) & 0x01010101) << 4)
        return u32(word)

    @device_function
    def decode(words, o, i):
        sub_block = i >> 5
        byte = (sub_block & 3) * 8
        first, second = words[o + 5] >> byte, words[o + 6] >> byte
        third = words[o + 7] >> byte
        late = sub_block >> 2
        scale = ptx.select_u32(late, (third & 15) | ((first >> 2) & 48), first & 63)
        minimum = ptx.select_u32(late, ((third >> 4) & 15) | ((second >> 2) & 48), second & 63)
        d, dmin = ptx.unpack_f16x2_lo(words[o + 4]), ptx.unpack_f16x2_hi(words[o + 4])
        return (
            bytes_of(words, o, 0, i),
            bytes_of(words, o, 1, i),
            bytes_of(words, o, 2, i),
            bytes_of(words, o, 3, i),
            f32(0),
            d * ptx.cvt_rn_f32_u32(scale),
            -(dmin * ptx.cvt_rn_f32_u32(minimum)),
        )

    return _Decoder(12 if fifth else 8, fetch, decode)


@device_function
def _fetch_q6_k(words, o, block, i):
    half, group, at = i >> 7, (i >> 5) & 3, i & 16
    load_16(words, o, block + u64(half * 64 + (group & 1) * 32 + at))
    load_16(words, o + 4, block + u64(128 + half * 32 + at))
    scale = ptx.ld_global_nc_u8(block + u64(192 + (i >> 4)))
    words[o + 8] = u32(ptx.ld_global_nc_u16(block + u64(208)) | (scale << 16))


@device_function
def _bytes_q6_k(low, high, i):
    group = (i >> 5) & 3
    return u32(((low >> ((group >> 1) * 4)) & 0x0F0F0F0F) | (((high >> (group * 2)) & 0x03030303) << 4))


@device_function
def _decode_q6_k(words, o, i):
    scale = types.int32(words[o + 8] >> 16)
    return (
        _bytes_q6_k(words[o], words[o + 4], i),
        _bytes_q6_k(words[o + 1], words[o + 5], i),
        _bytes_q6_k(words[o + 2], words[o + 6], i),
        _bytes_q6_k(words[o + 3], words[o + 7], i),
        f32(32),
        ptx.unpack_f16x2_lo(words[o + 8]) * ptx.cvt_rn_f32_s32((scale ^ 128) - 128),
        f32(0),
    )


DECODERS = {
    "Q4_0": _legacy(fifth=False, minimum=False),
    "Q4_1": _legacy(fifth=False, minimum=True),
    "Q5_0": _legacy(fifth=True, minimum=False),
    "Q5_1": _legacy(fifth=True, minimum=True),
    "Q8_0": _Decoder(5, _fetch_q8_0, _decode_q8_0),
    "Q4_K": _k_quant(fifth=False),
    "Q5_K": _k_quant(fifth=True),
    "Q6_K": _Decoder(9, _fetch_q6_k, _decode_q6_k),
}


# ---- the source


@dataclass(frozen=True)
class StagedBlocks:
    """A matrix of GGML blocks that becomes f16 in the tile; see `minfer.cuda.tile.staging` for what a source
    is.

    It uses no stages: `fetch` loads a k-tile into `registers` words of a local array, `deposit` decodes them
    into an f16 tile. Rows past the matrix repeat its last one (their products are not stored), k past its end
    repeats its last unit (A is zero there)."""

    tile: SharedTile
    threads: int
    format: str

    element = "uint8"
    stage_bytes = 0
    settled_tiles = 2

    def __post_init__(self):
        if self.format not in DECODERS:
            raise ConfigRefused(f"staging: no blocks of {self.format}; {', '.join(DECODERS)} are known")
        if self.tile.row_bytes // 2 % UNIT or self.threads % self.units_per_row:
            raise ConfigRefused(
                f"staging: {self.threads} threads for rows of {self.tile.row_bytes // 2} weights: a row must "
                f"be units of {UNIT} and a round whole rows"
            )

    @property
    def block(self) -> Block:
        return BLOCKS[self.format]

    @property
    def alignment(self) -> int:
        """Bytes that the matrix must be aligned to: 16 where a block is loaded 16 bytes at a time."""
        return 16 if self.format in ("Q4_K", "Q5_K") else 2

    @property
    def units_per_row(self) -> int:
        return self.tile.row_bytes // 2 // UNIT

    @property
    def rounds(self) -> int:
        """Units a thread decodes a k-tile."""
        return -(-self.tile.rows * self.units_per_row // self.threads)

    @property
    def registers(self) -> int:
        """Words that a thread holds between `fetch` and `deposit`."""
        return self.rounds * DECODERS[self.format].words

    @property
    def copied_bytes(self) -> int:
        """Bytes of blocks a k-tile, on average."""
        return self.tile.rows * self.tile.row_bytes // 2 * self.block.size // self.block.weights

    @functools.cached_property
    def start(self) -> DeviceFunction:
        """(matrix, leading, first_row, rows, ks, thread) -> (address of the first row, rows left, ks)."""
        weights, size = self.block.weights, self.block.size

        @device_function
        def start(matrix, leading, first_row, rows, ks, thread):
            offset = types.int64(leading // weights) * size * first_row
            return u64(matrix + u64(offset)), types.int32(rows - first_row), types.int32(ks)

        return start

    @functools.cached_property
    def fetch(self) -> DeviceFunction:
        """(words, pointer, leading, rows_left, first_k, ks, thread): load a k-tile's units."""
        weights, size = self.block.weights, self.block.size
        decoder = DECODERS[self.format]
        load, words_per_unit = decoder.fetch, decoder.words
        per_row, rounds, threads = self.units_per_row, self.rounds, self.threads

        @device_function
        @unrolled
        def fetch(words, pointer, leading, rows_left, first_k, ks, thread):
            row_bytes = types.int64(leading // weights) * size
            k = min(first_k + thread % per_row * UNIT, ks - UNIT)
            block = k // weights
            for j in unroll(rounds):
                row = min((thread + j * threads) // per_row, rows_left - 1)
                load(
                    words,
                    j * words_per_unit,
                    pointer + u64(row_bytes * row + block * size),
                    types.int32(k - block * weights),
                )

        return fetch

    @functools.cached_property
    def deposit(self) -> DeviceFunction:
        """(words, tile, first_k, ks, thread): decode what `fetch` loaded into the f16 tile at a shared
        address."""
        weights = self.block.weights
        decoder = DECODERS[self.format]
        decode, words_per_unit = decoder.decode, decoder.words
        at, per_row, rounds, threads = self.tile.address, self.units_per_row, self.rounds, self.threads
        rows, whole = self.tile.rows, self.tile.rows * self.units_per_row % self.threads == 0

        @device_function
        @unrolled
        def deposit(words, tile, first_k, ks, thread):
            part = thread % per_row
            k = min(first_k + part * UNIT, ks - UNIT)
            for j in unroll(rounds):
                row = (thread + j * threads) // per_row
                if whole or row < rows:
                    w0, w1, w2, w3, offset, scale, shift = decode(
                        words, j * words_per_unit, types.int32(k % weights)
                    )
                    low, high = at(row, part * 2 * CHUNK), at(row, part * 2 * CHUNK + CHUNK)
                    _write(tile, low, high, w0, w1, w2, w3, offset, scale, shift)

        return deposit
