"""W4A8: GEMMs of int8 activations with Q4_K weights, by s8 wgmma on Hopper."""

from minfer.cuda.w4a8.config import W4A8Config
from minfer.cuda.w4a8.kernel import shipped, w4a8

__all__ = ["W4A8Config", "shipped", "w4a8"]

KERNELS = ("quantize_groups", "w4a8")
