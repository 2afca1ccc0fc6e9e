"""What the campaign's probes run: products, passes and attention of a prefill of Qwen2.5-7B, and the products
and the kernel of a decoded token."""

from minfer.campaign.workloads.attention import Attention
from minfer.campaign.workloads.convert import Passes, PassesConfig
from minfer.campaign.workloads.gemm import Gemm
from minfer.campaign.workloads.gemm_hopper import GemmHopper
from minfer.campaign.workloads.gemv import Gemv
from minfer.campaign.workloads.mmq import Mmq, Quantize
from minfer.campaign.workloads.packed import W4A8, W4A16
from minfer.campaign.workloads.token import Rung, Token

__all__ = [
    "W4A8",
    "W4A16",
    "Attention",
    "Gemm",
    "GemmHopper",
    "Gemv",
    "Mmq",
    "Passes",
    "PassesConfig",
    "Quantize",
    "Rung",
    "Token",
]
