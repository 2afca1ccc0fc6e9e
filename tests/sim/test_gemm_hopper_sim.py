"""The Hopper GEMM's own source in the simulator, on shapes that are ragged everywhere."""

import numpy as np
import pytest

from minfer.cuda import simulator
from minfer.cuda.gemm_hopper import GemmHopperConfig, make_gemm_hopper
from minfer.cuda.trace import Op, Trace, check, shared_lines


@pytest.mark.parametrize(
    ("config", "shape", "multiprocessors"),
    [
        (GemmHopperConfig(64, 3), (100, 72, 72), 1),  # two tiles for one block, a ring that wraps
        (GemmHopperConfig(80, 2, cluster=2), (300, 168, 136), 2),  # multicast, the last chunk overlaps
        (GemmHopperConfig(224, 4), (130, 232, 8), 3),  # one k-tile only
    ],
    ids=str,
)
def test_product(config, shape, multiprocessors):
    nt, od, depth = shape
    draw = np.random.default_rng(shape)
    a, b = (draw.standard_normal((rows, depth)).astype(np.float16) for rows in (nt, od))
    c = np.full((nt, od), np.nan, np.float16)
    maps = [
        simulator.tensor_map(array, *config.boxes[name]) for name, array in zip("abc", (a, b, c), strict=True)
    ]
    grid = config.grid(nt, od, multiprocessors)
    simulator.launch(make_gemm_hopper(config), grid, *maps, nt, od, depth, config.group(nt, od), seed=0)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.isfinite(c).all()
    assert (np.abs(c - expected) <= 1e-5 + 2.0**-11 * np.abs(expected)).all()


def test_traced_run_has_no_race_and_no_conflict():
    config, (nt, od, depth) = GemmHopperConfig(64, 2), (128, 64, 192)
    a, b = np.ones((nt, depth), np.float16), np.ones((od, depth), np.float16)
    c = np.zeros((nt, od), np.float16)
    maps = [
        simulator.tensor_map(array, *config.boxes[name]) for name, array in zip("abc", (a, b, c), strict=True)
    ]
    trace = Trace()
    simulator.launch(make_gemm_hopper(config), 1, *maps, nt, od, depth, 1, trace=trace)
    assert check(trace) == []
    assert (c == depth).all()
    assert {line.degree for line in shared_lines(trace) if line.op is Op.STMATRIX} == {1}
