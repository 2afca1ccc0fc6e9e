"""What a product reads: activations as they are, or by a pass over them."""

from __future__ import annotations

from typing import Any

import numpy as np

from minfer.cuda.convert import ConvertConfig, convert_f32_f16
from minfer.cuda.q8 import RUN, pad40_bytes
from minfer.cuda.quantize import (
    DequantizePad40Config,
    QuantizePad40Config,
    dequantize_pad40,
    quantize_q8_0_pad40,
)
from minfer.engine.cuda.activations import Activations
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.launches import launch_for
from minfer.engine.cuda.routes import Route


class Operands:
    """Operands of products of many tokens. size: bytes of what conversions write; the next one overwrites
    it."""

    def __init__(self, device: Device, route: Route, size: int):
        self.device, self.route = device, route
        self._converted = device.empty(size, np.uint8)
        self._halves: Any = None

    def of(self, x: Activations, form: str) -> Any:
        """x as "f16", "f32" (tokens, columns) or "pad40" (tokens, bytes)."""
        n, columns, source = len(x), x.storage.columns, x.storage.form
        if source == form:
            return x.matrix(form)
        if form == "pad40":
            chunks = self._converted[: n * pad40_bytes(columns)].reshape(n, -1)
            quantize = launch_for(
                quantize_q8_0_pad40, QuantizePad40Config, (n, columns), source=source, unroll=2
            )
            quantize.on(self.device, x.matrix(source), chunks, n * columns // RUN)
            return chunks
        if source == "pad40":
            return self._restored(x)
        count, vector = n * columns, 1 if self.route.convert == "scalar" else 8
        operand = self._converted[: 2 * count].view(np.float16).reshape(n, columns)
        convert = launch_for(convert_f32_f16, ConvertConfig, (count,), vector=vector)
        convert.on(self.device, x.matrix("f32"), operand, count)
        return operand

    def _restored(self, x: Activations) -> Any:
        """f16 from chunks, for the GEMM that is left when every MMQ kernel of a route was refused. No memory
        was planned for that: it is taken now."""
        n, columns = len(x), x.storage.columns
        if self._halves is None or self._halves.nbytes < 2 * n * columns:
            self._halves = self.device.empty(2 * n * columns, np.uint8)
        halves = self._halves[: 2 * n * columns].view(np.float16).reshape(n, columns)
        restore = launch_for(dequantize_pad40, DequantizePad40Config, (n, columns))
        restore.on(self.device, x.matrix("pad40"), halves, n * columns // RUN)
        return halves
