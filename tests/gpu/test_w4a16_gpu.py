"""The W4A16 GEMMs on ragged shapes: poisoned outputs, all written, right, twice the same bits."""

from __future__ import annotations

import pytest

from minfer.cuda import runtime
from minfer.cuda.registry import shipped_kernels
from minfer.cuda.w4a16 import PAIR, choose, w4a16
from tests.cuda.block_data import random_matrix
from tests.cuda.w4a16_cases import Product
from tests.gpu.gemm_cases import milliseconds

pytestmark = pytest.mark.usefixtures("hopper")

KERNELS = shipped_kernels()["w4a16"]
SHAPES = [(1, 3, 1), (70, 72, 3), (129, 264, 2), (515, 1032, 5)]
SPEEDS = [
    ("Q4_K", 4608, 3584), ("Q4_K", 3584, 3584), ("Q4_K", 37888, 3584), ("Q4_K", 3584, 18944),
    ("Q6_K", 3584, 18944), ("Q6_K", 512, 3584),
]  # fmt: skip


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


@pytest.mark.parametrize("shape", SPEEDS, ids=str)
def test_at_the_model_s_sizes(shape, measure):
    """Right at 2048 tokens, and the TFLOPS in a graph of 10, for the record."""
    torch = pytest.importorskip("torch")
    format, od, depth = shape
    nt, sms = 2048, runtime.device().sms
    config = choose(format, nt, od, depth, sms, width=od)
    packed, values = random_matrix(format, od, depth)
    a = torch.randn(nt, depth, device="cuda").half()
    out = torch.full((nt, od), float("nan"), device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    blocks = runtime.to_device(packed)
    arrays = {"a": a, "w": blocks, "c": out}
    boxes = config.boxes
    seen = [runtime.tensor_map(x, *boxes[n]) if n in boxes else x for n, x in arrays.items()]
    bound = runtime.load(w4a16(config)).prepare(
        config.grid(nt, od, sms), *seen, nt, od, depth, 0, od, config.group(nt)
    )
    time = milliseconds(bound)
    rows = torch.linspace(0, nt - 1, 64, device="cuda").long()
    wanted = a[rows].double() @ torch.from_numpy(values).cuda().double().T
    error = float((out[rows].double() - wanted).norm() / wanted.norm())
    assert bool(torch.isfinite(out).all())
    assert error < 5e-4, error
    name = f"W4A16 {format} TFLOPS at {nt}x{od}x{depth}"
    measure(name, {str(config): round(2 * nt * od * depth / time / 1e9, 1), "error": error})
