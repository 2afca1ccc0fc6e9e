"""The W4A8 GEMMs on ragged shapes: poisoned outputs, all written, right, twice the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.registry import shipped_kernels
from minfer.cuda.w4a8.quantize import QuantizeGroupsConfig, quantize_groups
from tests.cuda.w4a8_cases import positive_matrix, quantized, reference


@pytest.fixture(autouse=True)
def hopper():
    if runtime.device().arch != "sm_90a":
        pytest.skip(f"wgmma is Hopper's; this is {runtime.device().arch}")


@pytest.mark.parametrize("shape", [(1, 8, 512), (70, 136, 1024), (515, 1032, 1536)], ids=str)
@pytest.mark.parametrize("kernel", shipped_kernels()["w4a8"], ids=lambda k: str(k.config).replace(" ", "-"))
def test_ragged(kernel, shape):
    (nt, od, depth), config = shape, kernel.config
    x = np.random.default_rng(shape).standard_normal((nt, depth)) * (0.02 if config.gated else 1)
    x = x.astype(np.float16)
    pitch = -(-nt // 4) * 4
    held = {
        "a": runtime.empty((nt, depth), np.int8),
        "sums": runtime.empty((nt, depth // 32), np.float32),
        "scales": runtime.to_device(np.zeros((depth // 512, pitch), np.float32)),
    }
    quantizer = QuantizeGroupsConfig("f16")
    grid = quantizer.grid(nt, depth)
    runtime.launch(quantize_groups(quantizer), grid, runtime.to_device(x), *held.values(), nt, depth, pitch)
    a, scales = held["a"].to_host(), held["scales"].to_host()
    wanted_a, _, wanted_scales = quantized(x, pitch)
    assert (np.abs(a.astype(int) - wanted_a) <= 1).all()
    np.testing.assert_allclose(scales, wanted_scales, rtol=1e-6)
    packed = positive_matrix(od * (1 + config.gated), depth)
    results = []
    for _ in range(2):
        held |= {
            "w": runtime.to_device(packed),
            "c": runtime.to_device(np.full((nt, od), np.nan, np.float16)),
        }
        maps = [runtime.tensor_map(array, *config.boxes[name]) for name, array in held.items()]
        grid = config.grid(nt, od, runtime.device().sms)
        runtime.launch(kernel, grid, *maps, nt, od, depth, 0, config.group(nt))
        results.append(held["c"].to_host())
    assert (results[0].view(np.uint16) == results[1].view(np.uint16)).all()
    wanted, _ = reference(packed, a, scales)
    if config.gated:
        gate, up = np.split(wanted, 2, axis=1)
        wanted = gate * (0.5 + 0.5 * np.tanh(0.5 * gate)) * up
    # f16 outputs, tf32 minima; a scale's reciprocal may move a byte by one.
    assert np.linalg.norm(results[0] - wanted) <= 6e-4 * np.linalg.norm(wanted)
