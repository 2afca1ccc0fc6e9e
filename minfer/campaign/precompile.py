"""Compiling what probes launch into the kernel cache, in several processes, before the GPU is needed.

python -m minfer.campaign.precompile ARCH SHARE/OF [PATH ...] -- NAME [NAME ...]
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from minfer.campaign.discovery import choose
from minfer.campaign.probe import Probe
from minfer.campaign.trial import kernels_of
from minfer.cuda.kernel import CompileError, ConfigRefused
from minfer.cuda.runtime import cache, compile_kernel

PROCESSES = 16
WORTH_IT = 3  # a process takes about as long to start as a kernel to compile


def precompile(
    probes: Sequence[Probe], arch: str, sources: Iterable[Path] = (), say: Callable[[str], None] = print
) -> None:
    """Compile what the cache lacks. What does not compile is left to the probe's gates."""
    kernels = dict.fromkeys(kernel for probe in probes for kernel in kernels_of(probe, arch))
    missing = [kernel for kernel in kernels if not cache.holds(kernel, arch)]
    if len(missing) < WORTH_IT:
        return
    processes = min(PROCESSES, os.cpu_count() or 1, len(missing))
    say(f"compiling {len(missing)} kernels in {processes} processes")
    command = [sys.executable, "-m", "minfer.campaign.precompile", arch]
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    names = [probe.name for probe in probes]
    quiet = subprocess.DEVNULL
    children: list[subprocess.Popen] = []
    try:
        for share in range(processes):
            more = [f"{share}/{processes}", *map(str, sources), "--", *names]
            children.append(subprocess.Popen([*command, *more], env=environment, stdout=quiet, stderr=quiet))
        for child in children:
            child.wait()
    finally:
        for child in children:
            child.terminate()
            child.wait()


def _compile_share(arch: str, share: str, sources: Sequence[str], names: Sequence[str]) -> None:
    place, count = map(int, share.split("/"))
    probes = choose(names, map(Path, sources))
    kernels = list(dict.fromkeys(kernel for probe in probes for kernel in kernels_of(probe, arch)))
    for kernel in kernels[place::count]:
        with contextlib.suppress(CompileError, ConfigRefused):
            compile_kernel(kernel, arch)


if __name__ == "__main__":
    split = sys.argv.index("--")
    _compile_share(sys.argv[1], sys.argv[2], sys.argv[3:split], sys.argv[split + 1 :])
