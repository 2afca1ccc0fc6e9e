"""GEMM kernels compiled without a GPU: everything in registers, the instructions that the tile asks for."""

import pytest

from minfer.cuda.gemm import GemmConfig, make_gemm
from minfer.cuda.runtime import ARCHITECTURES, compile_kernel


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_proof_kernel_on_every_architecture(arch):
    compiled = compile_kernel(make_gemm(GemmConfig()), arch)
    assert ".local" not in compiled.ptx
    assert compiled.resources.spill_bytes == compiled.resources.stack_bytes == 0
    counts = compiled.resources.instructions
    assert counts["mma"] and counts["ldmatrix"] and counts["cp.async"]


@pytest.mark.parametrize(
    "config",
    [
        GemmConfig(tile_m=128),
        GemmConfig(tile_m=128, a_source="f32_mirror"),
        GemmConfig(tile_m=128, tile_k=64, b_source="Q4_K"),
        GemmConfig(tile_m=128, b_source="Q6_K"),
        GemmConfig(128, 256, 64, 3, layout="swizzled", out="f16"),
    ],
    ids=str,
)
def test_fragments_stay_in_registers(config):
    compiled = compile_kernel(make_gemm(config), "sm_90a")
    assert ".local" not in compiled.ptx
    assert compiled.resources.spill_bytes == compiled.resources.stack_bytes == 0


def test_a_large_tile_is_written_out_once():
    """128x256x64: four k16 steps of 4 x 4 fragments, two mma each; one ldmatrix.x4 a fragment."""
    counts = compile_kernel(
        make_gemm(GemmConfig(128, 256, 64, 3, layout="swizzled", out="f16")), "sm_90a"
    ).resources.instructions
    assert counts["mma"] == 4 * 4 * 4 * 2
    assert counts["ldmatrix"] == 4 * (4 + 4)
