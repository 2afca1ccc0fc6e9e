"""Compile shipped kernels into the disk cache in several processes: numba compiles one kernel at a time in
each."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from minfer.cuda.kernel import CompileError, ConfigRefused, ToolchainError
from minfer.cuda.registry import all_kernels
from minfer.cuda.runtime.compiler import compile_kernel

MOST_PROCESSES = 8


def precompile(archs: Sequence[str], name: str = "", done: Callable[[], object] = lambda: None) -> None:
    """Compile every shipped kernel whose name contains `name`, for every architecture, and count its
    instructions.

    What fails, or cannot be kept on disk, is left for whoever asks for it next. `done` is called after each
    kernel, from any thread.
    """
    count = min(MOST_PROCESSES, os.cpu_count() or 1)
    command = [sys.executable, "-m", "minfer.cuda.precompile", name, ",".join(archs), str(count)]
    children = [
        subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for i in range(count)
    ]

    def follow(child: subprocess.Popen) -> None:
        for _ in child.stdout:
            done()

    threads = [threading.Thread(target=follow, args=(child,)) for child in children]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for child in children:
            child.terminate()
            child.wait()
            child.stdout.close()


def _compile_share(name: str, archs: list[str], count: int, share: int) -> None:
    work = [(kernel, arch) for arch in archs for kernel in all_kernels(name)]
    for kernel, arch in work[share::count]:
        with contextlib.suppress(CompileError, ConfigRefused, ToolchainError):
            _ = compile_kernel(kernel, arch, strict=False).resources.instructions
        print("done", flush=True)


if __name__ == "__main__":
    _compile_share(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4]))
