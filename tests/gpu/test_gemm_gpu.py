"""Every shipped GEMM on ragged shapes: poisoned outputs, all written, right, twice the same bits."""

from __future__ import annotations

import pytest

from minfer.cuda import runtime
from tests.gpu.gemm_cases import (
    MODEL_SHAPES,
    NT,
    OUTPUT_ERROR,
    SUM_ERROR,
    gemm_case,
    variants,
)

KERNELS = variants()


def short(kernel) -> str:
    return str(kernel.config).replace(" ", "-")


@pytest.mark.parametrize(
    "shape", [(1, 1, 8), (70, 67, 72), (65, 130, 136), (3, 258, 40), (300, 520, 200)], ids=str
)
@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_small_and_ragged(kernel, shape):
    with runtime.checked():
        gemm_case(kernel.config, *shape).run_on_gpu()


def product(torch, kernel, a, b):
    """The kernel's result of A B^T, into an output of NaN."""
    config, (nt, depth), od = kernel.config, a.shape, b.shape[0]
    left = a.contiguous() if config.sources[0].element == "float16" else a.float().contiguous()
    dtype = {"f32": torch.float32, "f16": torch.float16}[config.out]
    out = torch.full((nt, od), float("nan"), device="cuda", dtype=dtype)
    torch.cuda.synchronize()
    runtime.launch(kernel, config.grid(nt, od), left, b, out, nt, od, depth)
    torch.cuda.synchronize()
    return out


def check_twice(torch, kernel, a, b, exact, magnitude):
    """Twice the same bits, all of them written, and each within the bound."""
    first, second = (product(torch, kernel, a, b) for _ in range(2))
    assert torch.equal(first, second)  # NaN is equal to nothing: all of it was written
    off = (first.double() - exact).abs()
    bound = SUM_ERROR * magnitude + OUTPUT_ERROR[kernel.config.out] * exact.abs() + 1e-6
    assert bool((off <= bound).all()), f"largest excess {float((off - bound).max())}"


@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_at_the_model_s_sizes(kernel, matrices):
    torch, a, b, exact, magnitude = matrices
    for nt in NT:
        check_twice(torch, kernel, a[:nt], b, exact[:nt], magnitude[:nt])


@pytest.fixture(scope="module", params=MODEL_SHAPES, ids=str)
def model_matrices(request):
    """(torch, A of 129 tokens, B, A B^T in f64, the sums of magnitudes) at one of the model's shapes."""
    torch = pytest.importorskip("torch")
    od, depth = request.param
    a, b = (torch.randn(rows, depth, device="cuda").half() for rows in (129, od))
    exact = a.double() @ b.double().T
    return torch, a, b, exact, (a.abs().float() @ b.abs().float().T).double()


@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_at_every_shape_of_the_model(kernel, model_matrices):
    check_twice(model_matrices[0], kernel, *model_matrices[1:])


@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_chunks_of_tokens_have_the_same_bits(kernel, matrices):
    torch, a, b, _, _ = matrices
    whole = product(torch, kernel, a[:512], b)
    for chunk in (100, 511):
        parts = [product(torch, kernel, a[i : min(i + chunk, 512)], b) for i in range(0, 512, chunk)]
        assert torch.equal(torch.cat(parts), whole)
