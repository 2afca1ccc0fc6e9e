"""The W4A8 GEMM's and its quantizer's own source in the simulator."""

import numpy as np
import pytest

from minfer.cuda import simulator
from minfer.cuda.trace import Trace, check
from minfer.cuda.w4a8 import W4A8Config, w4a8
from minfer.cuda.w4a8.quantize import QuantizeGroupsConfig, quantize_groups
from tests.cuda.w4a8_cases import positive_matrix, quantized, reference


def product(config, nt, od, depth, multiprocessors, **options):
    """(C by the simulator, C by the reference, scale of the errors)"""
    draw = np.random.default_rng([nt, od, depth])
    a, sums, scales = quantized(draw.standard_normal((nt, depth)), -(-nt // 4) * 4)
    packed = positive_matrix(od * (1 + config.gated), depth)
    if config.gated:
        scales, sums = scales * np.float32(0.02), sums * np.float32(0.02)  # products of two stay below 65504
    c = np.full((nt, od), np.nan, np.float16)
    config.check(nt, od, depth, od)
    arrays = {"a": a, "sums": sums, "scales": scales, "w": packed, "c": c}
    maps = [simulator.tensor_map(array, *config.boxes[name]) for name, array in arrays.items()]
    simulator.launch(
        w4a8(config),
        config.grid(nt, od, multiprocessors),
        *maps,
        nt,
        od,
        depth,
        0,
        config.group(nt),
        **options,
    )
    wanted, _ = reference(packed, a, scales)
    if config.gated:
        gate, up = np.split(wanted, 2, axis=1)
        wanted = gate * (0.5 + 0.5 * np.tanh(0.5 * gate)) * up
    return c.astype(np.float64), wanted


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
    c, wanted = product(config, *shape, multiprocessors, seed=0)
    # f16 outputs, tf32 minima; a scale's reciprocal may move a byte by one.
    assert np.linalg.norm(c - wanted) <= 6e-4 * np.linalg.norm(wanted)
    assert (np.abs(c - wanted) <= 4e-3 * np.abs(wanted) + 4e-3 * wanted.std()).all()


def test_traced_run_has_no_race():
    trace = Trace()
    product(W4A8Config(64, 2), 64, 128, 1024, 1, trace=trace)
    assert check(trace) == []


@pytest.mark.parametrize("source", ["f16", "f32"])
def test_quantize(source):
    nt, depth = 5, 1024
    x = (
        np.random.default_rng(1)
        .standard_normal((nt, depth))
        .astype({"f16": np.float16, "f32": np.float32}[source])
    )
    x[2, :512] = 0
    config = QuantizeGroupsConfig(source, 64)
    a, sums = np.empty((nt, depth), np.int8), np.full((nt, depth // 32), np.nan, np.float32)
    scales = np.zeros((depth // 512, 8), np.float32)
    simulator.launch(quantize_groups(config), config.grid(nt, depth), x, a, sums, scales, nt, depth, 8)
    wanted_a, wanted_sums, wanted_scales = quantized(x, 8)
    assert (np.abs(a.astype(int) - wanted_a) <= 1).all()
    assert (a == wanted_a).mean() > 0.999
    np.testing.assert_allclose(scales, wanted_scales, rtol=1e-6)
    np.testing.assert_allclose(sums, wanted_sums, rtol=1e-4, atol=np.abs(wanted_sums).max() * 1e-2)
