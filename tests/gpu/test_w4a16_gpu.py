"""The W4A16 GEMMs on ragged shapes: poisoned outputs, all written, right, twice the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.registry import shipped_kernels
from minfer.cuda.w4a16 import PAIR, choose, w4a16
from tests.cuda.block_data import random_matrix
from tests.cuda.w4a16_cases import Product

pytestmark = pytest.mark.usefixtures("hopper")

KERNELS = shipped_kernels()["w4a16"]
SHAPES = [(1, 3, 1), (70, 72, 3), (129, 264, 2), (515, 1032, 5)]


def short(kernel) -> str:
    return str(kernel.config).replace(" ", "-")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_ragged(kernel, shape):
    config, (nt, od, blocks) = kernel.config, shape
    width = -(-od // 8) * 8 if config.store == "tma" else od
    rows = 2 * od if config.gated else od
    if config.format == PAIR:  # what comes first in C fills its tiles
        rows, width = (-(-od // 128) * 128, 8 * nt), None
    if config.split_k == 4:  # all of its blocks are on the GPU at once
        nt = min(nt, 259)
    blocks = max(blocks, config.split_k)  # a part has one
    Product.random(config, nt, rows, blocks, width).case(runtime.device().sms).run_on_gpu()


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K"])
def test_dependent_launches_wait(format):
    """Two products in a row, over and over: the second reads what the first wrote, and the next first one
    overwrites it. They overlap, and leave what they leave one after the other."""
    nt, dim, sms = 512, 1024, runtime.device().sms
    config = choose(format, nt, dim, dim, sms, width=dim)
    loaded, boxes = runtime.load(w4a16(config)), config.boxes
    draw = np.random.default_rng(7)
    weights = [runtime.to_device(random_matrix(format, dim, dim, seed, 1e-4)[0]) for seed in (1, 2)]
    inputs = [runtime.to_device(draw.standard_normal((nt, dim)).astype(np.float16)) for _ in range(10)]
    between = runtime.empty((nt, dim), "float16")

    def run(pdl: bool) -> list[np.ndarray]:
        outputs = [runtime.zeros((nt, dim), "float16") for _ in inputs]
        steps = []
        for x, y in zip(inputs, outputs, strict=True):
            for a, w, c in ((x, weights[0], between), (between, weights[1], y)):
                arrays = {"a": a, "w": w, "c": c}
                seen = [runtime.tensor_map(v, *boxes[n]) if n in boxes else v for n, v in arrays.items()]
                sizes = nt, dim, dim, 0, dim, config.group(nt)
                steps.append(loaded.prepare(config.grid(nt, dim, sms), *seen, *sizes, pdl=pdl))
        for step in steps:
            step()
        runtime.device().synchronize()
        return [y.to_host() for y in outputs]

    for alone, overlapping in zip(run(False), run(config.pdl), strict=True):
        assert np.isfinite(alone).all() and alone.any()
        assert np.array_equal(alone, overlapping)
