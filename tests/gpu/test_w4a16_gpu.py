"""The W4A16 GEMMs on ragged shapes: poisoned outputs, all written, right, twice the same bits."""

from __future__ import annotations

import pytest

from minfer.cuda import runtime
from minfer.cuda.registry import shipped_kernels
from minfer.cuda.w4a16 import PAIR
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
    Product.random(config, nt, rows, blocks, width).case(runtime.device().sms).run_on_gpu()
