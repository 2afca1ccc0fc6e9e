"""Every shipped GEMM on ragged shapes: poisoned outputs, all written, right, twice the same bits."""

from __future__ import annotations

import pytest

from minfer.cuda import runtime
from minfer.cuda.registry import shipped_kernels
from tests.gpu.gemm_cases import (
    DTYPES,
    LARGEST,
    NT,
    OUTPUT_ERROR,
    SUM_ERROR,
    gemm_case,
    milliseconds,
)

KERNELS = shipped_kernels()["gemm_f16"]


def short(kernel) -> str:
    return str(kernel.config).replace(" ", "-")


@pytest.mark.parametrize(
    "shape", [(1, 1, 8), (70, 67, 72), (65, 130, 136), (3, 258, 40), (300, 520, 200)], ids=str
)
@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_small_and_ragged(kernel, shape):
    with runtime.checked():
        gemm_case(kernel.config, *shape).run_on_gpu()


@pytest.mark.parametrize("nt", NT)
@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_at_the_model_s_sizes(kernel, nt, matrices):
    torch, a, b, exact, magnitude = matrices
    config, (_, od, depth) = kernel.config, LARGEST
    left = a[:nt].contiguous() if config.sources[0].element == "float16" else a[:nt].float().contiguous()
    out = torch.empty(nt, od, device="cuda", dtype={"f32": torch.float32, "f16": torch.float16}[config.out])
    results = []
    for _ in range(2):
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        runtime.launch(kernel, config.grid(nt, od), left, b, out, nt, od, depth)
        results.append(out.clone())
    assert torch.equal(*results)  # NaN is equal to nothing: all of it was written
    off = (results[0].double() - exact[:nt]).abs()
    bound = SUM_ERROR * magnitude[:nt] + OUTPUT_ERROR[config.out] * exact[:nt].abs() + 1e-6
    assert bool((off <= bound).all()), f"largest excess {float((off - bound).max())}"


def test_speed_at_2048_tokens(matrices, measure):
    """TFLOPS of every shipped config, and of torch's own product, at 2048 x 4608 x 3584: for the record."""
    torch, a, b, _, _ = matrices
    nt, od, depth = LARGEST
    flop = 2 * nt * od * depth
    speeds = {}
    for kernel in KERNELS:
        left = a if kernel.config.sources[0].element == "float16" else a.float()
        out = runtime.empty((nt, od), DTYPES[kernel.config.out])
        bound = runtime.load(kernel).prepare(kernel.config.grid(nt, od), left, b, out, nt, od, depth)
        speeds[str(kernel.config)] = round(flop / milliseconds(bound) / 1e9, 1)
    product = torch.empty(nt, od, device="cuda", dtype=torch.float16)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for repeats in (3, 30):
        start.record()
        for _ in range(repeats):
            torch.matmul(a, b.T, out=product)
        stop.record()
    torch.cuda.synchronize()
    speeds["torch.matmul, 30 in a row"] = round(flop / (start.elapsed_time(stop) / 30) / 1e9, 1)
    measure("GEMM TFLOPS at 2048x4608x3584", speeds)
