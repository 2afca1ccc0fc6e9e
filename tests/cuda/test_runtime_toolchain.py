"""Finding the tools, and reading what they print."""

from __future__ import annotations

import pytest

from minfer.cuda.kernel import ToolchainError
from minfer.cuda.runtime import toolchain
from minfer.cuda.runtime.resources import count_instructions, parse_ptxas

VERSION = """ptxas: NVIDIA (R) Ptx optimizing assembler
Cuda compilation tools, release {0}, V{0}.37
Build cuda_{0}.r{0}/compiler.39125733_0
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine on which only what the test installs can be found: install(folder, release)."""
    monkeypatch.setattr(toolchain.sys, "path", [str(tmp_path / "site")])
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin:/usr/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    original = toolchain._candidates

    def candidates(name):
        return (path for path in original(name) if tmp_path in path.parents)

    monkeypatch.setattr(toolchain, "_candidates", candidates)

    def install(folder: str, release: str):
        path = tmp_path / folder / "ptxas"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{VERSION.format(release)}END\n")
        path.chmod(0o755)
        return path

    toolchain.find_tool.cache_clear()
    yield install
    toolchain.find_tool.cache_clear()


def test_the_wheel_comes_first_then_cuda_home_then_the_path(machine):
    on_path = machine("path", "13.1")
    assert toolchain.ptxas().path == on_path
    toolchain.find_tool.cache_clear()
    at_home = machine("home/bin", "13.0")
    assert toolchain.ptxas().path == at_home
    toolchain.find_tool.cache_clear()
    wheel = machine("site/nvidia/cu13/bin", "13.5")
    found = toolchain.ptxas()
    assert (found.path, found.release, found.version) == (wheel, (13, 5), "13.5.37")


def test_one_that_is_too_old_is_passed_over(machine):
    machine("home/bin", "12.4")
    newer = machine("path", "13.0")
    assert toolchain.ptxas().path == newer


def test_only_an_old_one(machine):
    path = machine("home/bin", "12.4")
    with pytest.raises(ToolchainError) as error:
        toolchain.ptxas()
    assert str(error.value) == (
        f"no ptxas of CUDA 13.0 or newer was found ({path} is release 12.4.37): "
        "pip install 'nvidia-cuda-nvcc>=13.0' or set CUDA_HOME to a CUDA 13 toolkit"
    )


def test_none(machine):
    with pytest.raises(ToolchainError, match="pip install 'nvidia-cuda-nvdisasm>=13"):
        toolchain.nvdisasm()


def test_a_file_that_is_no_tool(machine, tmp_path):
    path = tmp_path / "path" / "ptxas"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho hello\n")
    path.chmod(0o755)
    with pytest.raises(ToolchainError):
        toolchain.ptxas()


def test_the_tools_of_this_environment():
    assert toolchain.ptxas().release >= (13, 0)
    assert set(toolchain.compiler_versions()) >= {"numba-cuda", "numba", "llvmlite", "ptxas"}


LOG = r"""ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due
to \ insufficient register resources for the wgmma pipeline in function 'gemm' ptxas info    : 8 bytes gmem
ptxas info    : Compiling entry function 'gemm' for 'sm_90a' ptxas info    : Function properties for gemm
    144 bytes stack frame, 36 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers, 144 bytes cumulative stack size, 1024 bytes smem, 400
bytes cmem[0] ptxas info    : Compile time = 5.260 ms
"""


def test_resources_from_the_log():
    found = parse_ptxas(LOG, "gemm")
    assert (found.registers, found.barriers, found.static_shared_bytes) == (168, 3, 1024)
    assert (found.spill_store_bytes, found.spill_load_bytes, found.spill_bytes) == (36, 40, 76)
    assert found.stack_bytes == 144
    assert len(found.warnings) == 1 and "C7510" in found.performance_warnings[0]


def test_a_plain_log():
    log = LOG.split("\n", 1)[1].replace(", 1024 bytes smem", "").replace("used 3 barriers, ", "")
    found = parse_ptxas(log, "gemm")
    assert (found.static_shared_bytes, found.barriers, found.warnings) == (0, 0, ())


def test_a_log_of_another_kernel():
    with pytest.raises(ToolchainError, match="nothing known about attention"):
        parse_ptxas(LOG, "attention")


SASS = """
.text.gemm:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDGSTS.E.BYPASS.128 [R4], desc[UR6][R2.64] ;
        /*0020*/                   LDSM.16.M88.4 R8, [R4] ;
        /*0030*/              @UP1 HGMMA.64x64x16.F32 R24, gdesc[UR4].tnspA, RZ, !UPT ;
        /*0040*/                   HMMA.16816.F32 R8, R4, R6, RZ ;
        /*0050*/                   IMMA.16832.S8.S8 R8, R4, R6, RZ ;
        /*0060*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0070*/               @P2 BRA `(.L_x_0) ;
        /*0080*/                   NOP;
"""


def test_instructions_by_class():
    counts = count_instructions(SASS)
    assert counts == {"mma": 2, "cp.async": 1, "ldmatrix": 1, "wgmma": 1, "bar.sync": 1, "total": 8}
