"""Attention: causal GQA prefill in every variant of the seeds, Hopper's own, and split-KV decode."""

from minfer.cuda.attention import decode, hopper, prefill
from minfer.cuda.attention.config import AttentionConfig, seed_steps
from minfer.cuda.attention.decode import DecodeAttentionConfig, attention_combine, attention_decode
from minfer.cuda.attention.hopper import attention_hopper
from minfer.cuda.attention.hopper_config import HopperAttentionConfig, hopper_steps
from minfer.cuda.attention.prefill import attention_prefill
from minfer.cuda.kernel import Kernel

__all__ = [
    "AttentionConfig",
    "DecodeAttentionConfig",
    "HopperAttentionConfig",
    "attention_combine",
    "attention_decode",
    "attention_hopper",
    "attention_prefill",
    "hopper_steps",
    "seed_steps",
    "shipped",
]


KERNELS = ("attention_combine", "attention_decode", "attention_hopper", "attention_prefill")


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    return prefill.shipped() + hopper.shipped() + decode.shipped()
