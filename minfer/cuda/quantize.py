"""Passes that quantize activations to int8: q8 records for the decode GEMV, pad40 chunks for MMQ
(`minfer.cuda.q8`); and the way back from chunks.

The pad40 pass exists in three forms. `serial` is what seed 003 started from: a thread a chunk, 4 bytes a
load, one chain of 32 maxima, a byte a store. `tree` is what it landed: 16 bytes a load, maxima in a tree, the
int8 packed in registers and stored as words. `warp` spreads a chunk over lanes that load 16 bytes each, 8 of
f32 or 4 of f16: loads and stores of a warp are then contiguous, where a thread a chunk makes every request of
a warp touch 32 lines. All three write the same bits: a maximum does not depend on its order, and the rounding
is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import float32, int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.checks import blocks_for, check_choice, check_threads, check_types
from minfer.cuda.dependent import dependent_start, least_arch
from minfer.cuda.elementwise.rows import load8_f16
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel
from minfer.cuda.q8 import (
    RUN,
    largest_bits,
    magnitude_bits,
    pad40_scale,
    quantize_four,
    store_pad40,
    store_pad40_of_eight,
    store_q8,
)

FORMS = ("serial", "tree", "warp")
MAX_CHUNKS = 2**26 - 1  # int32 counts their activations


@dataclass(frozen=True)
class QuantizeQ8Config:
    """f32 activations -> q8 records.

    Attributes:
        threads: threads a block; a thread takes 4 activations.
        pdl: programmatic dependent launch (`minfer.cuda.dependent`).
    """

    threads: int = 128
    pdl: bool = False

    def __post_init__(self) -> None:
        check_types("quantize_q8", self)
        check_threads("quantize_q8", self.threads)

    def __str__(self) -> str:
        return f"threads={self.threads}{' pdl' if self.pdl else ''}"

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, nt: int, dim: int) -> tuple[int, int, int]:
        """Blocks for nt rows of dim."""
        return (blocks_for("quantize_q8: nt", nt), -(-(-(-dim // 64) * 16) // self.threads), 1)


def quantize_q8(config: QuantizeQ8Config = QuantizeQ8Config()) -> Kernel:
    """Records of each row of x.

    Arguments: x f32 [nt, dim], records uint8 [nt, ceil(dim / 64) * 80], dim int32 (a multiple of 32). d =
    max|x| / 127 a run of 32, q = x / d to the nearest (halves to even), s = d * sum(q): llama.cpp's q8_1
    with f32 scales.
    """
    threads, start = config.threads, dependent_start(config.pdl)

    def quantize_q8_rows(x, records, dim):
        start()
        i = int32((cuda.blockIdx.y * threads + cuda.threadIdx.x) * 4)
        row = uint64(cuda.blockIdx.x)
        a0 = float32(0)
        a1 = float32(0)
        a2 = float32(0)
        a3 = float32(0)
        if i < dim:
            at = ptx.global_address(x) + (row * uint64(dim) + uint64(i)) * uint64(4)
            a0, a1, a2, a3 = ptx.ld_global_v4_f32(at)
        target = ptx.global_address(records) + row * uint64(((dim + 63) >> 6) * 80)
        store_q8(target, i, dim, a0, a1, a2, a3)

    arguments = (
        Argument("x", "in", "float32"),
        Argument("records", "out", "uint8"),
        Argument("dim", "scalar", "int32"),
    )
    return Kernel(
        "quantize_q8",
        config,
        quantize_q8_rows,
        threads,
        0,
        arguments,
        least_arch(config.pdl),
    )


@dataclass(frozen=True)
class QuantizePad40Config:
    """Activations -> pad40 chunks.

    Attributes:
        form: "serial", "tree" or "warp": how a chunk is spread over threads, see the module.
        source: "f32" or "f16": what the activations are; f16 is for the form "warp".
        unroll: loads of 16 bytes that a thread of the form "warp" has on their way at a time.
        threads: threads a block.
    """

    form: str = "warp"
    source: str = "f32"
    unroll: int = 1
    threads: int = 256

    def __post_init__(self) -> None:
        check_types("quantize_q8_0_pad40", self)
        name = "quantize_q8_0_pad40"
        check_choice(name, "form", self.form, FORMS)
        check_choice(name, "source", self.source, ("f32", "f16"))
        check_choice(name, "unroll", self.unroll, (1, 2, 4))
        check_threads(name, self.threads)
        if self.form != "warp" and (self.source, self.unroll) != ("f32", 1):
            raise ConfigRefused(
                f"{name}: {self.form} takes f32, a chunk a thread; {self.source} and unroll={self.unroll} "
                "are for the form warp"
            )

    def __str__(self) -> str:
        unrolled = f" unroll={self.unroll}" if self.unroll > 1 else ""
        return f"{self.form} {self.source}{unrolled} threads={self.threads}"

    @property
    def shared_bytes(self) -> int:
        return 0

    @property
    def per_lane(self) -> int:
        """Activations that a lane of the form "warp" loads at a time: 16 bytes."""
        return 8 if self.source == "f16" else 4

    @property
    def chunks(self) -> int:
        """Chunks a block."""
        return self.threads if self.form != "warp" else self.threads * self.per_lane // RUN * self.unroll

    def grid(self, nt: int, dim: int) -> tuple[int, int, int]:
        """Blocks for nt rows of dim."""
        name = "quantize_q8_0_pad40: chunks"
        return (blocks_for(name, nt * (dim // RUN), self.chunks, MAX_CHUNKS), 1, 1)


@device_function
def _serial_chunk(source, target):
    """One chunk by one thread, element by element."""
    v = cuda.local.array(32, float32)
    largest = uint32(0)
    for k in range(32):
        v[k] = ptx.ld_global_nc_f32(source + uint64(4 * k))
        largest = max(largest, magnitude_bits(v[k]))
    head, inverse = pad40_scale(largest)
    total = int32(0)
    for k in range(32):
        q = ptx.cvt_rni_s32_f32(v[k] * inverse)
        total += q
        ptx.st_global_u8(target + uint64(4 + k), uint32(q & 255))
    ptx.st_global_u16(target, head)
    ptx.st_global_u16(target + uint64(2), uint32(0))
    ptx.st_global_u32(target + uint64(36), uint32(total))


@device_function
def _tree_chunk(source, target):
    """One chunk by one thread: seed 003's rebuilt pass."""
    v = cuda.local.array(32, float32)
    largest = uint32(0)
    for i in range(8):
        v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3] = ptx.ld_global_nc_v4_f32(source + uint64(16 * i))
        largest = max(largest, largest_bits(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]))
    head, inverse = pad40_scale(largest)
    total = int32(0)
    ptx.st_global_u32(target, head)
    for i in range(8):
        word, part = quantize_four(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3], inverse)
        total += part
        ptx.st_global_u32(target + uint64(4 + 4 * i), word)
    ptx.st_global_u32(target + uint64(36), uint32(total))


