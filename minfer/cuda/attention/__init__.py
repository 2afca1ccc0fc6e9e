"""Attention: causal GQA prefill in every variant of the seeds, and split-KV decode."""

from minfer.cuda.attention.config import AttentionConfig, seed_steps
from minfer.cuda.attention.prefill import attention_prefill

__all__ = ["AttentionConfig", "attention_prefill", "seed_steps"]
