"""Every shipped GEMM that dequantizes B: ragged shapes, poisoned outputs, right, twice the same bits."""

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.registry import shipped_kernels
from tests.cuda.block_data import random_matrix
from tests.cuda.gemm_block_cases import block_case
from tests.gpu.gemm_cases import MODEL_SHAPES, NT, OUTPUT_ERROR, SUM_ERROR

KERNELS = shipped_kernels()["gemm_blocks"]
SHAPES = ((4608, 3584), *MODEL_SHAPES)
REPEATED = 512  # rows of random blocks, of which a matrix has copies


def short(kernel) -> str:
    return str(kernel.config).replace(" ", "-")


@pytest.mark.parametrize("shape", [(1, 3, 1), (70, 67, 3), (130, 258, 2)], ids=str)
@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.config.pitch is None], ids=short)
def test_small_and_ragged(kernel, shape):
    with runtime.checked():
        block_case(kernel.config, *shape).run_on_gpu()


@pytest.fixture(scope="module")
def blocks():
    """(torch, (format, od, depth) -> (blocks, their weights as f16)), kept."""
    torch = pytest.importorskip("torch")
    made = {}

    def get(format, od, depth):
        if (format, depth) not in made:
            packed, values = random_matrix(format, REPEATED, depth)
            weights = torch.from_numpy(values.astype(np.float16)).cuda()
            made[format, depth] = torch.from_numpy(packed).cuda(), weights
        copies = -(-od // REPEATED)
        return tuple(part.repeat(copies, 1)[:od].contiguous() for part in made[format, depth])

    return torch, get


def product(torch, kernel, a, packed, od):
    """The kernel's result, into an output of NaN; with a pitch into the middle columns of a wider one."""
    config, (nt, depth) = kernel.config, a.shape
    dtype = {"f32": torch.float32, "f16": torch.float16}[config.out]
    out = torch.full((nt, config.pitch or od), float("nan"), device="cuda", dtype=dtype)
    torch.cuda.synchronize()
    columns = out if config.pitch is None else out.view(-1)[8:]
    runtime.launch(kernel, config.grid(nt, od), a.contiguous(), packed, columns, nt, od, depth)
    torch.cuda.synchronize()
    if config.pitch is None:
        return out
    assert bool(out[:, :8].isnan().all()) and bool(out[:, 8 + od :].isnan().all())
    return out[:, 8 : 8 + od].contiguous()


def check_twice(torch, kernel, a, packed, weights):
    first, second = (product(torch, kernel, a, packed, len(weights)) for _ in range(2))
    assert torch.equal(first, second)  # NaN is equal to nothing: all of it was written
    exact = a.double() @ weights.double().T
    magnitude = (a.float().abs() @ weights.float().abs().T).double()
    # A fused multiply-add may round a weight to the next f16, which moves its product by 2^-10 of itself.
    squares = (a.float() ** 2 @ (weights.float() ** 2).T).double()
    bound = SUM_ERROR * magnitude + OUTPUT_ERROR[kernel.config.out] * exact.abs()
    bound += 1e-6 + 2.0**-10 * squares.sqrt()
    off = (first.double() - exact).abs()
    assert bool((off <= bound).all()), f"largest excess {float((off - bound).max())}"


@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_at_the_model_s_sizes(kernel, blocks):
    torch, get = blocks
    od = 4608 if kernel.config.pitch is None else 3584
    packed, weights = get(kernel.config.b_source, od, 3584)
    a = torch.randn(max(NT), 3584, device="cuda").half()
    for nt in NT:
        check_twice(torch, kernel, a[:nt], packed, weights)


@pytest.mark.parametrize("shape", MODEL_SHAPES, ids=str)
@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.config.pitch is None], ids=short)
def test_at_every_shape_of_the_model(kernel, shape, blocks):
    torch, get = blocks
    packed, weights = get(kernel.config.b_source, *shape)
    check_twice(torch, kernel, torch.randn(129, shape[1], device="cuda").half(), packed, weights)


@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_chunks_of_tokens_have_the_same_bits(kernel, blocks):
    torch, get = blocks
    packed, _ = get(kernel.config.b_source, 3584, 3584)
    a = torch.randn(512, 3584, device="cuda").half()
    whole = product(torch, kernel, a, packed, 3584)
    for chunk in (100, 511):
        parts = [product(torch, kernel, a[i : i + chunk], packed, 3584) for i in range(0, 512, chunk)]
        assert torch.equal(torch.cat(parts), whole)
