"""How fast Hopper's GEMMs on f16 weights and on blocks are: measured for the record, never asserted; their
results are checked. (Beside cuBLAS, in bursts and sustained: `minfer bench --against torch`.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.gemm_hopper import GemmHopperConfig, choose, make_gemm_hopper
from minfer.cuda.w4a16 import choose as choose_w4a16
from minfer.cuda.w4a16 import split_workspace, w4a16
from minfer.engine.cuda.devices import GpuDevice
from minfer.engine.cuda.seats import device_parts
from minfer.lab.hopper_refined import figure_name, refinements
from tests.cuda.block_data import random_matrix
from tests.gpu.device_time import NT, by_turns, copies, milliseconds
from tests.gpu.gemm_cases import LARGEST, MODEL_SHAPES
from tests.gpu.test_gemm_hopper_gpu import arguments

pytestmark = pytest.mark.usefixtures("hopper")

SHAPES = (LARGEST[1:], *MODEL_SHAPES)
BLOCKS = (*(("Q4_K", *shape) for shape in SHAPES), ("Q6_K", 3584, 18944), ("Q6_K", 512, 3584))


REFINED = {
    step.sizes: [step.before.config, step.after.config]
    for step in refinements()
    if step.nt != NT and step.experiment is None
}
"""Of the ladder's later steps those at few tokens: (nt, od, depth) -> both configs."""


def tflops(ms: float, nt: int, od: int, depth: int) -> float:
    return round(2 * nt * od * depth / ms / 1e9, 1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_ladder(shape, measure):
    """The chosen tile comes last in the record."""
    chosen = choose(NT, *shape, runtime.device().sms)
    time_configs(
        (GemmHopperConfig(), GemmHopperConfig(192), replace(chosen, pdl=False), chosen), NT, *shape, measure
    )


@pytest.mark.parametrize("sizes", REFINED, ids=str)
def test_few_tokens(sizes, measure):
    time_configs(REFINED[sizes], *sizes, measure)


def time_configs(configs: Sequence[GemmHopperConfig], nt: int, od: int, depth: int, measure) -> None:
    """By turns; afterwards every config's result is checked."""
    torch = pytest.importorskip("torch")
    a = torch.randn(nt, depth, device="cuda").half()
    weights = [torch.randn(od, depth, device="cuda").half() for _ in range(copies(2 * od * depth))]
    wanted, launches = a.float() @ weights[-1].float().T, {}
    c = torch.empty(nt, od, device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    for config in configs:
        kernel = make_gemm_hopper(config)
        loaded, bound = runtime.load(kernel), []
        for b in weights:
            grid, args = arguments(kernel, a, b, c)
            bound.append(loaded.prepare(grid, *args, pdl=config.pdl))
        launches[str(config)] = bound
    times = by_turns(launches)
    for name, bound in launches.items():
        c.fill_(float("nan"))
        torch.cuda.synchronize()
        bound[-1]()
        runtime.device().synchronize()
        assert float((c.float() - wanted).norm() / wanted.norm()) < 1e-3, name
    measure(figure_name(nt, od, depth), {name: tflops(ms, nt, od, depth) for name, ms in times.items()})


@pytest.mark.parametrize("shape", BLOCKS, ids=str)
def test_straight_from_blocks(shape, measure):
    torch = pytest.importorskip("torch")
    format, od, depth = shape
    sms = runtime.device().sms
    config = choose_w4a16(format, NT, od, depth, sms, width=od)
    packed, values = random_matrix(format, 256, depth)
    packed = np.tile(packed, (-(-od // 256), 1))[:od]
    a = torch.randn(NT, depth, device="cuda").half()
    c = torch.full((NT, od), float("nan"), device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    parts = device_parts(GpuDevice(), split_workspace) if config.split_k > 1 else ()
    loaded, launches = runtime.load(w4a16(config)), []
    for _ in range(copies(packed.nbytes)):
        arrays = {"a": a, "w": runtime.to_device(packed), "c": c}
        seen = [
            runtime.tensor_map(x, *config.boxes[n]) if n in config.boxes else x for n, x in arrays.items()
        ]
        sizes = NT, od, depth, 0, od, config.group(NT)
        launches.append(loaded.prepare(config.grid(NT, od, sms), *seen, *sizes, *parts, pdl=config.pdl))
    speed = tflops(milliseconds(launches), NT, od, depth)
    rows = torch.linspace(0, NT - 1, 64, device="cuda").long()
    wanted = a[rows].double() @ torch.from_numpy(values).cuda().double().T
    wanted = wanted.repeat(1, -(-od // 256))[:, :od]
    error = float((c[rows].double() - wanted).norm() / wanted.norm())
    assert bool(torch.isfinite(c).all())
    assert error < 5e-4, error
    measure(f"W4A16 {format} TFLOPS at {NT}x{od}x{depth}", {str(config): speed, "error": error})
