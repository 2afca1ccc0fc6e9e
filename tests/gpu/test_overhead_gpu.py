"""What launching costs the host, and compiling a second process: measured for the record, never asserted."""

from __future__ import annotations

import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.token import TOKEN_STEPS
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.routes import choose_route
from minfer.engine.session import Session
from minfer.engine.transformer import forward
from minfer.lab.measured import find_model
from minfer.model.model import Model
from tests.gpu.tiny import TinyConfig, axpby, fill

ROOT = Path(__file__).parents[2]
REPEATS, BATCHES = 500, 9
GRID = (1, 1, 1)


def microseconds(call) -> float:
    """Median over batches of the host time of one call; a batch is short enough not to fill the launch
    queue."""
    times = []
    for _ in range(BATCHES):
        runtime.device().synchronize()
        start = time.perf_counter()
        for _ in range(REPEATS):
            call()
        times.append((time.perf_counter() - start) / REPEATS * 1e6)
        runtime.device().synchronize()
    return round(statistics.median(times), 2)


@pytest.fixture
def arguments():
    arrays = [runtime.to_device(np.zeros(128, np.float32)) for _ in range(3)]
    return (*arrays, 128, 1.0, 2.0)


def test_launch_overhead(arguments, measure):
    kernel = axpby()
    loaded = runtime.load(kernel)
    bound = loaded.prepare(GRID, *arguments)
    stream = runtime.Stream()
    measure(
        "launch us: runtime.launch, 6 arguments",
        microseconds(lambda: runtime.launch(kernel, GRID, *arguments)),
    )
    measure("launch us: LoadedKernel.launch", microseconds(lambda: loaded.launch(GRID, *arguments)))
    measure("launch us: prepared", microseconds(bound))
    measure("launch us: prepared, own stream", microseconds(lambda: bound(stream)))


def test_launch_overhead_with_torch_tensors(arguments, measure):
    torch = pytest.importorskip("torch")
    tensors = [torch.zeros(128, device="cuda") for _ in range(3)]
    kernel = axpby()
    runtime.load(kernel)
    measure(
        "launch us: runtime.launch, torch tensors",
        microseconds(lambda: runtime.launch(kernel, GRID, *tensors, 128, 1.0, 2.0)),
    )


def test_overhead_of_plain_cuda_bindings(arguments, measure):
    from minfer.cuda.runtime import driver

    loaded, cu = runtime.load(axpby()), driver.bindings()
    values = (*(a.pointer for a in arguments[:3]), *arguments[3:])
    kinds = (*(ctypes.c_void_p,) * 3, ctypes.c_int32, ctypes.c_float, ctypes.c_float)
    stream = cu.CUstream(0)
    measure(
        "launch us: plain cuda.bindings cuLaunchKernel",
        microseconds(
            lambda: cu.cuLaunchKernel(loaded.function, *GRID, 128, 1, 1, 0, stream, (values, kinds), 0)
        ),
    )


def test_the_foreign_call_alone(arguments, measure):
    loaded = runtime.load(axpby())
    loaded.launch(GRID, *arguments)  # fills the structures
    call, addresses = loaded._own.frame._call, loaded._own.frame._addresses
    measure("launch us: cuLaunchKernelEx through ctypes, alone", microseconds(lambda: call(*addresses)))
    plain = ctypes.PyDLL("libcuda.so.1").cuLaunchKernel
    pointer, word = ctypes.c_void_p, ctypes.c_uint
    plain.argtypes = (pointer, *(word,) * 7, pointer, pointer, pointer)
    _, function, parameters, _ = addresses
    measure(
        "launch us: cuLaunchKernel through ctypes, alone",
        microseconds(lambda: plain(function, *GRID, 128, 1, 1, 0, None, parameters, None)),
    )


def test_graph_replay(measure):
    """Host and device time of a graph of 300 small kernels, a kernel."""
    out = runtime.empty(128, np.uint8)
    bound = runtime.load(fill(TinyConfig(number=1))).prepare(GRID, out, 128)
    with runtime.capture() as graph:
        for _ in range(300):
            bound()
    graph.replay()
    graph.stream.synchronize()
    start = runtime.Event().record(graph.stream)
    begin = time.perf_counter()
    for _ in range(10):
        graph.replay()
    host = (time.perf_counter() - begin) / 10
    stop = runtime.Event().record(graph.stream)
    measure("graph of 300 kernels: device us a kernel", round(stop.since(start) / 3000 * 1e3, 3))
    measure("graph of 300 kernels: host us a replay", round(host * 1e6, 1))


