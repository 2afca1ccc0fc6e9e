"""Attention: causal GQA prefill in every variant of the seeds, and split-KV decode."""

from minfer.cuda.attention import decode, prefill
from minfer.cuda.attention.config import AttentionConfig, seed_steps
from minfer.cuda.attention.decode import DecodeAttentionConfig, attention_combine, attention_decode
from minfer.cuda.attention.prefill import attention_prefill
from minfer.cuda.kernel import Kernel

__all__ = [
    "AttentionConfig",
    "DecodeAttentionConfig",
    "attention_combine",
    "attention_decode",
    "attention_prefill",
    "seed_steps",
    "shipped",
]


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    return prefill.shipped() + decode.shipped()
