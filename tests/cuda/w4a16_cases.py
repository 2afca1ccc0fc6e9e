"""Products of the W4A16 GEMM with their expected outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minfer.cuda.kernel import Kernel
from minfer.cuda.w4a16 import W4A16Config, w4a16
from tests.cuda.block_data import random_matrix
from tests.cuda.parity import Case

DTYPES = {"f16": np.float16, "f32": np.float32}


@dataclass
class Product:
    """C = A W^T (+ bias): inputs, a poisoned C, and the bound that every element must keep.

    Bound: a weight's f16 scale, minimum and value are each rounded once (2^-11 of what they are); the sums
    lose 2e-6 of their magnitudes, an f16 result 2^-11 of itself."""

    config: W4A16Config
    a: np.ndarray
    blocks: np.ndarray
    bias: np.ndarray | None
    c: np.ndarray
    wanted: np.ndarray
    bound: np.ndarray

    @classmethod
    def random(cls, config: W4A16Config, nt: int, od: int, blocks: int, width: int | None = None) -> Product:
        """od: rows of weights; a gated C has half as many columns."""
        draw = np.random.default_rng([nt, od, blocks])
        depth = 256 * blocks
        # Gated products of two must stay below f16's largest number.
        a = (draw.standard_normal((nt, depth)) * (0.02 if config.gated else 1)).astype(np.float16)
        packed, values = random_matrix(config.format, od, depth)
        left, weights = a.astype(np.float64), values.astype(np.float64)
        # |scale| * 63 and dmin * 63 bound what is rounded; the random scales reach 0.02 * 63 * 15 and more.
        largest = np.abs(weights).reshape(od, -1, 256).max(axis=2).repeat(256, axis=1)
        wanted, magnitude = left @ weights.T, np.abs(left) @ np.abs(weights).T
        bound = 1e-6 + 2e-6 * magnitude + 4 * 2.0**-11 * np.sqrt((left**2) @ (largest**2).T)
        bias = None
        if config.gated:
            (gate, up), (gate_off, up_off) = np.split(wanted, 2, axis=1), np.split(bound, 2, axis=1)
            sigmoid = 0.5 + 0.5 * np.tanh(0.5 * gate)
            wanted = gate * sigmoid * up
            # silu changes by at most 1.1 times its argument's change; its approximations cost 2^-20.
            bound = 1.1 * gate_off * np.abs(up) + np.abs(gate * sigmoid) * up_off + 1.1 * gate_off * up_off
            bound += 1e-6 * np.abs(wanted) + 1e-6
        if config.bias:
            bias = draw.standard_normal(od).astype(np.float32)
            wanted = wanted + bias
        if config.out == "f16":
            bound = bound + 2.0**-11 * np.abs(wanted)
        c = np.full((nt, width or wanted.shape[1]), np.nan, DTYPES[config.out])
        return cls(config, a, packed, bias, c, wanted, bound)

    @property
    def kernel(self) -> Kernel:
        return w4a16(self.config)

    def arguments(self, tensor_map: Callable[..., Any], a: Any, blocks: Any, bias: Any, c: Any) -> tuple:
        """The kernel's arguments over these arrays; `tensor_map` is the simulator's or the runtime's."""
        boxes, config = self.config.boxes, self.config
        (nt, depth), od, width = self.a.shape, self.wanted.shape[1], self.c.shape[1]
        config.check(nt, od, depth, width)

        def seen(name, array):
            return tensor_map(array, *boxes[name]) if name in boxes else array

        arrays = (seen("a", a), seen("w", blocks), *((bias,) if config.bias else ()), seen("c", c))
        return (*arrays, nt, od, depth, 0, width, config.group(nt))

    def grid(self, multiprocessors: int) -> tuple[int, int, int]:
        return self.config.grid(*self.wanted.shape, multiprocessors)

    def case(self, multiprocessors: int) -> Case:
        """The launch over so many multiprocessors."""
        values = self.arguments(lambda array, *box: array, self.a, self.blocks, self.bias, self.c)
        named = dict(zip((a.name for a in self.kernel.passed), values, strict=True))
        name = f"{self.c.shape[0]}x{self.wanted.shape[1]}x{self.a.shape[1]}"
        return Case(
            self.kernel,
            self.grid(multiprocessors),
            named,
            {"c": self.check},
            name=name,
            whole_chunks=() if "w" in self.config.boxes else ("w",),
            boxes=self.config.boxes,
        )

    def check(self, c: np.ndarray) -> None:
        """Every element of the product is within its bound."""
        off = np.abs(c[:, : self.wanted.shape[1]].astype(np.float64) - self.wanted)
        bad = np.argwhere(~(off <= self.bound))
        assert not bad.size, f"{len(bad)} of {c.size} off, first {bad[0]}: {off[tuple(bad[0])]}"
        relative = np.linalg.norm(off) / np.linalg.norm(self.wanted)
        assert off.size < 1000 or relative < (6e-4 if self.config.gated else 4e-4), (
            f"relative error {relative}"
        )
