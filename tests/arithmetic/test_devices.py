"""The device table agrees with itself, and every figure names its source."""

import dataclasses

import pytest

from minfer.arithmetic.devices import DEVICES, H200, by_name, device, shared_limit

# Dense f16 operations (f32 accumulate) a clock and SM, by architecture: whitepapers.
F16_A_CLOCK = {
    "rtx3090": 512,
    "rtx4090": 512,
    "rtx5090": 512,
    "a100-40gb": 2048,
    "a100-80gb": 2048,
    "l4": 1024,
    "h100": 4096,
    "h200": 4096,
    "b200": 8192,
}


@pytest.mark.parametrize("d", DEVICES.values(), ids=lambda d: d.key)
def test_every_figure_has_a_source(d):
    computed = {"key", "name", "sources"}
    for field in dataclasses.fields(d):
        if field.name not in computed:
            assert d.source(field.name)


@pytest.mark.parametrize("d", DEVICES.values(), ids=lambda d: d.key)
def test_limits_fit_together(d):
    assert d.shared_per_block == d.shared_per_sm - d.shared_reserved
    assert d.threads_per_sm == d.warps_per_sm * 32
    assert d.registers_per_sm == 65536
    assert (d.tensor_fp8 is None) == (d.cc < (8, 9))


@pytest.mark.parametrize("key", F16_A_CLOCK)
def test_tensor_rate_is_sms_times_clock(key):
    d = device(key)
    assert d.tensor_f16 == pytest.approx(d.sms * F16_A_CLOCK[key] * d.boost, rel=0.01)


def test_gb10_rate_is_derived_and_says_so():
    assert "derived" in device("gb10").source("tensor_f16")


def test_arch_names():
    archs = {d.key: d.arch for d in DEVICES.values()}
    assert archs["gb10"] == "sm_121a"
    assert archs["rtx3090"] == "sm_86"
    assert archs["h200"] == "sm_90a"
    assert archs["b200"] == "sm_100a"


def test_unknown_device_lists_the_known():
    with pytest.raises(KeyError, match="gb10, rtx3090"):
        device("tpu")


def test_missing_tensor_rate_is_refused():
    with pytest.raises(ValueError, match="no fp8 tensor instructions"):
        device("a100-40gb").tensor_peak("fp8")
    with pytest.raises(ValueError, match="known: f16"):
        H200.tensor_peak("fp12")
    assert H200.tensor_peak("bf16") == H200.tensor_peak("f16")


@pytest.mark.parametrize(
    ("reported", "key"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GB10", "gb10"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA L40S", None),
        ("Tesla T4", None),
    ],
)
def test_driver_names(reported, key):
    found = by_name(reported)
    assert (found.key if found else None) == key


def test_shared_memory_of_an_architecture():
    for d in DEVICES.values():
        assert shared_limit(d.arch) == d.shared_per_block
    assert shared_limit("sm_103a") == shared_limit("sm_100a")  # not in the table: its family's
    for arch in ("sm_75", "sm_", "volta"):
        with pytest.raises(KeyError, match=f"no limits of architecture '{arch}'; known: .*sm_80"):
            shared_limit(arch)
