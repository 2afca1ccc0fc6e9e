"""Whole models on the GPU: logits against llama.cpp's and the host's, chunks, graphs, plans, routes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.token import LAST_STEP
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.devices import GpuDevice
from minfer.engine.cuda.fused_rope import FusedRope
from minfer.engine.cuda.routes import Route, choose_route
from minfer.engine.cuda.variants import variants
from minfer.engine.session import Session
from minfer.model.model import Model

HOPPER = runtime.available() and runtime.device().arch == "sm_90a"
ROUTES = ("f16", "f16-wgmma") if HOPPER else ("f16",)
ON_HOPPER = pytest.mark.skipif(not HOPPER, reason="a kernel of Hopper's")
VARIANTS = variants(runtime.device().arch if runtime.available() else "sm_80")


def session(
    model: Model, route: str | Route = "f16", chunk: int = 512, device=None, n_ctx=None, weights="auto"
) -> Session:
    return Session(model, CudaBackend(route, device, lambda line: None, weights), n_ctx=n_ctx, chunk=chunk)


def one_by_one(session: Session, ids: np.ndarray) -> np.ndarray:
    session.reset()
    return np.stack([session.forward(ids[i : i + 1]) for i in range(len(ids))])


def relative_rms(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))


def divergence(a: np.ndarray, b: np.ndarray) -> float:
    """Mean KL divergence of the distributions of logits b from those of a, nats."""
    log_a, log_b = (x - x.max(-1, keepdims=True) for x in (a.astype(np.float64), b.astype(np.float64)))
    log_a, log_b = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (log_a, log_b))
    return float((np.exp(log_a) * (log_a - log_b)).sum(-1).mean())


def same_choice(a: np.ndarray, b: np.ndarray, margin: float) -> bool:
    """Whether the largest logit of b is the same wherever it leads in a by more than `margin`."""
    two = np.sort(a, axis=-1)[:, -2:]
    clear = two[:, 1] - two[:, 0] > margin
    return bool((a.argmax(-1) == b.argmax(-1))[clear].all())


def measure_errors(measure, name: str, expected: np.ndarray, logits: np.ndarray) -> None:
    """For the record: how far logits are from those expected."""
    measure(f"{name} logits, relative rms", relative_rms(logits, expected))
    measure(f"{name} logits, largest error of their deviation", largest_error(logits, expected))
    measure(f"{name} KL", divergence(expected, logits))
    measure(f"{name} top-1 equal, %", float((logits.argmax(-1) == expected.argmax(-1)).mean()) * 100)


def largest_error(a: np.ndarray, b: np.ndarray) -> float:
    """Of the standard deviation of b."""
    return float(abs(a - b).max() / b.std())


def greedy(session: Session, ids, count: int) -> np.ndarray:
    """The logits from which a prompt and `count` - 1 tokens of its own choice follow."""
    rows = [session.forward(ids)]
    for _ in range(count - 1):
        rows.append(session.forward([int(rows[-1].argmax())]))
    return np.stack(rows)


def check_greedy(gpu: Session, host: Session, ids, count: int) -> int:
    """Both choose the same tokens, up to where the host's first two are as good as equal; how many."""
    a, b = greedy(gpu, ids, count), greedy(host, ids, count)
    other = a.argmax(-1) != b.argmax(-1)
    same = int(other.argmax()) if other.any() else count
    assert same_choice(b[: same + 1], a[: same + 1], 0.1 * b.std())
    return same


class _NoGraphs(GpuDevice):
    def capture(self, enqueue):
        return enqueue


class _Small(GpuDevice):
    """A GPU with too little room for an f16 copy of the weights."""

    def free_bytes(self) -> int:
        return (512 << 20) + self.room

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room


def test_logits_equal_llamacpp(oracle, measure):
    model, ids, expected = oracle
    logits = session(model).forward(ids, logits="all")
    name = model.config.name
    measure(f"{name} prefill logits, relative rms", relative_rms(logits, expected))
    measure(f"{name} prefill KL", divergence(expected, logits))
    assert relative_rms(logits, expected) < 0.01
    assert divergence(expected, logits) < 1e-3
    assert same_choice(expected, logits, 0.05 * expected.std())


def test_decode_equals_llamacpp(oracle, measure):
    model, ids, expected = oracle
    logits = one_by_one(session(model), ids)
    measure(f"{model.config.name} decode logits, relative rms", relative_rms(logits, expected))
    assert relative_rms(logits, expected) < 0.03
    assert divergence(expected, logits) < 2e-3
    assert same_choice(expected, logits, 0.2 * expected.std())


