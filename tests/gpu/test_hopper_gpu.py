"""TMA and wgmma on the device against the simulator and NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime

pytest.importorskip("greenlet")  # the simulator's

from minfer.cuda import simulator
from tests.gpu.hopper_kernels import (
    BOX,
    WGMMA_DTYPES,
    multicast,
    one_wgmma,
    tma_there_and_back,
    wgmma_from_registers,
)

pytestmark = pytest.mark.usefixtures("hopper")


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


def wgmma_operand(rng, dtype: str) -> np.ndarray:
    """A random [64, K] matrix whose rows are 128 bytes."""
    if dtype in ("s8", "u8"):
        low, high = (-128, 128) if dtype == "s8" else (0, 256)
        return rng.integers(low, high, (BOX, 128)).astype(WGMMA_DTYPES[dtype])
    values = rng.normal(size=(BOX, 32 if dtype == "tf32" else 64)).astype(np.float32)
    if dtype == "f16":
        return values.astype(np.float16)
    cut = {"tf32": 13, "bf16": 16}[dtype]  # mantissa bits that the type does not have
    bits = values.view(np.uint32) >> np.uint32(cut)
    return bits.astype(np.uint16) if dtype == "bf16" else (bits << np.uint32(cut)).view(np.float32)


def exact(matrix: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (matrix.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return matrix.astype(np.float64)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("dtype", WGMMA_DTYPES)
def test_wgmma(dtype, twice):
    rng, kernel = np.random.default_rng(len(dtype)), one_wgmma(dtype, twice)
    a, b = wgmma_operand(rng, dtype), wgmma_operand(rng, "s8" if dtype == "u8" else dtype)
    out = np.zeros(32 * 128, np.uint32)
    simulator.launch(kernel, (1, 1, 1), *(simulator.tensor_map(m, BOX) for m in (a, b)), out)
    arrays, device_out = [runtime.to_device(m) for m in (a, b)], runtime.empty(out.shape, np.uint32)
    named = "bfloat16" if dtype == "bf16" else None
    maps = (runtime.tensor_map(m, BOX, dtype=named) for m in arrays)
    runtime.launch(kernel, (1, 1, 1), *maps, device_out)
    got = device_out.to_host()
    product = (1 + twice) * exact(a, dtype) @ exact(b, "s8" if dtype == "u8" else dtype).T
    if dtype in ("s8", "u8"):
        np.testing.assert_array_equal(got, out)
        np.testing.assert_array_equal(np.sort(got.view(np.int32)), np.sort(product.ravel()))
    else:
        np.testing.assert_allclose(got.view(np.float32), out.view(np.float32), rtol=1e-5, atol=2e-4)
        np.testing.assert_allclose(
            np.sort(got.view(np.float32)), np.sort(product.ravel()), rtol=1e-4, atol=1e-3
        )


def test_wgmma_from_registers():
    a, b, out = halves(16 * 128, 2).view(np.uint32).reshape(-1), halves(64, 64), np.zeros(32 * 128, np.uint32)
    kernel = wgmma_from_registers()
    simulator.launch(kernel, (1, 1, 1), a, simulator.tensor_map(b, BOX), out)
    on_device, device_out = runtime.to_device(b), runtime.empty(out.shape, np.uint32)
    runtime.launch(kernel, (1, 1, 1), runtime.to_device(a), runtime.tensor_map(on_device, BOX), device_out)
    got = device_out.to_host().view(np.float32)
    np.testing.assert_allclose(got, out.view(np.float32), rtol=1e-5, atol=2e-4)


def test_multicast():
    source, out = halves(64, 64), np.zeros(2 * BOX * 32, np.uint32)
    simulator.launch(multicast(), (2, 1, 1), simulator.tensor_map(source, BOX), out)
    on_device, device_out = runtime.to_device(source), runtime.empty(out.shape, np.uint32)
    with runtime.checked():
        runtime.launch(multicast(), (2, 1, 1), runtime.tensor_map(on_device, BOX), device_out)
    np.testing.assert_array_equal(device_out.to_host(), out)
    np.testing.assert_array_equal(out[: out.size // 2], out[out.size // 2 :])
