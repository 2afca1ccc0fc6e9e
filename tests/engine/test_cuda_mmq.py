"""MMQ routes on the simulator and on no device: which kernel takes what, what is told, what comes out."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.arithmetic.devices import shared_limit
from minfer.cuda.kernel import CompileError, LaunchRefused
from minfer.cuda.mmq import WEIGHT_TYPES, large, stream
from minfer.engine.cuda import mmq
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.compile_ahead import needed_kernels
from minfer.engine.cuda.devices import DryDevice, SimulatedDevice
from minfer.engine.cuda.mmq import CHAINS, choose, next_place, takes, workspace
from minfer.engine.cuda.plan import PARTS
from minfer.engine.cuda.routes import MMQ_ROUTES
from minfer.engine.host.runtime import HostBackend
from minfer.engine.session import Session
from minfer.model.model import Model
from tests.engine.conftest import DATA
from tests.engine.counting_device import CountingDevice
from tests.engine.cuda_models import BLOCKS_K, MIXED, micro_model

H200, GB10 = shared_limit("sm_90a"), shared_limit("sm_121a")
IDS = np.random.default_rng(3).integers(0, 72, 16)


def launched(device: DryDevice | SimulatedDevice) -> list[str]:
    return [str(kernel.config) for kernel in device.launches if kernel.name == "mmq"]


# ---- which kernel


def test_an_h200_takes_the_first_of_every_chain():
    for route, chain in CHAINS.items():
        choice = choose(route, "Q4_K", 3584, H200)
        assert (choice.place, choice.passed_over) == (0, ())
        assert choice.config == chain[0].make("Q4_K")


def test_a_gb10_refuses_the_wide_tile_at_kd_8():
    """The seed's phantom: over the cap, and told so."""
    choice = choose("mmq_raw_wide", "Q4_K", 3584, GB10)
    assert str(CHAINS["mmq_raw_wide"][choice.place]) == "wide KD=4"
    (line,) = choice.passed_over
    asked = f"{CHAINS['mmq_raw_wide'][0].make('Q4_K').shared_bytes:,}"
    assert line == (
        f"mmq_raw_wide: wide KD=8 refused for Q4_K rows of 3584: it takes {asked} bytes of shared memory a "
        "block, the device allows 101,376; next: wide KD=4"
    )


def test_what_no_kernel_takes_goes_to_the_f16_gemm():
    choice = choose("mmq_raw", "F16", 3584, H200)
    assert choice.config is None and choice.place == 2
    assert choice.passed_over[-1].endswith("next: the f16 GEMM")
    assert "F16" in choice.passed_over[0]
    assert not takes("mmq_raw", [("Q4_K", 256), ("F16", 256)], H200)


def test_rows_that_are_no_whole_super_blocks():
    choice = choose("mmq_raw_wide", "Q4_K", 3584 + 32, H200)
    assert choice.config is None and len(choice.passed_over) == 4
    assert all("nb32 = 113" in line for line in choice.passed_over)


def test_a_config_is_refused_once():
    """Of a format that is expanded, the large kernel is the stream-k one."""
    steps = [str(step) for step in CHAINS["mmq_fast"]]
    assert steps[next_place("mmq_fast", 0, "Q6_K")] == "fast"
    assert steps[next_place("mmq_fast", 0, "Q4_K")] == "stream-k"
    assert next_place("mmq_fast", len(steps) - 1, "Q6_K") == len(steps)
    choice = choose("mmq_fast", "Q6_K", 3584, stream("Q6_K").shared_bytes - 1)
    assert choice.passed_over[0].startswith("mmq_fast: large refused for Q6_K")
    assert choice.passed_over[0].endswith("next: fast")
    assert not any("stream-k" in line for line in choice.passed_over)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_121a"])
@pytest.mark.parametrize("route", MMQ_ROUTES)
def test_every_choice_fits_its_device(route, arch):
    for format in WEIGHT_TYPES:
        config = choose(route, format, 3584, shared_limit(arch)).config
        assert config.shared_bytes <= shared_limit(arch)


