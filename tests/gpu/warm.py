"""Compiles what the GPU tests launch into the disk cache, in several processes: `warm_cache()`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minfer.cuda.kernel import Kernel
    from minfer.model.model import Model

ROOT = Path(__file__).parents[2]
MULTIPROCESSORS = 132  # an H200's: they decide tiles; on another GPU the tests compile what differs
TIMEOUT_S = 200


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


def small_models(folder: Path) -> Iterator[Model]:
    """The models of the engine's tests; those that are made, in `folder`."""
    from minfer.model.model import Model
    from minfer.model.synth import synth
    from tests.engine.cuda_models import micro_model

    for path in sorted((ROOT / "tests" / "data").glob("*-k.gguf")):
        yield Model.load(path)
    yield Model.load(ROOT / "tests" / "data" / "llama-legacy.gguf")
    yield Model.load(synth("qwen2-tiny", folder / "tiny.gguf", progress=False))
    for hidden, ffn in ((256, 512), (288, 96)):
        yield micro_model(folder / f"{hidden}.gguf", layers=3, hidden=hidden, ffn=ffn)


def engine_kernels(model: Model, arch: str, chunk: int = 512) -> Iterator[Kernel]:
    """What a model's sessions on all routes of the architecture launch."""
    from minfer.cuda.kernel import ConfigRefused
    from minfer.engine.cuda.backend import CudaBackend
    from minfer.engine.cuda.compile_ahead import needed_kernels
    from minfer.engine.cuda.devices import DryDevice
    from minfer.engine.cuda.routes import ROUTES
    from minfer.engine.errors import EngineError
    from minfer.engine.session import DEFAULT_CONTEXT

    context = min(model.config.context_length, DEFAULT_CONTEXT)
    for route in ROUTES:
        for weights in ("auto", "blocks"):
            try:
                backend = CudaBackend(route, DryDevice(arch, MULTIPROCESSORS), lambda line: None, weights)
                plan = backend.plan(model, context, min(chunk, context))
            except (ConfigRefused, EngineError):  # a route of another architecture
                continue
            yield from needed_kernels(model, backend.route, plan, arch, MULTIPROCESSORS)


def token_ladder() -> Iterator[Kernel]:
    """Every step of the kernel for a token of the 7B."""
    from minfer.cuda.token import TOKEN_STEPS, decode_token, shipped

    for kernel in shipped():
        for fields in TOKEN_STEPS.values():
            yield decode_token(replace(kernel.config, **fields))


def kernels_of_the_tests(arch: str) -> list[Kernel]:
    """Each once."""
    from minfer.cuda.registry import all_kernels
    from tests.gpu.gemm_cases import variants
    from tests.gpu.instruction_kernels import probes
    from tests.gpu.small_cases import small_cases

    with tempfile.TemporaryDirectory() as folder:
        found = [
            *all_kernels(),
            *variants(),
            *(probe.kernel for probe in probes()),
            *(case.kernel for case in small_cases()),
            *token_ladder(),
            *(kernel for model in small_models(Path(folder)) for kernel in engine_kernels(model, arch)),
        ]
    return list({(kernel.name, kernel.config): kernel for kernel in found}.values())


def _compile_share(arch: str, n: int, share: int) -> None:
    from minfer.cuda.kernel import CompileError, ConfigRefused
    from minfer.cuda.runtime import compile_kernel

    for kernel in kernels_of_the_tests(arch)[share::n]:
        try:
            compile_kernel(kernel, arch)
        except (CompileError, ConfigRefused):
            continue


if __name__ == "__main__":
    _compile_share(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
