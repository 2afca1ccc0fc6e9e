"""Products on raw Q4_K blocks, and the pass that quantizes their activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minfer.arithmetic.work import QWEN25_7B
from minfer.campaign.random_blocks import POOL_ROWS, random_rows, values_of
from minfer.campaign.workload import Case, Launch, Work, Workload, kernel, pooled_normal
from minfer.campaign.workloads.gemm import products
from minfer.cuda.mmq import MmqConfig, mmq
from minfer.cuda.quantize import QuantizePad40Config, quantize_q8_0_pad40
from minfer.cuda.reference import dequantize_pad40, pack_pad40, quantize_pad40
from minfer.engine.cuda.mmq import CHAINS
from minfer.engine.cuda.routes import Route

CHUNK = 32


@dataclass(frozen=True)
class Mmq(Workload):
    """C = X W^T: X as pad40 chunks, W as Q4_K blocks."""

    nt: int = 2048

    small: ClassVar = (Case.of("70 x 72 x 512", nt=70, od=72, id=512),)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The 7B's products, as if all its matrices were Q4_K."""
        return products(self.nt)

    def input_shapes(self, case: Case) -> dict:
        return {
            "w": ((case["od"], case["id"] // 256 * 144), "uint8"),
            "x": ((case["nt"], case["id"] // CHUNK, 40), "uint8"),
        }

    def inputs(self, case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
        nt, depth = case["nt"], case["id"]
        few = min(nt, 4 * POOL_ROWS)
        chunks = pack_pad40(*quantize_pad40(pooled_normal((few, depth), "float32")))
        return {
            "w": random_rows("Q4_K", case["od"], depth, rng),
            "x": np.resize(chunks, (nt, depth // CHUNK, 40)),
        }

    def outputs(self, config: MmqConfig, case: Case) -> dict:
        return {"out": ((case["nt"], case["od"]), "float32")}

    def launches(self, config: MmqConfig, case: Case, arrays: Mapping[str, Any], device: Any) -> list[Launch]:
        nt, od, depth = case["nt"], case["od"], case["id"]
        config.check(nt, od, depth)
        made = kernel(mmq, config)
        operands = arrays["w"], arrays["x"], arrays["out"]
        return [Launch.of(made, config.grid(nt, od), *operands, nt, od, depth)]

    def reference(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        weights = values_of("Q4_K", inputs["w"]).astype(np.float64)
        return {"out": dequantize_pad40(inputs["x"]) @ weights.T}

    def work(self, case: Case) -> Work:
        nt, od, depth = case["nt"], case["od"], case["id"]
        nbytes = od * depth / 256 * 144 + nt * depth / CHUNK * 40 + 4.0 * nt * od
        return Work(2.0 * nt * od * depth, nbytes, "int8")

    def route(self, config: MmqConfig, arch: str) -> Route | None:
        """The engine's chain that begins with this kernel."""
        for name, chain in CHAINS.items():
            if chain[0].make("Q4_K") == config:
                return Route(name, mmq=name)
        return None

    def bucket(self) -> str:
        return "products"

    @property
    def wall_route(self) -> str:
        return "mmq_raw"


@dataclass(frozen=True)
class Quantize(Workload):
    """f32 activations -> pad40 chunks."""

    nt: int = 2048
    tolerance: float = 0.0

    small: ClassVar = (Case.of("3 x 96", nt=3, width=96), Case.of("5 x 352", nt=5, width=352))

    @property
    def cases(self) -> tuple[Case, ...]:
        """Before qkv, gate+up and o; before down."""
        shape, full, nt = QWEN25_7B, QWEN25_7B.layers - 1, self.nt
        return (
            Case.of(f"quantize {nt} x {shape.hidden}", 3 * full, nt=nt, width=shape.hidden),
            Case.of(f"quantize {nt} x {shape.ffn}", full, nt=nt, width=shape.ffn),
        )

    def input_shapes(self, case: Case) -> dict:
        return {"x": ((case["nt"], case["width"]), "float32")}

    def outputs(self, config: QuantizePad40Config, case: Case) -> dict:
        return {"out": ((case["nt"], case["width"] // CHUNK, 40), "uint8")}

    def launches(
        self, config: QuantizePad40Config, case: Case, arrays: Mapping[str, Any], device: Any
    ) -> list[Launch]:
        nt, width = case["nt"], case["width"]
        made = kernel(quantize_q8_0_pad40, config)
        count = nt * width // CHUNK
        return [Launch.of(made, config.grid(nt, width), arrays["x"], arrays["out"], count)]

    def reference(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        chunks = pack_pad40(*quantize_pad40(inputs["x"]))
        return {"out": chunks.astype(np.float64)}

    def work(self, case: Case) -> Work:
        return Work(0.0, case["nt"] * case["width"] * (4 + 40 / CHUNK))

    def bucket(self) -> str:
        return "quantize"

    @property
    def wall_route(self) -> str:
        return "mmq_raw"
