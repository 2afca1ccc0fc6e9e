"""Occupancy arithmetic and the assembler's figures equal what the driver says, for every shipped kernel."""

from __future__ import annotations

import pytest

from minfer.arithmetic.devices import by_name
from minfer.arithmetic.occupancy import blocks_per_sm
from minfer.cuda import runtime
from minfer.cuda.kernel import LaunchRefused
from minfer.cuda.registry import all_kernels
from minfer.cuda.report import occupancy
from tests.gpu.tiny import TinyConfig, axpby, shared_echo

TINY = [
    *(axpby(TinyConfig(threads=threads)) for threads in (32, 96, 256, 1000, 1024)),
    *(shared_echo(TinyConfig(shared_bytes=kilobytes * 1024)) for kilobytes in (1, 32, 48, 64, 99)),
]


@pytest.mark.parametrize("kernel", [*TINY, *all_kernels()], ids=str)
def test_equals_the_driver(kernel):
    gpu = runtime.device()
    known = by_name(gpu.name)
    if known is None:
        pytest.skip(f"{gpu.name} is not in minfer.arithmetic's table")
    if reason := kernel.not_applicable(gpu.arch):
        pytest.skip(f"it {reason}")
    resources = runtime.compile_kernel(kernel, gpu.arch).resources
    try:
        loaded = runtime.load(kernel)
    except LaunchRefused:
        assert occupancy(kernel, resources, known).blocks == 0
        return
    assert loaded.attribute("NUM_REGS") == resources.registers
    assert loaded.attribute("SHARED_SIZE_BYTES") == resources.static_shared_bytes
    if kernel.cluster == 1:
        assert loaded.occupancy() == occupancy(kernel, resources, known).blocks


def test_a_sweep_of_shared_memory_and_threads(measure):
    """The driver's answer for launches of one kernel at many sizes, against the arithmetic."""
    from minfer.cuda.runtime import driver

    gpu = runtime.device()
    known = by_name(gpu.name)
    if known is None:
        pytest.skip(f"{gpu.name} is not in minfer.arithmetic's table")
    loaded = runtime.load(axpby(TinyConfig(threads=1024)))
    loaded._set_attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES", gpu.shared_optin_bytes)
    resources = loaded.compiled.resources
    checked = 0
    for threads in (32, 64, 128, 160, 256, 384, 512, 768, 1024):
        for shared in (*range(0, gpu.shared_optin_bytes, 7001), gpu.shared_optin_bytes):
            said = driver.call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor", loaded.function, threads, shared
            )
            ours = blocks_per_sm(
                known, threads, resources.registers, shared, barriers=resources.barriers
            ).blocks
            assert int(said) == ours, (threads, shared)
            checked += 1
    measure("occupancy sweep, launches equal to the driver", checked)
