"""The product with gate and up in int8, by Hopper's W4A8 GEMM (`minfer.cuda.w4a8`): faster than the f16 one
where it is largest, and less exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from minfer.cuda.w4a8 import W4A8Config, w4a8
from minfer.cuda.w4a8.formats import GROUP
from minfer.cuda.w4a8.quantize import QuantizeGroupsConfig, quantize_groups
from minfer.engine.cuda.launches import launch_for

if TYPE_CHECKING:
    from minfer.engine.cuda.devices import Device
    from minfer.engine.cuda.weights import Stack

GATED = W4A8Config(128, 5, gated=True)


def operand_bytes(tokens: int, columns: int) -> int:
    """Memory of quantized activations: int8, sums of their runs of 32, a scale for each group."""
    return sum(_sizes(tokens, columns))


def _sizes(tokens: int, columns: int) -> tuple[int, int, int]:
    sizes = tokens * columns, columns // 32 * 4 * tokens, columns // GROUP * 4 * (tokens + 3)
    first, second, third = (-(-size // 256) * 256 for size in sizes)
    return first, second, third


class W4A8Products:
    """Quantizes activations into `memory` and launches the kernel. tensor_map: see `W4A16Products`. `tell`
    gets a line if weights are left to W4A16 for what they hold."""

    def __init__(
        self,
        device: Device,
        tensor_map: Callable[[Any, tuple[int, int, int]], Any],
        memory: Any,
        tell: Callable[[str], None],
    ):
        self.device, self._tensor_map, self._memory = device, tensor_map, memory
        self._tell: Callable[[str], None] | None = tell

    def gates(self, stack: Stack) -> bool:
        """Whether a stack of gate and up can be multiplied and activated at once."""
        (run, *others) = stack.runs
        if run.negative:
            if self._tell is not None:
                self._tell("w4a8: gate and up with scales below zero are left to w4a16")
                self._tell = None
            return False
        return not others and run.rows % 16 == 0 and run.format == "Q4_K" and run.columns % GROUP == 0

    def gate(self, c: Any, a: Any, stack: Stack) -> None:
        """c = silu(a . gate^T) * (a . up^T), f16 (tokens, rows / 2); a: f16 (tokens, columns)."""
        (nt, depth), od, sms = a.shape, stack.rows // 2, self.device.sms
        product = launch_for(w4a8, _gated, (nt, od, sms), nt, od, depth, c.shape[1])
        config = product.config
        pitch = -(-nt // 4) * 4
        first, second, _ = _sizes(nt, depth)
        rounded = self._memory[: nt * depth].view(np.int8).reshape(nt, depth)
        sums = self._part(first, (nt, depth // 32))
        scales = self._part(first + second, (depth // GROUP, pitch))
        quantize = launch_for(quantize_groups, QuantizeGroupsConfig, (nt, depth), "f16")
        quantize.on(self.device, a, rounded, sums, scales, nt, depth, pitch)
        arrays = {"a": rounded, "sums": sums, "scales": scales, "w": stack.runs[0].blocks, "c": c}
        maps = [self._tensor_map(array, config.boxes[name]) for name, array in arrays.items()]
        product.on(self.device, *maps, nt, od, depth, 0, config.group(nt))

    def _part(self, start: int, shape: tuple[int, int]) -> Any:
        return self._memory[start : start + 4 * shape[0] * shape[1]].view(np.float32).reshape(*shape)


def _gated(nt: int, od: int, depth: int, width: int) -> W4A8Config:
    GATED.check(nt, od, depth, width)
    return GATED
