"""What a user reads on a machine without a usable GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

from minfer.cuda import runtime
from minfer.cuda.kernel import NoDevice
from minfer.cuda.runtime import devices, driver
from tests.cuda import fake_driver


def test_a_device(fake):
    gpu = runtime.device()
    assert (gpu.name, gpu.capability, gpu.arch, gpu.cuda_version) == ("NVIDIA H200", (9, 0), "sm_90a", "13.0")
    assert (gpu.sms, gpu.shared_optin_bytes, gpu.registers_block) == (132, 232448, 65536)
    assert runtime.device() is gpu
    assert runtime.available()
    assert str(gpu) == "NVIDIA H200 (sm_90a, 132 SMs, CUDA 13.0)"


def test_no_gpu(fake):
    fake.init_status = fake_driver.Status.NO_DEVICE
    with pytest.raises(NoDevice, match="sees no GPU: check nvidia-smi and the variable CUDA_VISIBLE_DEVICES"):
        runtime.device()
    assert not runtime.available()


def test_driver_too_old(fake):
    fake.version = 12040
    message = "supports CUDA 12.4, minfer's toolchain needs 13.0: install NVIDIA driver 580 or newer"
    with pytest.raises(NoDevice, match=message):
        runtime.device()


def test_a_driver_that_does_not_start(fake):
    fake.init_status = fake_driver.Status.UNKNOWN
    with pytest.raises(NoDevice, match=r"does not start: CUDA_ERROR_UNKNOWN .*install NVIDIA driver 580"):
        runtime.device()


@pytest.mark.parametrize("capability", [(7, 5), (6, 1)])
def test_a_gpu_too_old(fake, capability):
    fake.attributes["COMPUTE_CAPABILITY_MAJOR"], fake.attributes["COMPUTE_CAPABILITY_MINOR"] = capability
    fake.name = b"NVIDIA T4"
    with pytest.raises(NoDevice, match=r"NVIDIA T4 has compute capability \d\.\d: it lacks cp.async, bf16"):
        runtime.device()


class DynamicLibNotFoundError(RuntimeError):
    """As cuda.pathfinder's."""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            DynamicLibNotFoundError("no libcuda.so.1"),
            r"no NVIDIA driver on this machine \(libcuda was not found\)",
        ),
        (RuntimeError("no cuGetProcAddress_v2"), r"too old or damaged \(no cuGetProcAddress_v2\)"),
    ],
)
def test_no_driver_library(monkeypatch, error, message):
    class WithoutDriver:
        def cuInit(self, flags):
            raise error

    monkeypatch.setattr(driver, "bindings", WithoutDriver)
    driver.initialize.cache_clear()
    message += ": install NVIDIA driver 580 or newer; everything but launching"
    with pytest.raises(NoDevice, match=message):
        driver.initialize()
    driver.initialize.cache_clear()


def test_this_machine_says_why_in_one_line():
    if runtime.available():
        pytest.skip("there is a GPU")
    with pytest.raises(NoDevice) as error:
        runtime.device()
    assert "\n" not in str(error.value) and len(str(error.value)) < 250


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((12, 1), "sm_121a")],
)
def test_architectures(capability, arch):
    assert devices.arch_of(capability) == arch


def test_the_module_prints_what_there_is_or_what_is_missing(fake, capsys):
    from minfer.cuda.runtime.__main__ import main

    assert main() == 0
    out = capsys.readouterr().out
    assert "NVIDIA H200 (sm_90a" in out and "ptxas 1" in out
    fake_driver.uninstall()
    fake.init_status = fake_driver.Status.NO_DEVICE
    assert main() == 2
    assert "sees no GPU" in capsys.readouterr().err


def test_importing_the_runtime_is_light():
    program = (
        "import sys, minfer.cuda.runtime, minfer.cuda.kernel; print({'numpy', 'numba'} & set(sys.modules))"
    )
    reply = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert reply.stdout.strip() == "set()"


def test_launch_structures_are_libcuda_s():
    """Sizes and offsets of CUlaunchConfig and CUlaunchAttribute on 64-bit machines (cuda.h)."""
    import ctypes

    config = driver.LaunchConfig
    assert (config.shared_bytes.offset, config.stream.offset, config.attributes.offset) == (24, 32, 40)
    assert (config.count.offset, ctypes.sizeof(config)) == (48, 56)
    assert (driver.LaunchAttribute.value.offset, ctypes.sizeof(driver.LaunchAttribute)) == (8, 72)
    ids = driver.bindings().CUlaunchAttributeID
    assert ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION == driver.ATTRIBUTE_PROGRAMMATIC
