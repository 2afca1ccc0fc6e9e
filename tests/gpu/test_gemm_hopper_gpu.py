"""Every shipped Hopper GEMM on ragged shapes: poisoned outputs, all written, right, twice the same bits."""

from __future__ import annotations

import pytest

from minfer.cuda import runtime
from minfer.cuda.gemm_hopper import GemmHopperConfig, choose, make_gemm_hopper, split_workspace
from minfer.cuda.registry import shipped_kernels
from minfer.cuda.tile.seats import ORDER
from minfer.engine.cuda.devices import GpuDevice
from minfer.engine.cuda.seats import device_parts, device_seats
from tests.cuda.gemm_hopper_cases import check_bits, expected, hopper_case, rope_case
from tests.gpu.gemm_cases import MODEL_SHAPES, NT

pytestmark = pytest.mark.usefixtures("hopper")

SHIPPED = shipped_kernels()["gemm_hopper"]
ROTATING = [kernel for kernel in SHIPPED if kernel.config.epilogue == "rope"]
SPLIT = [kernel for kernel in SHIPPED if kernel.config.split_k]
KERNELS = [kernel for kernel in SHIPPED if kernel not in ROTATING and kernel not in SPLIT]
FEW, LEAD = choose(256, 3584, 18944), choose(512, 3584, 18944)
SMALL = [(1, 8, 8), (70, 72, 72), (129, 264, 136), (300, 520, 200), (515, 1032, 64)]


def short(kernel) -> str:
    return str(kernel.config).replace(" ", "-")


def arguments(kernel, a, b, c) -> tuple:
    """(grid, the kernel's arguments) for a product of torch tensors or device arrays."""
    config, (nt, depth), od = kernel.config, a.shape, c.shape[1]
    maps = (
        runtime.tensor_map(array, *config.boxes[name]) for name, array in zip("abc", (a, b, c), strict=True)
    )
    grid = config.grid(nt, od, runtime.device().sms)
    return grid, (*maps, nt, od, depth, config.group(nt, od), *shared(config))


def shared(config) -> tuple:
    """What launches of a config take besides."""
    device = GpuDevice()
    seats = (device_seats(device),) if config.pdl else ()
    return seats + (device_parts(device, split_workspace) if config.split_k else ())


