"""Bias and residual additions as passes of their own: the unfused baselines of fused kernels.

The engine launches neither: `rope_store` adds biases, and the residual is added by `rmsnorm` or by a GEMM.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import int32, uint64

from minfer.cuda import ptx
from minfer.cuda.checks import blocks_for, check_choice, check_threads, check_types
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument, Kernel


@dataclass(frozen=True)
class AddConfig:
    """f32 additions.

    Attributes:
        vector: elements a thread: 4 (row length % 4 == 0), or 1.
        threads: threads a block.
    """

    vector: int = 4
    threads: int = 256

    def __post_init__(self) -> None:
        check_types("add", self)
        check_choice("add", "vector", self.vector, (1, 4))
        check_threads("add", self.threads)

    def __str__(self) -> str:
        return f"vector={self.vector} threads={self.threads}"

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, nt: int, dim: int) -> tuple[int, int, int]:
        """Blocks for nt rows of dim."""
        return (blocks_for("add: nt", nt), -(-dim // (self.threads * self.vector)), 1)


@device_function
def _add4(left, right, target):
    a0, a1, a2, a3 = ptx.ld_global_v4_f32(left)
    b0, b1, b2, b3 = ptx.ld_global_v4_f32(right)
    ptx.st_global_v4_f32(target, a0 + b0, a1 + b1, a2 + b2, a3 + b3)


@device_function
def _add1(left, right, target):
    ptx.st_global_f32(target, ptx.ld_global_f32(left) + ptx.ld_global_f32(right))


def bias_add(config: AddConfig = AddConfig()) -> Kernel:
    """x[t, j] += bias[j].

    Arguments: x f32 [nt, dim], bias f32 [dim], dim int32 (a multiple of `vector`).
    """
    threads, vector = config.threads, config.vector
    add = _add4 if vector == 4 else _add1

    def bias_add_rows(x, bias, dim):
        i = int32((cuda.blockIdx.y * threads + cuda.threadIdx.x) * vector)
        if i < dim:
            at = ptx.global_address(x) + (uint64(cuda.blockIdx.x) * uint64(dim) + uint64(i)) * uint64(4)
            add(at, ptx.global_address(bias) + uint64(i) * uint64(4), at)

    arguments = (
        Argument("x", "inout", "float32"),
        Argument("bias", "in", "float32"),
        Argument("dim", "scalar", "int32"),
    )
    return Kernel("bias_add", config, bias_add_rows, threads, 0, arguments)


def residual_add(config: AddConfig = AddConfig()) -> Kernel:
    """out[t, j] = a[t, j] + b[t, j].

    Arguments: a and b f32 [nt, dim], out f32 [nt, dim] (may be the buffer of a or of b), dim int32 (a
    multiple of `vector`).
    """
    threads, vector = config.threads, config.vector
    add = _add4 if vector == 4 else _add1

    def residual_add_rows(a, b, out, dim):
        i = int32((cuda.blockIdx.y * threads + cuda.threadIdx.x) * vector)
        if i < dim:
            at = (uint64(cuda.blockIdx.x) * uint64(dim) + uint64(i)) * uint64(4)
            add(ptx.global_address(a) + at, ptx.global_address(b) + at, ptx.global_address(out) + at)

    arguments = (
        Argument("a", "in", "float32"),
        Argument("b", "in", "float32"),
        Argument("out", "out", "float32"),
        Argument("dim", "scalar", "int32"),
    )
    return Kernel("residual_add", config, residual_add_rows, threads, 0, arguments)


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    return [make(AddConfig(vector=v)) for make in (bias_add, residual_add) for v in (1, 4)]
