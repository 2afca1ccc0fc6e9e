"""Compiles what the GPU tests launch into the disk cache, in several processes: `warm_cache()`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120


def warm_cache(arch: str) -> None:
    """Compile in up to 16 processes. What does not compile is left for its test to report."""
    n = min(16, os.cpu_count() or 1)
    command = [sys.executable, "-m", "tests.gpu.warm", arch, str(n)]
    children = [
        subprocess.Popen([*command, str(i)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for i in range(n)
    ]
    end = time.monotonic() + TIMEOUT_S
    for child in children:
        try:
            child.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()


def _compile_share(arch: str, n: int, share: int) -> None:
    from minfer.cuda.kernel import CompileError, ConfigRefused
    from minfer.cuda.registry import all_kernels
    from minfer.cuda.runtime import compile_kernel
    from tests.gpu.gemm_cases import variants
    from tests.gpu.instruction_kernels import probes
    from tests.gpu.small_cases import small_cases

    kernels = [
        *all_kernels(),
        *variants(),
        *(probe.kernel for probe in probes()),
        *(case.kernel for case in small_cases()),
    ]
    for kernel in kernels[share::n]:
        try:
            compile_kernel(kernel, arch)
        except (CompileError, ConfigRefused):
            continue


if __name__ == "__main__":
    _compile_share(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
