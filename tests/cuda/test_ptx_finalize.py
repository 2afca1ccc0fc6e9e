"""The rewriting of finished PTX: tensor maps by value, clusters, blocks a multiprocessor, version."""

import re

import pytest

from minfer.cuda import ptx
from minfer.cuda.instruction import finalize_ptx
from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.runtime import compile_kernel


def tma_kernel(cluster=1):
    from numba import cuda
    from numba.cuda import types

    def load(source, target, count):
        shared = ptx.shared_address(cuda.shared.array(0, dtype=types.uint8))
        ptx.mbarrier_init(shared + 1024, 1)
        ptx.tma_load_2d(shared, ptx.tensor_map_address(source), shared + 1024, count, 0)
        ptx.mbarrier_wait(shared + 1024, 0)
        ptx.tma_store_2d(ptx.tensor_map_address(target), shared, 0, 0)

    return Kernel(
        name="load",
        config=None,
        function=load,
        signature=lambda: types.void(types.CPointer(types.uint8), types.CPointer(types.uint8), types.int32),
        threads=128,
        shared_bytes=2048,
        arguments=(
            Argument("source", "tensor_map"),
            Argument("target", "tensor_map"),
            Argument("count", "scalar", "int32"),
        ),
        min_arch=90,
        min_blocks=1,
        cluster=cluster,
    )


def test_tensor_maps_are_passed_by_value():
    compiled = compile_kernel(tma_kernel(), "sm_90a")
    declared = re.findall(r"\.param (\.align 64 \.b8 \w+\[128\]|\.u\w+ \w+)", compiled.ptx)
    assert [d.split()[0] for d in declared] == [".align", ".align", ".u32"]
    # The maps are read from the parameter bank: no pointer is loaded.
    assert compiled.ptx.count("cvta.param.u64") == 2
    assert "UTMALDG.2D" in compiled.sass and "UTMASTG.2D" in compiled.sass


def test_cluster_and_blocks_directives():
    compiled = compile_kernel(tma_kernel(cluster=2), "sm_90a")
    assert ".reqnctapercluster 2, 1, 1" in compiled.ptx
    assert ".explicitcluster" in compiled.ptx
    assert ".minnctapersm" in compiled.ptx


def plain(arguments=(), **kwargs):
    return Kernel(
        name="k",
        config=None,
        function=lambda: None,
        signature=lambda: None,
        threads=32,
        shared_bytes=0,
        arguments=arguments,
        **kwargs,
    )


PTX = """.version {}
.target sm_90a
.visible .entry k(
	.param .u64 k_param_0
)
.maxntid 32, 1, 1
{{
ret;
}}
"""


@pytest.mark.parametrize(
    ("written", "kept"), [("9.5", "8.8"), ("8.10", "8.8"), ("8.8", "8.8"), ("7.8", "7.8")]
)
def test_version_is_lowered_never_raised(written, kept):
    assert finalize_ptx(PTX.format(written), plain()).startswith(f".version {kept}\n")


def test_minimum_blocks_is_added_where_missing():
    assert ".minnctapersm 2" in finalize_ptx(PTX.format("8.8"), plain(min_blocks=2))


def test_unexpected_ptx_is_refused():
    with pytest.raises(ValueError, match="expected one kernel"):
        finalize_ptx(PTX.format("8.8") * 2, plain())
    with pytest.raises(ValueError, match="not declared as a pointer"):
        finalize_ptx(PTX.format("8.8").replace("u64", "u32"), plain((Argument("map", "tensor_map"),)))
    with pytest.raises(ValueError, match="no \\.maxntid"):
        finalize_ptx(PTX.format("8.8").replace(".maxntid", ".x"), plain(min_blocks=1))
