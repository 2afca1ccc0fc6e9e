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
    """Run and check every small case, but those of Hopper's own instructions."""
    return _run(hopper=False)


def _run(hopper: bool) -> int:
    from tests.gpu.small_cases import small_cases

    arch = runtime.device().arch
    cases = [
        case
        for case in small_cases()
        if case.kernel.not_applicable(arch) is None and case.kernel.arch_specific == hopper
    ]
    for case in cases:
        case.run_on_gpu()
        print(f"ran {case}", flush=True)
    return len(cases)


def run_hopper() -> int:
    """TMA, multicast and wgmma on exact buffers: probes, then every small case (not under racecheck, which
    knows no mbarriers)."""
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
    runtime.device().synchronize()
    return 3 + _run(hopper=True)


if __name__ == "__main__":
    print({"cases": run_cases, "probes": run_probes, "hopper": run_hopper}[sys.argv[1]](), "done")
