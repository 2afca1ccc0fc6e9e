"""Products of f16 activations with Q4_K and Q6_K blocks, by Hopper's W4A16 GEMM: no f16 weights anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from minfer.cuda.w4a16 import FORMATS, W4A16Config, choose, choose_pair, w4a16
from minfer.engine.cuda.launches import launch_for

if TYPE_CHECKING:
    from minfer.engine.cuda.devices import Device
    from minfer.engine.cuda.weights import Run, Stack


def takes(shapes: Sequence[tuple[str, int]]) -> bool:
    """Whether launches read all of these (format, columns), multiplied at once."""
    return all(format in FORMATS and columns % 256 == 0 for format, columns in shapes)


class W4A16Products:
    """Launches the kernel. tensor_map: (array, box with its swizzle) -> its tensor map, kept; parts: the
    workspace of launches with split_k, where `may_split` says that there are any."""

    def __init__(
        self,
        device: Device,
        tensor_map: Callable[[Any, tuple[int, int, int]], Any],
        parts: tuple[Any, ...] = (),
    ):
        self.device, self._tensor_map, self._parts = device, tensor_map, parts
        self._takes = cache(takes)

    def takes(self, stack: Stack) -> bool:
        """Whether all of a stack can be multiplied."""
        return self._takes(stack.shapes)

    def gates(self, stack: Stack) -> bool:
        """Whether a stack of gate and up can be multiplied and activated at once."""
        return self.takes(stack) and len(stack.runs) == 1 and stack.rows % 16 == 0

    def multiply(self, c: Any, a: Any, stack: Stack, form: str) -> None:
        """c = a . stack^T; a: f16 (tokens, columns), c: (tokens, rows) of form "f16" or "f32". Two runs are
        one launch, more of them one each."""
        if len(stack.runs) == 2:
            self._multiply_pair(c, a, stack.runs, form)
            return
        first = 0
        for run in stack.runs:
            # In this order: a launch may write rubbish to the columns behind its own.
            self._launch(c, a, run, run.rows, form, first)
            first += run.rows

    def gate(self, c: Any, a: Any, stack: Stack) -> None:
        """c = silu(a . gate^T) * (a . up^T), f16 (tokens, rows / 2)."""
        (run,) = stack.runs
        self._launch(c, a, run, run.rows // 2, "f16", gated=True)

    def _multiply_pair(self, c: Any, a: Any, runs: Sequence[Run], form: str) -> None:
        (nt, depth), width, left = a.shape, c.shape[1], runs[0].rows
        starts = {runs[0].format: 0, runs[1].format: left}
        first, second = sorted(runs, key=lambda run: run.format)
        ods, sms = (first.rows, second.rows), self.device.sms
        sizes = nt, first.rows, sms, second.rows
        product = launch_for(w4a16, _choose_pair, sizes, nt, ods, depth, sms, form, width, left)
        twice = {"a_other": a} if product.config.other_tokens else {}
        seen = self._seen(product.config, a=a, w=first.blocks, other=second.blocks, **twice, c=c)
        sizes = nt, first.rows, depth, starts[first.format], width, product.config.group(nt)
        product.on(self.device, *seen, *sizes, second.rows, starts[second.format])

    def _launch(
        self, c: Any, a: Any, run: Run, rows: int, form: str, first: int = 0, gated: bool = False
    ) -> None:
        (nt, depth), width, sms = a.shape, c.shape[1], self.device.sms
        product = launch_for(
            w4a16, _choose, (nt, rows, sms), run.format, nt, rows, depth, sms, form, width, gated
        )
        seen = self._seen(product.config, a=a, w=run.blocks, c=c)
        parts = self._parts if product.config.split_k > 1 else ()
        product.on(self.device, *seen, nt, rows, depth, first, width, product.config.group(nt), *parts)

    def _seen(self, config: W4A16Config, **arrays: Any) -> list[Any]:
        """The arrays as the kernel takes them."""
        boxes = config.boxes
        return [self._tensor_map(x, boxes[name]) if name in boxes else x for name, x in arrays.items()]


def _choose(
    format: str, nt: int, rows: int, depth: int, sms: int, form: str, width: int, gated: bool
) -> W4A16Config:
    config = choose(format, nt, rows, depth, sms, form, width, gated)
    config.check(nt, rows, depth, width)
    return config


def _choose_pair(
    nt: int, ods: tuple[int, int], depth: int, sms: int, form: str, width: int, left: int
) -> W4A16Config:
    config = choose_pair(nt, ods, depth, sms, form, width, left)
    config.check(nt, sum(ods), depth, width, left)
    return config
