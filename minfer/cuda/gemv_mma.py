"""Q4_K's dot products on tensor cores, for one token: 16 rows of 4 blocks of weights at a time.

One token needs a column of mma.m16n8k32's eight. Here all are used: of 32 weights of a row the four lanes
that hold them have 8 each, lane t of block t of four, and columns 2 t and 2 t + 1 are not zero in its eight
places alone. There column 2 t has the activations of a sub-block 2 p and column 2 t + 1 those of 2 p + 1,
whose weights are the low and the high nibbles of the same bytes. So sums of different blocks and sub-blocks
meet in one mma and come out apart, with lane t those of block t, of which it has read header and weights.

Low and high nibbles go in one masked as the other, high ones 16 times too large; each meets both columns, of
which the other's sum is not used. Sums begin at MAGIC: they are floats then.

376 instructions of a warp multiply 512 weights a lane, by dp4a 615. Predicted for that 3 to 5 % less energy.
On an H200 q, k and v of the 7B (4608 x 3584) take 3.54 us and 2.00 mJ a launch, 3.66 and 2.09 by dp4a in as
many blocks (4 rows and 9 warps), 4.12 and 2.32 by what `GemvConfig.for_shape` takes. gate and up took 21.1 us
at 1,560 MHz, by dp4a 20.1 at 1,470, both at some 700 W (with other masks and moves, 385 instructions): a slot
of 16 whole rows has 32 KB, so that few warps multiply: seven with one slot each. In the token kernel they
lose more (`minfer.cuda.token.dots`).
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.block_dots import HIGH, LOW, MAGIC, MAGIC_BITS, byte_of
from minfer.cuda.gemv_config import MMA_ROWS, ZEROS_BYTES, GemvConfig
from minfer.cuda.gemv_copies import copies, make_deal
from minfer.cuda.instruction import device_function, unroll, unrolled

RECORD_BYTES = 320  # q8 records of a block's activations


@device_function
def _above(bits):
    return ptx.bitcast_f32_u32(uint32(bits)) - float32(MAGIC)


@device_function
@unrolled
def _all_scales(words, h1, h2, h3):
    """A block's eight scales, then its minima, a byte each, to words[0:4]."""
    six = uint32(0x3F3F3F3F)
    two = uint32(0x30303030)
    four = uint32(LOW)
    words[0] = h1 & six
    words[1] = ((h1 >> uint32(2)) & two) | (h3 & four)
    words[2] = h2 & six
    words[3] = ((h2 >> uint32(2)) & two) | ((h3 >> uint32(4)) & four)


