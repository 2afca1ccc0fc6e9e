"""Every shipped Hopper GEMM on ragged shapes: poisoned outputs, all written, right, twice the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.gemm_hopper import choose, make_gemm_hopper
from minfer.cuda.registry import shipped_kernels
from tests.gpu.gemm_cases import MODEL_SHAPES, NT, OUTPUT_ERROR, SUM_ERROR, milliseconds

KERNELS = shipped_kernels()["gemm_hopper"]
SMALL = [(1, 8, 8), (70, 72, 72), (129, 264, 136), (300, 520, 200), (515, 1032, 64)]
SPEEDS = [(2048, 4608, 3584), (2048, 3584, 3584), (2048, 37888, 3584), (2048, 3584, 18944)]


@pytest.fixture(autouse=True)
def hopper():
    if runtime.device().arch != "sm_90a":
        pytest.skip(f"wgmma is Hopper's; this is {runtime.device().arch}")


def short(kernel) -> str:
    return str(kernel.config).replace(" ", "-")


def arguments(kernel, a, b, c) -> tuple:
    """(grid, the kernel's arguments) for a product of torch tensors or device arrays."""
    config, (nt, depth), od = kernel.config, a.shape, b.shape[0]
    maps = (
        runtime.tensor_map(array, *config.boxes[name]) for name, array in zip("abc", (a, b, c), strict=True)
    )
    grid = config.grid(nt, od, runtime.device().sms)
    return grid, (*maps, nt, od, depth, config.group(nt, od))


@pytest.mark.parametrize("shape", SMALL, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_small_and_ragged(kernel, shape):
    nt, od, depth = shape
    rng = np.random.default_rng(shape)
    a, b = (rng.standard_normal((rows, depth)).astype(np.float16) for rows in (nt, od))
    c = runtime.empty((nt, od), np.float16)
    grid, args = arguments(kernel, runtime.to_device(a), runtime.to_device(b), c)
    results = []
    for _ in range(2):
        with runtime.checked():
            runtime.launch(kernel, grid, *args)
        results.append(c.to_host())
    assert (results[0].view(np.uint16) == results[1].view(np.uint16)).all()
    exact, other = a.astype(np.float64), b.astype(np.float64)
    wanted, magnitude = exact @ other.T, np.abs(exact) @ np.abs(other).T
    bound = SUM_ERROR * magnitude + OUTPUT_ERROR["f16"] * np.abs(wanted) + 1e-6
    assert (np.abs(results[0] - wanted) <= bound).all()


def product(torch, kernel, a, b):
    """The kernel's result of A B^T, into an output of NaN."""
    out = torch.full((len(a), len(b)), float("nan"), device="cuda", dtype=torch.float16)
    grid, args = arguments(kernel, a.contiguous(), b, out)
    torch.cuda.synchronize()
    runtime.launch(kernel, grid, *args)
    torch.cuda.synchronize()
    return out


def check_twice(torch, kernel, a, b, exact, magnitude):
    first, second = (product(torch, kernel, a, b) for _ in range(2))
    assert torch.equal(first, second)  # NaN is equal to nothing: all of it was written
    off = (first.double() - exact).abs()
    bound = SUM_ERROR * magnitude + OUTPUT_ERROR["f16"] * exact.abs() + 1e-6
    assert bool((off <= bound).all()), f"largest excess {float((off - bound).max())}"


@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_at_the_model_s_sizes(kernel, matrices):
    torch, a, b, exact, magnitude = matrices
    for nt in NT:
        check_twice(torch, kernel, a[:nt], b, exact[:nt], magnitude[:nt])


@pytest.mark.parametrize("shape", MODEL_SHAPES, ids=str)
def test_at_every_shape_of_the_model(shape):
    torch = pytest.importorskip("torch")
    od, depth = shape
    a, b = (torch.randn(rows, depth, device="cuda").half() for rows in (129, od))
    exact = a.double() @ b.double().T
    magnitude = (a.float().abs() @ b.float().abs().T).double()
    for kernel in KERNELS:
        check_twice(torch, kernel, a, b, exact, magnitude)


@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_chunks_of_tokens_have_the_same_bits(kernel, matrices):
    torch, a, b, _, _ = matrices
    whole = product(torch, kernel, a[:512], b)
    for chunk in (100, 511):
        parts = [product(torch, kernel, a[i : min(i + chunk, 512)], b) for i in range(0, 512, chunk)]
        assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("shape", SPEEDS, ids=str)
def test_speed_of_the_chosen_tile(shape, measure):
    """TFLOPS in a graph of 10 (a short burst), on random numbers: for the record."""
    torch = pytest.importorskip("torch")
    nt, od, depth = shape
    kernel = make_gemm_hopper(choose(nt, od, depth, runtime.device().sms))
    a, b = (torch.randn(rows, depth, device="cuda").half() for rows in (nt, od))
    torch.cuda.synchronize()
    grid, args = arguments(kernel, a, b, runtime.empty((nt, od), np.float16))
    bound = runtime.load(kernel).prepare(grid, *args)
    speed = 2 * nt * od * depth / milliseconds(bound) / 1e9
    measure(f"Hopper GEMM TFLOPS at {nt}x{od}x{depth}", {str(kernel.config): round(speed, 1)})
