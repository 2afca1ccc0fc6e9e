"""A product of one token with a quantized matrix, by the decode GEMV: its blocks as they are, or repacked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minfer.arithmetic.work import QWEN25_7B
from minfer.campaign.random_blocks import random_rows, values_of
from minfer.campaign.workload import Case, Launch, Work, Workload, kernel
from minfer.cuda import reference
from minfer.cuda.block_dots import DOTS
from minfer.cuda.blocks import block_of
from minfer.cuda.gemv import GemvConfig, gemv
from minfer.cuda.gemv_planes import repack_q6_k
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.q8 import q8_record_bytes

STACKS = {"q+k+v": ("q", "k", "v"), "o": ("o",), "gate+up": ("gate", "up"), "down": ("down",)}
STACKS |= {"lm_head": ("lm_head",)}
"""The products of a decoded token -> the matrices of each."""


@dataclass(frozen=True)
class Gemv(Workload):
    """y[od] = W[od, dim] x[dim] for configs of this format and `dim`; each run finds W in memory, not in L2.

    Attributes:
        format: W's, a key of `minfer.cuda.blocks.BLOCKS`. od, dim: its rows, and the weights of each.
        name: as tables call the product. count: how often a token has it.

    Raises:
        ConfigRefused: no kernel reads the format, rows are no whole blocks of it, or there are none.
    """

    format: str = "Q4_K"
    od: int = 37888
    dim: int = 3584
    name: str = "gate+up"
    count: int = QWEN25_7B.layers
    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        block_of("Gemv", self.format, self.dim)
        if self.od < 1:
            raise ConfigRefused(f"Gemv: od={self.od} rows: give one or more")

    @classmethod
    def of(cls, name: str, format: str) -> Gemv:
        """A product of the 7B, a key of `STACKS`, as if all its matrices were of this format.

        Raises:
            ConfigRefused: no such product, or no kernel reads the format.
        """
        if name not in STACKS:
            raise ConfigRefused(f"gemv: {name!r} is no product of a token; there are {', '.join(STACKS)}")
        block_of("gemv", format)
        shapes = [QWEN25_7B.matrix(part) for part in STACKS[name]]
        count = 1 if name == "lm_head" else QWEN25_7B.layers
        return cls(format, sum(od for od, _ in shapes), shapes[0][1], name, count)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The product."""
        return (Case.of(f"{self.name} {self.od}x{self.dim} {self.format}", self.count, od=self.od, sms=0),)

    @property
    def small(self) -> tuple[Case, ...]:
        """Few of its rows: some for every block, and so many for one block that its ring goes round."""
        many = min(301, max(37, 800_000 // self.dim)) | 1
        return (
            Case.of(f"7 rows of {self.dim}", od=7, sms=0),
            Case.of(f"{many} rows of {self.dim}, one multiprocessor", od=many, sms=1),
        )

    def input_shapes(self, case: Case) -> dict:
        size = q8_record_bytes(self.dim)
        x = ((size,), "uint8") if DOTS[self.format].quantized else ((self.dim,), "float32")
        return {"w": ((case["od"], block_of("gemv", self.format).row_bytes(self.dim)), "uint8"), "x": x}

    def inputs(self, case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
        x = rng.standard_normal(self.dim).astype(np.float32)
        if DOTS[self.format].quantized:
            x = reference.pack_q8(*reference.quantize_q8(x))
        return {"w": random_rows(self.format, case["od"], self.dim, rng), "x": x}

    def prepared(
        self, config: GemvConfig, case: Case, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """W in planes, for configs that read these."""
        return {"w": repack_q6_k(inputs["w"], config.slice_blocks)} if config.layout == "planes" else {}

    def outputs(self, config: GemvConfig, case: Case) -> dict:
        return {"out": ((case["od"],), "float32")}

    def launches(
        self, config: GemvConfig, case: Case, arrays: Mapping[str, Any], device: Any
    ) -> list[Launch]:
        if (config.format, config.dim) != (self.format, self.dim):
            raise ConfigRefused(
                f"gemv [{config}]: this workload has rows of {self.dim} {self.format} weights: take "
                f"Gemv({config.format!r}, od, {config.dim})"
            )
        if config.addend:
            raise ConfigRefused(f"gemv [{config}]: this workload adds nothing: use addend=False")
        grid = config.grid(case["od"], case["sms"] or device.sms)
        operands = arrays["w"], arrays["x"], arrays["out"]
        return [Launch.of(kernel(gemv, config), grid, *operands, case["od"], pdl=config.pdl)]

    def reference(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        x = inputs["x"]
        if DOTS[self.format].quantized:
            x = reference.dequantize_q8(x, self.dim)
        return {"out": values_of(self.format, inputs["w"]).astype(np.float64) @ x.astype(np.float64)}

    def work(self, case: Case) -> Work:
        shapes = self.input_shapes(case).values()
        read = sum(np.dtype(dtype).itemsize * float(np.prod(shape)) for shape, dtype in shapes)
        return Work(0.0, read + 4.0 * case["od"])
