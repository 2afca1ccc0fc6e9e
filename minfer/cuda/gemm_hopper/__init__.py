"""The Hopper GEMM: configs, the choice of one, the kernel."""

from minfer.cuda.gemm_hopper.config import GemmHopperConfig, choose
from minfer.cuda.gemm_hopper.heads import Heads
from minfer.cuda.gemm_hopper.kernel import make_gemm_hopper, shipped
from minfer.cuda.gemm_hopper.split import split_workspace

__all__ = [
    "GemmHopperConfig",
    "Heads",
    "choose",
    "make_gemm_hopper",
    "shipped",
    "split_workspace",
]

KERNELS = ("gemm_hopper",)
