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

    cases = list(small_cases())
    for case in cases:
        case.run_on_gpu()
        print(f"ran {case}", flush=True)
    return len(cases)


if __name__ == "__main__":
    print({"cases": run_cases, "probes": run_probes}[sys.argv[1]](), "done")
