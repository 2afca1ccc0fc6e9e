"""RMS normalisation of rows, alone or with the residual addition before it."""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import float32, int32, uint8, uint64

from minfer.cuda import ptx
from minfer.cuda.checks import blocks_for, check_choice, check_threads, check_types
from minfer.cuda.dependent import dependent_start, least_arch
from minfer.cuda.elementwise.rows import (
    OUTPUTS,
    ROW_OUTPUTS,
    block_sum,
    covered,
    load4,
    output_argument,
    row_bytes,
    store4,
)
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel


@dataclass(frozen=True)
class RmsNormConfig:
    """RMS norm of f32 rows.

    Attributes:
        output: "f32", "f16" (what the GEMM reads), "q8" (records for the decode GEMV) or "pad40" (chunks for
            MMQ).
        residual: add a second input first and write the sum too: saves a pass over three rows.
        residual_type: "f32" or "f16": what that second input is.
        vector: 4 (dim % 4 == 0: 16-byte accesses) or 1 (any dim; f32 output only).
        threads: threads a block; a block owns a row (a single row of a decode step wants 1024).
        pdl: programmatic dependent launch (`minfer.cuda.dependent`).
    """

    output: str = "f32"
    residual: bool = False
    vector: int = 4
    threads: int = 256
    residual_type: str = "f32"
    pdl: bool = False

    def __post_init__(self) -> None:
        check_types("rmsnorm", self)
        check_choice("rmsnorm", "output", self.output, ROW_OUTPUTS)
        check_choice("rmsnorm", "residual_type", self.residual_type, ("f32", "f16"))
        check_choice("rmsnorm", "vector", self.vector, (1, 4))
        check_threads("rmsnorm", self.threads)
        if self.vector == 1 and (self.output, self.residual_type) != ("f32", "f32"):
            raise ConfigRefused(
                f"rmsnorm: {self.residual_type} residual to {self.output} goes 4 elements at a time; take "
                "vector=4 (dim % 4 == 0)"
            )

    def __str__(self) -> str:
        fused = ""
        if self.residual:
            fused = " residual" if self.residual_type == "f32" else f" {self.residual_type} residual"
        fused += " pdl" if self.pdl else ""
        return f"output={self.output}{fused} vector={self.vector} threads={self.threads}"

    @property
    def shared_bytes(self) -> int:
        return self.threads // 32 * 4

    def grid(self, nt: int) -> tuple[int, int, int]:
        """One block a row."""
        return (blocks_for("rmsnorm: nt", nt), 1, 1)


