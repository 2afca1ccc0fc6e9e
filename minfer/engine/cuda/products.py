"""Products of many tokens: which GEMM, on which form of the weights, into which form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from minfer.cuda.gemm import BLOCK_SOURCES, GemmConfig, make_gemm
from minfer.cuda.gemm_hopper import GemmHopperConfig, choose, make_gemm_hopper
from minfer.engine.cuda.activations import Activations
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.plan import SCRATCH, MemoryPlan
from minfer.engine.cuda.routes import Route
from minfer.engine.cuda.weights import Stack, kernel

PANEL_ROWS = 8192  # of the output matrix, dequantized at once


class Products:
    """GEMMs of a route. Weights without a resident f16 copy are dequantized into one scratch first, or within
    the GEMM, as the plan says."""

    def __init__(self, device: Device, route: Route, plan: MemoryPlan):
        self.device, self.route = device, route
        self._scratch: Any = None
        if SCRATCH in plan.parts:
            self._scratch = device.empty(plan.parts[SCRATCH], np.uint8)
        self._from_blocks = plan.weights == "blocks"
        self._panel: Any = None
        self._maps: dict[tuple, Any] = {}

    def multiply(self, out: Activations, a: Any, stack: Stack) -> None:
        """out = a . stack^T. a: f16 (or f32, for a route that keeps it) (tokens, columns)."""
        role = out.storage.role
        if role == "logits":
            self._multiply_panels(out, a, stack)
            return
        tokens = len(a)
        if self._from_blocks:
            form = self._form(role)
            self._multiply_blocks(out.matrix(form), a, stack, form)
            out.storage.mark(form)
            return
        weights = self._weights(stack)
        config = self.route.config(tokens, stack.rows, self.device.sms)
        if config is None:
            c = out.matrix("f16")
            self._hopper(a, weights, c)
            out.storage.mark("f16")
            return
        form = self._form(role)
        self._gemm(replace(config, out=form), a, weights, out.matrix(form))
        out.storage.mark(form)

    def _form(self, role: str) -> str:
        """What mma.sync's GEMM writes: gate and up are only read again by the activation; sums that are added
        to the residual stay f32."""
        return "f16" if role == "gate_up" and self.route.activations == "f16" else "f32"

    def _multiply_blocks(self, c: Any, a: Any, stack: Stack, form: str) -> None:
        """c = a . stack^T without f16 weights in memory: a product a run, each some columns of c."""
        tokens, first = len(a), 0
        pitch = stack.rows if len(stack.runs) > 1 else None
        for run in stack.runs:
            config = replace(self.route.block_config(tokens), out=form, pitch=pitch)
            columns = c if pitch is None else c.reshape(-1)[first:]
            if run.format in BLOCK_SOURCES:
                config, weights = replace(config, b_source=BLOCK_SOURCES[run.format]), run.blocks
                if config.b_source == "f16":
                    weights = self._view(run.blocks.reshape(-1), run.rows, run.columns)
            else:
                weights = self._view(self._scratch, run.rows, run.columns)
                run.dequantize(self.device, weights)
            made, grid = kernel(make_gemm, config), config.grid(tokens, run.rows)
            self.device.launch(made, grid, a, weights, columns, tokens, run.rows, run.columns)
            first += run.rows

    def fuses(self, tokens: int, stack: Stack) -> bool:
        """Whether `add` and `gate` take a product of so many tokens."""
        if self._from_blocks or not self.route.fused:
            return False
        return self.route.config(tokens, stack.rows, self.device.sms) is None

    def add(self, out: Activations, a: Any, stack: Stack) -> None:
        """out += a . stack^T, f32 sums added in f32."""
        self._hopper(a, self._weights(stack), out.matrix("f32"), "add")

    def gate(self, out: Activations, a: Any, stack: Stack) -> None:
        """out = silu(a . gate^T) * (a . up^T) of a stack of gate and up."""
        self._hopper(a, self._weights(stack), out.matrix("f16"), "swiglu")
        out.storage.mark("f16")

    def _weights(self, stack: Stack) -> Any:
        """A stack as f16: its copy, or what is now in the scratch."""
        if stack.half is not None:
            return stack.half
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

    def _multiply_panels(self, out: Activations, a: Any, stack: Stack) -> None:
        """Logits of all tokens: some rows of the output matrix at a time, dequantized, each product a
        matrix of its own."""
        panels = self._panels(stack.rows)
        out.storage.mark("panels")
        if self._from_blocks and all(run.format in BLOCK_SOURCES for run in stack.runs):
            n, flat = len(a), out.storage.matrix("f32").reshape(-1)
            for first, last in panels:
                c = flat[n * first : n * last].reshape(n, last - first)
                self._multiply_blocks(c, a, stack.cut(first, last), "f32")
            return
        if self._panel is None:
            self._panel = self.device.empty(2 * panels[0][1] * stack.columns, np.uint8)
        n, flat, sms = len(a), out.storage.matrix("f32").reshape(-1), self.device.sms
        for first, last in panels:
            config = self.route.config(n, last - first, sms) or self.route.mma_config(n, last - first, sms)
            weights = self._view(self._panel, last - first, stack.columns)
            stack.cut(first, last).dequantize(self.device, weights)
            self._gemm(config, a, weights, flat[n * first : n * last].reshape(n, last - first))

    def _view(self, memory: Any, rows: int, columns: int) -> Any:
        return memory[: 2 * rows * columns].view(np.float16).reshape(rows, columns)

    def _gemm(self, config: GemmConfig, a: Any, weights: Any, c: Any) -> None:
        nt, (od, depth) = len(a), weights.shape
        self.device.launch(kernel(make_gemm, config), config.grid(nt, od), a, weights, c, nt, od, depth)

    def _hopper(self, a: Any, weights: Any, c: Any, epilogue: str = "store") -> None:
        (nt, od), depth = c.shape, weights.shape[1]
        out = "f32" if epilogue == "add" else "f16"
        config = choose(nt, od, depth, self.device.sms, out, epilogue)
        maps = [self._map(config, name, x) for name, x in (("a", a), ("b", weights), ("c", c))]
        grid = config.grid(nt, od, self.device.sms)
        made = kernel(make_gemm_hopper, config)
        self.device.launch(made, grid, *maps, nt, od, depth, config.group(nt, od))

    def _map(self, config: GemmHopperConfig, name: str, array: Any) -> Any:
        """A tensor map, kept: the same buffers come again."""
        box = config.boxes[name]
        address = array.pointer if hasattr(array, "pointer") else array.__array_interface__["data"][0]
        key = (address, array.shape, box)
        if key not in self._maps:
            self._maps[key] = self.device.tensor_map(array, box)
        return self._maps[key]
