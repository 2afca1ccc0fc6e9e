"""Products of few tokens: each reads the blocks once, by the GEMV."""

from __future__ import annotations

from typing import Any

import numpy as np

from minfer.cuda.gemv import GemvConfig, gemv
from minfer.cuda.q8 import q8_record_bytes
from minfer.cuda.quantize import QuantizeQ8Config, quantize_q8
from minfer.engine.cuda.activations import Activations
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.launches import launch_for
from minfer.engine.cuda.weights import Stack


class FewProducts:
    """Launches of the GEMV. size: bytes of the records that f32 operands become; pdl: the device has
    programmatic dependent launches."""

    def __init__(self, device: Device, size: int, pdl: bool):
        self.device, self._pdl = device, pdl
        self._records = device.empty(size, np.uint8)

    def multiply(self, out: Activations, x: Activations, matrix: Stack, add: bool, overlaps: bool) -> None:
        """out = x . matrix^T, or with `add` out += it; x: f32 or q8. overlaps: so do a decode step's kernels.
        Biases are left out."""
        form, columns = x.storage.form, x.storage.columns
        plain = quantized = x.matrix(form)
        if form == "f32" and any(run.quantized for run in matrix.runs):
            quantized = self._quantized(plain, columns, overlaps)
        target, sms, shared = out.matrix("f32"), self.device.sms, self.device.shared_bytes
        for row in range(len(x)):
            first = 0
            for run in matrix.runs:
                y = target[row][first : first + run.rows]
                source = (quantized if run.quantized else plain)[row]
                shape = run.format, run.columns, run.rows, add, self._pdl, sms, shared
                product = launch_for(gemv, GemvConfig.for_shape, (run.rows, sms), *shape)
                product.on(self.device, run.blocks, source, *((y,) if add else ()), y, run.rows)
                first += run.rows
        out.storage.mark("f32")

    def _quantized(self, plain: Any, columns: int, overlaps: bool) -> Any:
        """f32 (tokens, columns) as q8 records."""
        n = len(plain)
        records = self._records[: n * q8_record_bytes(columns)].reshape(n, -1)
        quantize = launch_for(quantize_q8, QuantizeQ8Config, (n, columns), pdl=overlaps)
        quantize.on(self.device, plain, records, columns)
        return records
