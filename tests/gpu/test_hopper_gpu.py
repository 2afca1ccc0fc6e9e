"""TMA and wgmma on the device against the simulator and NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime

pytest.importorskip("greenlet")  # the simulator's

from minfer.cuda import simulator
from tests.gpu.hopper_kernels import BOX, one_wgmma, tma_there_and_back


@pytest.fixture(autouse=True)
def hopper():
    if runtime.device().arch != "sm_90a":
        pytest.skip(f"wgmma is Hopper's; this is {runtime.device().arch}")


def halves(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float16)


@pytest.mark.parametrize(("x", "y"), [(0, 0), (64, 64), (72, 40), (-8, -3)])
def test_tma_there_and_back(x, y):
    """Boxes inside, over the right and lower edge (zeros come in), and over the left and upper one."""
    kernel, source = tma_there_and_back(x, y), halves(100, 104)
    target, out = np.full((50, 64), np.nan, np.float16), np.zeros(BOX * 32, np.uint32)
    maps = simulator.tensor_map(source, BOX), simulator.tensor_map(target, BOX)
    simulator.launch(kernel, (1, 1, 1), *maps, out)
    on_device = runtime.to_device(source), runtime.empty(target.shape, np.float16)
    device_out = runtime.empty(out.shape, np.uint32)
    with runtime.checked():  # all 50 rows of the target are stored, the box's other 14 are clipped
        runtime.launch(kernel, (1, 1, 1), *(runtime.tensor_map(a, BOX) for a in on_device), device_out)
    np.testing.assert_array_equal(device_out.to_host(), out)
    np.testing.assert_array_equal(on_device[1].to_host(), target)


def test_wgmma():
    a, b, out = halves(BOX, 64), halves(64, BOX), np.zeros(32 * 128, np.uint32)
    simulator.launch(one_wgmma(), (1, 1, 1), simulator.tensor_map(a, BOX), simulator.tensor_map(b, BOX), out)
    arrays = runtime.to_device(a), runtime.to_device(b)
    device_out = runtime.empty(out.shape, np.uint32)
    runtime.launch(one_wgmma(), (1, 1, 1), *(runtime.tensor_map(x, BOX) for x in arrays), device_out)
    got = device_out.to_host().view(np.float32)
    np.testing.assert_allclose(got, out.view(np.float32), rtol=1e-5, atol=1e-4)
    product = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(np.sort(got), np.sort(product.ravel()), rtol=1e-4, atol=1e-3)
