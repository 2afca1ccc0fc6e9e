"""The products of a layer by Hopper's GEMMs over quantized blocks: W4A16 and W4A8, no f16 copy of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from minfer.arithmetic.work import QWEN25_7B
from minfer.campaign.random_blocks import random_rows, values_of
from minfer.campaign.workload import Case, Launch, Work, Workload, kernel, pooled_normal
from minfer.cuda import reference
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.w4a8 import W4A8Config, w4a8
from minfer.cuda.w4a8.formats import GROUP
from minfer.cuda.w4a8.quantize import QuantizeGroupsConfig, quantize_groups
from minfer.cuda.w4a16 import FORMATS, PAIR, W4A16Config, w4a16

QUANTIZE = QuantizeGroupsConfig("f16")
OPERANDS = {"a", "w", "other", "c", "nt", "od", "depth", "first", "width", "group", "other_od", "other_first"}
"""Arguments of the W4A16 kernel that its workload has."""


def packed_products(nt: int, pair: bool = False) -> tuple[Case, ...]:
    """The products of a layer of the 7B for `nt` tokens; of gate and up the gated one, `od` is its outputs.
    With `pair` q, k and v alone, v of the second format."""
    shape, full = QWEN25_7B, QWEN25_7B.layers - 1
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if pair:
        label = f"q+k+v {q + 2 * kv}x{shape.hidden}, {nt} tokens"
        return (Case.of(label, full, nt=nt, od=q + kv, other=kv, id=shape.hidden, gated=0),)
    sizes = {
        "q+k+v": (q + 2 * kv, shape.hidden, 0),
        "o": (shape.hidden, q, 0),
        "gate+up (gated)": (shape.ffn, shape.hidden, 1),
        "down": (shape.hidden, shape.ffn, 0),
    }
    return tuple(
        Case.of(f"{name} {od}x{id}, {nt} tokens", full, nt=nt, od=od, other=0, id=id, gated=gated)
        for name, (od, id, gated) in sizes.items()
    )


@dataclass(frozen=True)
class _Packed(Workload):
    """Activations f16 a [nt, id], blocks w [rows, bytes] (of a pair also `other`), C f16 or f32 [nt, od].

    Whether a config is gated is up to the case: silu(gate) * up for gate and up."""

    nt: int = 2048

    formats: ClassVar = ("Q4_K",)

    def input_shapes(self, case: Case) -> dict:
        nt, depth, rows = case["nt"], case["id"], case["od"] * (1 + case["gated"])
        sizes = dict(zip(("w", "other"), (rows, case["other"]), strict=True))
        packed = {
            name: ((sizes[name], BLOCKS[format].row_bytes(depth)), "uint8")
            for name, format in zip(sizes, self.formats, strict=False)
        }
        return {"a": ((nt, depth), "float16")} | packed

    def inputs(self, case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
        shapes = self.input_shapes(case)
        # Gated products of two must stay below f16's largest number.
        scale = np.float16(0.02 if case["gated"] else 1)
        made = {"a": pooled_normal(shapes.pop("a")[0], "float16", int(rng.integers(1 << 20))) * scale}
        for (name, ((rows, _), _)), format in zip(shapes.items(), self.formats, strict=True):
            made[name] = random_rows(format, rows, case["id"], rng)
        return made

    def activations(self, a: np.ndarray) -> np.ndarray:
        """What the kernel multiplies."""
        return a.astype(np.float64)

    def reference(self, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = ("w", "other")[: len(self.formats)]
        weights = [values_of(f, inputs[name]) for f, name in zip(self.formats, names, strict=True)]
        out = self.activations(inputs["a"]) @ np.concatenate(weights).astype(np.float64).T
        return {"out": reference.swiglu(*np.split(out, 2, axis=1)) if case["gated"] else out}

    def work(self, case: Case) -> Work:
        shapes, outputs = self.input_shapes(case), case["nt"] * (case["od"] + case["other"])
        read = sum(np.dtype(dtype).itemsize * float(np.prod(shape)) for shape, dtype in shapes.values())
        flop = 2.0 * outputs * (1 + case["gated"]) * case["id"]
        return Work(flop, read + 2.0 * outputs, self.dtype)

    dtype: ClassVar = "f16"

    def bucket(self) -> str:
        return "products"


@dataclass(frozen=True)
class W4A16(_Packed):
    """C = a W^T by tiles that unpack Q4_K or Q6_K to f16 in registers. Launches overlap the one before.

    Attributes:
        format: of the weights; "Q4_K+Q6_K": q and k of the one beside v of the other, in one launch.

    Raises:
        ConfigRefused: another format.
    """

    format: str = "Q4_K"

    def __post_init__(self) -> None:
        if self.format not in (known := (*FORMATS, PAIR)):
            raise ConfigRefused(f"W4A16: format={self.format!r} is none of {', '.join(known)}")

    @property
    def formats(self) -> tuple[str, ...]:
        return tuple(self.format.split("+"))

    @property
    def cases(self) -> tuple[Case, ...]:
        """The 7B's products, as if all its matrices were of this format."""
        return packed_products(self.nt, self.format == PAIR)

    @property
    def small(self) -> tuple[Case, ...]:
        if self.format == PAIR:
            return (Case.of("70 x (128 + 72) x 512", nt=70, od=128, other=72, id=512, gated=0),)
        return (
            Case.of("70 x 136 x 512", nt=70, od=136, other=0, id=512, gated=0),
            Case.of("33 x 72 x 256, gated", nt=33, od=72, other=0, id=256, gated=1),
        )

    def outputs(self, config: W4A16Config, case: Case) -> dict:
        dtype = {"f16": "float16", "f32": "float32"}[config.out]
        return {"out": ((case["nt"], case["od"] + case["other"]), dtype)}

    def launches(
        self, config: W4A16Config, case: Case, arrays: Mapping[str, Any], device: Any
    ) -> list[Launch]:
        if config.format != self.format:
            raise ConfigRefused(
                f"w4a16 [{config}]: this workload's weights are {self.format}: take W4A16(format="
                f"{config.format!r})"
            )
        config = replace(config, gated=bool(case["gated"]))
        made = kernel(w4a16, config)
        others = [argument.name for argument in made.passed if argument.name not in OPERANDS]
        if others:
            raise ConfigRefused(
                f"w4a16 [{config}]: this workload has no {', '.join(others)}: take a config without"
            )
        nt, od, depth, other = case["nt"], case["od"], case["id"], case["other"]
        width, boxes = od + other, config.boxes
        config.check(nt, width, depth, width, od if other else 0)
        names = ("a", "w", "other", "out") if other else ("a", "w", "out")
        seen = [
            device.tensor_map(arrays[name], boxes[box]) if box in boxes else arrays[name]
            for name, box in zip(names, (*names[:-1], "c"), strict=True)
        ]
        sizes = nt, od, depth, 0, width, config.group(nt), *((other, od) if other else ())
        grid = config.grid(nt, width, device.sms)
        return [Launch.of(made, grid, *seen, *sizes, pdl=config.pdl)]

    @property
    def wall_route(self) -> str:
        return "w4a16"


