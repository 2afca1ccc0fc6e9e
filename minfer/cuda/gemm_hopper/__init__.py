"""The Hopper GEMM: configs, the choice of one, the kernel."""

from minfer.cuda.gemm_hopper.config import GemmHopperConfig, choose
from minfer.cuda.gemm_hopper.heads import Heads
from minfer.cuda.gemm_hopper.kernel import make_gemm_hopper, shipped

__all__ = ["GemmHopperConfig", "Heads", "choose", "make_gemm_hopper", "shipped"]

KERNELS = ("gemm_hopper",)
