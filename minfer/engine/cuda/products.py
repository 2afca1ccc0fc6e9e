"""Products of many tokens: which GEMM, on which weights, into which form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from minfer.cuda.gemm import GemmConfig, make_gemm
from minfer.cuda.gemm_hopper import choose, make_gemm_hopper
from minfer.engine.cuda.activations import Activations
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.mmq import MmqProducts
from minfer.engine.cuda.plan import MemoryPlan
from minfer.engine.cuda.routes import Route
from minfer.engine.cuda.weights import Stack, kernel

PANEL_ROWS = 8192  # of the output matrix, dequantized at once
Operand = Callable[[str], Any]
"""Activations in the form that a kernel reads: "f16", "f32" (tokens, columns) or "pad40" (tokens, bytes)."""


class Products:
    """GEMMs of a route. Weights without a resident f16 copy are dequantized into one scratch first, where no
    MMQ kernel reads the blocks themselves. `tell` gets a line for each step down of an MMQ route."""

    def __init__(self, device: Device, route: Route, plan: MemoryPlan, tell: Callable[[str], None]):
        self.device, self.route = device, route
        self._mmq = None if route.mmq is None else MmqProducts(device, route.mmq, tell)
        self._scratch = self._memory(plan.parts.get("f16 scratch of one matrix", 0))
        self._panel: Any = None
        self._maps: dict[tuple, Any] = {}

    def _memory(self, size: int) -> Any:
        return self.device.empty(size, np.uint8) if size else None

    def multiply(self, out: Activations, operand: Operand, stack: Stack) -> None:
        """out = a . stack^T, a: the operand of that many tokens."""
        role = out.storage.role
        if role == "logits":
            self._multiply_panels(out, operand, stack)
            return
        # gate and up are only read again by the activation; sums that are added to the residual stay f32.
        form = "f16" if role == "gate_up" and self.route.activations == "f16" else "f32"
        if self._mmq is not None and self._mmq.multiply(out.matrix(form), operand, stack):
            out.storage.mark(form)
            return
        a = operand("f32" if self.route.keeps_f32 else "f16")
        weights = stack.half
        if weights is None:
            weights = self._dequantized(stack)
        config = self.route.config(len(a), stack.rows, self.device.sms)
        if config is None:
            c = out.matrix("f16")
            self._hopper(a, weights, c)
            out.storage.mark("f16")
            return
        self._gemm(replace(config, out=form), a, weights, out.matrix(form))
        out.storage.mark(form)

    def _dequantized(self, stack: Stack) -> Any:
        """The stack as f16, in the scratch."""
        size = 2 * stack.rows * stack.columns
        if self._scratch is None or self._scratch.nbytes < size:  # a kernel was refused that was planned for
            self._scratch = self._memory(size)
        weights = self._view(self._scratch, stack.rows, stack.columns)
        stack.dequantize(self.device, weights)
        return weights

    def read_panels(self, buffer: Activations) -> np.ndarray:
        """The logits that `multiply` left in panels: f32 (tokens, vocab)."""
        n, vocab = len(buffer), buffer.storage.columns
        result = np.empty((n, vocab), np.float32)
        flat = buffer.storage.matrix("f32").reshape(-1)
        for first, last in self._panels(vocab):
            panel = flat[n * first : n * last].reshape(n, last - first)
            result[:, first:last] = self.device.read(panel)
        return result

    def _panels(self, vocab: int) -> list[tuple[int, int]]:
        return [(first, min(first + PANEL_ROWS, vocab)) for first in range(0, vocab, PANEL_ROWS)]

    def _multiply_panels(self, out: Activations, operand: Operand, stack: Stack) -> None:
        """Logits of all tokens: some rows of the output matrix at a time, each product a matrix of its own;
        dequantized before a GEMM."""
        n, flat = len(out), out.storage.matrix("f32").reshape(-1)
        for first, last in self._panels(stack.rows):
            c = flat[n * first : n * last].reshape(n, last - first)
            rows = stack.cut(first, last)
            if self._mmq is None or not self._mmq.multiply(c, operand, rows):
                self._panel_gemm(operand("f32" if self.route.keeps_f32 else "f16"), rows, c)
        out.storage.mark("panels")

    def _panel_gemm(self, a: Any, rows: Stack, c: Any) -> None:
        n, count, sms = len(a), rows.rows, self.device.sms
        config = self.route.config(n, count, sms) or self.route.mma_config(n, count, sms)
        if self._panel is None:
            self._panel = self._memory(2 * count * rows.columns)
        weights = self._view(self._panel, count, rows.columns)
        rows.dequantize(self.device, weights)
        self._gemm(config, a, weights, c)

    def _view(self, memory: Any, rows: int, columns: int) -> Any:
        return memory[: 2 * rows * columns].view(np.float16).reshape(rows, columns)

    def _gemm(self, config: GemmConfig, a: Any, weights: Any, c: Any) -> None:
        nt, (od, depth) = len(a), weights.shape
        self.device.launch(kernel(make_gemm, config), config.grid(nt, od), a, weights, c, nt, od, depth)

    def _hopper(self, a: Any, weights: Any, c: Any) -> None:
        nt, (od, depth) = len(a), weights.shape
        config = choose(nt, od, depth, self.device.sms)
        maps = [self.tensor_map(x, config.boxes[name]) for name, x in (("a", a), ("b", weights), ("c", c))]
        grid = config.grid(nt, od, self.device.sms)
        made = kernel(make_gemm_hopper, config)
        self.device.launch(made, grid, *maps, nt, od, depth, config.group(nt, od))

    def tensor_map(self, array: Any, box: tuple[int, int]) -> Any:
        """A tensor map of boxes (rows, columns), kept: the same buffers come again."""
        address = array.pointer if hasattr(array, "pointer") else array.__array_interface__["data"][0]
        key = (address, array.shape, box)
        if key not in self._maps:
            self._maps[key] = self.device.tensor_map(array, box)
        return self._maps[key]
