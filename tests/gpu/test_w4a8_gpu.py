"""The W4A8 GEMMs and their quantizer on ragged shapes: poisoned outputs, all written, right, twice the same
bits."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.registry import shipped_kernels
from minfer.cuda.w4a8.quantize import QuantizeGroupsConfig
from tests.cuda.w4a8_cases import activations, product_case, quantize_case

pytestmark = pytest.mark.usefixtures("hopper")

SHAPES = [(1, 8, 512), (70, 136, 1024), (515, 1032, 1536)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernel", shipped_kernels()["w4a8"], ids=lambda k: str(k.config).replace(" ", "-"))
def test_ragged(kernel, shape):
    (nt, od, depth), config = shape, kernel.config
    product_case(config, activations(nt, depth, config.gated), od, runtime.device().sms).run_on_gpu()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("source", ["f16", "f32"])
def test_quantize(source, shape):
    nt, _, depth = shape
    x = activations(nt, depth).astype({"f16": np.float16, "f32": np.float32}[source])
    quantize_case(QuantizeGroupsConfig(source), x).run_on_gpu()
