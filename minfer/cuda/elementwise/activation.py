"""The gated activation silu(gate) * up."""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import float32, int32, uint64

from minfer.cuda import ptx
from minfer.cuda.checks import blocks_for, check_choice, check_threads, check_types
from minfer.cuda.dependent import dependent_start, least_arch
from minfer.cuda.elementwise.rows import (
    OUTPUTS,
    ROW_OUTPUTS,
    load4,
    load8_f16,
    output_argument,
    row_bytes,
    store4,
)
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel
from minfer.cuda.q8 import store_pad40_of_eight

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class SwigluConfig:
    """silu(gate) * up.

    Attributes:
        output: "f32", or "f16", "q8" or "pad40" fused with the conversion that the next GEMM, GEMV or MMQ
            needs.
        source: "f32" or "f16": what gate and up are.
        packed: one input [nt, 2 ff], gate then up in every row (the output of a stacked GEMM); else two
            inputs [nt, ff].
        vector: elements a thread: 4; 8 of f16 to pad40, where 16 bytes a load and 4 lanes a chunk save half
            of the chunk's arithmetic; or 1 (any ff; f32 in and out only).
        threads: threads a block.
        pdl: programmatic dependent launch (`minfer.cuda.dependent`).
    """

    output: str = "f32"
    source: str = "f32"
    packed: bool = False
    vector: int = 4
    threads: int = 256
    pdl: bool = False

    def __post_init__(self) -> None:
        check_types("swiglu", self)
        check_choice("swiglu", "output", self.output, ROW_OUTPUTS)
        check_choice("swiglu", "source", self.source, ("f32", "f16"))
        check_choice("swiglu", "vector", self.vector, (1, 4, 8))
        check_threads("swiglu", self.threads)
        if self.vector == 8 and (self.source, self.output) != ("f16", "pad40"):
            raise ConfigRefused(
                f"swiglu: {self.source} to {self.output}, 8 elements a thread: vector=8 is of f16 to pad40"
            )
        if self.vector == 1 and (self.output, self.source) != ("f32", "f32"):
            raise ConfigRefused(
                f"swiglu: {self.source} to {self.output} goes 4 elements at a time: vector=4, ff % 4 == 0"
            )

    def __str__(self) -> str:
        extra = (" packed" if self.packed else "") + (" pdl" if self.pdl else "")
        return f"{self.source}->{self.output}{extra} vector={self.vector} threads={self.threads}"

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, nt: int, ff: int) -> tuple[int, int, int]:
        """Blocks for nt rows of ff outputs."""
        walked = -(-ff // 64) * 64 if self.output == "q8" else ff
        return (blocks_for("swiglu: nt", nt), -(-walked // (self.threads * self.vector)), 1)


@device_function
def silu_product_by(gate, up, minus_log2_e):
    """`silu_product` with its constant as an operand."""
    return gate * up * ptx.rcp_approx(float32(1) + ptx.ex2_approx(gate * minus_log2_e))


@device_function
def silu_product(gate, up):
    """silu(gate) * up. The exponential overflows to infinity and its reciprocal to 0 for very negative
    gates."""
    return silu_product_by(gate, up, float32(-LOG2_E))


def swiglu(config: SwigluConfig = SwigluConfig()) -> Kernel:
    """out[t, j] = silu(gate[t, j]) * up[t, j].

    Arguments: gate and up [nt, ff], or packed one gate_up [nt, 2 ff], f32 or f16; out [nt, ff] f32 or f16, or
    [nt, ceil(ff / 64) * 80] bytes of q8 records, or [nt, ff / 32, 40] bytes of pad40 chunks; ff int32 (a
    multiple of `vector`, of 32 for q8 and pad40).
    Arithmetic in f32. Shazeer 2020, "GLU variants improve transformer".
    """
    threads, vector = config.threads, config.vector
    element = 4 if config.source == "f32" else 2
    load = load4(config.source)
    store, bytes_of = store4(config.output), row_bytes(config.output)
    start = dependent_start(config.pdl)

    @device_function
    def activate_vector(gates, ups, target, ff):
        i = int32((cuda.blockIdx.y * threads + cuda.threadIdx.x) * 4)
        y0 = float32(0)
        y1 = float32(0)
        y2 = float32(0)
        y3 = float32(0)
        if i < ff:
            at = uint64(i) * uint64(element)
            g0, g1, g2, g3 = load(gates + at)
            u0, u1, u2, u3 = load(ups + at)
            y0 = silu_product(g0, u0)
            y1 = silu_product(g1, u1)
            y2 = silu_product(g2, u2)
            y3 = silu_product(g3, u3)
        store(target, i, ff, y0, y1, y2, y3)

    @device_function
    def activate_scalar(gates, ups, target, ff):
        i = int32(cuda.blockIdx.y * threads + cuda.threadIdx.x)
        if i < ff:
            at = uint64(i) * uint64(4)
            value = silu_product(ptx.ld_global_f32(gates + at), ptx.ld_global_f32(ups + at))
            ptx.st_global_f32(target + at, value)

    @device_function
    def activate_eight(gates, ups, target, ff):
        i = int32((cuda.blockIdx.y * threads + cuda.threadIdx.x) * 8)
        gate, up = cuda.local.array(8, float32), cuda.local.array(8, float32)
        for n in range(8):
            gate[n] = float32(0)
        if i < ff:
            at = uint64(i) * uint64(element)
            load8_f16(gate, 0, gates + at)
            load8_f16(up, 0, ups + at)
            for n in range(8):
                gate[n] = silu_product(gate[n], up[n])
        store_pad40_of_eight(target, i, ff, gate, 0)

    activate = {1: activate_scalar, 4: activate_vector, 8: activate_eight}[vector]

    def swiglu_separate(gate, up, out, ff):
        start()
        row = uint64(cuda.blockIdx.x)
        offset = row * uint64(ff) * uint64(element)
        target = ptx.global_address(out) + row * bytes_of(ff)
        activate(ptx.global_address(gate) + offset, ptx.global_address(up) + offset, target, ff)

    def swiglu_packed(gate_up, out, ff):
        start()
        row = uint64(cuda.blockIdx.x)
        width = uint64(ff) * uint64(element)
        gates = ptx.global_address(gate_up) + row * width * uint64(2)
        activate(gates, gates + width, ptx.global_address(out) + row * bytes_of(ff), ff)

    dtype = {"f32": "float32", "f16": "float16"}[config.source]
    names = ("gate_up",) if config.packed else ("gate", "up")
    arguments = (
        *(Argument(name, "in", dtype) for name in names),
        output_argument(config.output),
        Argument("ff", "scalar", "int32"),
    )
    return Kernel(
        name="swiglu",
        config=config,
        function=swiglu_packed if config.packed else swiglu_separate,
        threads=threads,
        shared_bytes=0,
        arguments=arguments,
        min_arch=least_arch(config.pdl),
    )


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    return [
        swiglu(SwigluConfig(vector=1)),
        *(swiglu(SwigluConfig(output=o, packed=p)) for o in OUTPUTS for p in (False, True)),
        swiglu(SwigluConfig(output="q8", packed=True, pdl=True)),
        *(swiglu(SwigluConfig(output=o, source="f16", packed=True)) for o in ("f16", "q8")),
        swiglu(SwigluConfig(output="pad40", source="f16", packed=True, vector=8)),
        swiglu(SwigluConfig(output="pad40", packed=True)),
    ]
