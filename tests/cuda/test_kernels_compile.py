"""Shipped kernels compiled without a GPU: no spills, no local memory, no warnings, and the instructions that
the design asks for.

Each family is compiled by its representatives: few configs that hold, together with those that other tests
compile, every value of every field of all its shipped configs (each format, tile, epilogue, source, ...),
each for one architecture, in turn. What is closest to the limits is compiled for all of them.
(`minfer kernels` compiles all for all.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from minfer.cuda.attention import AttentionConfig, attention_prefill, seed_steps
from minfer.cuda.gemm import GemmConfig, make_gemm
from minfer.cuda.gemm_hopper import make_gemm_hopper
from minfer.cuda.gemv import MMA_7B, GemvConfig, gemv
from minfer.cuda.kernel import Kernel
from minfer.cuda.mmq import mmq, narrow
from minfer.cuda.registry import shipped_kernels
from minfer.cuda.runtime import ARCHITECTURES
from minfer.cuda.w4a16 import w4a16
from tests.cuda import test_gemm_hopper, test_mmq_compile, test_w4a16
from tests.cuda.compiled import clean


def traits(config: Any, prefix: str = "") -> set[tuple[str, Any]]:
    """(field, value) of a config and of the configs within it."""
    found = {(prefix, None)}
    for field in dataclasses.fields(config) if dataclasses.is_dataclass(config) else ():
        value, name = getattr(config, field.name), f"{prefix}.{field.name}"
        found |= traits(value, name) if dataclasses.is_dataclass(value) else {(name, value)}
    return found


def all_traits(kernels: Iterable[Kernel]) -> set[tuple[str, Any]]:
    return set().union(*(traits(kernel.config) for kernel in kernels))


def representatives(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Few of the kernels that have all their traits, with those that are compiled anyway: again and again the
    one that adds the most."""
    chosen, missing = [], all_traits(kernels) - all_traits(anyway(kernels))
    while missing:
        chosen.append(max(kernels, key=lambda kernel: len(traits(kernel.config) & missing)))
        missing -= traits(chosen[-1].config)
    return chosen


# Registers in attention, the most unrolled code in the GEMV; the proof kernel, and a tile near 64 registers;
# a tile of int8 products.
HEAVY = [
    attention_prefill(seed_steps(28, 4)["FAP2, TKV=64, two stages"]),
    gemv(GemvConfig.for_shape("Q4_K", 3584, 37888)),
    make_gemm(GemmConfig()),
    make_gemm(GemmConfig(64, 64, 64, 4, layout="swizzled", b_source="Q8_0")),
    mmq(narrow()),
]
LARGE = make_gemm(GemmConfig(128, 256, 64, 3, layout="swizzled", out="f16"))
ANYWAY = [
    *HEAVY,
    LARGE,
    *map(make_gemm_hopper, test_gemm_hopper.ASSEMBLED),
    *map(w4a16, test_w4a16.ASSEMBLED),
    *map(mmq, test_mmq_compile.COMPILED),
]
"""What other tests compile, with the same demands."""


def anyway(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Those of the kernels that other tests compile."""
    configs = [(kernel.name, kernel.config) for kernel in ANYWAY]
    return [kernel for kernel in kernels if (kernel.name, kernel.config) in configs]


def architecture(kernel: Kernel, place: int) -> str:
    """The architecture that the representative at this place of its family is compiled for: all in turn."""
    possible = [arch for arch in ARCHITECTURES if kernel.not_applicable(arch) is None]
    return possible[place % len(possible)]


CHOSEN = [
    (kernel, architecture(kernel, place))
    for family in shipped_kernels().values()
    for place, kernel in enumerate(representatives(family))
]


@pytest.mark.parametrize("kernel", HEAVY, ids=str)
def test_on_every_architecture(kernel):
    for arch in ARCHITECTURES:
        clean(kernel, arch)


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "arch"), CHOSEN, ids=str)
def test_every_family(kernel, arch):
    clean(kernel, arch)


def test_the_representatives_have_every_trait():
    for family in shipped_kernels().values():
        chosen = [kernel for kernel, _ in CHOSEN if kernel in family]
        assert all_traits(family) == all_traits([*chosen, *anyway(family)])


def test_tensor_core_variants_use_tensor_cores():
    scalar = clean(
        attention_prefill(AttentionConfig(2, 1, 64, 16, "serial", "scalar")), "sm_90a"
    ).instructions
    shared = clean(
        attention_prefill(AttentionConfig(2, 1, 64, 16, "serial", "shared")), "sm_90a"
    ).instructions
    # Q K^T: 4 k16 steps of a 16-column fragment, two mma each. P.V on tensor cores: one k16 step of two more.
    assert (scalar["mma"], shared["mma"]) == (8, 12)
    assert scalar["cp.async"] == shared["cp.async"] > 0


def test_gemv_streams_asynchronously_and_multiplies_by_dp4a():
    counts = clean(gemv(GemvConfig.for_shape("Q4_K", 3584, 37888)), "sm_80").instructions
    assert counts["cp.async"] and counts["dp4a"]
    counts = clean(gemv(GemvConfig.for_shape("Q4_K", 3584, 37888, pdl=True)), "sm_90a").instructions
    assert counts["cp.async.bulk"] and counts["mbarrier"]
    counts = clean(gemv(MMA_7B[0]), "sm_90a").instructions
    assert counts["mma"] == 32 and not counts.get("dp4a")  # 4 of 64 weights of a lane's two rows


def test_the_proof_kernel_multiplies_on_tensor_cores():
    counts = clean(make_gemm(GemmConfig()), "sm_90a").instructions
    assert counts["mma"] and counts["ldmatrix"] and counts["cp.async"]


def test_a_large_tile_is_written_out_once():
    """128x256x64: four k16 steps of 4 x 4 fragments, two mma each; one ldmatrix.x4 a fragment."""
    counts = clean(LARGE, "sm_90a").instructions
    assert counts["mma"] == 4 * 4 * 4 * 2
    assert counts["ldmatrix"] == 4 * (4 + 4)
