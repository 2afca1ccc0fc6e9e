"""What the campaign's probes run: the products, passes and attention of a prefill of Qwen2.5-7B."""

from minfer.campaign.workloads.attention import Attention
from minfer.campaign.workloads.convert import Passes, PassesConfig
from minfer.campaign.workloads.gemm import Gemm
from minfer.campaign.workloads.gemm_hopper import GemmHopper
from minfer.campaign.workloads.mmq import Mmq, Quantize

__all__ = ["Attention", "Gemm", "GemmHopper", "Mmq", "Passes", "PassesConfig", "Quantize"]