@dataclass(frozen=True)
class W4A8(_Packed):
    """C = a W^T of Q4_K blocks in int8; the pass that quantizes the activations is part of it."""

    tolerance: float = 1e-2  # a weight is a byte, off by up to 0.2 % of the largest that its block can hold

    small: ClassVar = (
        Case.of("70 x 136 x 1024", nt=70, od=136, other=0, id=1024, gated=0),
        Case.of("33 x 72 x 512, gated", nt=33, od=72, other=0, id=512, gated=1),
    )
    dtype: ClassVar = "int8"

    @property
    def cases(self) -> tuple[Case, ...]:
        """The 7B's products, as if all its matrices were Q4_K. The engine takes the kernel for gate and up
        alone."""
        return packed_products(self.nt)

    def activations(self, a: np.ndarray) -> np.ndarray:
        return reference.quantize_runs(a, GROUP).reshape(a.shape)

    def outputs(self, config: W4A8Config, case: Case) -> dict:
        nt, depth = case["nt"], case["id"]
        return {
            "out": ((nt, case["od"]), "float16"),
            "rounded": ((nt, depth), "int8"),
            "sums": ((nt, depth // 32), "float32"),
            "scales": ((depth // GROUP, -(-nt // 4) * 4), "float32"),
        }

    def launches(
        self, config: W4A8Config, case: Case, arrays: Mapping[str, Any], device: Any
    ) -> list[Launch]:
        config = replace(config, gated=bool(case["gated"]))
        nt, od, depth = case["nt"], case["od"], case["id"]
        config.check(nt, od, depth, od)
        quantized = arrays["rounded"], arrays["sums"], arrays["scales"]
        sizes = nt, depth, arrays["scales"].shape[1]
        quantize = kernel(quantize_groups, QUANTIZE)
        first = Launch.of(quantize, QUANTIZE.grid(nt, depth), arrays["a"], *quantized, *sizes)
        operands = dict(zip(config.boxes, (*quantized, arrays["w"], arrays["out"]), strict=True))
        maps = [device.tensor_map(array, config.boxes[name]) for name, array in operands.items()]
        grid = config.grid(nt, od, device.sms)
        return [first, Launch.of(kernel(w4a8, config), grid, *maps, nt, od, depth, 0, config.group(nt))]

    @property
    def wall_route(self) -> str:
        return "w4a8"
