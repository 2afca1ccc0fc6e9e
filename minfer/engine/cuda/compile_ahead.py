"""Compiling a model's kernels in parallel, before it is loaded. They stay in the kernel cache on disk."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from minfer.cuda.kernel import Kernel
from minfer.cuda.runtime import cache, compile_kernel
from minfer.engine.cuda.devices import DryDevice
from minfer.engine.cuda.plan import MemoryPlan
from minfer.engine.cuda.routes import Route
from minfer.engine.cuda.weights import kernel, origin
from minfer.model.model import Model

PROCESSES = 16
WORTH_IT = 3  # a process takes about as long to start as a kernel to compile


def needed_kernels(model: Model, route: Route, plan: MemoryPlan, arch: str, sms: int) -> list[Kernel]:
    """The kernels that load a model, prefill a whole chunk and decode; each once."""
    from minfer.engine.cuda.runtime import CudaRuntime
    from minfer.engine.transformer import Buffers, forward

    device = DryDevice(arch, sms)
    runtime = CudaRuntime(model, device, route, plan)
    buffers = Buffers.allocate(runtime, model.config, plan.chunk, 1)
    for n in dict.fromkeys((plan.chunk, 1)):
        runtime.set_tokens([0] * n, 0)
        forward(runtime, model.config, buffers, n, "last")
    return list(dict.fromkeys(device.launches))


def compile_ahead(kernels: Sequence[Kernel], arch: str) -> None:
    """Compile what the cache lacks, in several processes. What does not compile is left to its launch."""
    missing = [k for k in kernels if not cache.holds(k, arch)]
    if len(missing) < WORTH_IT:
        return
    processes = min(PROCESSES, os.cpu_count() or 1, len(missing))
    root = str(Path(__file__).parents[3])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    }
    command = [sys.executable, "-m", "minfer.engine.cuda.compile_ahead", arch]
    children = []
    for share in range(processes):
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        children.append(child)
        child.stdin.write(pickle.dumps([origin(k) for k in missing[share::processes]]))
        child.stdin.close()
    for child in children:
        child.wait()


if __name__ == "__main__":
    for factory, config in pickle.load(sys.stdin.buffer):
        compile_kernel(kernel(factory, config), sys.argv[1])
