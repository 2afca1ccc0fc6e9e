"""How fast the MMQ family is: measured for the record, never asserted; its results are checked."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.mmq import fast, ladder, large, mmq, narrow, r1, reference, stream, tried, wide
from tests.cuda.block_data import random_matrix
from tests.cuda.mmq_cases import operands
from tests.gpu.device_time import copies, milliseconds

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
    (config, shape, nt)
    for config in dict.fromkeys(MAIN + STEPS)
    for shape in SHAPES
    for nt in (512, 2048)
    if (config in MAIN or (nt == 2048 and shape in ("gate+up", "down")))
    and (config.weight_type == "Q6_K" or shape != "v")
]
"""The engine's configs at all shapes, other steps where most of a prefill is."""


@pytest.mark.parametrize("config, shape, nt", CASES, ids=lambda part: str(part).replace(" ", "-"))
def test_speed(config, shape, nt, measure):
    od, depth = SHAPES[shape]
    packed, _ = random_matrix(config.weight_type, 256, depth)
    packed = np.tile(packed, (-(-od // 256), 1))[:od]
    _, tokens = operands(config.weight_type, 64, 1, depth)
    matrices = [runtime.to_device(packed) for _ in range(copies(packed.nbytes))]
    x = runtime.to_device(np.tile(tokens, (nt // 64, 1, 1)))
    y = runtime.empty((nt, od), np.float32).fill_bytes(0xFF)
    loaded, sms, workspace, stride = runtime.load(mmq(config)), runtime.device().sms, (), ()
    if config.stream:
        parts, ready = config.workspace(sms)
        workspace = runtime.empty(parts, np.float32), runtime.to_device(np.zeros(ready, np.uint32))
        stride = (od,)
    grid = config.grid(nt, od, sms)
    launches = [loaded.prepare(grid, w, x, y, *workspace, nt, od, depth, *stride) for w in matrices]
    time = milliseconds(launches)
    wanted, magnitude = reference.product(config.weight_type, packed[:64], tokens)
    assert (np.abs(y[nt - 64 :].to_host()[:, :64] - wanted) <= 1e-5 * magnitude + 1e-9).all()
    measure(f"mmq {config} {od}x{depth} {nt} tokens: us", round(time * 1e3, 1))
    measure(f"mmq {config} {od}x{depth} {nt} tokens: us/GMAC", round(time * 1e3 / (nt * od * depth / 1e9), 2))