def test_a_short_prefill(tiny, measure):
    """A prompt of 12 tokens: what the host needs to enqueue it, the device for a graph of the same launches.
    Whichever is longer is what a user waits for."""
    session = Session(tiny, CudaBackend(on_plan=lambda line: None), 64)
    device, engine, prompt = session.backend.device, session._runtime, range(12)
    logits = session.forward(prompt).copy()
    buffers = session._buffers_for(False)
    enqueue = partial(forward, engine, tiny.config, buffers, len(prompt), "last")
    engine.set_tokens(prompt, 0)
    replay = device.capture(enqueue)

    def median_us(run: Callable[[], None]) -> tuple[float, float]:
        """Until `run` returns, and until the device is done."""
        times = []
        for _ in range(2 * BATCHES):
            device.stream.synchronize()
            start = time.perf_counter()
            run()
            returned = time.perf_counter()
            device.stream.synchronize()
            times.append(((returned - start) * 1e6, (time.perf_counter() - start) * 1e6))
        return tuple(round(statistics.median(column), 1) for column in zip(*times, strict=True))

    runtime.reset_launch_counts()
    enqueue()
    launches = sum(runtime.launch_counts().values())
    host, wall = median_us(enqueue)
    measure(f"prefill of 12 tokens, {launches} launches: host us a launch", round(host / launches, 2))
    measure(f"prefill of 12 tokens, {launches} launches: us", wall)
    measure(f"prefill of 12 tokens, {launches} launches in a graph: us", median_us(replay)[1])
    np.testing.assert_array_equal(engine.read(buffers.logits[:1])[0], logits)


SECOND_PROCESS = """
import json, time
start = time.perf_counter()
from tests.gpu.tiny import TinyConfig, shared_echo
from minfer.cuda import runtime
imported = time.perf_counter()
runtime.device()
opened = time.perf_counter()
kernel = shared_echo(TinyConfig(threads=96, shared_bytes=3072))
compiled = runtime.compile_kernel(kernel, runtime.device().arch)
done = time.perf_counter()
print(json.dumps({
    "import_s": round(imported - start, 3),
    "device_s": round(opened - imported, 3),
    "compile_s": round(done - opened, 3),
    "from_cache": compiled.from_cache,
}))
"""


def test_a_second_process_finds_the_compiled_kernel(tmp_path, monkeypatch, measure):
    monkeypatch.setenv("MINFER_CACHE", str(tmp_path))
    found = []
    for _ in range(2):
        command = [sys.executable, "-c", SECOND_PROCESS]
        reply = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert reply.returncode == 0, reply.stderr
        found.append(json.loads(reply.stdout))
    assert [f["from_cache"] for f in found] == [False, True]
    measure("compile: first process", found[0])
    measure("compile: second process", found[1])


@pytest.mark.skipif(runtime.available() and runtime.device().arch != "sm_90a", reason="no GPU of sm_90")
def test_a_token_of_the_7b(measure):
    """One kernel an operation, and every step of one for all: the same logits within the noise of int8
    activations, and the device time of a token's graph."""
    path = find_model()
    if path is None:
        pytest.skip("the 7B is not among the pulled models")
    model, route = Model.load(path), choose_route("w4a16", runtime.device().arch, {})
    separate = None
    for name, step in {"one kernel an operation": None, **{step: step for step in TOKEN_STEPS}}.items():
        backend = CudaBackend(replace(route, token_kernel=step), on_plan=lambda line: None)
        session = Session(model, backend, 256, chunk=1)
        logits = np.stack([session.forward([token]).copy() for token in (1, 2, 3)])
        times = []
        for _ in range(9):
            start = runtime.Event().record(backend.device.stream)
            session._decode()
            times.append(runtime.Event().record(backend.device.stream).since(start))
        measure(f"7B token, {name}: ms", round(statistics.median(times), 4))
        separate = logits if step is None else separate
        assert np.isfinite(logits).all()
        assert np.sqrt(np.mean((logits - separate) ** 2) / np.mean(separate**2)) < 0.06
