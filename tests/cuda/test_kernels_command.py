"""`minfer kernels` and the registry behind it."""

from __future__ import annotations

import json
import types

import pytest
import typer
from typer.testing import CliRunner

from minfer.cli.kernels import kernels
from minfer.cuda import registry, report
from minfer.cuda.runtime import ARCHITECTURES
from tests.cuda.test_runtime_compiler import scale, wide

FIELDS = {
    "kernel",
    "config",
    "arch",
    "registers",
    "static_smem",
    "dynamic_smem",
    "spill_bytes",
    "stack_bytes",
    "warnings",
    "instructions",
    "device",
    "blocks_per_sm",
    "limiter",
}


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MINFER_CACHE", str(tmp_path))


@pytest.fixture
def shipped(monkeypatch):
    """shipped(kernels...): what the registry holds."""

    def ship(*these):
        monkeypatch.setattr(
            registry, "all_kernels", lambda name="", making=None: [k for k in these if name in k.name]
        )

    ship(scale(), scale(4))
    return ship


def run(*arguments: str):
    app = typer.Typer()
    app.command()(kernels)
    return CliRunner().invoke(app, list(arguments))


def test_json_has_exactly_the_fields(shipped):
    result = run("--json")
    rows = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [row["config"] for row in rows] == ["factor=3", "factor=4"]
    for row in rows:
        assert set(row) == FIELDS
        assert row["kernel"] == "scale" and row["arch"] == "sm_90a" and row["registers"] > 0
        assert row["device"] == "NVIDIA H200 SXM 141GB" and row["blocks_per_sm"] == 32
        assert row["limiter"] in ("warps", "blocks") and row["warnings"] == []
        assert row["instructions"]["ld.global"] == 1


def test_many_kernels_are_told_beforehand(shipped, monkeypatch):
    from minfer.cuda import precompile

    monkeypatch.setattr(precompile, "precompile", lambda *_: None)
    shipped(*(scale(factor) for factor in range(3, 19)))
    assert "16 of 16 kernels are to be compiled" in run("--arch", "sm_80").stderr
    assert "0 of 16 kernels are to be compiled" in run("--arch", "sm_80").stderr


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_has_its_device(arch):
    assert report.device_for(arch).arch == arch


def test_a_device_chooses_its_architecture(shipped):
    rows = json.loads(run("--json", "--device", "gb10").stdout)
    assert {(row["arch"], row["device"]) for row in rows} == {("sm_121a", "NVIDIA GB10")}


def test_a_kernel_that_the_architecture_cannot_run_is_listed(shipped):
    shipped(scale(), scale(5, min_arch=90, arch_specific=True))
    result = run("--json", "--arch", "sm_80", "--arch", "sm_100a")
    rows = json.loads(result.stdout)
    assert result.exit_code == 0 and len(rows) == 4
    for row in rows[1::2]:
        assert row["limiter"] == "not applicable" and row["registers"] is None
        assert row["warnings"] == [
            "not applicable: it uses what only sm_90a has (wgmma, setmaxnreg, its shared memory and "
            "registers)"
        ]
    assert "not applicable" in run("--arch", "sm_80").stdout


def test_spills_fail_the_command_but_are_listed(shipped):
    shipped(scale(), wide(max_registers=32))
    result = run("--json", "--arch", "sm_80")
    rows = json.loads(result.stdout)
    assert result.exit_code == 1
    assert rows[0]["spill_bytes"] == 0 < rows[1]["spill_bytes"]
    assert "spills" in rows[1]["warnings"][0]


def test_a_kernel_that_does_not_compile_is_listed(shipped):
    shipped(scale(function=lambda a, out, n: a.nothing), scale(4))
    result = run("--json")
    rows = json.loads(result.stdout)
    assert result.exit_code == 1 and rows[0]["limiter"] == "does not compile" and rows[1]["registers"] > 0


def test_a_kernel_too_large_for_the_device_says_so(shipped):
    shipped(scale(shared_bytes=200 * 1024))
    (row,) = json.loads(run("--json", "--device", "gb10").stdout)
    assert row["blocks_per_sm"] == 0 and row["limiter"] == "shared"
    assert "204,800 B of shared memory a block, the opt-in limit is 101,376 B" in row["warnings"][0]


def test_the_table(shipped):
    lines = run().stdout.splitlines()
    assert lines[0].split()[:4] == ["kernel", "config", "arch", "regs"]
    assert lines[1].startswith("scale   factor=3  sm_90a") and "32 (" in lines[1]
    assert "  1 ld.global 1 st.global  " in lines[1]
    assert "without them, the 3 most frequent" in lines[-2]
    assert lines[-1] == "blocks/SM on NVIDIA H200 SXM 141GB"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arch", "sm_75"), "take one of sm_80, sm_86"),
        (("--device", "tpu"), "no device 'tpu'; known: gb10"),
        (("--device", "gb10", "--arch", "sm_80"), "NVIDIA GB10 is sm_121a, not sm_80"),
        (("--name", "nothing"), "no shipped kernel's name contains 'nothing'"),
    ],
)
def test_bad_input(shipped, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2 and message in " ".join(result.output.split())


def test_several_processes_fill_the_cache():
    from minfer.cuda.precompile import precompile
    from minfer.cuda.runtime import compile_kernel

    finished = []
    precompile(["sm_80"], "bias_add", lambda: finished.append(1))
    kernels = registry.shipped_kernels()["bias_add"]
    assert len(finished) == len(kernels)
    assert all(compile_kernel(kernel, "sm_80").from_cache for kernel in kernels)


def test_only_the_modules_of_a_name_make_their_kernels():
    made = []
    found = registry.shipped_kernels("argmax", made.append)
    assert list(found) == ["argmax"] and found["argmax"] and made == ["elementwise"]
    assert registry.shipped_kernels("nothing", made.append) == {} and len(made) == 1


def test_a_module_ships_what_it_names(monkeypatch):
    module = types.ModuleType("made")
    module.KERNELS, module.shipped = ("other",), lambda: [scale()]
    monkeypatch.setattr(registry, "_modules", lambda: [module])
    with pytest.raises(ValueError, match="made: ships scale"):
        registry.shipped_kernels()


def test_the_registry_finds_every_module_s_kernels():
    found = registry.shipped_kernels()
    assert list(found) == sorted(found) and "convert_f32_f16" in found and all(found.values())
    shipping = [module for module in registry._modules() if hasattr(module, "shipped")]
    assert set(found) == {name for module in shipping for name in module.KERNELS}
    everything = registry.all_kernels()
    assert len({(k.name, str(k.config)) for k in everything}) == len(everything)
    assert all(kernel.arguments and callable(kernel.signature) for kernel in everything)