def rmsnorm(config: RmsNormConfig = RmsNormConfig()) -> Kernel:
    """h = x (+ residual); out = h / sqrt(mean(h^2) + eps) * weight, row by row.

    Arguments: x f32 [nt, dim], (residual f32 or f16 [nt, dim], hidden f32 [nt, dim]: receives h, may be the
    buffer of x or of an f32 residual,) weight f32 [dim], out [nt, dim] f32 or f16, or [nt, ceil(dim / 64) *
    80] bytes of q8 records, or [nt, dim / 32, 40] bytes of pad40 chunks, dim int32 (a multiple of `vector`,
    of 32 for q8 and pad40), eps float32. Sums are f32, in a fixed order. Rows are read twice, the second time
    from L1. Zhang and Sennrich 2019, with the weights applied last as llama does.
    """
    threads, vector, fused = config.threads, config.vector, config.residual
    store, bytes_of, walked = store4(config.output), row_bytes(config.output), covered(config.output)
    total, start = block_sum(threads // 32), dependent_start(config.pdl)
    load_added, added_bytes = load4(config.residual_type), {"f32": 4, "f16": 2}[config.residual_type]

    @device_function
    def square_sum_vector(source, added, kept, dim):
        squares = float32(0)
        for i in range(int32(cuda.threadIdx.x) * 4, dim, threads * 4):
            at = uint64(i) * uint64(4)
            a0, a1, a2, a3 = ptx.ld_global_v4_f32(source + at)
            if fused:
                r0, r1, r2, r3 = load_added(added + uint64(i) * uint64(added_bytes))
                a0 += r0
                a1 += r1
                a2 += r2
                a3 += r3
                ptx.st_global_v4_f32(kept + at, a0, a1, a2, a3)
            squares += a0 * a0 + a1 * a1 + a2 * a2 + a3 * a3
        return squares

    @device_function
    def square_sum_scalar(source, added, kept, dim):
        squares = float32(0)
        for i in range(int32(cuda.threadIdx.x), dim, threads):
            at = uint64(i) * uint64(4)
            a = ptx.ld_global_f32(source + at)
            if fused:
                a += ptx.ld_global_f32(added + at)
                ptx.st_global_f32(kept + at, a)
            squares += a * a
        return squares

    @device_function
    def scaled_vector(source, gains, target, dim, scale):
        # Whole warps go round together: the int8 stores shuffle, and the last q8 record is filled with zeros.
        for first in range(0, walked(dim), threads * 4):
            i = int32(first + int32(cuda.threadIdx.x) * 4)
            a0 = float32(0)
            a1 = float32(0)
            a2 = float32(0)
            a3 = float32(0)
            if i < dim:
                at = uint64(i) * uint64(4)
                a0, a1, a2, a3 = ptx.ld_global_v4_f32(source + at)
                g0, g1, g2, g3 = ptx.ld_global_nc_v4_f32(gains + at)
                a0 *= scale * g0
                a1 *= scale * g1
                a2 *= scale * g2
                a3 *= scale * g3
            store(target, i, dim, a0, a1, a2, a3)

    @device_function
    def scaled_scalar(source, gains, target, dim, scale):
        for i in range(int32(cuda.threadIdx.x), dim, threads):
            at = uint64(i) * uint64(4)
            value = ptx.ld_global_f32(source + at) * scale * ptx.ld_global_nc_f32(gains + at)
            ptx.st_global_f32(target + at, value)

    square_sum = square_sum_vector if vector == 4 else square_sum_scalar
    scaled = scaled_vector if vector == 4 else scaled_scalar

    @device_function
    def normalise(source, added, kept, gains, target, dim, eps):
        start()
        scratch = ptx.shared_address(cuda.shared.array(0, uint8))
        mean = total(square_sum(source, added, kept, dim), scratch) * ptx.rcp_approx(float32(dim))
        scaled(kept, gains, target, dim, ptx.rsqrt_approx(mean + eps))

    def rmsnorm_row(x, residual, hidden, weight, out, dim, eps):
        row = uint64(cuda.blockIdx.x)
        offset = row * uint64(dim) * uint64(4)
        source = ptx.global_address(x) + offset
        added = ptx.global_address(residual) + row * uint64(dim) * uint64(added_bytes)
        kept = ptx.global_address(hidden) + offset if fused else source
        target = ptx.global_address(out) + row * bytes_of(dim)
        normalise(source, added, kept, ptx.global_address(weight), target, dim, eps)

    added_dtype = {"f32": "float32", "f16": "float16"}[config.residual_type]
    arguments = (
        Argument("x", "in", "float32"),
        Argument("residual", "in", added_dtype, present=fused),
        Argument("hidden", "out", "float32", present=fused),
        Argument("weight", "in", "float32"),
        output_argument(config.output),
        Argument("dim", "scalar", "int32"),
        Argument("eps", "scalar", "float32"),
    )
    return Kernel(
        name="rmsnorm",
        config=config,
        function=rmsnorm_row,
        threads=threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_arch=least_arch(config.pdl),
    )


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    return [
        rmsnorm(RmsNormConfig(vector=1)),
        rmsnorm(RmsNormConfig(vector=1, residual=True)),
        *(rmsnorm(RmsNormConfig(output=o, residual=r)) for o in OUTPUTS for r in (False, True)),
        *(rmsnorm(RmsNormConfig(output="q8", residual=r, threads=1024, pdl=True)) for r in (False, True)),
        rmsnorm(RmsNormConfig(output="f16", residual=True, residual_type="f16")),
        *(rmsnorm(RmsNormConfig(output="pad40", residual=r)) for r in (False, True)),
    ]
