"""Products of resident tiles on a GPU, as `minfer ceilings` measures them."""

import pytest

from minfer.campaign.tensor_ceilings import K_TILES, measure_tensor_cores
from minfer.cuda import runtime
from minfer.cuda.resident import shipped
from minfer.engine.cuda.devices import GpuDevice
from tests.cuda.resident_cases import resident_case


@pytest.mark.parametrize("kernel", shipped(), ids=str)
@pytest.mark.parametrize("k_tiles", [1, 7, K_TILES])
def test_every_block_has_the_sums(kernel, k_tiles):
    if why := kernel.not_applicable(runtime.device().arch):
        pytest.skip(why)
    resident_case(kernel.config, k_tiles, tiles=3, blocks=3).run_on_gpu()


def test_speeds(measure):
    """What `minfer ceilings` keeps of them: `minfer bench --against torch` is compared with it."""
    for rate in measure_tensor_cores(GpuDevice()):
        measure(f"{rate.instruction} {rate.dtype} {rate.tile} alone, {rate.regime}: TOPS", round(rate.tops))
