"""Products of the W4A16 GEMM with their expected outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minfer.cuda.kernel import Kernel
from minfer.cuda.w4a16 import W4A16Config, w4a16
from minfer.cuda.w4a16.config import split_sums
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
    blocks: tuple[np.ndarray, ...]
    bias: np.ndarray | None
    c: np.ndarray
    wanted: np.ndarray
    bound: np.ndarray
    #: Of a pair, whose outputs come first in C, "Q4_K" or "Q6_K".
    left: str = "Q4_K"

    @classmethod
    def random(
        cls,
        config: W4A16Config,
        nt: int,
        od: int | tuple[int, int],
        blocks: int,
        width: int | None = None,
        left: str = "Q4_K",
    ) -> Product:
        """od: rows of weights, of a pair those of either format; a gated C has half as many columns."""
        ods = od if isinstance(od, tuple) else (od,)
        draw = np.random.default_rng([nt, *ods, blocks])
        depth = 256 * blocks
        # Gated products of two must stay below f16's largest number.
        a = (draw.standard_normal((nt, depth)) * (0.02 if config.gated else 1)).astype(np.float16)
        matrices = [
            random_matrix(name, n, depth) for name, n in zip(config.format.split("+"), ods, strict=True)
        ]
        packed = tuple(blocks for blocks, _ in matrices)
        in_order = matrices if left == "Q4_K" else matrices[::-1]
        inputs, weights = a.astype(np.float64), np.concatenate([w for _, w in in_order]).astype(np.float64)
        # |scale| * 63 and dmin * 63 bound what is rounded; the random scales reach 0.02 * 63 * 15 and more.
        largest = np.abs(weights).reshape(sum(ods), -1, 256).max(axis=2).repeat(256, axis=1)
        wanted, magnitude = inputs @ weights.T, np.abs(inputs) @ np.abs(weights).T
        bound = 1e-6 + 2e-6 * magnitude + 4 * 2.0**-11 * np.sqrt((inputs**2) @ (largest**2).T)
        bias = None
        if config.gated:
            (gate, up), (gate_off, up_off) = np.split(wanted, 2, axis=1), np.split(bound, 2, axis=1)
            sigmoid = 0.5 + 0.5 * np.tanh(0.5 * gate)
            wanted = gate * sigmoid * up
            # silu changes by at most 1.1 times its argument's change; its approximations cost 2^-20.
            bound = 1.1 * gate_off * np.abs(up) + np.abs(gate * sigmoid) * up_off + 1.1 * gate_off * up_off
            bound += 1e-6 * np.abs(wanted) + 1e-6
        if config.bias:
            bias = draw.standard_normal(sum(ods)).astype(np.float32)
            wanted = wanted + bias
        if config.out == "f16":
            bound = bound + 2.0**-11 * np.abs(wanted)
        c = np.full((nt, width or wanted.shape[1]), np.nan, DTYPES[config.out])
        return cls(config, a, packed, bias, c, wanted, bound, left)

    @property
    def kernel(self) -> Kernel:
        return w4a16(self.config)

    def arguments(self, tensor_map: Callable[..., Any], a: Any, blocks: Any, bias: Any, c: Any) -> tuple:
        """The kernel's arguments over these arrays; `tensor_map` is the simulator's or the runtime's."""
        boxes, config = self.config.boxes, self.config
        (nt, depth), width, rows = self.a.shape, self.c.shape[1], [len(w) for w in self.blocks]
        od = rows[0] // 2 if config.gated else rows[0]
        first = 0 if self.left == "Q4_K" else rows[1]
        config.check(nt, self.wanted.shape[1], depth, width, *([first or od] if len(rows) == 2 else []))

        def seen(name, array):
            return tensor_map(array, *boxes[name]) if name in boxes else array

        weights = (seen("w", blocks[0]), *blocks[1:])
        if config.other_tokens:
            weights += (seen("a_other", a),)
        arrays = (seen("a", a), *weights, *((bias,) if config.bias else ()), seen("c", c))
        second = (rows[1], 0 if first else od) if len(rows) == 2 else ()
        return (*arrays, nt, od, depth, first, width, config.group(nt), *second)

    def grid(self, multiprocessors: int) -> tuple[int, int, int]:
        rows = [len(w) for w in self.blocks]
        od = rows[0] // 2 if self.config.gated else rows[0]
        return self.config.grid(len(self.a), od, multiprocessors, *rows[1:])

    def case(self, multiprocessors: int) -> Case:
        """The launch over so many multiprocessors."""
        boxes = self.config.boxes
        values = self.arguments(lambda array, *box: array, self.a, self.blocks, self.bias, self.c)
        checks = {"c": self.check}
        if (parts := self.config.split_k) > 1:
            blocks = parts * math.prod(self.config.tiles(*self.wanted.shape))
            sums = np.full(blocks * split_sums(self.config.tokens, parts), np.nan, np.float32)
            values += (sums, np.zeros(blocks, np.uint32))
            checks["ready"] = lambda ready: np.testing.assert_array_equal(ready, 0)
        named = dict(zip((a.name for a in self.kernel.passed), values, strict=True))
        name = f"{self.c.shape[0]}x{self.wanted.shape[1]}x{self.a.shape[1]}"
        return Case(
            self.kernel,
            self.grid(multiprocessors),
            named,
            checks,
            name=name,
            whole_chunks=tuple(name for name in ("w", "other") if name in named and name not in boxes),
            boxes=boxes,
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
