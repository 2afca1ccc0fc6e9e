"""Decode GEMV straight from quantized blocks: y = dequantize(W) x, one token.

Weights are read once, so everything serves the memory stream. A warp owns groups of rows, whose bytes are
contiguous; it copies them (`minfer.cuda.gemv_copies`) into a ring of slots of its own in shared memory: some
200 KB are in flight in an SM, for no registers, and no warp waits for another. Blocks are then multiplied
out of shared memory with dp4a (`minfer.cuda.block_dots`), whatever their alignment. The
activations are q8 records (`minfer.cuda.q8`), staged once a block; f16, bf16 and f32 weights take f32
activations and FMAs instead.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint32, uint64

from minfer.cuda import gemv_mma, ptx
from minfer.cuda.dependent import least_arch
from minfer.cuda.gemv_config import GemvConfig
from minfer.cuda.gemv_copies import copies, make_deal
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.kernel import Argument, Kernel

__all__ = ["MMA_7B", "PLANES_7B", "GemvConfig", "gemv", "shipped"]


def _make_multiply(config: GemvConfig) -> Callable:
    """Device function (weights, x, addend, y, od): the work of a block, by dp4a or FMAs."""
    dot, in_planes = config.dot, config.layout == "planes"
    device_dot, lanes, quantized = dot.dot, dot.lanes, dot.quantized
    wide = quantized and dot.weights == 256
    unit_x = 320 if wide else dot.weights * 4
    rows, slices, warps, slots = config.rows, config.slices, config.warps, config.slots
    blocks, slice_blocks, unit = config.blocks, config.slice_blocks, config.unit_bytes
    across = config.lane_groups // rows  # units of one row at a time
    row_lanes = across * lanes
    steps = -(-slice_blocks // across)
    even = slices * slice_blocks == blocks
    whole = even and slice_blocks % across == 0
    row_bytes, slot_bytes, ring_at = config.row_bytes, config.slot_bytes, config.ring_at
    added = config.addend
    shuffles = row_lanes.bit_length() - 1
    deal = make_deal(rows, warps)
    place, begin, copy, stage, staged, arrived = copies(config)
    early = config.early

    @device_function
    def unit_dot(copied, x, first, count, index, part):
        """A unit of the `count` that a copy brought, the first of which has the index `first` in its row."""
        if in_planes:
            return device_dot(copied, count, index, x + uint32((first + index) * unit_x), part)
        block = copied + uint32(index * unit)
        index += first
        if wide:
            return device_dot(block, x + uint32(index * unit_x), part)
        if quantized:
            return device_dot(block, x + uint32((index >> 1) * 80), index & 1)
        return device_dot(block, x + uint32(index * unit_x), part)

    @device_function
    @unrolled
    def multiply(weights, x, addend, y, od):
        shared = ptx.shared_address(cuda.shared.array(0, uint8))
        thread = int32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        ring = shared + uint32(ring_at + warp * (slots * slot_bytes))
        first, stride, turns = deal(od, warp)
        turns = int32(turns * slices)
        begin(ring)
        for n in unroll(slots):
            slot = ring + uint32(n * slot_bytes)
            copy(slot, weights, od, first + n // slices * stride, n % slices, n < turns)
            if n == early - 1:
                stage(shared, x)
        staged()
        row_in_group = lane // row_lanes
        unit_in_step = (lane & (row_lanes - 1)) // lanes
        part = lane & (lanes - 1)
        total = float32(0)
        slot = ring
        parity = uint32(0)
        for n in range(turns):
            group = first + n // slices * stride
            slice_ = n % slices
            row = group * rows + row_in_group
            arrived(slot, parity)
            here = slot + uint32(row_in_group * row_bytes)
            here += uint32(place(weights, group * rows, slice_) & uint64(15))
            count = int32(slice_blocks)
            if not even:
                count = min(count, int32(blocks - slice_ * slice_blocks))
            if row < od:
                for step in unroll(steps):
                    index = unit_in_step + step * across
                    if whole or index < count:
                        total += unit_dot(here, shared, slice_ * slice_blocks, count, index, part)
            ptx.syncwarp()
            following = n + slots
            wanted = following < turns
            copy(slot, weights, od, first + following // slices * stride, following % slices, wanted)
            slot += uint32(slot_bytes)
            if slot == ring + uint32(slots * slot_bytes):
                slot = ring
                parity ^= uint32(1)
            if slice_ == slices - 1:
                for step in range(shuffles):
                    total += ptx.shfl_xor_f32(total, uint32(1 << step))
                if (lane & (row_lanes - 1)) == 0 and row < od:
                    at = uint64(row) * uint64(4)
                    if added:
                        total += ptx.ld_global_f32(addend + at)
                    ptx.st_global_f32(y + at, total)
                total = float32(0)

    return multiply


def gemv(config: GemvConfig) -> Kernel:
    """y = dequantize(W) x (+ addend).

    Arguments: weights uint8 [od, row bytes] (16-byte aligned, GGML blocks or planes of them), x uint8 q8
    records of dim activations, or f32 [dim] for F32, F16, BF16 weights, (addend f32 [od], may be y,) y f32
    [od], od int32 (any). Integer dot products are exact; sums over blocks are f32 in a fixed order: the same
    bits on every run.
    """
    quantized, added = config.dot.quantized, config.addend
    multiply = gemv_mma.make_multiply(config) if config.dots == "mma" else _make_multiply(config)
    address = ptx.global_address

    def gemv_rows(weights, x, addend, y, od):
        multiply(address(weights), address(x), address(addend), address(y), od)

    arguments = (
        Argument("weights", "in", "uint8"),
        Argument("x", "in", "uint8" if quantized else "float32"),
        Argument("addend", "in", "float32", present=added),
        Argument("y", "out", "float32"),
        Argument("od", "scalar", "int32"),
    )
    return Kernel(
        name="gemv",
        config=config,
        function=gemv_rows,
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=least_arch(config.pdl),
        min_blocks=config.resident,  # shared memory allows no more, so registers need not be spared for more
    )


# (format, dim, od): Qwen2.5-7B Q4_K_M; Qwen2.5-0.5B Q4_K_M; SmolLM2-135M Q4_1; and every other format once.
_SHAPES = (
    ("Q4_K", 3584, 37888),
    ("Q4_K", 18944, 3584),
    ("Q6_K", 3584, 152064),
    ("Q6_K", 18944, 3584),
    ("Q5_0", 896, 4864),
    ("Q8_0", 896, 151936),
    ("Q4_K", 4864, 896),
    ("Q6_K", 4864, 896),
    ("Q4_1", 576, 1536),
    ("Q8_0", 576, 49152),
    ("Q4_1", 1536, 576),
    ("Q5_K", 3584, 3584),
    ("Q4_0", 3584, 3584),
    ("Q5_1", 3584, 3584),
    ("F16", 3584, 3584),
    ("BF16", 3584, 3584),
    ("F32", 3584, 3584),
)


# Q6_K repacked, at the 7B's down and output matrices.
PLANES_7B = (
    GemvConfig("Q6_K", 18944, slices=2, warps=12, pdl=True, resident=1, layout="planes"),
    GemvConfig("Q6_K", 3584, rows=4, warps=8, pdl=True, resident=1, layout="planes"),
)

# Q4_K on tensor cores, at the 7B's stacked q, k, v.
MMA_7B = (GemvConfig("Q4_K", 3584, rows=16, warps=3, slots=1, pdl=True, resident=1, dots="mma"),)


KERNELS = ("gemv",)


def shipped() -> list[Kernel]:
    """Every config that minfer ships: each shape plain, the 7B's with an addend, with pdl, repacked and
    on tensor cores."""
    kernels = [gemv(GemvConfig.for_shape(*shape)) for shape in _SHAPES]
    kernels += [
        gemv(GemvConfig.for_shape(*shape, addend=True, pdl=pdl))
        for shape in _SHAPES[:4]
        for pdl in (False, True)
    ]
    return kernels + [gemv(config) for config in PLANES_7B + MMA_7B]