# ---- plan and launches of whole models


def dry(route: str, arch: str = "sm_90a", lines: list[str] | None = None, **device) -> CudaBackend:
    return CudaBackend(route, DryDevice(arch, **device), on_plan=(lines if lines is not None else []).append)


@pytest.mark.parametrize("route", MMQ_ROUTES)
def test_no_f16_copy_of_the_weights(route):
    model = Model.load(DATA / "qwen2-k.gguf")
    f16, mmq = (dry(name).plan(model, 256, 128) for name in ("f16", route))
    assert mmq.saved == f16.parts["weights as f16"]
    assert not mmq.resident and not any("f16" in name for name in mmq.parts)
    assert mmq.total - mmq.parts.get(PARTS, 0) < f16.total - 0.8 * mmq.saved
    assert str(mmq).endswith(f"; no f16 copy of the weights, {mmq.saved / 1e6:.2f} MB saved")
    assert mmq.forms == {"normed": "pad40", "attended": "f16", "activated": "pad40"}


@pytest.mark.parametrize("route", MMQ_ROUTES)
def test_every_product_of_many_tokens_is_an_mmq(route):
    model = Model.load(DATA / "qwen2-k.gguf")
    backend = dry(route)
    session = Session(model, backend, n_ctx=256, chunk=128)
    backend.device.launches.clear()
    session.forward(range(100))
    names = [kernel.name for kernel in backend.device.launches]
    layers = model.config.n_layers
    mixed = sum(len(layer.qkv.runs) - 1 for layer in session._runtime.weights.layers[:-1])
    # Four products a layer; of the last one K and V, and the last token's queries.
    runs = len(session._runtime.weights.layers[-1].kv.runs) + 1
    assert names.count("mmq") == 4 * (layers - 1) + mixed + runs
    assert "gemm_f16" not in names and "dequantize" not in names
    assert names.count("quantize_q8_0_pad40") == layers - 1  # attention's output; the rest is fused
    backend.device.launches.clear()
    session.forward([1])
    assert not launched(backend.device)
    assert [kernel.name for kernel in backend.device.launches][:2] == ["embedding", "decode_token"]


def test_steps_down_are_told_once(tmp_path):
    lines: list[str] = []
    model = micro_model(tmp_path / "k.gguf", formats=BLOCKS_K, hidden=256, ffn=256)
    session = Session(model, dry("mmq_raw_wide", "sm_121a", lines), n_ctx=256, chunk=128)
    session.forward(range(70))
    session.forward(range(70))
    told = [line for line in lines if "refused" in line]
    assert len(told) == len(set(told)) == 3  # Q4_K, Q6_K, Q8_0
    assert all("wide KD=8 refused" in line and "next: wide KD=4" in line for line in told)


def test_mixed_formats_share_a_scratch(tmp_path):
    """Stacks with a matrix in f16 are dequantized whole; their inputs are f32, made into what each reads."""
    lines: list[str] = []
    model = micro_model(tmp_path / "mixed.gguf", "qwen3", MIXED)
    backend = dry("mmq", lines=lines)
    plan = backend.plan(model, 64, 32)
    assert plan.forms == {"normed": "f32", "attended": "f16", "activated": "f16"}
    assert plan.parts["f16 scratch of one matrix"] == 2 * 64 * 192  # gate and up
    session = Session(model, backend, n_ctx=64, chunk=32)
    session.forward(range(20))
    assert any("BF16" in line and line.endswith("next: the f16 GEMM") for line in lines)
    names = {kernel.name for kernel in backend.device.launches}
    assert {"mmq", "gemm_f16", "dequantize", "convert_f32_f16", "quantize_q8_0_pad40"} <= names


def test_buffers_take_what_was_planned():
    model = Model.load(DATA / "qwen2-k.gguf")
    device = CountingDevice("sm_80")
    session = Session(model, CudaBackend("mmq_raw", device, lambda line: None), n_ctx=128, chunk=64)
    session.forward(range(64))
    plan = session._runtime.plan
    assert 0.95 * plan.total < sum(device.taken) <= plan.total


