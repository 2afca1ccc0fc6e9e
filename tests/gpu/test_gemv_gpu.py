"""The decode GEMV on a GPU: every format and the models' shapes."""

from dataclasses import replace

import pytest

from minfer.cuda import runtime
from minfer.cuda.block_dots import DOTS
from minfer.cuda.gemv import MMA_7B, PLANES_7B, GemvConfig
from tests.cuda.gemv_cases import gemv_case

SHAPES = (("Q4_K", 3584, 4608), ("Q4_K", 3584, 3584), ("Q4_K", 3584, 37888), ("Q4_K", 18944, 3584))
SHAPES += (("Q6_K", 3584, 512), ("Q6_K", 18944, 3584), ("Q6_K", 3584, 20001))
SHAPES += (
    ("Q5_0", 896, 4864),
    ("Q8_0", 896, 15193),
    ("Q4_1", 576, 1536),
    ("Q8_0", 576, 4915),
    ("Q4_1", 1536, 576),
)


def run(config: GemvConfig, od: int, grid: int | None = None) -> None:
    """Where it can run: sm_90's kernel needs a device of that kind."""
    case = gemv_case(config, od, grid=grid)
    if not case.kernel.not_applicable(runtime.device().arch):
        case.run_on_gpu()


def config_for(format: str, dim: int, od: int, **options) -> GemvConfig:
    device = runtime.device()
    return GemvConfig.for_shape(format, dim, od, sms=device.sms, shared=device.shared_optin_bytes, **options)


@pytest.mark.parametrize(("format", "dim", "od"), SHAPES)
def test_shapes_of_models(format, dim, od):
    for pdl in (False, True):
        run(config_for(format, dim, od, pdl=pdl), od)
        if od * dim < 20e6:  # the reference of the largest takes seconds
            run(config_for(format, dim, od, addend=True, pdl=pdl), od)


RAGGED = [(od, False) for od in (1, 2, 7, 8, 9, 31, 33, 129, 2048)] + [(od, True) for od in (1, 9, 129)]


@pytest.mark.parametrize("format", DOTS)
@pytest.mark.parametrize(("od", "pdl"), RAGGED)
def test_ragged_rows(format, od, pdl):
    for units in (1, 3, 20):
        dim = units * max(DOTS[format].weights, 32)
        run(config_for(format, dim, od, pdl=pdl), od)


@pytest.mark.parametrize("config", PLANES_7B, ids=str)
@pytest.mark.parametrize("od", [1, 7, 129, 3584])
def test_repacked(config, od):
    gemv_case(config, od).run_on_gpu()


@pytest.mark.parametrize("config", MMA_7B, ids=str)
@pytest.mark.parametrize("od", [1, 7, 16, 129, 4608])
def test_tensor_cores(config, od):
    # Without pdl it must fit the shared memory of smaller GPUs, too.
    for made in (config, replace(config, addend=True), replace(config, pdl=False, warps=2)):
        run(made, od)


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K", "Q8_0", "F16"])
def test_grids_and_rings(format):
    dim = 5 * max(DOTS[format].weights, 64)
    for rows, slices in ((1, 1), (2, 1), (1, 2)):
        for slots in (1, 2, 4):
            config = GemvConfig(format, dim, rows=rows, slices=slices, warps=3, slots=slots)
            overlapping = replace(config, pdl=True)
            for grid in (1, 5, 300):
                run(config, 129, grid)
                run(overlapping, 129, grid)
