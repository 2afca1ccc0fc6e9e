"""Configs of resident tiles: what they count, and what they refuse."""

import pytest

from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.resident import ResidentConfig, resident, shipped
from minfer.cuda.runtime import compile_kernel


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"instruction": "dp4a"}, "instruction='dp4a'; the variants are wgmma, mma.sync"),
        ({"dtype": "bf16"}, "dtype='bf16'"),
        ({"tile_n": 64}, "tile_n=64; the variants are 128, 256"),
        ({"tile_m": 200}, "128 x 200 by wgmma: tile_m must be a multiple of 16"),
        ({"tile_n": 256, "stages": 2}, "256 sums a thread, registers hold 224"),
        ({"stages": 1}, "stages: 1: must be a whole number, at least 2"),
        ({"stages": 5}, "5 stages take 246784 bytes of shared memory of 232448"),
        ({"instruction": "mma.sync", "tile_m": 128}, "8 warps of 64 x 64"),
    ],
)
def test_refusals(fields, message):
    with pytest.raises(ConfigRefused, match=message):
        ResidentConfig(**fields)


def test_operations_are_of_all_blocks():
    config = ResidentConfig()
    assert config.operations(132, 10, 56) == 2 * 132 * 10 * 128 * 256 * 3584
    assert ResidentConfig(dtype="s8").operations(1, 1, 1) == 2 * config.operations(1, 1, 1)
    assert config.grid(132) == (132, 1, 1) and config.shapes(3)["c"] == (3, 128, 256)


def test_the_tensor_cores_do_what_the_name_says():
    compiled = compile_kernel(resident(), "sm_90a")
    assert compiled.resources.instructions["wgmma"] % 4 == 0
    assert "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16" in compiled.ptx


def test_mma_sync_runs_on_every_architecture():
    (warps,) = (kernel for kernel in shipped() if kernel.config.instruction == "mma.sync")
    assert warps.shared_bytes <= 99 * 1024 and warps.not_applicable("sm_80") is None