@device_function
def _load_four(v, o, address):
    v[o], v[o + 1], v[o + 2], v[o + 3] = ptx.ld_global_v4_f32(address)


@device_function
def _store_four(row, index, dim, v, o):
    store_pad40(row, index, dim, v[o], v[o + 1], v[o + 2], v[o + 3])


def quantize_q8_0_pad40(config: QuantizePad40Config = QuantizePad40Config()) -> Kernel:
    """pad40 chunks of x, one for every 32 neighbouring activations.

    Arguments: x f32 or f16 [nt, dim] (16-byte aligned, finite: checked mode refuses what is not), chunks
    uint8 [nt, dim / 32, 40], count int32: nt * dim / 32, at most MAX_CHUNKS. d = max|x| / 127, stored as f16;
    q = x * (127 / max|x|) to the nearest, halves to even; the int32 sum of the q. All forms give the same
    bits, those of `minfer.cuda.reference.quantize_pad40`. Seed 003, section 3.2: quantize_q8_0_pad40.
    """
    threads, unroll, per_lane = config.threads, config.unroll, config.per_lane
    element_bytes, held = 16 // per_lane, per_lane * unroll
    load, store = (load8_f16, store_pad40_of_eight) if per_lane == 8 else (_load_four, _store_four)
    whole = _serial_chunk if config.form == "serial" else _tree_chunk

    def chunk_a_thread(x, chunks, count):
        i = int32(cuda.blockIdx.x * threads + cuda.threadIdx.x)
        if i < count:
            source = ptx.global_address(x) + uint64(i) * uint64(128)
            whole(source, ptx.global_address(chunks) + uint64(i) * uint64(40))

    def chunk_of_lanes(x, chunks, count):
        end = int32(count * 32)
        first = int32((cuda.blockIdx.x * (threads * unroll) + cuda.threadIdx.x) * per_lane)
        source, target = ptx.global_address(x), ptx.global_address(chunks)
        v = cuda.local.array(held, float32)
        for n in range(held):
            v[n] = float32(0)
        for n in range(unroll):
            i = int32(first + n * (threads * per_lane))
            if i < end:
                load(v, per_lane * n, source + uint64(i) * uint64(element_bytes))
        for n in range(unroll):
            store(target, int32(first + n * (threads * per_lane)), end, v, per_lane * n)

    arguments = (
        Argument("x", "in", {"f32": "float32", "f16": "float16"}[config.source], finite=True),
        Argument("chunks", "out", "uint8"),
        Argument("count", "scalar", "int32"),
    )
    return Kernel(
        name="quantize_q8_0_pad40",
        config=config,
        function=chunk_of_lanes if config.form == "warp" else chunk_a_thread,
        threads=threads,
        shared_bytes=0,
        arguments=arguments,
    )


