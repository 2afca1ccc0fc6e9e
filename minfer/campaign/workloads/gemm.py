"""The four products of a layer, by the mma.sync GEMM over f16 weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minfer.arithmetic.work import QWEN25_7B
from minfer.campaign.workload import Case, Launch, Work, Workload, kernel
from minfer.cuda.convert import ConvertConfig, convert_f32_f16
from minfer.cuda.gemm import GemmConfig, make_gemm
from minfer.engine.cuda.routes import Route


def products(nt: int) -> tuple[Case, ...]:
    """The products of a prefill of `nt` tokens of the 7B; q, k and v are one. The last layer's run for one
    token, so 27 layers count (its k and v over all tokens, 0.4 % of the work, are left out)."""
    shape, full = QWEN25_7B, QWEN25_7B.layers - 1
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    sizes = {
        "qkv": (qkv, shape.hidden),
        "o": (shape.hidden, shape.heads * shape.head_dim),
        "gate+up": (2 * shape.ffn, shape.hidden),
        "down": (shape.hidden, shape.ffn),
    }
    return tuple(
        Case.of(f"{name} {od}x{id}, {nt} tokens", full, nt=nt, od=od, id=id)
        for name, (od, id) in sizes.items()
    )


@dataclass(frozen=True)
class Gemm(Workload):
    """C = A B^T for each product.

    Attributes:
        nt: tokens. activations: "f16", or "f32": a config that reads f16 then runs the convert pass first.
    """

    nt: int = 2048
    activations: str = "f16"

    small: ClassVar = (
        Case.of("40 x 24 x 64", nt=40, od=24, id=64),
        Case.of("70 x 136 x 72", nt=70, od=136, id=72),
    )

    @property
    def cases(self) -> tuple[Case, ...]:
        """The 7B's products."""
        return products(self.nt)

    def input_shapes(self, case: Case) -> dict:
        a = "float32" if self.activations == "f32" else "float16"
        return {"a": ((case["nt"], case["id"]), a), "b": ((case["od"], case["id"]), "float16")}

    def outputs(self, config: GemmConfig, case: Case) -> dict:
        out = "float16" if config.out == "f16" else "float32"
        made = {"out": ((case["nt"], case["od"]), out)}
        if self._converts(config):
            made["converted"] = ((case["nt"], case["id"]), "float16")
        return made

    def launches(
        self, config: GemmConfig, case: Case, arrays: Mapping[str, Any], device: Any
    ) -> list[Launch]:
        nt, od, depth = case["nt"], case["od"], case["id"]
        found, a = [], arrays["a"]
        if self._converts(config):
            convert = ConvertConfig()
            a = arrays["converted"]
            made = kernel(convert_f32_f16, convert)
            found.append(Launch.of(made, convert.grid(nt * depth), arrays["a"], a, nt * depth))
        made = kernel(make_gemm, config)
        found.append(Launch.of(made, config.grid(nt, od), a, arrays["b"], arrays["out"], nt, od, depth))
        return found

    def reference(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        a = inputs["a"].astype(np.float16).astype(np.float64)
        return {"out": a @ inputs["b"].astype(np.float64).T}

    def work(self, case: Case) -> Work:
        nt, od, depth = case["nt"], case["od"], case["id"]
        size = 4 if self.activations == "f32" else 2
        return Work(2.0 * nt * od * depth, size * nt * depth + 2.0 * od * depth + 2.0 * nt * od)

    def route(self, config: GemmConfig, arch: str) -> Route:
        convert = "vector" if self._converts(config) else "fused"
        return Route(f"f16, gemm {config}", gemm=config, small=None, convert=convert)

    def bucket(self) -> str:
        return "products"

    def _converts(self, config: GemmConfig) -> bool:
        return self.activations == "f32" and config.a_source == "f16"
