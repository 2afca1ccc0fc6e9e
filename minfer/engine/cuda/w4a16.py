"""Products of f16 activations with Q4_K and Q6_K blocks, by Hopper's W4A16 GEMM: no f16 weights anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from minfer.cuda.w4a16 import FORMATS, W4A16Config, choose, w4a16
from minfer.engine.cuda.launches import launch_for

if TYPE_CHECKING:
    from minfer.engine.cuda.devices import Device
    from minfer.engine.cuda.weights import Stack


def takes(shapes: Sequence[tuple[str, int]]) -> bool:
    """Whether a launch reads all of these (format, columns), multiplied at once.

    They must be of one format: a launch for v's few rows alone, where q and k are Q4_K and v is Q6_K, takes
    as long as a third of q and k (H200). Their f16 copy is small beside what is saved elsewhere."""
    (format, columns), *others = dict.fromkeys(shapes)
    return not others and format in FORMATS and columns % 256 == 0


class W4A16Products:
    """Launches the kernel. tensor_map: (array, box with its swizzle) -> its tensor map, kept."""

    def __init__(self, device: Device, tensor_map: Callable[[Any, tuple[int, int, int]], Any]):
        self.device, self._tensor_map = device, tensor_map
        self._takes = cache(takes)

    def takes(self, stack: Stack) -> bool:
        """Whether all of a stack can be multiplied."""
        return self._takes(stack.shapes)

    def gates(self, stack: Stack) -> bool:
        """Whether a stack of gate and up can be multiplied and activated at once."""
        return self.takes(stack) and stack.rows % 16 == 0

    def multiply(self, c: Any, a: Any, stack: Stack, form: str) -> None:
        """c = a . stack^T; a: f16 (tokens, columns), c: (tokens, rows) of form "f16" or "f32"."""
        self._launch(c, a, stack, stack.rows, form)

    def gate(self, c: Any, a: Any, stack: Stack) -> None:
        """c = silu(a . gate^T) * (a . up^T), f16 (tokens, rows / 2)."""
        self._launch(c, a, stack, stack.rows // 2, "f16", gated=True)

    def _launch(self, c: Any, a: Any, stack: Stack, rows: int, form: str, gated: bool = False) -> None:
        (run,) = stack.runs
        (nt, depth), width, sms = a.shape, c.shape[1], self.device.sms
        product = launch_for(
            w4a16, _choose, (nt, rows, sms), run.format, nt, rows, depth, sms, form, width, gated
        )
        boxes = product.config.boxes
        seen = [
            self._tensor_map(array, boxes[name]) if name in boxes else array
            for name, array in (("a", a), ("w", run.blocks), ("c", c))
        ]
        product.on(self.device, *seen, nt, rows, depth, 0, width, product.config.group(nt))


def _choose(
    format: str, nt: int, rows: int, depth: int, sms: int, form: str, width: int, gated: bool
) -> W4A16Config:
    config = choose(format, nt, rows, depth, sms, form, width, gated)
    config.check(nt, rows, depth, width)
    return config