@dataclass(frozen=True)
class DequantizePad40Config:
    """pad40 chunks -> f16 activations; `threads` a block, 4 activations each."""

    threads: int = 256

    def __post_init__(self) -> None:
        check_types("dequantize_pad40", self)
        check_threads("dequantize_pad40", self.threads)

    def __str__(self) -> str:
        return f"threads={self.threads}"

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, nt: int, dim: int) -> tuple[int, int, int]:
        """Blocks for nt rows of dim."""
        chunks, each = nt * (dim // RUN), self.threads * 4 // RUN
        return (blocks_for("dequantize_pad40: chunks", chunks, each, MAX_CHUNKS), 1, 1)


def dequantize_pad40(config: DequantizePad40Config = DequantizePad40Config()) -> Kernel:
    """f16 activations d * q of pad40 chunks: for a GEMM that takes the place of an MMQ kernel.

    Arguments: chunks uint8 [nt, dim / 32, 40], x f16 [nt, dim], count int32: nt * dim / 32, at most
    MAX_CHUNKS.
    """
    threads = config.threads

    @device_function
    def pair(word, shift, d):
        low, high = int32(word >> uint32(shift)) & 255, int32(word >> uint32(shift + 8)) & 255
        return ptx.pack_f16x2(
            d * ptx.cvt_rn_f32_s32((low ^ 128) - 128), d * ptx.cvt_rn_f32_s32((high ^ 128) - 128)
        )

    def dequantize_chunks(chunks, x, count):
        i = int32((cuda.blockIdx.x * threads + cuda.threadIdx.x) * 4)
        if i < count * 32:
            chunk = ptx.global_address(chunks) + uint64(i >> 5) * uint64(40)
            d = ptx.unpack_f16x2_lo(ptx.ld_global_u32(chunk))
            word = ptx.ld_global_u32(chunk + uint64(4 + (i & 31)))
            target = ptx.global_address(x) + uint64(i) * uint64(2)
            ptx.st_global_v2_u32(target, pair(word, 0, d), pair(word, 16, d))

    arguments = (
        Argument("chunks", "in", "uint8"),
        Argument("x", "out", "float16"),
        Argument("count", "scalar", "int32"),
    )
    return Kernel("dequantize_pad40", config, dequantize_chunks, threads, 0, arguments)


KERNELS = ("dequantize_pad40", "quantize_q8", "quantize_q8_0_pad40")


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    return [
        dequantize_pad40(),
        *(quantize_q8(QuantizeQ8Config(pdl=pdl)) for pdl in (False, True)),
        *(quantize_q8_0_pad40(QuantizePad40Config(form)) for form in FORMS),
        *(quantize_q8_0_pad40(QuantizePad40Config(unroll=n)) for n in (2, 4)),
        *(quantize_q8_0_pad40(QuantizePad40Config(source="f16", unroll=n)) for n in (1, 2)),
    ]
