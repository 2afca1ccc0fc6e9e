"""The Hopper GEMM: configs, the choice of one, the kernel."""

from minfer.cuda.gemm_hopper.choice import choose, may_split
from minfer.cuda.gemm_hopper.config import GemmHopperConfig
from minfer.cuda.gemm_hopper.heads import Heads
from minfer.cuda.gemm_hopper.kernel import make_gemm_hopper, shipped
from minfer.cuda.gemm_hopper.split import split_workspace

__all__ = [
    "GemmHopperConfig",
    "Heads",
    "choose",
    "make_gemm_hopper",
    "may_split",
    "shipped",
    "split_workspace",
]

KERNELS = ("gemm_hopper",)
