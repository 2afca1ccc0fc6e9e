"""The W4A8 GEMM's and its quantizer's own source in the simulator."""

import numpy as np
import pytest

from minfer.cuda.trace import Trace, check
from minfer.cuda.w4a8 import W4A8Config
from minfer.cuda.w4a8.quantize import QuantizeGroupsConfig
from tests.cuda.w4a8_cases import activations, product_case, quantize_case


@pytest.mark.parametrize(
    ("config", "shape", "multiprocessors"),
    [
        (W4A8Config(64, 2), (70, 136, 1024), 1),  # four tiles for one block, rings that wrap
        (W4A8Config(80, 3), (33, 72, 512), 3),  # one group only
        (W4A8Config(64, 2, gated=True), (70, 72, 1024), 2),
    ],
    ids=str,
)
def test_product(config, shape, multiprocessors):
    nt, od, depth = shape
    product_case(config, activations(nt, depth, config.gated), od, multiprocessors).run_simulated(seed=0)


def test_traced_run_has_no_race():
    trace = Trace()
    product_case(W4A8Config(64, 2), activations(64, 1024), 128, 1).run_simulated(trace=trace)
    assert check(trace) == []


@pytest.mark.parametrize("source", ["f16", "f32"])
def test_quantize(source):
    x = activations(5, 1024).astype({"f16": np.float16, "f32": np.float32}[source])
    x[2, :512] = 0
    quantize_case(QuantizeGroupsConfig(source, 64), x).run_simulated()
