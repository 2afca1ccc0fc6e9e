"""Elementwise and row-wise kernels: norms, rotary embedding, activations, additions, embedding rows, argmax.

Every fused kernel has its unfused parts beside it: they are the campaign's baselines.
"""

from minfer.cuda.elementwise import activation, add, embed, greedy, norm, rotary, rotary_store
from minfer.cuda.elementwise.activation import SwigluConfig, swiglu
from minfer.cuda.elementwise.add import AddConfig, bias_add, residual_add
from minfer.cuda.elementwise.embed import EmbeddingConfig, embedding
from minfer.cuda.elementwise.greedy import ArgmaxConfig, argmax
from minfer.cuda.elementwise.norm import RmsNormConfig, rmsnorm
from minfer.cuda.elementwise.rotary import RopeConfig, rope, rope_table
from minfer.cuda.elementwise.rotary_store import RopeStoreConfig, rope_store
from minfer.cuda.kernel import Kernel

__all__ = [
    "AddConfig",
    "ArgmaxConfig",
    "EmbeddingConfig",
    "RmsNormConfig",
    "RopeConfig",
    "RopeStoreConfig",
    "SwigluConfig",
    "argmax",
    "bias_add",
    "embedding",
    "residual_add",
    "rmsnorm",
    "rope",
    "rope_store",
    "rope_table",
    "shipped",
    "swiglu",
]


KERNELS = (
    "argmax",
    "bias_add",
    "embedding",
    "residual_add",
    "rmsnorm",
    "rope",
    "rope_store",
    "swiglu",
)


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    modules = (norm, rotary, rotary_store, activation, add, embed, greedy)
    return [kernel for module in modules for kernel in module.shipped()]