def test_chunked_prefill_equals_whole(oracle):
    """Bit by bit; but not where a chunk has so few tokens that its products read the blocks, with int8
    activations."""
    model, ids, _ = oracle
    whole = session(model).forward(ids)
    for chunk in (7, 16, 43):  # the last ones of 6, 16 and 5 tokens
        np.testing.assert_array_equal(session(model, chunk=chunk).forward(ids), whole, err_msg=str(chunk))
    for chunk in (3, 47):
        chunked = session(model, chunk=chunk).forward(ids)
        assert relative_rms(chunked, whole) < 0.03, chunk


def test_few_tokens_at_a_time(oracle):
    model, ids, expected = oracle
    fed = session(model)
    rows = [fed.forward(ids[i : i + n], logits="all") for i, n in ((0, 2), (2, 3), (5, 4), (9, 39))]
    assert relative_rms(np.concatenate(rows), expected) < 0.03


def test_graph_equals_plain_forward(oracle):
    model, ids, _ = oracle
    graph = one_by_one(session(model), ids[:16])
    np.testing.assert_array_equal(graph, one_by_one(session(model, device=_NoGraphs()), ids[:16]))


def test_scratch_equals_resident(oracle):
    model, ids, _ = oracle
    device = _Small(0)
    halves = 2 * sum(
        np.prod(t.shape)
        for name, t in model.file.tensors.items()
        if name.startswith("blk.") and len(t.shape) == 2
    )
    resident = session(model, n_ctx=64)
    assert resident._runtime.plan.weights == "resident"
    device.room = int(resident._runtime.plan.total - halves // 4)
    scratch = session(model, device=device, n_ctx=64)
    assert scratch._runtime.plan.weights == "scratch"
    np.testing.assert_array_equal(scratch.forward(ids), resident.forward(ids))


@pytest.mark.parametrize("route", ROUTES)
def test_blocks_equal_resident(oracle, route):
    """Dequantized within the GEMMs: the same weights, but for the last bit of a few."""
    model, ids, expected = oracle
    blocks = session(model, route, weights="blocks")
    runtime.reset_launch_counts()
    logits = blocks.forward(ids, logits="all")
    ran = {name for name, _ in runtime.launch_counts()}
    assert "gemm_blocks" in ran and "gemm_hopper" not in ran
    assert relative_rms(logits, expected) < 0.02
    assert relative_rms(logits, session(model).forward(ids, logits="all")) < 0.005


@pytest.mark.parametrize("route", ROUTES)
def test_routes_equal_the_host(tiny, route, measure):
    from minfer.engine.host.runtime import HostBackend

    ids = np.random.default_rng(0).integers(0, tiny.config.vocab_size, 257)
    expected = Session(tiny, HostBackend()).forward(ids, logits="all")
    fed = session(tiny, route)
    logits = fed.forward(ids, logits="all")
    measure_errors(measure, f"qwen2-tiny {route}", expected, logits)
    assert relative_rms(logits, expected) < 0.02
    assert largest_error(logits, expected) < 0.1
    assert divergence(expected, logits) < 2e-3
    assert same_choice(expected, logits, 0.1 * expected.std())
    runtime.reset_launch_counts()
    fed.reset()
    np.testing.assert_allclose(fed.forward(ids), logits[-1], rtol=0, atol=0.1 * expected.std())
    ran = {name for name, _ in runtime.launch_counts()}
    assert ("gemm_hopper" in ran) == (route == "f16-wgmma")


@ON_HOPPER
@pytest.mark.parametrize("name", ["qwen2-k", "qwen3-k"])
def test_w4a16_equals_the_host(data_dir, name):
    """Straight from blocks, q, k and v of two formats by one launch too."""
    from minfer.engine.host.runtime import HostBackend

    model, ids = Model.load(data_dir / f"{name}.gguf"), np.arange(130)
    expected = Session(model, HostBackend()).forward(ids, logits="all")
    runtime.reset_launch_counts()
    logits = session(model, "w4a16").forward(ids, logits="all")
    ran = runtime.launch_counts()
    assert "w4a16" in {kernel for kernel, _ in ran}
    assert any(config.startswith("Q4_K+Q6_K") for kernel, config in ran if kernel == "w4a16")
    assert "gemm_hopper" not in {kernel for kernel, _ in ran}
    assert relative_rms(logits, expected) < 0.02
    assert same_choice(expected, logits, 0.1 * expected.std())


@pytest.fixture(scope="module")
def base(tiny):
    """(token ids, their logits by the route f16)."""
    ids = np.arange(70)
    return ids, session(tiny).forward(ids, logits="all")


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_of_the_campaign(tiny, base, name):
    """What the seeds compared computes the same, and in chunks to the last bit."""
    ids, expected = base
    variant = VARIANTS[name]
    fed = session(tiny, variant.route, weights=variant.weights)
    assert relative_rms(fed.forward(ids, logits="all"), expected) < 0.005
    fed.reset()
    whole = fed.forward(ids)
    assert relative_rms(whole, expected[-1]) < 0.03  # the last token alone reads the blocks
    chunked = session(tiny, variant.route, chunk=35, weights=variant.weights).forward(ids)
    np.testing.assert_array_equal(chunked, whole)


def test_greedy_ids_equal_the_host(tiny, measure):
    from minfer.engine.host.runtime import HostBackend

    same = check_greedy(session(tiny), Session(tiny, HostBackend()), range(20), 24)
    measure("qwen2-tiny greedy ids equal, of 24", same)


@pytest.mark.parametrize("token_kernel", [None, pytest.param(LAST_STEP, marks=ON_HOPPER)])
def test_the_device_chooses_what_the_host_would(tiny, token_kernel):
    """Running ahead, it gives the ids of one forward after the other; stopped, it leaves no trace, neither
    for a token nor for a prompt that comes next."""
    route = replace(choose_route("auto", runtime.device().arch, {}), token_kernel=token_kernel)
    gpu, ids = session(tiny, route), range(20)
    expected = greedy(gpu, ids, 20).argmax(-1).tolist()
    gpu.reset()
    gpu.forward(ids)
    tokens = gpu.greedy(expected[0], 19)
    assert [next(tokens) for _ in range(9)] == expected[1:10]
    assert list(gpu.greedy(expected[9], 10)) == expected[10:]
    assert gpu.position == len(ids) + 19
    another = session(tiny, route)
    another.forward(ids)
    for token in expected[:3]:
        another.forward([token])
    gpu.reset()
    gpu.forward(ids)
    tokens = gpu.greedy(expected[0], 19)
    assert [next(tokens) for _ in range(3)] == expected[1:4]
    np.testing.assert_array_equal(gpu.forward(range(40, 120)), another.forward(range(40, 120)))


def test_same_bits_on_every_run(tiny):
    ids = np.arange(130)
    fed = session(tiny)
    first = fed.forward(ids)
    decoded = one_by_one(fed, ids[:20])
    for _ in range(3):
        fed.reset()
        np.testing.assert_array_equal(fed.forward(ids), first)
        np.testing.assert_array_equal(one_by_one(fed, ids[:20]), decoded)


@ON_HOPPER
def test_rope_in_the_product_has_the_bits_of_its_kernel(tiny, monkeypatch):
    """On an empty cache and on a filled one, and what is decoded from it."""
    ids, logits = np.arange(271), []
    for takes in (lambda *_: False, FusedRope.takes):
        monkeypatch.setattr(FusedRope, "takes", takes)
        fed = session(tiny, "f16-wgmma")
        runtime.reset_launch_counts()
        logits.append([fed.forward(part, logits="all") for part in (ids[:200], ids[200:270], ids[270:])])
        ran = [config for name, config in runtime.launch_counts() if name == "gemm_hopper"]
        assert any("rope" in config for config in ran) == (len(logits) == 2)
    for one, other in zip(*logits, strict=True):
        np.testing.assert_array_equal(one, other)


def test_smollm2(smollm2_path, measure):
    """A trained model: Q4_1 and Q8_0, interleaved RoPE, tied output."""
    from minfer.engine.host.runtime import HostBackend

    model = Model.load(smollm2_path)
    text = "The tide goes out twice a day, and what it leaves behind is the children's until it comes back."
    ids = model.tokenizer.encode(text)
    gpu, host = session(model), Session(model, HostBackend())
    expected = host.forward(ids, logits="all")
    logits = gpu.forward(ids, logits="all")
    decoded = one_by_one(gpu, ids)
    for name, found, most in (("prefill", logits, 0.05), ("decode", decoded, 0.5)):
        measure_errors(measure, f"SmolLM2 {name}", expected, found)
        assert divergence(expected, found) < 0.01
        assert largest_error(found, expected) < most
        assert same_choice(expected, found, 0.1 * expected.std())
    gpu.reset()
    chunked = session(model, chunk=len(ids) // 2).forward(ids)
    np.testing.assert_array_equal(chunked, gpu.forward(ids))
    gpu.reset()
    host.reset()
    measure("SmolLM2 greedy ids equal, of 32", check_greedy(gpu, host, ids, 32))
