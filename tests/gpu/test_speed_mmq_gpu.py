"""How fast the MMQ family is: measured for the record, never asserted; its results are checked."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.mmq import MmqConfig, fast, ladder, large, mmq, narrow, r1, reference, stream, tried, wide
from tests.cuda.block_data import random_matrix
from tests.cuda.mmq_cases import operands
from tests.gpu.device_time import by_turns, copies

MAIN = [make(name) for name in ("Q4_K", "Q6_K") for make in (r1, narrow, wide, fast, stream, large)]
STEPS = [step.config for name in ("Q4_K", "Q6_K") for step in (*ladder(name), *tried(name))]
SHAPES = {
    "qkv": (4608, 3584),
    "v": (512, 3584),
    "o": (3584, 3584),
    "gate+up": (37888, 3584),
    "down": (3584, 18944),
}
"""Of the 7B; v is a product of its own where it is Q6_K."""


CASES = [
    (weight_type, shape, nt)
    for weight_type in ("Q4_K", "Q6_K")
    for shape in SHAPES
    for nt in (512, 2048)
    if weight_type == "Q6_K" or shape != "v"
]


def configs(weight_type: str, shape: str, nt: int) -> list[MmqConfig]:
    """The engine's configs at all shapes, other steps where most of a prefill is."""
    steps = STEPS if nt == 2048 and shape in ("gate+up", "down") else []
    return [config for config in dict.fromkeys(MAIN + steps) if config.weight_type == weight_type]


@pytest.mark.parametrize("weight_type, shape, nt", CASES)
def test_speed(weight_type, shape, nt, measure):
    """By turns; afterwards every config's result is checked."""
    od, depth = SHAPES[shape]
    packed, _ = random_matrix(weight_type, 256, depth)
    packed = np.tile(packed, (-(-od // 256), 1))[:od]
    _, tokens = operands(weight_type, 64, 1, depth)
    matrices = [runtime.to_device(packed) for _ in range(copies(packed.nbytes))]
    x = runtime.to_device(np.tile(tokens, (nt // 64, 1, 1)))
    y = runtime.empty((nt, od), np.float32)
    sms, launches = runtime.device().sms, {}
    for config in configs(weight_type, shape, nt):
        workspace, stride = (), ()
        if config.stream:
            parts, ready = config.workspace(sms)
            workspace = runtime.empty(parts, np.float32), runtime.to_device(np.zeros(ready, np.uint32))
            stride = (od,)
        loaded, grid = runtime.load(mmq(config)), config.grid(nt, od, sms)
        launches[config] = [
            loaded.prepare(grid, w, x, y, *workspace, nt, od, depth, *stride) for w in matrices
        ]
    times = by_turns(launches)
    wanted, magnitude = reference.product(weight_type, packed[:64], tokens)
    for config, bound in launches.items():
        y.fill_bytes(0xFF)
        bound[-1]()
        last = y[nt - 64 :].to_host()[:, :64]
        assert (np.abs(last - wanted) <= 1e-5 * magnitude + 1e-9).all(), config
        us = times[config] * 1e3
        measure(f"mmq {config} {od}x{depth} {nt} tokens: us", round(us, 1))
        measure(f"mmq {config} {od}x{depth} {nt} tokens: us/GMAC", round(us / (nt * od * depth / 1e9), 2))
