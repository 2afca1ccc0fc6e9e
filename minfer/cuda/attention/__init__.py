"""Attention: causal GQA prefill in every variant of the seeds, split-KV decode, and a decode step's in one
kernel."""

from minfer.cuda.attention import decode, prefill, step
from minfer.cuda.attention.config import AttentionConfig, seed_steps
from minfer.cuda.attention.decode import DecodeAttentionConfig, attention_combine, attention_decode
from minfer.cuda.attention.prefill import attention_prefill
from minfer.cuda.attention.step import AttentionStepConfig, attention_step
from minfer.cuda.kernel import Kernel

__all__ = [
    "AttentionConfig",
    "AttentionStepConfig",
    "DecodeAttentionConfig",
    "attention_combine",
    "attention_decode",
    "attention_prefill",
    "attention_step",
    "seed_steps",
    "shipped",
]


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    return prefill.shipped() + decode.shipped() + step.shipped()
