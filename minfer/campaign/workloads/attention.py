"""A layer's prefill attention, as the 7B has it: 28 query heads on 4 KV heads of 128."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from minfer.arithmetic.work import QWEN25_7B
from minfer.campaign.workload import Case, Launch, Work, Workload, kernel
from minfer.cuda.attention import AttentionConfig, attention_prefill, seed_steps
from minfer.cuda.reference import attention
from minfer.engine.cuda.routes import Route
from minfer.engine.cuda.variants import with_attention

HEADS, KV_HEADS, HEAD_DIM = QWEN25_7B.heads, QWEN25_7B.kv_heads, QWEN25_7B.head_dim
STEPS = seed_steps(HEADS, KV_HEADS, HEAD_DIM)
"""The seeds' kernels by name, for the 7B."""


@dataclass(frozen=True)
class Attention(Workload):
    """Causal attention of `nt` tokens from an empty context."""

    nt: int = 2048

    small: ClassVar = (Case.of("70 tokens, 2 heads", nt=70, heads=2, kv_heads=1),)

    @property
    def cases(self) -> tuple[Case, ...]:
        """One layer; 27 of a prefill attend with all tokens."""
        label = f"{HEADS} heads on {KV_HEADS}, {self.nt} tokens"
        return (Case.of(label, QWEN25_7B.layers - 1, nt=self.nt, heads=HEADS, kv_heads=KV_HEADS),)

    def shrunk(self, config: AttentionConfig) -> AttentionConfig:
        return replace(config, heads=2, kv_heads=1)

    def input_shapes(self, case: Case) -> dict:
        query, row = case["heads"] * HEAD_DIM, case["kv_heads"] * HEAD_DIM
        nt = case["nt"]
        return {
            "q": ((nt, query), "float16"), "k": ((nt, row), "float16"), "v": ((nt, row), "float16")
        }  # fmt: skip

    def outputs(self, config: AttentionConfig, case: Case) -> dict:
        dtype = "float16" if config.output == "f16" else "float32"
        return {"out": ((case["nt"], case["heads"] * HEAD_DIM), dtype)}

    def launches(
        self, config: AttentionConfig, case: Case, arrays: Mapping[str, Any], device: Any
    ) -> list[Launch]:
        nt = case["nt"]
        made = kernel(attention_prefill, config)
        operands = (arrays["q"], arrays["k"], arrays["v"], arrays["out"])
        return [Launch.of(made, config.grid(nt), *operands, nt, 0, nt, HEAD_DIM**-0.5)]

    def reference(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        nt, heads, kv_heads = case["nt"], case["heads"], case["kv_heads"]
        q, k, v = (inputs[name].astype(np.float32) for name in "qkv")
        out = attention(
            q.reshape(nt, heads, HEAD_DIM),
            k.reshape(nt, kv_heads, HEAD_DIM),
            v.reshape(nt, kv_heads, HEAD_DIM),
            0,
        )
        return {"out": np.asarray(out, np.float64).reshape(nt, heads * HEAD_DIM)}

    def work(self, case: Case) -> Work:
        nt, query, row = case["nt"], case["heads"] * HEAD_DIM, case["kv_heads"] * HEAD_DIM
        return Work(2.0 * query * nt * (nt + 1), 2.0 * nt * (2 * query + 2 * row))

    def route(self, config: AttentionConfig, arch: str) -> Route | None:
        name = next((name for name, step in STEPS.items() if step == config), None)
        return None if name is None else with_attention(name, arch)

    def bucket(self) -> str:
        return "FA"