def test_needed_kernels_are_the_launched_ones():
    model = Model.load(DATA / "qwen2-k.gguf")
    backend = dry("mmq_raw_wide", "sm_121a")
    plan = backend.plan(model, 256, 128)
    needed = needed_kernels(model, backend.route, plan, "sm_121a", 48)
    tiles = {kernel.config.tokens_tile for kernel in needed if kernel.name == "mmq"}
    assert tiles == {64, 128} and all(k.shared_bytes <= GB10 for k in needed)


@pytest.mark.parametrize("route", ["mmq_raw_wide", "mmq_fast"])
def test_few_tokens_take_the_small_tile(route):
    model = Model.load(DATA / "qwen2-k.gguf")
    backend = dry(route)
    session = Session(model, backend, n_ctx=256, chunk=128)
    for n, tile in ((64, 64), (65, 128)):
        backend.device.launches.clear()
        session.reset()
        session.forward(range(n))
        tiles = [k.config.tokens_tile for k in backend.device.launches if k.name == "mmq"]
        assert set(tiles[:-1]) == {tile} and tiles[-1] == 64  # the last one: the last token's queries


def test_stream_k_where_whole_tiles_leave_processors_idle(tmp_path):
    """On 2 multiprocessors: 2 x 4 tiles of gate and up fill them, 1 x 3 of q, k and v do not."""
    model = micro_model(tmp_path / "k.gguf", formats=BLOCKS_K, hidden=256, ffn=256)
    backend = dry("mmq_fast", sms=2)
    session = Session(model, backend, n_ctx=256, chunk=256)
    backend.device.launches.clear()
    session.forward([1] * 128)
    assert {k.config.stream for k in backend.device.launches if k.name == "mmq"} == {True, False}
    config = stream("Q4_K")
    assert config.idle(2048, 37888, 132) < 0.01 and 0.15 < config.idle(2048, 3584, 132) < 0.16


def test_the_large_tile_where_it_fits(tmp_path):
    """Its grid stays where whole tiles would fill the device, too."""
    assert choose("mmq_fast", "Q4_K", 3584, H200).config == large("Q4_K")
    assert choose("mmq_fast", "Q6_K", 3584, H200).config == stream("Q6_K")
    smaller = choose("mmq_fast", "Q4_K", 3584, GB10)
    assert smaller.config == stream("Q4_K")
    assert "takes 111,104 bytes of shared memory a block, the device allows 101,376" in smaller.passed_over[0]
    assert workspace("mmq_fast", 132) == (264 * 128 * 128, 264) and workspace("mmq_raw", 132) == (0, 0)
    model = micro_model(tmp_path / "k.gguf", formats=BLOCKS_K, hidden=256, ffn=256)
    backend = dry("mmq_fast", sms=1)
    session = Session(model, backend, n_ctx=256, chunk=256)
    backend.device.launches.clear()
    session.forward([1] * 128)
    kinds = {(k.config.weight_type, k.config.stream) for k in backend.device.launches if k.name == "mmq"}
    assert ("Q4_K", True) in kinds and ("Q6_K", False) in kinds


# ---- what comes out


class Refusing(SimulatedDevice):
    """A driver that refuses every kernel of a wide tile, and says nothing before the launch."""

    def launch(self, kernel, grid, *args, pdl=False):
        if getattr(kernel.config, "tokens_tile", 0) == 128:
            raise LaunchRefused(
                kernel.name,
                kernel.config,
                kernel.shared_bytes,
                0,
                str(self),
                "bytes of shared memory a block",
            )
        super().launch(kernel, grid, *args, pdl=pdl)


def simulated(model: Model, route: str, device: SimulatedDevice, lines: list[str]) -> Session:
    return Session(model, CudaBackend(route, device, lines.append), n_ctx=32, chunk=16)


def host(model: Model) -> Session:
    return Session(model, HostBackend(threads=1), n_ctx=32)


def relative_rms(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))


