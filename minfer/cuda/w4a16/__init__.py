"""W4A16: GEMMs of f16 activations with weights that stay 4- or 6-bit blocks (Q4_K, Q6_K), on Hopper."""

from minfer.cuda.w4a16.choice import TILES, choose, choose_pair, may_split, split_workspace
from minfer.cuda.w4a16.config import FORMATS, PAIR, W4A16Config
from minfer.cuda.w4a16.kernel import shipped, w4a16

__all__ = [
    "FORMATS",
    "PAIR",
    "TILES",
    "W4A16Config",
    "choose",
    "choose_pair",
    "may_split",
    "shipped",
    "split_workspace",
    "w4a16",
]

KERNELS = ("w4a16",)
