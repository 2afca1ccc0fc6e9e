"""A model's kernels before it is loaded: compiled in parallel, kept in the cache on disk, and loaded."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from minfer.cuda.kernel import CompileError, ConfigRefused, Kernel, LaunchRefused
from minfer.cuda.runtime import cache, compile_kernel, load
from minfer.engine.backend import Progress
from minfer.engine.cuda.devices import DryDevice
from minfer.engine.cuda.launches import kernel, origin
from minfer.engine.cuda.plan import MemoryPlan
from minfer.engine.cuda.routes import Route
from minfer.engine.progress import progress_bar
from minfer.model.model import Model

PROCESSES = 16
WORTH_IT = 3  # a process takes about as long to start as a kernel to compile
SHORT_PROMPTS = (2, 16, 65)  # tokens one by one, in a small tile, in a large one
LENGTH_STEP = 32  # large tiles depend on the number of tokens: which one leaves the fewest SMs idle


def needed_kernels(model: Model, route: Route, plan: MemoryPlan, arch: str, sms: int) -> list[Kernel]:
    """The kernels that load a model, prefill prompts of (nearly) all lengths and decode; each once."""
    lengths = {*SHORT_PROMPTS, *range(3 * LENGTH_STEP, plan.chunk, LENGTH_STEP), plan.chunk}
    return kernels_for(model, route, plan, sorted(n for n in lengths if n <= plan.chunk), arch, sms)


def kernels_for(
    model: Model, route: Route, plan: MemoryPlan, lengths: Iterable[int], arch: str, sms: int
) -> list[Kernel]:
    """The kernels that load a model, prefill prompts of these lengths, of a chunk at most, and decode; each
    once. Nothing runs."""
    from minfer.engine.cuda.runtime import CudaRuntime
    from minfer.engine.transformer import Buffers, forward

    device = DryDevice(arch, sms)
    runtime = CudaRuntime(model, device, route, plan)
    buffers = Buffers.allocate(runtime, model.config, plan.chunk, 1)
    for n in (*lengths, 1):
        runtime.set_tokens([0] * n, 0)
        forward(runtime, model.config, buffers, n, "last")
    runtime.choose(buffers.logits[:1])
    return list(dict.fromkeys(device.launches))


def compile_ahead(
    kernels: Sequence[Kernel], arch: str, tell: Callable[[str], None], progress: Progress | None = None
) -> None:
    """Compile what the cache lacks, in several processes; says so first. What does not compile is left to
    its launch. progress: default: a bar on a terminal."""
    progress = progress or progress_bar()
    missing = [k for k in kernels if not cache.holds(k, arch)]
    if len(missing) < WORTH_IT:
        return
    tell(f"compiling {len(missing)} kernels; they are kept in {cache.cache_folder()}")
    processes = min(PROCESSES, os.cpu_count() or 1, len(missing))
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "minfer.engine.cuda.compile_ahead", arch]
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as running:
        for share in range(processes):
            child = stack.enter_context(
                subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet, env=environment)
            )
            stack.callback(child.terminate)
            with contextlib.suppress(BrokenPipeError), child.stdin:
                child.stdin.write(pickle.dumps([origin(k) for k in missing[share::processes]]))
            running.register(child.stdout, selectors.EVENT_READ)
        done = 0
        while running.get_map():
            for key, _ in running.select():
                marks = os.read(key.fd, 4096)  # one for each kernel
                done += len(marks)
                if not marks:
                    running.unregister(key.fileobj)
                elif progress is not None:
                    progress("compiling", done, len(missing))


def load_ahead(kernels: Sequence[Kernel], arch: str) -> None:
    """Load what the cache holds, so that no prompt waits for it: each takes some milliseconds."""
    for made in kernels:
        if cache.holds(made, arch):
            with contextlib.suppress(CompileError, LaunchRefused):  # its launch says so, or another is taken
                load(made)


if __name__ == "__main__":
    told, sys.stdout = sys.stdout.fileno(), sys.stderr
    for factory, config in pickle.load(sys.stdin.buffer):
        with contextlib.suppress(CompileError, ConfigRefused):
            compile_kernel(kernel(factory, config), sys.argv[1])
        os.write(told, b".")
