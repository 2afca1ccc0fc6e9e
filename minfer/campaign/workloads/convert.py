"""The f32 -> f16 passes of a layer: activations before a GEMM, K and V rows into the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minfer.arithmetic.work import QWEN25_7B
from minfer.campaign.workload import Case, Launch, Work, Workload, kernel, pooled_normal
from minfer.cuda.convert import ConvertConfig, StoreKvConfig, convert_f32_f16, store_kv_f16
from minfer.engine.cuda.routes import Route
from minfer.engine.cuda.variants import with_convert


@dataclass(frozen=True)
class PassesConfig:
    """Both kernels: elements a thread of the convert, dims a thread of the KV store."""

    convert: ConvertConfig
    store: StoreKvConfig

    def __str__(self) -> str:
        return f"convert {self.convert}; store_kv {self.store}"


@dataclass(frozen=True)
class Passes(Workload):
    """One case a kernel and width; `store` is 1 for the KV store, 0 for the convert."""

    nt: int = 2048
    tolerance: float = 0.0

    small: ClassVar = (
        Case.of("convert 3 x 44", nt=3, width=44, store=0),
        Case.of("store 5 x 22", nt=5, width=22, store=1),
    )

    @property
    def cases(self) -> tuple[Case, ...]:
        """The 7B's passes: before qkv and gate+up, before o, before down; K and V."""
        shape, full = QWEN25_7B, QWEN25_7B.layers - 1
        nt, kv = self.nt, QWEN25_7B.kv_heads * QWEN25_7B.head_dim
        return (
            Case.of(f"convert {nt} x {shape.hidden}", 3 * full, nt=nt, width=shape.hidden, store=0),
            Case.of(f"convert {nt} x {shape.ffn}", full, nt=nt, width=shape.ffn, store=0),
            Case.of(f"store K or V {nt} x {kv}", 2 * shape.layers, nt=nt, width=kv, store=1),
        )

    def input_shapes(self, case: Case) -> dict:
        shapes = {"x": ((case["nt"], case["width"]), "float32")}
        return shapes | ({"positions": ((case["nt"],), "int32")} if case["store"] else {})

    def inputs(self, case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
        nt = case["nt"]
        x = pooled_normal((nt, case["width"]), "float32", int(rng.integers(1 << 20)))
        positions = {"positions": rng.permutation(nt).astype(np.int32)} if case["store"] else {}
        return {"x": x} | positions

    def outputs(self, config: PassesConfig, case: Case) -> dict:
        return {"out": ((case["nt"], case["width"]), "float16")}

    def launches(
        self, config: PassesConfig, case: Case, arrays: Mapping[str, Any], device: Any
    ) -> list[Launch]:
        nt, width, x, out = case["nt"], case["width"], arrays["x"], arrays["out"]
        if case["store"]:
            made, grid = kernel(store_kv_f16, config.store), config.store.grid(nt, width)
            return [Launch.of(made, grid, x, out, arrays["positions"], width)]
        made, grid = kernel(convert_f32_f16, config.convert), config.convert.grid(nt * width)
        return [Launch.of(made, grid, x, out, nt * width)]

    def reference(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        out = inputs["x"].astype(np.float16)
        if case["store"]:
            stored = np.empty_like(out)
            stored[inputs["positions"]] = out
            out = stored
        return {"out": out.astype(np.float64)}

    def work(self, case: Case) -> Work:
        return Work(0.0, 6.0 * case["nt"] * case["width"])

    def route(self, config: PassesConfig, arch: str) -> Route:
        return with_convert("vector" if config.convert.vector == 8 else "scalar", arch)

    def bucket(self) -> str:
        return "convert"
