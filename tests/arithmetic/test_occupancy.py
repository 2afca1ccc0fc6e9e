"""Occupancy equals NVIDIA's calculator, and the seeds' figures."""

import importlib.util
import itertools
import json
import pathlib
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.arithmetic.devices import DEVICES, GB10, H200, RTX_3090
from minfer.arithmetic.occupancy import blocks_per_sm

# One line of input is one query: device figures, then threads, registers, static, dynamic, barriers.
CALCULATOR = r"""
#include <stdio.h>
#include "cuda_occupancy.h"
int main(void) {
    int major, minor, shared_sm, shared_block, reserved, threads_sm, sms;
    int threads, regs, fixed, dynamic, barriers;
    while (scanf("%d %d %d %d %d %d %d %d %d %d %d %d", &major, &minor, &shared_sm, &shared_block, &reserved,
                 &threads_sm, &sms, &threads, &regs, &fixed, &dynamic, &barriers) == 12) {
        cudaOccDeviceProp p = {0};
        p.computeMajor = major; p.computeMinor = minor;
        p.maxThreadsPerBlock = 1024; p.maxThreadsPerMultiprocessor = threads_sm;
        p.regsPerBlock = 65536; p.regsPerMultiprocessor = 65536; p.warpSize = 32;
        p.sharedMemPerBlock = 48 * 1024; p.sharedMemPerMultiprocessor = shared_sm; p.numSms = sms;
        p.sharedMemPerBlockOptin = shared_block; p.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes a = {0};
        a.maxThreadsPerBlock = 1024; a.numRegs = regs; a.sharedSizeBytes = fixed;
        a.partitionedGCConfig = PARTITIONED_GC_OFF; a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        a.maxDynamicSharedSizeBytes = shared_block - fixed; a.numBlockBarriers = barriers;
        cudaOccDeviceState s = {0};
        s.carveoutConfig = SHAREDMEM_CARVEOUT_DEFAULT;
        cudaOccResult r;
        int status = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, threads, dynamic);
        printf("%d %d %d %d\n", status, r.activeBlocksPerMultiprocessor, r.allocatedRegistersPerBlock,
               (int)r.allocatedSharedMemPerBlock);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def calculator(tmp_path_factory):
    """NVIDIA's header, compiled: a function from query lines to result tuples."""
    spec = importlib.util.find_spec("nvidia")
    headers = [
        h
        for root in (spec.submodule_search_locations if spec else [])
        for h in pathlib.Path(root).rglob("cuda_occupancy.h")
    ]
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if not headers or not compiler:
        pytest.skip("needs a C compiler and the cuda_occupancy.h of the nvidia-cuda-runtime wheel")
    folder = tmp_path_factory.mktemp("calculator")
    (folder / "main.c").write_text(CALCULATOR)
    subprocess.run(
        [compiler, "-w", f"-I{headers[0].parent}", "main.c", "-o", "calculator"], cwd=folder, check=True
    )

    def run(queries):
        text = "\n".join(" ".join(map(str, q)) for q in queries)
        out = subprocess.run([folder / "calculator"], input=text, capture_output=True, text=True, check=True)
        return [tuple(map(int, line.split())) for line in out.stdout.splitlines()]

    return run


@pytest.mark.parametrize("d", DEVICES.values(), ids=lambda d: d.key)
def test_equals_nvidias_calculator(d, calculator):
    cases = list(
        itertools.product(
            (1, 32, 33, 96, 128, 160, 256, 288, 384, 512, 768, 1024),
            (8, 24, 32, 33, 40, 64, 65, 72, 96, 126, 128, 168, 200, 255),
            (0, 64, 1000),
            (0, 1, 8192, 16383, 43776, 69376, 86016, 100352, 101376, 135168, 163840, 200000, 231424),
            (1, 2, 3, 16),
        )
    )
    head = (*d.cc, d.shared_per_sm, d.shared_per_block, d.shared_reserved, d.threads_per_sm, d.sms)
    cases = [c for c in cases if c[2] + c[3] <= d.shared_per_block]
    expected = calculator([head + c for c in cases])
    assert len(expected) == len(cases)
    for case, (status, blocks, registers, shared) in zip(cases, expected, strict=True):
        threads, regs, static, dynamic, barriers = case
        ours = blocks_per_sm(d, threads, regs, dynamic, static_shared_bytes=static, barriers=barriers)
        assert status == 0
        assert ours.blocks == blocks, case
        assert (ours.registers_allocated, ours.shared_allocated) == (registers, shared), case