@pytest.mark.slow
def test_refused_at_the_launch(tmp_path, monkeypatch):
    """The next kernel writes what the refused one did not: what runs is what the route below runs, and the
    logits are right."""
    monkeypatch.setattr(mmq, "SMALL_TOKENS", 1)  # six tokens are many enough for a wide tile
    model = micro_model(tmp_path / "k.gguf", formats=BLOCKS_K, layers=1, hidden=256, ffn=256)
    refusing, dry = Refusing("sm_90a"), DryDevice("sm_90a")
    ran, logits = {}, {}
    for route, device, lines in (("mmq_raw_wide", refusing, []), ("mmq_raw", dry, [])):
        session = simulated(model, route, device, lines)
        device.launches.clear()
        logits[route] = session.forward(IDS[:6], logits="all")
        ran[route] = [str(kernel) for kernel in device.launches]
        told = [line for line in lines if "refused" in line]
        assert len(told) == (8 if route == "mmq_raw_wide" else 0)  # four shapes, KD=8 and KD=4
    assert ran["mmq_raw_wide"] == ran["mmq_raw"]
    assert relative_rms(logits["mmq_raw_wide"], host(model).forward(IDS[:6], logits="all")) < 0.03


@pytest.mark.slow
def test_r1_and_mixed_formats(tmp_path):
    """Through passes for f16 and for chunks, one scratch, and the f16 GEMM where R1 cannot."""
    model = micro_model(tmp_path / "mixed.gguf", "qwen3", MIXED, layers=2)
    device = SimulatedDevice()
    got = simulated(model, "mmq", device, []).forward(IDS[:6])
    assert relative_rms(got, host(model).forward(IDS[:6])) < 0.03
    assert launched(device) and {"gemm_f16", "convert_f32_f16"} <= {k.name for k in device.launches}


def test_a_kernel_that_does_not_compile_is_replaced_too():
    class Spilling(DryDevice):
        def launch(self, kernel, grid, *args, pdl=False):
            if kernel.name == "mmq" and kernel.config.variant == "raw":
                raise CompileError(kernel.name, kernel.config, self.arch, "spills 8 bytes")
            super().launch(kernel, grid, *args, pdl=pdl)

    lines: list[str] = []
    model, device = Model.load(DATA / "qwen2-k.gguf"), Spilling()
    session = Session(model, CudaBackend("mmq_raw", device, lines.append), n_ctx=64, chunk=32)
    session.forward(range(20))
    session.reset()
    session.forward(range(20))
    told = [line for line in lines if "refused" in line]
    assert told and len(told) == len(set(told))
    assert all("spills 8 bytes; next: R1" in line for line in told)
    assert launched(device) and all(" r1 " in config for config in launched(device))


@pytest.mark.slow
def test_a_chain_without_a_step_left_ends_in_the_f16_gemm(tmp_path, monkeypatch):
    """Activations that are chunks already become f16 again, and every step down is told."""
    monkeypatch.setattr(mmq, "SMALL_TOKENS", 1)

    class Broken(SimulatedDevice):
        def launch(self, kernel, grid, *args, pdl=False):
            if kernel.name == "mmq":
                raise LaunchRefused(kernel.name, kernel.config, 1, 0, str(self), "of anything")
            super().launch(kernel, grid, *args, pdl=pdl)

    lines: list[str] = []
    model = micro_model(tmp_path / "k.gguf", formats=BLOCKS_K, layers=1, hidden=256, ffn=256)
    device = Broken()
    got = simulated(model, "mmq_raw_wide", device, lines).forward(IDS[:6], logits="all")
    assert relative_rms(got, host(model).forward(IDS[:6], logits="all")) < 0.03
    told = [line for line in lines if "refused" in line]
    for format in ("Q4_K", "Q6_K"):
        steps = [line.rsplit("next: ", 1)[1] for line in told if f" {format} " in line]
        assert steps == ["wide KD=4", "narrow KD=8", "R1", "the f16 GEMM"]
    assert {"dequantize_pad40", "dequantize", "gemm_f16"} <= {kernel.name for kernel in device.launches}
