"""Compiling without a GPU: what comes out, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.kernel import Argument, CompileError, ConfigRefused, Kernel
from minfer.cuda.runtime import ARCHITECTURES, compile_kernel
from minfer.cuda.runtime.compiler import parse_arch
from minfer.cuda.runtime.resources import Resources

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MINFER_CACHE", str(tmp_path))


@dataclass(frozen=True)
class Config:
    factor: int = 3

    def __str__(self) -> str:
        return f"factor={self.factor}"


def scale(factor=3, **changes):
    def kernel(a, out, n):
        i = cuda.blockIdx.x * 64 + cuda.threadIdx.x
        if i < n:
            out[i] = a[i] * types.float32(factor)

    fields = {
        "name": "scale",
        "config": Config(factor),
        "function": kernel,
        "signature": lambda: types.void(
            types.CPointer(types.float32), types.CPointer(types.float32), types.int32
        ),
        "threads": 64,
        "shared_bytes": 0,
        "arguments": (
            Argument("a", "in", "float32"),
            Argument("out", "out", "float32"),
            Argument("n", "scalar", "int32"),
        ),
    }
    return Kernel(**(fields | changes))


def wide(**changes):
    """Keeps dozens of values alive in every thread."""

    def kernel(a, out, n):
        i = cuda.threadIdx.x
        values = cuda.local.array(96, types.float32)
        for j in range(96):
            values[j] = a[i * 96 + j]
        cuda.syncthreads()
        for j in range(96):
            out[i * 96 + j] = values[95 - j] * values[j]

    return scale(name="wide", function=kernel, **changes)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture(arch):
    compiled = compile_kernel(scale(), arch)
    assert f".target {arch}" in compiled.ptx
    assert compiled.entry == "scale__factor_3" and f".entry {compiled.entry}(" in compiled.ptx
    assert ".maxntid 64" in compiled.ptx
    assert compiled.resources.registers > 0 and compiled.resources.spill_bytes == 0
    assert not compiled.resources.warnings
    counts = compiled.resources.instructions
    assert counts["ld.global"] == counts["st.global"] == 1 < counts["total"]
    assert compiled.cubin[:4] == b"\x7fELF"


def test_the_second_time_comes_from_the_cache():
    first, second = compile_kernel(scale(), "sm_89"), compile_kernel(scale(), "sm_89")
    assert (first.from_cache, second.from_cache) == (False, True)
    assert (first.ptx, first.cubin, first.entry) == (second.ptx, second.cubin, second.entry)
    assert first.resources == second.resources
    assert not compile_kernel(scale(4), "sm_89").from_cache


def test_another_process_finds_it():
    program = (
        "from minfer.cuda.convert import *\nfrom minfer.cuda.runtime import compile_kernel\n"
        "print(compile_kernel(convert_f32_f16(ConvertConfig()), 'sm_80').from_cache)"
    )
    command = [sys.executable, "-c", program]
    said = [
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() for _ in range(2)
    ]
    assert said == ["False", "True"]


def test_a_damaged_cache_is_built_again(tmp_path):
    compile_kernel(scale(), "sm_80")
    (path,) = tmp_path.glob("scale-*.zip")
    path.write_bytes(path.read_bytes()[:100])
    compiled = compile_kernel(scale(), "sm_80")
    assert not compiled.from_cache and compile_kernel(scale(), "sm_80").from_cache


def test_spills_are_refused_unless_allowed():
    with pytest.raises(
        CompileError, match=r"wide \[factor=3\] for sm_80: spills \d+ bytes of stores"
    ) as error:
        compile_kernel(wide(max_registers=32), "sm_80")
    assert "allowed 0: use smaller tiles" in str(error.value)
    spilled = compile_kernel(wide(max_registers=32), "sm_80", strict=False).resources
    assert spilled.spill_bytes > 0 and spilled.registers <= 32
    allowed = compile_kernel(wide(max_registers=32, allowed_spill_bytes=spilled.spill_bytes), "sm_80")
    assert allowed.resources.spill_bytes == spilled.spill_bytes
    assert compile_kernel(wide(), "sm_80").resources.registers > 32


def test_serialised_tensor_cores_are_refused(monkeypatch):
    from minfer.cuda.runtime import compiler

    warned = Resources(8, 0, 0, 0, 0, warnings=("info : (C7510) Potential Performance Loss: wgmma",))
    monkeypatch.setattr(compiler, "parse_ptxas", lambda log, entry: warned)
    with pytest.raises(CompileError, match="C7510"):
        compile_kernel(scale(), "sm_90a")
    assert compile_kernel(scale(), "sm_90a", strict=False).resources.warnings == warned.warnings


def test_min_blocks_and_line_information():
    compiled = compile_kernel(scale(min_blocks=2), "sm_80", lineinfo=True)
    assert ".minnctapersm 2" in compiled.ptx
    assert ".loc" in compiled.ptx and ".loc" not in compile_kernel(scale(min_blocks=2), "sm_80").ptx
    with pytest.raises(ConfigRefused, match="give one"):
        compile_kernel(scale(min_blocks=2, max_registers=32), "sm_80")


@pytest.mark.parametrize(
    ("limits", "arch", "message"),
    [
        ({"min_arch": 90}, "sm_89", "it needs sm_90 or newer"),
        ({"min_arch": 90, "arch_specific": True}, "sm_100a", "only sm_90a has"),
        ({"min_arch": 90, "arch_specific": True}, "sm_90", "only sm_90a has"),
    ],
)
def test_an_architecture_that_lacks_the_instructions(limits, arch, message):
    with pytest.raises(ConfigRefused, match=message):
        compile_kernel(scale(**limits), arch)


@pytest.mark.parametrize("arch", ["sm_75", "sm_9", "90a", "sm_90b", ""])
def test_no_architecture(arch):
    with pytest.raises(ValueError, match="is no architecture of compute capability"):
        compile_kernel(scale(), arch)


def test_capabilities():
    assert parse_arch("sm_89") == (8, 9)
    assert parse_arch("sm_121a") == (12, 1, "a")


def test_what_numba_refuses_is_told_with_the_kernel_and_its_line():
    def attribute(a, out, n):
        i = 0
        out[i] = a.nothing

    def of_numba_s_own(a, out, n):  # the message names a line of numba's
        i = 0
        out[i] = sorted([a[0], a[1]])[0]

    def unknown(a, out, n):  # the message names no line
        i = 0
        out[i] = nowhere[i]  # noqa: F821

    for kernel in (attribute, of_numba_s_own, unknown):
        line = kernel.__code__.co_firstlineno + 2
        told = rf"scale \[factor=3\] for sm_80: {Path(__file__).name}:{line} in {kernel.__name__}: numba"
        with pytest.raises(CompileError, match=told) as error:
            compile_kernel(scale(function=kernel), "sm_80")
        assert error.value.log


def test_what_numba_cannot_read_is_refused_too():
    def kernel(a, out, n):
        with open("x") as file:
            out[0] = file

    with pytest.raises(CompileError, match="in kernel: numba or NVVM: The 'with"):
        compile_kernel(scale(function=kernel), "sm_80")


def test_what_ptxas_refuses_is_told_with_its_line():
    def kernel(a, out, n):
        ptx.cluster_sync()

    with pytest.raises(CompileError, match=r"ptxas 1\d\.\S+: .*barrier.cluster"):
        compile_kernel(scale(function=kernel), "sm_80")


def test_numba_s_current_device_is_put_back():
    from numba.cuda import dispatcher

    original = dispatcher.get_current_device
    compile_kernel(scale(), "sm_80")
    with pytest.raises(CompileError):
        compile_kernel(scale(function=lambda a, out, n: a.nothing), "sm_80")
    assert dispatcher.get_current_device is original


def test_threads_compile_at_once():
    results, errors = {}, []

    def work(factor):
        try:
            results[factor] = compile_kernel(scale(factor), "sm_80").entry
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(factor,)) for factor in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert results == {factor: f"scale__factor_{factor}" for factor in range(4)}


def test_numba_s_simulator_cannot_compile():
    program = (
        "from minfer.cuda.convert import *\nfrom minfer.cuda.runtime import compile_kernel\n"
        "compile_kernel(convert_f32_f16(ConvertConfig()), 'sm_80')"
    )
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-c", program]
    reply = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "ToolchainError: NUMBA_ENABLE_CUDASIM is set" in reply.stderr.splitlines()[-1]