def test_equals_the_driver_of_an_h200():
    """Recorded on the device: 14 kernels, 14 block sizes, 16 amounts of dynamic shared memory."""
    record = json.loads((pathlib.Path(__file__).parent / "data" / "occupancy-h200.json").read_text())
    for name, value in record["attributes"].items():
        assert getattr(H200, name) == value
    for kernel in record["kernels"]:
        regs, barriers = kernel["registers"], kernel["barriers"]
        ours = [
            [blocks_per_sm(H200, t, regs, s, barriers=barriers).blocks for s in record["shared_bytes"]]
            for t in record["threads"]
        ]
        assert ours == kernel["blocks"]


def test_over_the_cap_is_zero_in_the_calculator_too(calculator):
    head = (
        *GB10.cc,
        GB10.shared_per_sm,
        GB10.shared_per_block,
        GB10.shared_reserved,
        GB10.threads_per_sm,
        GB10.sms,
    )
    ((_, blocks, _, _),) = calculator([(*head, 256, 96, 0, 135168, 1)])
    assert blocks == blocks_per_sm(GB10, 256, 96, 135168).blocks == 0


def test_flash_attention_tkv64_on_gb10():
    occupancy = blocks_per_sm(GB10, threads=256, registers=128, shared_bytes=69_376)
    assert (occupancy.blocks, occupancy.warps, occupancy.limiter) == (1, 8, "shared")
    assert f"{occupancy.fraction:.2%}" == "16.67%"


def test_flash_attention_tkv32_on_gb10():
    occupancy = blocks_per_sm(GB10, threads=256, registers=128, shared_bytes=43_776)
    assert (occupancy.blocks, occupancy.warps) == (2, 16)
    assert f"{occupancy.fraction:.1%}" == "33.3%"


def test_register_softmax_leaves_shared_memory_for_two_blocks():
    occupancy = blocks_per_sm(GB10, threads=256, registers=128, shared_bytes=34_816)
    assert occupancy.blocks == 2
    assert occupancy.limits["shared"] == 2


def test_the_phantom_is_refused_with_both_numbers():
    occupancy = blocks_per_sm(GB10, threads=256, registers=96, shared_bytes=135_168)
    assert occupancy.blocks == 0
    assert occupancy.limiter == "shared"
    assert "135,168 B" in occupancy.refusal and "101,376 B" in occupancy.refusal
    assert blocks_per_sm(H200, threads=256, registers=96, shared_bytes=135_168).blocks == 1


def test_refusals_name_the_resource():
    assert "1,056 threads" in blocks_per_sm(H200, 1056, 32).refusal
    assert "registers a thread" in blocks_per_sm(H200, 32, 256).refusal
    assert "registers a block" in blocks_per_sm(H200, 512, 168).refusal
    assert "without opting in" in blocks_per_sm(H200, 32, 32, 50_000, opt_in=False).refusal
    assert blocks_per_sm(H200, 512, 168).limiter == "registers"


def test_the_sentence():
    assert str(blocks_per_sm(GB10, 256, 128, 69_376)) == (
        "1 block an SM, 8 of 48 warps (16.67%), limited by shared memory (70,400 of 102,400 B a block)"
    )
    assert str(blocks_per_sm(RTX_3090, 32, 32)) == (
        "16 blocks an SM, 16 of 48 warps (33.33%), limited by resident blocks (at most 16)"
    )


@given(
    d=st.sampled_from(list(DEVICES.values())),
    threads=st.integers(1, 1024),
    registers=st.integers(1, 254),
    shared=st.integers(0, 240_000),
)
def test_asking_for_more_never_fits_more(d, threads, registers, shared):
    base = blocks_per_sm(d, threads, registers, shared).blocks
    assert blocks_per_sm(d, threads, registers + 1, shared).blocks <= base
    assert blocks_per_sm(d, threads, registers, shared + 128).blocks <= base
    assert 0 <= base * ((threads + 31) // 32) <= d.warps_per_sm


@pytest.mark.parametrize(
    "bad",
    [
        {"threads": 0},
        {"registers": 0},
        {"shared_bytes": -1},
        {"barriers": -1},
        {"threads": 64.0},
        {"registers": float("nan")},
    ],
)
def test_nonsense_is_a_value_error(bad):
    with pytest.raises(ValueError, match="must be at least"):
        blocks_per_sm(H200, **{"threads": 32, "registers": 32, **bad})
