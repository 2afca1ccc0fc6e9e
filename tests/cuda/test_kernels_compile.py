"""The convert, elementwise, attention and GEMV kernels compiled without a GPU: no spills, no local memory,
and the instructions that the design asks for."""

import pytest

from minfer.cuda import attention, convert, elementwise, gemv, quantize
from minfer.cuda.attention import AttentionConfig, seed_steps
from minfer.cuda.gemv import GemvConfig
from minfer.cuda.runtime import ARCHITECTURES, compile_kernel


def clean(kernel, arch):
    """Compile; fails on spills, stack or local memory. Returns the instruction counts."""
    compiled = compile_kernel(kernel, arch)
    resources = compiled.resources
    assert resources.spill_store_bytes == resources.spill_load_bytes == resources.stack_bytes == 0, str(
        kernel
    )
    assert ".local" not in compiled.ptx, str(kernel)
    assert not resources.warnings, str(kernel)
    return resources.instructions


# What is closest to the limits: registers in attention, the most unrolled code in the GEMV.
HEAVY = [
    attention.attention_prefill(seed_steps(28, 4)["FAP2, TKV=64, two stages"]),
    gemv.gemv(GemvConfig.for_shape("Q4_K", 3584, 37888)),
]
SHIPPED = [
    kernel for module in (attention, convert, elementwise, gemv, quantize) for kernel in module.shipped()
]


@pytest.mark.parametrize("kernel", HEAVY, ids=str)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_on_every_architecture(kernel, arch):
    clean(kernel, arch)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(SHIPPED)), ids=lambda i: str(SHIPPED[i]))
def test_everything_shipped(index):
    """Each config for one architecture, in turn; `minfer kernels` compiles all for all."""
    kernel = SHIPPED[index]
    possible = [arch for arch in ARCHITECTURES if kernel.not_applicable(arch) is None]
    clean(kernel, possible[index % len(possible)])


def test_tensor_core_variants_use_tensor_cores():
    scalar = clean(attention.attention_prefill(AttentionConfig(2, 1, 64, 16, "serial", "scalar")), "sm_90a")
    shared = clean(attention.attention_prefill(AttentionConfig(2, 1, 64, 16, "serial", "shared")), "sm_90a")
    # Q K^T: 4 k16 steps of a 16-column fragment, two mma each. P.V on tensor cores: one k16 step of two more.
    assert (scalar["mma"], shared["mma"]) == (8, 12)
    assert scalar["cp.async"] == shared["cp.async"] > 0


def test_gemv_streams_by_cp_async_and_multiplies_by_dp4a():
    counts = clean(gemv.gemv(GemvConfig.for_shape("Q4_K", 3584, 37888)), "sm_80")
    assert counts["cp.async"] and counts["dp4a"]