@pytest.mark.parametrize("shape", SMALL, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_small_and_ragged(kernel, shape):
    with runtime.checked():
        hopper_case(kernel.config, *shape, runtime.device().sms).run_on_gpu()


@pytest.mark.parametrize("shape", [(1, 8, 136), (70, 232, 200), (300, 520, 2504)], ids=str)
@pytest.mark.parametrize("kernel", SPLIT, ids=short)
def test_small_and_ragged_halves(kernel, shape):
    with runtime.checked():
        hopper_case(kernel.config, *shape, runtime.device().sms).run_on_gpu()


@pytest.mark.parametrize("shape", [(1, 72), (70, 72), (300, 136), (515, 896)], ids=str)
@pytest.mark.parametrize("kernel", ROTATING, ids=short)
def test_queries_and_cache_rows(kernel, shape):
    case = rope_case(kernel.config, *shape, position=37, multiprocessors=runtime.device().sms)
    with runtime.checked():
        check_bits(case, lambda each: each.run_on_gpu(), runtime.device().sms)


def product(torch, kernel, a, b):
    """The kernel's result, into an output of NaN; the epilogue that adds finds ones there."""
    config = kernel.config
    shape = len(a), len(b) // 2 if config.epilogue == "swiglu" else len(b)
    before = 1.0 if config.epilogue == "add" else float("nan")
    out = torch.full(shape, before, device="cuda", dtype=getattr(torch, f"float{config.out[1:]}"))
    grid, args = arguments(kernel, a.contiguous(), b, out)
    torch.cuda.synchronize()
    runtime.launch(kernel, grid, *args)
    torch.cuda.synchronize()
    return out


def check_twice(torch, kernel, a, b, exact, magnitude):
    if kernel.config.epilogue == "swiglu":  # a product of two sums of thousands may overflow f16
        a, exact, magnitude = a / 16, exact / 16, magnitude / 16
    first, second = (product(torch, kernel, a, b) for _ in range(2))
    assert torch.equal(first, second)  # NaN is equal to nothing: all of it was written
    wanted, bound = expected(kernel.config, exact, magnitude, 1.0, torch.exp)
    off = (first.double() - wanted).abs()
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


@pytest.mark.parametrize("kernel", SPLIT, ids=short)
def test_halves_at_the_model_s_sizes(kernel):
    """Twice, and in chunks of tokens: the same bits; with a lead, in chunks that leave a row in its half of
    a tile."""
    torch = pytest.importorskip("torch")
    first = 0 if kernel.config.split_lead else 30
    for depth in (3584, 18944):
        a, b = (torch.randn(rows, depth, device="cuda").half() for rows in (128, 3584))
        magnitude = (a.float().abs() @ b.float().abs().T).double()
        check_twice(torch, kernel, a, b, a.double() @ b.double().T, magnitude)
        whole = product(torch, kernel, a, b)
        assert torch.equal(product(torch, kernel, a[first:111], b), whole[first:111])


@pytest.mark.parametrize("kernel", KERNELS, ids=short)
def test_chunks_of_tokens_have_the_same_bits(kernel, matrices):
    torch, a, b, _, _ = matrices
    whole = product(torch, kernel, a[:512], b)
    for chunk in (100, 511):
        parts = [product(torch, kernel, a[i : min(i + chunk, 512)], b) for i in range(0, 512, chunk)]
        assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize(
    ("config", "nt", "streams"),
    [(GemmHopperConfig(112, 6, pdl=True), 512, 3), (FEW, 256, 1), (LEAD, 512, 1)],
    ids=str,
)
def test_dependent_launches_keep_their_order_and_their_seats(config, nt, streams):
    """Each product of a chain reads what the one before has written; three chains on three streams at once
    leave each other's blocks without their own multiprocessors. (Halves wait for each other: one stream.)"""
    torch = pytest.importorskip("torch")
    loaded, size = runtime.load(make_gemm_hopper(config)), 3584
    chains = []
    for _ in range(streams):
        weights = [torch.randn(size, size, device="cuda").half() / size**0.5 for _ in range(4)]
        rows = [torch.randn(nt, size, device="cuda").half() for _ in range(5)]
        wanted = [rows[0]]
        for weight in weights:
            wanted.append((wanted[-1].float() @ weight.float().T).half())
        besides, launches = shared(config), []
        for a, b, c in zip(rows, weights, rows[1:], strict=False):
            maps = [
                runtime.tensor_map(x, *config.boxes[name]) for name, x in zip("abc", (a, b, c), strict=True)
            ]
            grid = config.grid(nt, size, runtime.device().sms)
            sizes = nt, size, size, config.group(nt, size)
            launches.append(loaded.prepare(grid, *maps, *sizes, *besides, pdl=True))
        chains.append((torch.cuda.Stream(), launches, rows, wanted[-1], besides[0]))
    for _ in range(20):
        for _, _, rows, _, _ in chains:
            for row in rows[1:]:
                row.fill_(float("nan"))
        torch.cuda.synchronize()
        for step in range(4):
            for stream, launches, *_ in chains:
                launches[step](stream=stream.cuda_stream)
        torch.cuda.synchronize()
        for _, _, rows, wanted, seats in chains:
            assert float((rows[-1].float() - wanted.float()).norm() / wanted.float().norm()) < 2e-3
            assert not seats.to_host()[:ORDER].any()


def test_every_multiprocessor_has_a_place():
    places = device_seats(GpuDevice()).to_host()[ORDER:]
    assert sorted(places) == list(range(runtime.device().sms))
