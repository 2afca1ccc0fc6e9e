"""Activations for W4A8: int8 in groups of 512, their scales, and the sums of their runs of 32."""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import float32, int32, uint64

from minfer.cuda import ptx
from minfer.cuda.checks import blocks_for, check_choice, check_threads, check_types
from minfer.cuda.instruction import device_function, unroll, unrolled
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.q8 import magnitude_bits
from minfer.cuda.w4a8.formats import GROUP

PER_LANE = GROUP // 32


@dataclass(frozen=True)
class QuantizeGroupsConfig:
    """A warp quantizes a token's group.

    Attributes:
        source: "f16" or "f32".
        threads: threads a block.
    """

    source: str = "f16"
    threads: int = 256

    def __post_init__(self) -> None:
        check_types("quantize_groups", self)
        check_choice("quantize_groups", "source", self.source, ("f16", "f32"))
        check_threads("quantize_groups", self.threads)

    def __str__(self) -> str:
        return f"{self.source} threads={self.threads}"

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, nt: int, depth: int) -> tuple[int, int, int]:
        """Blocks for nt rows of `depth` activations."""
        return (blocks_for("quantize_groups: groups", nt * (depth // GROUP), self.threads // 32), 1, 1)


def quantize_groups(config: QuantizeGroupsConfig = QuantizeGroupsConfig()) -> Kernel:
    """a = round(x / d), d = max |x| / 127 over each group of 512 columns, halves to even.

    Arguments: x [nt, depth], f16 or f32, depth a multiple of 512; a int8 [nt, depth]; sums f32
    [nt, depth / 32]: d times the sum of each run of 32 of a; scales f32 [depth / 512, pitch]: d, a column a
    token; nt, depth, pitch int32. A NaN makes its group's scale NaN, an infinity makes it infinite."""
    warps, half = config.threads // 32, config.source == "f16"
    element = 2 if half else 4

    @device_function
    @unrolled
    def load(values, address):
        for i in unroll(4):
            if half:
                low, high = ptx.ld_global_v2_u32(address + uint64(8 * i))
                values[4 * i], values[4 * i + 1] = ptx.unpack_f16x2_lo(low), ptx.unpack_f16x2_hi(low)
                values[4 * i + 2], values[4 * i + 3] = ptx.unpack_f16x2_lo(high), ptx.unpack_f16x2_hi(high)
            else:
                x, y, z, w = ptx.ld_global_v4_f32(address + uint64(16 * i))
                values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3] = x, y, z, w

    @device_function
    def rounded(value, inverse):
        return ptx.cvt_rni_s32_f32(value * inverse)

    @device_function
    def packed(q0, q1, q2, q3):
        return (q0 & 255) | ((q1 & 255) << 8) | ((q2 & 255) << 16) | ((q3 & 255) << 24)

    @unrolled
    def quantize(x, a, sums, scales, nt, depth, pitch):
        lane, groups = int32(cuda.threadIdx.x & 31), depth // GROUP
        unit = int32(cuda.blockIdx.x * warps + (cuda.threadIdx.x >> 5))
        if unit >= nt * groups:
            return
        token = int32(ptx.udiv_u32(unit, groups))
        group = int32(unit - token * groups)
        first = uint64(token) * uint64(depth) + uint64(group * GROUP + lane * PER_LANE)
        values = cuda.local.array(PER_LANE, float32)
        words = cuda.local.array(4, int32)
        load(values, ptx.global_address(x) + first * uint64(element))
        largest = magnitude_bits(values[0])
        for i in unroll(1, PER_LANE):
            largest = max(largest, magnitude_bits(values[i]))
        for mask in (1, 2, 4, 8, 16):
            largest = max(largest, ptx.shfl_xor_u32(largest, mask))
        top, inverse = ptx.bitcast_f32_u32(largest), float32(0)
        if largest != 0:
            inverse = float32(127) * ptx.rcp_approx(top)
        total = int32(0)
        for i in unroll(4):
            q0, q1 = rounded(values[4 * i], inverse), rounded(values[4 * i + 1], inverse)
            q2, q3 = rounded(values[4 * i + 2], inverse), rounded(values[4 * i + 3], inverse)
            total = int32(total + q0 + q1 + q2 + q3)
            words[i] = int32(packed(q0, q1, q2, q3))
        ptx.st_global_v4_u32(ptx.global_address(a) + first, words[0], words[1], words[2], words[3])
        scale = top * float32(1.0 / 127.0)
        run = ptx.cvt_rn_f32_s32(total)
        run += ptx.shfl_xor_f32(run, 1)
        if lane & 1 == 0:
            at = first >> uint64(5)
            ptx.st_global_f32(ptx.global_address(sums) + at * uint64(4), scale * run)
        if lane == 0:
            at = uint64(group) * uint64(pitch) + uint64(token)
            ptx.st_global_f32(ptx.global_address(scales) + at * uint64(4), scale)

    arguments = (
        Argument("x", "in", {"f16": "float16", "f32": "float32"}[config.source]),
        Argument("a", "out", "int8"),
        Argument("sums", "out", "float32"),
        Argument("scales", "inout", "float32"),
        *(Argument(name, "scalar", "int32") for name in ("nt", "depth", "pitch")),
    )
    return Kernel(
        name="quantize_groups",
        config=config,
        function=quantize,
        threads=config.threads,
        shared_bytes=0,
        arguments=arguments,
    )
