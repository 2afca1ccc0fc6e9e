"""The program that compute-sanitizer watches: every small case, then every instruction probe."""

from __future__ import annotations

import sys

import numpy as np

from minfer.cuda import runtime


def run_probes() -> int:
    """Launch every instruction probe on exact buffers."""
    from tests.gpu.instruction_kernels import probes

    chosen = [p for p in probes() if p.kernel.not_applicable(runtime.device().arch) is None]
    for probe in chosen:
        out = runtime.to_device(np.zeros(probe.out_words, np.uint32))
        runtime.launch(probe.kernel, (1, 1, 1), *(runtime.to_device(a) for a in probe.inputs), out)
        runtime.device().synchronize()
    return len(chosen)


def run_cases() -> int:
    """Run and check every small case."""
    from tests.gpu.small_cases import small_cases

    arch = runtime.device().arch
    cases = [case for case in small_cases() if case.kernel.not_applicable(arch) is None]
    for case in cases:
        case.run_on_gpu()
        print(f"ran {case}", flush=True)
    return len(cases)


def run_hopper() -> int:
    """TMA, multicast and wgmma on exact buffers."""
    from minfer.cuda.gemm_hopper import GemmHopperConfig, make_gemm_hopper
    from tests.gpu.hopper_kernels import BOX, multicast, one_wgmma, tma_there_and_back

    square = runtime.to_device(np.ones((BOX, 64), np.float16))
    out = runtime.empty(BOX * 64, np.uint32)
    mapped = runtime.tensor_map(square, BOX)
    runtime.launch(one_wgmma(), (1, 1, 1), mapped, mapped, out)
    runtime.launch(multicast(), (2, 1, 1), mapped, out)
    source, target = runtime.empty((100, 104), np.float16), runtime.empty((50, 64), np.float16)
    runtime.launch(
        tma_there_and_back(72, 40), (1, 1, 1), *(runtime.tensor_map(a, BOX) for a in (source, target)), out
    )
    config = GemmHopperConfig(64, 3, cluster=2)
    a, b, c = (
        runtime.to_device(np.ones(shape, np.float16)) for shape in ((300, 136), (168, 136), (300, 168))
    )
    maps = (
        runtime.tensor_map(array, *config.boxes[name]) for name, array in zip("abc", (a, b, c), strict=True)
    )
    runtime.launch(
        make_gemm_hopper(config), config.grid(300, 168, 4), *maps, 300, 168, 136, config.group(300, 168)
    )
    runtime.device().synchronize()
    assert (c.to_host() == 136).all()
    return 4


if __name__ == "__main__":
    print({"cases": run_cases, "probes": run_probes, "hopper": run_hopper}[sys.argv[1]](), "done")
