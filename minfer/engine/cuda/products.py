"""Products of many tokens: which GEMM, on which weights, into which form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from minfer.cuda.gemm import BLOCK_SOURCES, GemmConfig, make_gemm
from minfer.cuda.gemm_hopper import choose, make_gemm_hopper
from minfer.engine.cuda.activations import Activations
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.launches import Launch, TensorMaps, launch_for
from minfer.engine.cuda.mmq import MmqProducts
from minfer.engine.cuda.plan import PARTS, SCRATCH, MemoryPlan, split_workspace
from minfer.engine.cuda.routes import SMALL_TOKENS, Route
from minfer.engine.cuda.seats import device_parts, device_seats
from minfer.engine.cuda.w4a8 import W4A8Products
from minfer.engine.cuda.w4a16 import W4A16Products
from minfer.engine.cuda.weights import Stack

PANEL_ROWS = 8192  # of the output matrix, dequantized at once
Operand = Callable[[str], Any]
"""Activations in the form that a kernel reads: "f16", "f32" (tokens, columns) or "pad40" (tokens, bytes)."""


class Products:
    """GEMMs of a route. Weights without a resident f16 copy are dequantized into one scratch first, or within
    the GEMM, as the plan says, where no MMQ or W4A16 kernel reads the blocks themselves. `tell` gets a line
    for each step down of an MMQ route, and for what W4A8 leaves to W4A16."""

    def __init__(self, device: Device, route: Route, plan: MemoryPlan, tell: Callable[[str], None]):
        self.device, self.route = device, route
        self._mmq = None if route.mmq is None else MmqProducts(device, route.mmq, tell)
        self._scratch = self._memory(plan.parts.get(SCRATCH, 0))
        self._from_blocks, self._copies = plan.weights == "blocks", plan.weights != "scratch"
        self._panel: Any = None
        self.tensor_map = TensorMaps(device)
        self._seats = device_seats(device) if route.wgmma else None
        shared = route.wgmma and PARTS in plan.parts
        self._parts = device_parts(device, split_workspace(route)) if shared else ()
        self._w4a16 = W4A16Products(device, self.tensor_map, self._parts) if route.w4a16 else None
        self._w4a8: W4A8Products | None = None
        if route.w4a8:
            memory = self._memory(plan.activations["int8"])
            self._w4a8 = W4A8Products(device, self.tensor_map, memory, tell)

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
        if self._w4a16 is not None and self._w4a16.takes(stack):
            form = "f32" if len(a) <= SMALL_TOKENS and role != "gate_up" else "f16"
            self._w4a16.multiply(out.matrix(form), a, stack, form)
            out.storage.mark(form)
            return
        if self._from_blocks:
            self._multiply_blocks(out.matrix(form), a, stack, form)
            out.storage.mark(form)
            return
        config = self.route.config(len(a), stack.rows, self.device.sms)
        if config is None:
            self._hopper(a, stack, out.matrix("f16"))
            out.storage.mark("f16")
            return
        self._gemm(config, a, self.halves(stack), out.matrix(form), form)
        out.storage.mark(form)

    def fuses(self, tokens: int, stack: Stack, add: bool) -> bool:
        """Whether `add` or `gate` takes a product of so many tokens."""
        if self._w4a16 is not None and self._w4a16.takes(stack):
            return not add and self.route.fused and self._w4a16.gates(stack)
        return self.route.fused and self.takes_half(tokens, stack)

    def takes_half(self, tokens: int, stack: Stack) -> bool:
        """Whether a product of so many tokens is Hopper's GEMM on f16 weights."""
        if self._w4a16 is not None and self._w4a16.takes(stack):
            return False
        if self._mmq is not None or self._from_blocks:
            return False
        return self.route.config(tokens, stack.rows, self.device.sms) is None

    def add(self, out: Activations, a: Any, stack: Stack) -> None:
        """out += a . stack^T, f32 sums added in f32; a: f16 (tokens, columns)."""
        self._hopper(a, stack, out.matrix("f32"), "add")

    def gate(self, out: Activations, a: Any, stack: Stack) -> None:
        """out = silu(a . gate^T) * (a . up^T) of a stack of gate and up."""
        if self._w4a8 is not None and self._w4a8.gates(stack):
            self._w4a8.gate(out.matrix("f16"), a, stack)
        elif self._w4a16 is not None and self._w4a16.takes(stack):
            self._w4a16.gate(out.matrix("f16"), a, stack)
        else:
            self._hopper(a, stack, out.matrix("f16"), "swiglu")
        out.storage.mark("f16")

    def _multiply_blocks(self, c: Any, a: Any, stack: Stack, form: str) -> None:
        """c = a . stack^T without f16 weights in memory: a product a run, each some columns of c."""
        tokens, first = len(a), 0
        pitch = stack.rows if len(stack.runs) > 1 else None
        for run in stack.runs:
            columns, source = c if pitch is None else c.reshape(-1)[first:], "f16"
            if run.format not in BLOCK_SOURCES:
                weights = self._dequantized(Stack((run,), run.rows, run.columns))
            elif run.format == "F16":
                weights = self._view(run.blocks.reshape(-1), run.rows, run.columns)
            else:
                weights, source = run.blocks, BLOCK_SOURCES[run.format]
            config, sizes = self.route.block_config(tokens), (tokens, run.rows)
            gemm = launch_for(make_gemm, replace, sizes, config, out=form, pitch=pitch, b_source=source)
            gemm.on(self.device, a, weights, columns, *sizes, run.columns)
            first += run.rows

    def halves(self, stack: Stack) -> Any:
        """The stack as f16: its copy, or what is now in the scratch. Shared weights may have copies that
        the plan does without."""
        return stack.half if self._copies and stack.half is not None else self._dequantized(stack)

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
        if self._w4a16 is not None and self._w4a16.takes(rows):
            self._w4a16.multiply(c, a, rows, "f32")
            return
        if self._from_blocks and all(run.format in BLOCK_SOURCES for run in rows.runs):
            self._multiply_blocks(c, a, rows, "f32")
            return
        n, count, sms = len(a), rows.rows, self.device.sms
        config = self.route.config(n, count, sms) or self.route.mma_config(n, count, sms)
        if self._panel is None:
            self._panel = self._memory(2 * count * rows.columns)
        weights = self._view(self._panel, count, rows.columns)
        rows.dequantize(self.device, weights)
        self._gemm(config, a, weights, c)

    def _view(self, memory: Any, rows: int, columns: int) -> Any:
        return memory[: 2 * rows * columns].view(np.float16).reshape(rows, columns)

    def _gemm(self, config: GemmConfig, a: Any, weights: Any, c: Any, form: str = "f32") -> None:
        nt, (od, depth) = len(a), weights.shape
        gemm = launch_for(make_gemm, replace, (nt, od), config, out=form)
        gemm.on(self.device, a, weights, c, nt, od, depth)

    def _hopper(self, a: Any, stack: Stack, c: Any, epilogue: str = "store") -> None:
        (nt, od), depth = c.shape, stack.columns
        out, sms = "f32" if epilogue == "add" else "f16", self.device.sms
        gemm = launch_for(make_gemm_hopper, choose, (nt, od, sms), nt, od, depth, sms, out, epilogue)
        target = self.tensor_map(c, gemm.config.boxes["c"])
        self.launch_hopper(gemm, a, stack, target, nt, od, depth, gemm.config.group(nt, od))

    def launch_hopper(self, gemm: Launch, a: Any, stack: Stack, *rest: Any) -> None:
        """Launch a Hopper GEMM on a stack as f16; rest: its arguments between B and the seats. A dependent
        launch reads the stack before the kernel before it has ended, unless that one has just written it."""
        if not self._copies or stack.half is None:
            gemm = replace(gemm, pdl=False)
        operands = ("a", a), ("b", self.halves(stack))
        maps = [self.tensor_map(array, gemm.config.boxes[name]) for name, array in operands]
        seats = (self._seats,) if gemm.config.pdl else ()
        parts = self._parts if gemm.config.split_k else ()
        gemm.on(self.device, *maps, *rest, *seats, *parts)
