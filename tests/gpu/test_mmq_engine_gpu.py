"""MMQ routes on a GPU: whole models against the f16 route, refusals, checked mode."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.devices import GpuDevice
from minfer.engine.cuda.routes import MMQ_ROUTES
from minfer.engine.session import Session
from minfer.model.model import Model
from tests.engine.cuda_models import QUANTIZED, VOCAB, micro_model
from tests.gpu.test_engine_gpu import divergence, relative_rms, same_choice

MARGIN = 0.2
"""Top-1 must agree where the f16 route's first logit leads by more than this many standard deviations: int8
activations move logits by some hundredths of one."""


class _Small(GpuDevice):
    """A GPU whose blocks may use as little shared memory as a GB10's."""

    def __init__(self) -> None:
        super().__init__()
        self.shared_bytes = 99 * 1024


def session(model: Model, route: str, lines: list[str] | None = None, device=None, chunk=512) -> Session:
    tell = (lines if lines is not None else []).append
    return Session(model, CudaBackend(route, device, on_plan=tell), chunk=chunk)


def mmq_launches() -> dict[str, int]:
    return {config: n for (name, config), n in runtime.launch_counts().items() if name == "mmq"}


def test_logits_against_the_f16_route_and_llamacpp(oracle, measure):
    model, ids, expected = oracle
    f16 = session(model, "f16").forward(ids, logits="all")
    found = {}
    for route in MMQ_ROUTES:
        runtime.reset_launch_counts()
        found[route] = logits = session(model, route).forward(ids, logits="all")
        assert mmq_launches()
        measure(f"{model.config.name} {route} logits, relative rms", relative_rms(logits, f16))
        measure(f"{model.config.name} {route} KL", divergence(f16, logits))
        assert relative_rms(logits, f16) < 0.04
        assert divergence(expected, logits) < 3e-3
        assert same_choice(f16, logits, MARGIN * f16.std())
        assert same_choice(expected, logits, MARGIN * expected.std())
    # The seed kernels of a format add up the same numbers in the same order; the fast one sums minima on the
    # tensor cores.
    np.testing.assert_array_equal(found["mmq"], found["mmq_raw"])
    np.testing.assert_array_equal(found["mmq"], found["mmq_raw_wide"])


@pytest.mark.parametrize("route", MMQ_ROUTES)
def test_greedy_decode_follows_the_f16_route(tiny, route):
    ids = np.random.default_rng(1).integers(0, tiny.config.vocab_size, 300)
    a, b = session(tiny, route), session(tiny, "f16")
    got, wanted = a.forward(ids), b.forward(ids)
    for _ in range(24):
        assert same_choice(wanted[None], got[None], MARGIN * wanted.std())
        token = [int(wanted.argmax())]  # teacher-forced: a near tie must not part the two contexts
        got, wanted = a.forward(token), b.forward(token)


def test_a_block_that_is_over_the_cap_is_refused_and_replaced(tiny):
    """Told once a format, and the kernel below writes what the refused one did not."""
    ids = np.random.default_rng(2).integers(0, tiny.config.vocab_size, 200)
    lines: list[str] = []
    wanted = session(tiny, "mmq_raw").forward(ids, logits="all")
    runtime.reset_launch_counts()
    small = session(tiny, "mmq_raw_wide", lines, _Small())
    got = small.forward(ids, logits="all")
    np.testing.assert_array_equal(got, wanted)
    told = [line for line in lines if "refused" in line]
    assert told and len(told) == len(set(told))
    assert all("wide KD=8" in line and "the device allows 101,376; next: wide KD=4" in line for line in told)
    assert mmq_launches() and all("kd=8" not in name for name in mmq_launches())


@pytest.mark.parametrize("route", MMQ_ROUTES)
def test_every_output_is_written(tiny, route):
    ids = np.arange(70)
    fed = session(tiny, route)
    plain = fed.forward(ids, logits="all")
    fed.reset()
    with runtime.checked():
        np.testing.assert_array_equal(fed.forward(ids, logits="all"), plain)


@pytest.mark.parametrize(("hidden", "ffn"), [(256, 512), (288, 96)])
def test_formats_of_small_models(tmp_path, hidden, ffn, measure):
    """Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0, at rows that are whole k-tiles and at rows that are not."""
    model = micro_model(tmp_path / "legacy.gguf", formats=QUANTIZED, layers=3, hidden=hidden, ffn=ffn)
    ids = np.random.default_rng(5).integers(0, VOCAB, 100)
    f16 = session(model, "f16").forward(ids, logits="all")
    found = {}
    for route in MMQ_ROUTES:
        lines: list[str] = []
        found[route] = logits = session(model, route, lines).forward(ids, logits="all")
        assert not [line for line in lines if "refused" in line]
        measure(f"legacy formats of {hidden} {route} logits, relative rms", relative_rms(logits, f16))
        assert relative_rms(logits, f16) < 0.04
        assert same_choice(f16, logits, MARGIN * f16.std())
    np.testing.assert_array_equal(found["mmq"], found["mmq_raw"])
    np.testing.assert_array_equal(found["mmq"], found["mmq_raw_wide"])


def test_chunks(tiny):
    ids = np.random.default_rng(4).integers(0, tiny.config.vocab_size, 130)
    whole = session(tiny, "mmq_raw").forward(ids)
    for chunk in (3, 7, 64, 129):
        assert relative_rms(session(tiny, "mmq_raw", chunk=chunk).forward(ids), whole) < 0.04, chunk


def test_same_bits_on_every_run(tiny):
    fed = session(tiny, "mmq_raw_wide")
    first = fed.forward(np.arange(130))
    for _ in range(3):
        fed.reset()
        np.testing.assert_array_equal(fed.forward(np.arange(130)), first)


def test_smollm2(smollm2_path, measure):
    """A trained model of Q4_1 and Q8_0: rows of 576 and 1536."""
    model = Model.load(smollm2_path)
    text = "The tide goes out twice a day, and what it leaves behind is the children's until it comes back."
    ids = model.tokenizer.encode(text)
    f16 = session(model, "f16")
    wanted = f16.forward(ids, logits="all")
    for route in MMQ_ROUTES:
        fed = session(model, route)
        logits = fed.forward(ids, logits="all")
        measure(f"SmolLM2 {route} logits, relative rms", relative_rms(logits, wanted))
        measure(f"SmolLM2 {route} KL", divergence(wanted, logits))
        assert divergence(wanted, logits) < 0.02
        assert same_choice(wanted, logits, MARGIN * wanted.std())