def make_multiply(config: GemvConfig) -> Callable:
    """Device function (weights, x, addend, y, od): the work of a block."""
    units, row_bytes, slot_bytes, slots = config.blocks, config.row_bytes, config.slot_bytes, config.slots
    warps, ring_at, x_bytes, early = config.warps, config.ring_at, config.x_bytes, config.early
    threads, added, unit_bytes = config.threads, config.addend, config.unit_bytes
    quads = -(-units // 4)
    deal = make_deal(MMA_ROWS, warps)
    _, begin, copy, stage, staged, arrived = copies(config)
    # Lanes 0 to 3 and 4 to 7 load at once: their rows are so many apart that they meet different banks.
    far = 2 if units % 2 else 1 if units % 4 else 0

    @device_function
    def row_of(g):
        """Which of 8 rows is a lane group's: bits 0 and `far` of g change places."""
        difference = (g ^ (g >> far)) & 1
        return g ^ difference ^ (difference << far)

    @device_function
    @unrolled
    def load_four(words, at, address):
        w0, w1, w2, w3 = ptx.ld_shared_v4_u32(address)
        words[at] = w0
        words[at + 1] = w1
        words[at + 2] = w2
        words[at + 3] = w3

    @device_function
    @unrolled
    def four_blocks(first, second, activations, record, totals):
        """Adds this lane's block of two rows: `first` and `second` are their addresses, `activations` that
        of what the lane has of B, `record` that of its block's."""
        products = cuda.local.array(2, float32)
        offsets = cuda.local.array(2, float32)
        scales = cuda.local.array(8, uint32)
        a = cuda.local.array(8, uint32)
        b = cuda.local.array(4, uint32)
        heads = cuda.local.array(2, uint32)
        h0, h1, h2, h3 = ptx.ld_shared_v4_u32(first)
        heads[0] = h0
        _all_scales(scales, h1, h2, h3)
        h0, h1, h2, h3 = ptx.ld_shared_v4_u32(second)
        heads[1] = h0
        more = cuda.local.array(4, uint32)
        _all_scales(more, h1, h2, h3)
        for i in unroll(4):
            scales[4 + i] = more[i]
        for r in unroll(2):
            products[r] = float32(0)
            offsets[r] = float32(0)
        for p in unroll(4):
            low0 = low1 = low2 = low3 = int32(MAGIC_BITS)
            high0 = high1 = high2 = high3 = int32(MAGIC_BITS)
            for h in unroll(2):
                at = uint32(16 + p * 32 + h * 16)
                load_four(a, 0, first + at)
                load_four(a, 4, second + at)
                load_four(b, 0, activations + uint32(p * 80 + h * 16))
                for i in unroll(2):
                    b0 = b[2 * i]
                    b1 = b[2 * i + 1]
                    mask = uint32(LOW)
                    low0, low1, low2, low3 = ptx.mma_m16n8k32_u8s8(
                        a[2 * i] & mask, a[4 + 2 * i] & mask, a[2 * i + 1] & mask, a[5 + 2 * i] & mask,
                        b0, b1, low0, low1, low2, low3,
                    )  # fmt: skip
                    mask = uint32(HIGH)
                    high0, high1, high2, high3 = ptx.mma_m16n8k32_u8s8(
                        a[2 * i] & mask, a[4 + 2 * i] & mask, a[2 * i + 1] & mask, a[5 + 2 * i] & mask,
                        b0, b1, high0, high1, high2, high3,
                    )  # fmt: skip
            d0, d1, s0, s1 = ptx.ld_shared_v4_f32(record + uint32(p * 80 + 64))
            d1 *= float32(0.0625)
            lows = low0, low2
            highs = high1, high3
            for r in unroll(2):
                n = 2 * p
                scale0 = byte_of(scales[4 * r + n // 4], n % 4)
                scale1 = byte_of(scales[4 * r + n // 4], n % 4 + 1)
                minimum0 = byte_of(scales[4 * r + 2 + n // 4], n % 4)
                minimum1 = byte_of(scales[4 * r + 2 + n // 4], n % 4 + 1)
                products[r] = ptx.fma_rn_f32(scale0, d0 * _above(lows[r]), products[r])
                products[r] = ptx.fma_rn_f32(scale1, d1 * _above(highs[r]), products[r])
                offsets[r] = ptx.fma_rn_f32(minimum0, s0, offsets[r])
                offsets[r] = ptx.fma_rn_f32(minimum1, s1, offsets[r])
        for r in unroll(2):
            d = ptx.unpack_f16x2_lo(heads[r])
            totals[r] += d * products[r] - ptx.unpack_f16x2_hi(heads[r]) * offsets[r]

    @device_function
    @unrolled
    def multiply(weights, x, addend, y, od):
        shared = ptx.shared_address(cuda.shared.array(0, uint8))
        thread = int32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        ring = shared + uint32(ring_at + warp * (slots * slot_bytes))
        zeros = shared + uint32(x_bytes)
        for i in range(thread, ZEROS_BYTES // 16, threads):
            ptx.st_shared_v4_u32(zeros + uint32(i * 16), uint32(0), uint32(0), uint32(0), uint32(0))
        first, stride, turns = deal(od, warp)
        begin(ring)
        for n in unroll(slots):
            copy(ring + uint32(n * slot_bytes), weights, od, first + n * stride, 0, n < turns)
            if n == early - 1:
                stage(shared, x)
        staged()
        g = lane >> 2
        t = lane & 3
        row = row_of(g)
        has_activations = (g >> 1) == t
        slot = ring
        parity = uint32(0)
        totals = cuda.local.array(2, float32)
        for n in range(turns):
            group = first + n * stride
            arrived(slot, parity)
            totals[0] = float32(0)
            totals[1] = float32(0)
            last = int32(od - 1 - group * MMA_ROWS)  # rows that are not there are the last one again
            near = slot + uint32(min(row, last) * row_bytes)
            other = slot + uint32(min(row + 8, last) * row_bytes)
            for q in range(quads):
                unit = int32(q * 4 + t)
                known = unit < units
                unit = min(unit, int32(units - 1))
                record = shared + uint32(unit * RECORD_BYTES)
                activations = zeros
                if has_activations and known:
                    activations = uint32(record + uint32((g & 1) * 32))
                at = uint32(unit * unit_bytes)
                before0 = totals[0]
                before1 = totals[1]
                four_blocks(near + at, other + at, activations, record, totals)
                if not known:
                    totals[0] = before0
                    totals[1] = before1
            ptx.syncwarp()
            following = n + slots
            copy(slot, weights, od, first + following * stride, 0, following < turns)
            slot += uint32(slot_bytes)
            if slot == ring + uint32(slots * slot_bytes):
                slot = ring
                parity ^= uint32(1)
            # Lanes 0 and 1 of four sum the first row up, 2 and 3 the second.
            total = totals[0]
            sent = totals[1]
            if t >= 2:
                total = totals[1]
                sent = totals[0]
            total += ptx.shfl_xor_f32(sent, uint32(2))
            total += ptx.shfl_xor_f32(total, uint32(1))
            mine = group * MMA_ROWS + row + (t >> 1) * 8
            if (t & 1) == 0 and mine < od:
                out = uint64(mine) * uint64(4)
                if added:
                    total += ptx.ld_global_f32(addend + out)
                ptx.st_global_f32(y + out, total)

    return multiply
