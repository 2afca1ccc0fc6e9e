"""Configs of the MMQ family: what a block computes, what it stages, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minfer.cuda.checks import check_choice, check_sizes, check_types
from minfer.cuda.kernel import MAX_SHARED_BYTES, MAX_SM_THREADS, MAX_THREAD_REGISTERS, ConfigRefused

if TYPE_CHECKING:
    from minfer.arithmetic.devices import DeviceSpec

CHUNK = 32
"""Activations that share a scale."""
CHUNK_BYTES = 40
"""A chunk of activations (pad40): f16 d at byte 0, 32 int8 at byte 4, their int32 sum at byte 36."""
SUM_BYTE = 36
MAGIC_BITS = 0x4B400000
"""The f32 12582912 = 1.5 * 2**23: adding an integer below 2**22 to its bits adds it to its value."""
MAGIC = 12582912.0
HIGH_MAGIC_BITS = 0x4F400000
"""The same for the high bytes of folded weights: the f32 1.5 * 2**31, whose last bit is 256."""
VARIANTS = ("r1", "raw", "folded")
LAYOUTS = ("plain", "padded")
RESCALES = ("convert", "magic")
MINIMA = ("fma", "tensor")
OUTPUTS = ("f32", "f16", "sums")
WEIGHT_TYPES = ("Q4_K", "Q6_K", "Q8_0", "Q5_0", "Q4_0", "Q4_1", "Q5_K", "Q5_1")
BLOCK_BYTES = {
    "Q4_0": 18,
    "Q4_1": 20,
    "Q5_0": 22,
    "Q5_1": 24,
    "Q8_0": 34,
    "Q4_K": 144,
    "Q5_K": 176,
    "Q6_K": 210,
}
ALIGNED_TYPES = ("Q4_K", "Q5_K")
"""Blocks of whole 16 bytes."""
WITH_MINIMUM = ("Q4_K", "Q5_K", "Q4_1", "Q5_1")
SPARED = 1 / 32
"""Share of its blocks that a stream-k grid goes without so that no block serves two tiles."""


@dataclass(frozen=True)
class MmqConfig:
    """C[nt, od] = X[nt, id] W[od, id]^T with W as blocks and X as int8 chunks; refuses what cannot run.

    Attributes:
        variant: "r1" expands the weights to int8 words in shared memory on their way in; "raw" stages the
            blocks' bytes as they are (cp.async) and unpacks them in registers, at the mma; "folded" (Q6_K)
            expands weights times their 8-bit scales, two bytes each.
        weight_type: W's block format.
        tokens_tile, rows_tile: the block's tile ("narrow" is 64 x 64, "wide" 128 x 64).
        kd: chunks of 32 that a k-tile holds, 4 or 8.
        stages: k-tiles in the ring.
        warps: warps a block; `warps_tokens` of them share the tokens, the others the rows.
        layout: "plain", the seed's ([chunk][token] rows of 40 bytes, whole blocks); "padded": a token's
            chunks side by side, rows padded so that no fragment load conflicts, at kd = 4 only the half of a
            K block that the k-tile needs, fragments by ldmatrix.
        rescale: "convert" (I2F, a multiply, a multiply-add an accumulator and chunk) or "magic": the integer
            accumulator starts at 0x4B400000, so that its bits are the f32 12582912 + sum, and two
            multiply-adds do the whole rescaling.
        minimum: how the formats' minima meet the activations' sums: "fma", or "tensor": one bf16 mma for four
            chunks, both operands split in two (relative error 2**-17).
        unroll: chunks of a k-tile that are written out one after another; the loop over them has the rest.
        out: "f32", "f16", or "sums": the integer accumulators themselves (see `sums_shape`), to check their
            bits.
        min_blocks: blocks an SM that the compiler leaves registers for.
        strided: the output is some columns of a wider matrix: one of several that are multiplied at once.
        stream: a grid that fills the device once, and tiles cut along k where they do not fill it
            (`minfer.cuda.mmq.schedule`).
    """

    variant: str = "raw"
    weight_type: str = "Q4_K"
    tokens_tile: int = 64
    rows_tile: int = 64
    kd: int = 8
    stages: int = 2
    warps: int = 8
    warps_tokens: int = 4
    layout: str = "plain"
    rescale: str = "convert"
    minimum: str = "fma"
    unroll: int = 1
    out: str = "f32"
    min_blocks: int | None = None
    strided: bool = False
    stream: bool = False

    def __post_init__(self) -> None:
        check_types("mmq", self)
        check_choice("mmq", "variant", self.variant, VARIANTS)
        check_choice("mmq", "weight_type", self.weight_type, WEIGHT_TYPES)
        check_choice("mmq", "kd", self.kd, (4, 8))
        check_choice("mmq", "stages", self.stages, (2, 3, 4))
        check_choice("mmq", "layout", self.layout, LAYOUTS)
        check_choice("mmq", "rescale", self.rescale, RESCALES)
        check_choice("mmq", "minimum", self.minimum, MINIMA)
        check_choice("mmq", "out", self.out, OUTPUTS)
        check_choice("mmq", "unroll", self.unroll, (1, 2, 4))
        check_choice("mmq", "warps", self.warps, (1, 2, 4, 8, 16))
        if self.warps_tokens < 1 or self.warps % self.warps_tokens:
            raise ConfigRefused(f"mmq: {self.warps} warps do not divide into rows of {self.warps_tokens}")
        for name, tile, share in (
            ("tokens_tile", self.tokens_tile, 16 * self.warps_tokens),
            ("rows_tile", self.rows_tile, 16 * self.warps_rows),
        ):
            if tile < 1 or tile % share:
                raise ConfigRefused(f"mmq: {name} = {tile}: these warps share multiples of {share}")
            if self.threads % tile and tile % self.threads:
                raise ConfigRefused(
                    f"mmq: {name} = {tile} and {self.threads} threads: one must divide the other"
                )
        if self.threads < max(self.tokens_tile, self.rows_tile):
            raise ConfigRefused(
                f"mmq: {self.threads} threads for a tile of {self.tokens_tile} x {self.rows_tile}: take a "
                "thread for every token and row"
            )
        if self.kd * self.rows_tile % self.threads:
            raise ConfigRefused(
                f"mmq: {self.kd} x {self.rows_tile} scales for {self.threads} threads: take fewer warps"
            )
        if (self.strided or self.stream) and self.out == "sums":
            raise ConfigRefused("mmq: integer sums are a whole matrix, of whole tiles: strided=stream=False")
        if self.minimum == "tensor" and not self.has_minimum:
            raise ConfigRefused(f"mmq: {self.weight_type} has no minima: minimum='fma'")
        if self.variant == "folded" and (
            (self.weight_type, self.kd, self.layout, self.rescale) != ("Q6_K", 4, "padded", "magic")
            or self.threads != 2 * self.rows_tile
        ):
            raise ConfigRefused(
                "mmq: variant='folded' is of Q6_K, kd=4, layout='padded', rescale='magic', with two threads "
                f"a row; these are {self.weight_type}, {self.kd}, {self.layout!r}, {self.rescale!r} and "
                f"{self.threads} threads for {self.rows_tile} rows"
            )
        if self.accumulators + 48 > MAX_THREAD_REGISTERS:
            raise ConfigRefused(
                f"mmq: {self.accumulators} accumulators a thread of {MAX_THREAD_REGISTERS} registers: "
                "take more warps or a smaller tile"
            )
        if self.min_blocks is not None and not 1 <= self.min_blocks <= MAX_SM_THREADS // self.threads:
            raise ConfigRefused(
                f"mmq: at least {self.min_blocks} blocks of {self.threads} threads; an SM holds "
                f"{MAX_SM_THREADS} threads"
            )
        if self.shared_bytes > MAX_SHARED_BYTES:
            raise ConfigRefused(
                f"mmq: {self.shared_bytes} bytes of shared memory, the largest device allows "
                f"{MAX_SHARED_BYTES}: take fewer stages, kd=4 or a smaller tile"
            )

    def __str__(self) -> str:
        text = f"{self.weight_type} {self.variant} {self.tokens_tile}x{self.rows_tile} kd={self.kd}"
        if (self.stages, self.warps, self.warps_tokens) != (2, 8, 4):
            text += f" {self.stages} stages {self.warps_tokens}x{self.warps_rows} warps"
        for value, usual in (
            (self.layout, "plain"),
            (self.rescale, "convert"),
            (self.minimum, "fma"),
            (f"unroll={self.unroll}", "unroll=1"),
            (self.out, "f32"),
        ):
            text += f" {value}" if value != usual else ""
        text += " strided" if self.strided else ""
        text += " stream-k" if self.stream else ""
        return text + (f" min {self.min_blocks} blocks" if self.min_blocks is not None else "")

    # ---- what a block holds

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps

    @property
    def warps_rows(self) -> int:
        """Warps that share the rows of the tile."""
        return self.warps // self.warps_tokens

    @property
    def warp_tile(self) -> tuple[int, int]:
        """(tokens, rows) of a warp."""
        return self.tokens_tile // self.warps_tokens, self.rows_tile // self.warps_rows

    @property
    def accumulators(self) -> int:
        """f32 accumulators a thread."""
        return self.tokens_tile * self.rows_tile // self.threads

    @property
    def k_quant(self) -> bool:
        """Super-blocks of 256 weights: rows of whole k-tiles."""
        return self.weight_type.endswith("_K")

    @property
    def has_minimum(self) -> bool:
        """Weights are scale * q + minimum."""
        return self.weight_type in WITH_MINIMUM

    @property
    def two_scales(self) -> bool:
        """A scale every 16 weights (Q6_K), not every 32."""
        return self.weight_type == "Q6_K" and self.variant != "folded"

    @property
    def scale_arrays(self) -> int:
        """f32 values that the rescaling reads a (row, chunk): scale and minimum, or two scales, or one."""
        return 2 if self.has_minimum or self.two_scales else 1

    @property
    def block_weights(self) -> int:
        """Weights a block of W."""
        return 256 if self.k_quant else CHUNK

    @property
    def block_bytes(self) -> int:
        """Bytes a block of W."""
        return BLOCK_BYTES[self.weight_type]

    # ---- shared memory

    @property
    def token_bytes(self) -> int:
        """Bytes from a token to the next in a stage; in the plain layout within a chunk."""
        return self.kd * CHUNK_BYTES + 16 if self.layout == "padded" else CHUNK_BYTES

    @property
    def activation_bytes(self) -> int:
        """Activations of a stage."""
        rows = 1 if self.layout == "padded" else self.kd
        return rows * self.tokens_tile * self.token_bytes

    @property
    def halved(self) -> bool:
        """The stage holds the quants of the half super-block that a k-tile needs, without the header."""
        return self.layout == "padded" and self.kd == 4 and self.weight_type in ALIGNED_TYPES

    @property
    def raw_row_bytes(self) -> int:
        """Bytes of a row of raw weights in a stage: whole blocks; where blocks are not whole 16 bytes, the 16
        byte lines that hold them."""
        if self.halved:
            return 80 if self.weight_type == "Q4_K" else 112
        if self.weight_type in ALIGNED_TYPES:
            return self.block_bytes
        tile = self.block_bytes if self.k_quant else self.kd * self.block_bytes
        # Up to 14 bytes before the first block; an odd number of lines spreads rows over the banks.
        lines = -(-(tile + 14) // 16)
        return 16 * (lines + 1 - lines % 2)

    @property
    def word_row_bytes(self) -> int:
        """Bytes of a row of expanded weights, padded (folded ones: permuted) so that ldmatrix does not
        conflict."""
        return self.kd * CHUNK + (0 if self.variant == "folded" else 16)

    @property
    def stage_bytes(self) -> int:
        """A stage of the cp.async ring."""
        weights = self.rows_tile * self.raw_row_bytes if self.variant == "raw" else 0
        return self.activation_bytes + weights

    @property
    def scale_row(self) -> int:
        """f32 values from a chunk's scales to the next chunk's: 8 more than the rows, against conflicts; 0
        where all chunks share d."""
        return 0 if self.variant == "folded" else self.rows_tile + 8

    @property
    def second_pitch(self) -> int:
        """Bytes from a chunk's minima (or second scales) to the next chunk's."""
        # A row's minimum as a pair of words; 32 bytes more put the four chunks of a fragment on other banks.
        return self.rows_tile * 8 + 32 if self.minimum == "tensor" else self.scale_row * 4

    @property
    def second_scale(self) -> int:
        """Bytes from a buffer's scales to its minima or second scales."""
        return self.kd * self.scale_row * 4

    @property
    def scale_bytes(self) -> int:
        """One of the two buffers of scales and minima."""
        if self.variant == "folded":
            return 4 * self.rows_tile
        return self.second_scale + (self.kd * self.second_pitch if self.scale_arrays == 2 else 0)

    @property
    def correction(self) -> float:
        """What d is multiplied with to take the magic start of the integers out of a rescaled sum."""
        return -(1.5 * 2**31 + MAGIC) if self.variant == "folded" else -MAGIC

    @property
    def masked(self) -> bool:
        """Q4_K's high nibbles stay where they are, 16 times too large, and their scales are 16 times smaller:
        a word costs one instruction."""
        return self.layout == "padded" and self.variant == "raw" and self.weight_type == "Q4_K"

    @property
    def high_bytes(self) -> int:
        """Bytes from a buffer's expanded weights to the high bytes of folded ones."""
        return self.rows_tile * self.word_row_bytes

    @property
    def word_bytes(self) -> int:
        """One of the two buffers of expanded weights."""
        tiles = {"raw": 0, "r1": 1, "folded": 2}[self.variant]
        return tiles * self.rows_tile * self.word_row_bytes

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block: the ring, two buffers of scales, two of expanded weights."""
        return self.stages * self.stage_bytes + 2 * (self.scale_bytes + self.word_bytes)

    def refused(self, device: DeviceSpec) -> str | None:
        """Why a block of this config cannot run on a device (of `minfer.arithmetic.devices`), or None."""
        if self.shared_bytes > device.shared_per_block:
            return (
                f"mmq [{self}] asks for {self.shared_bytes} bytes of shared memory a block; "
                f"{device.name} allows {device.shared_per_block}: take kd=4, a smaller tile or fewer stages"
            )
        return None

    # ---- launches

    def check(self, nt: int, od: int, depth: int) -> None:
        """Refuse (ConfigRefused) a product that this kernel cannot compute."""
        check_sizes("mmq", nt=nt, od=od, id=depth)
        if depth % CHUNK:
            raise ConfigRefused(f"mmq: id = {depth} is no multiple of {CHUNK}")
        chunks = depth // CHUNK
        if self.k_quant and chunks % 8:
            raise ConfigRefused(
                f"mmq: nb32 = {chunks} chunks of 32 are no whole super-blocks of {self.weight_type} "
                f"(nb32 % 8 = {chunks % 8}): such rows need another route (f16)"
            )
        nbytes = od * (depth // self.block_weights) * self.block_bytes
        if self.variant != "raw" and nbytes >= 2**32:
            raise ConfigRefused(
                f"mmq: a matrix of {nbytes:,} bytes; variant={self.variant!r} finds rows by 32-bit offsets, "
                "up to 4 GiB: take 'raw', or multiply fewer rows at a time"
            )

    def tiles(self, nt: int, od: int) -> tuple[int, int]:
        """Tiles along nt tokens and along od rows."""
        return -(-nt // self.tokens_tile), -(-od // self.rows_tile)

    def grid(self, nt: int, od: int, sms: int = 1) -> tuple[int, int, int]:
        """Blocks for nt tokens and od rows: token tiles fastest, so that neighbours share weights in L2. Of
        stream-k kernels what `sms` multiprocessors hold at once, or a few less where every tile then has the
        same number of blocks: a block that serves two tiles fills its pipeline and hands over twice."""
        check_sizes("mmq", nt=nt, od=od, sms=sms)
        if self.stream:
            held = self.workspace(sms)[1]
            left = held % math.prod(self.tiles(nt, od))
            return held - left if left <= SPARED * held else held, 1, 1
        return *self.tiles(nt, od), 1

    def idle(self, nt: int, od: int, sms: int) -> float:
        """Share of the multiprocessors' time that is lost if each computes whole tiles."""
        check_sizes("mmq", nt=nt, od=od, sms=sms)
        tiles = math.prod(self.tiles(nt, od))
        return 1 - tiles / (-(-tiles // sms) * sms)

    def workspace(self, sms: int) -> tuple[int, int]:
        """f32 elements of `parts` and words of `ready` that a stream-k kernel takes, enough for all the
        blocks that `sms` multiprocessors hold; the words must be zero before the first launch."""
        check_sizes("mmq", sms=sms)
        blocks = sms * (self.min_blocks or 1)
        return blocks * self.tokens_tile * self.rows_tile, blocks

    def activation_size(self, nt: int, depth: int) -> int:
        """Bytes of the activations: nothing past them is read."""
        return nt * (depth // CHUNK) * CHUNK_BYTES

    def sums_shape(self, nt: int, od: int, depth: int) -> tuple[int, int, int]:
        """Shape of an `out="sums"` output: an integer for every token, row and run of weights with a
        scale."""
        return nt, od, depth // (16 if self.two_scales else CHUNK)

    def checking(self) -> MmqConfig:
        """The same kernel writing its integer accumulators."""
        rescale = "magic" if self.variant == "folded" else "convert"
        return replace(self, out="sums", minimum="fma", rescale=rescale, min_blocks=None)
