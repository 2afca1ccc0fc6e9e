"""How fast W4A8 is, its activations' quantization included: measured for the record, never asserted; its
results are checked."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.w4a8 import W4A8Config, w4a8
from minfer.cuda.w4a8.formats import GROUP
from minfer.cuda.w4a8.quantize import QuantizeGroupsConfig, quantize_groups
from tests.cuda.w4a8_cases import activations, positive_matrix, reference
from tests.gpu.device_time import NT, copies, milliseconds
from tests.gpu.gemm_cases import LARGEST, MODEL_SHAPES

pytestmark = pytest.mark.usefixtures("hopper")

PART = 64  # tokens and rows that are checked


@pytest.mark.parametrize("shape", (LARGEST[1:], *MODEL_SHAPES), ids=str)
def test_quantize_and_multiply(shape, measure):
    (od, depth), config, quantizer = shape, W4A8Config(), QuantizeGroupsConfig("f16")
    config.check(NT, od, depth, od)
    packed = np.tile(positive_matrix(256, depth), (-(-od // 256), 1))[:od]
    x = runtime.to_device(np.tile(activations(PART, depth), (NT // PART, 1)))
    a, sums = runtime.empty((NT, depth), np.int8), runtime.empty((NT, depth // 32), np.float32)
    scales = runtime.empty((depth // GROUP, NT), np.float32)
    c = runtime.empty((NT, od), np.float16).fill_bytes(0xFF)
    quantize = runtime.load(quantize_groups(quantizer)).prepare(
        quantizer.grid(NT, depth), x, a, sums, scales, NT, depth, NT
    )
    product, grid = runtime.load(w4a8(config)), config.grid(NT, od, runtime.device().sms)
    launches = []
    for _ in range(copies(packed.nbytes)):
        arrays = {"a": a, "sums": sums, "scales": scales, "w": runtime.to_device(packed), "c": c}
        maps = [runtime.tensor_map(array, *config.boxes[name]) for name, array in arrays.items()]
        launches += [quantize, product.prepare(grid, *maps, NT, od, depth, 0, config.group(NT))]
    time = 2 * milliseconds(launches)
    wanted, _, bound = reference(packed[:PART], a.to_host()[-PART:], scales.to_host()[:, -PART:])
    off = np.abs(c[NT - PART :].to_host()[:, :PART] - wanted)
    assert (off <= bound + 2.0**-10 * np.abs(wanted) + 1e-6).all()
    measure(f"w4a8 {od}x{depth} {NT} tokens, with quantization: us", round(time * 1e3, 1))
    per_gmac = time * 1e3 / (NT * od * depth / 1e9)
    measure(f"w4a8 {od}x{depth} {NT} tokens, with quantization: us/GMAC", round(per_gmac, 2))
