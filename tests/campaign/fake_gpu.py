"""A GPU that only keeps time: a launch runs a Python function and moves a clock on as its config says."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from minfer.campaign import decompose, launch_times, prefills
from minfer.campaign.observe import observing
from minfer.campaign.probe_record import Comparison
from minfer.campaign.workload import Case, Launch, Work, Workload, kernel
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel
from minfer.engine.cuda.devices import GpuDevice


@dataclass(frozen=True)
class ScaleConfig:
    """out = 2 x in `ms` milliseconds; `wrong` writes something else, `lazy` leaves half unwritten."""

    ms: float = 1.0
    wrong: bool = False
    lazy: bool = False
    refused: bool = False

    def __str__(self) -> str:
        return f"{self.ms} ms"


def scale(config: ScaleConfig) -> Kernel:
    """A kernel that the fake GPU knows how to run."""
    if config.refused:
        raise ConfigRefused("scale: 135,168 bytes of shared memory, the device allows 101,376")
    arguments = (Argument("x", "in", "float32"), Argument("out", "out", "float32"))
    return Kernel("scale", config, _nothing, 32, 0, arguments)


def _nothing(*_):
    pass


@dataclass(frozen=True)
class Scale(Workload):
    """Two cases of it; a route of its own where the test gives one."""

    routes: tuple = ()
    in_bucket: str | None = None
    nbytes: float = 8e6

    cases = (Case.of("small", 3, n=64), Case.of("large", 1, n=256))
    small = (Case.of("toy", n=8),)

    def input_shapes(self, case):
        return {"x": ((case["n"],), "float32")}

    def outputs(self, config, case):
        return {"out": ((case["n"],), "float32")}

    def launches(self, config, case, arrays, device):
        return [Launch.of(kernel(scale, config), (1, 1, 1), arrays["x"], arrays["out"])]

    def reference(self, case, inputs):
        return {"out": 2.0 * inputs["x"].astype(np.float64)}

    def work(self, case):
        return Work(0.0, self.nbytes)

    def bucket(self):
        return self.in_bucket


class Routed(Scale):
    """Its configs are routes of an engine that prefills in ten times the kernel's time."""

    def route(self, config, arch):
        return SimpleNamespace(config=config, settings=lambda: {"route": str(config)})


class Prefilled:
    """Whole prefills on a steady clock."""

    tokens = 16
    jitter = (1.0, 1.0004, 0.9997, 1.0002)
    flop = 0.0

    def __init__(self, model, *routes, tokens):
        self.routes = routes

    def logits(self, tokens, seed):
        return np.arange(9.0), np.arange(9.0)

    def compare(self, rounds, watch):
        times = [[10 * self.routes[side % 2].config.ms * self.jitter[(i + side) % 4] for i in range(rounds)]
                 for side in range(3)]  # fmt: skip
        return Comparison.of("prefill of 16 tokens", 1, *times, flop=self.flop)


class Array(np.ndarray):
    """NumPy with what device arrays have besides."""

    def fill_bytes(self, value, stream=None):
        self.reshape(-1).view(np.uint8)[:] = value

    def copy_from(self, source, stream=None):
        self[...] = source


class FakeGpu(GpuDevice):
    """No super().__init__: there is no GPU. `jitter` are factors by which launches take longer, in turn."""

    overlaps = True

    def __init__(self, jitter=(1.0,), each_ms=0.01):
        self.arch, self.sms, self.shared_bytes = "sm_90a", 132, 232448
        self.gpu = SimpleNamespace(
            name="NVIDIA H200", arch="sm_90a", sms=132, l2_bytes=1024, memory_bytes=10**9,
            cuda_version="13.0", synchronize=_nothing,
        )  # fmt: skip
        self.stream = object()
        self.clock, self.launched, self.jitter, self.each_ms = 0.0, [], jitter, each_ms
        self._capturing = None

    def __str__(self):
        return f"{self.gpu.name} (a fake)"

    def free_bytes(self):
        return 10**11

    def empty(self, shape, dtype):
        made = np.empty(shape, dtype).view(Array)
        made.reshape(-1).view(np.uint8)[:] = np.resize(np.arange(41, dtype=np.uint8), made.nbytes)
        return made

    def write(self, target, source):
        target[...] = source

    def upload(self, target, source):
        pass

    def end_uploads(self):
        pass

    def read(self, source):
        return np.array(source)

    def mapped(self, shape, dtype):
        made = np.zeros(shape, dtype)
        return made, made

    def mark(self):
        return _nothing

    def load(self, kernel):
        pass

    def offset(self, array):
        return 0

    def origin(self):
        return self.empty(16, np.uint8)

    def tensor_map(self, array, box):
        return array, box

    def launch(self, kernel, grid, *args, pdl=False):
        if self._capturing is not None:
            self._capturing.append((kernel, args))
        else:
            self._run(kernel, args)

    def _run(self, kernel, args):
        self.launched.append(kernel)
        factor = self.jitter[len(self.launched) % len(self.jitter)]
        self.clock += factor * getattr(kernel.config, "ms", self.each_ms)
        if kernel.name == "scale":
            x, out = args
            written = len(out) // 2 if kernel.config.lazy else len(out)
            out[:written] = (x if kernel.config.wrong else 2 * x)[:written]

    def capture(self, enqueue):
        with self.captured() as graph:
            enqueue()
        return graph.replay

    def captured(self, stream=None):
        return _Capture(self)

    def event(self):
        return _Event(self)


class Clock:
    """The fake GPU's time as the host's."""

    def __init__(self, gpu):
        self.gpu = gpu

    def perf_counter(self):
        return self.gpu.clock / 1e3

    def sleep(self, seconds):
        pass

    def perf_counter_ns(self):
        return int(self.gpu.clock * 1e6)


class _Capture:
    def __init__(self, gpu):
        self.gpu = gpu

    def __enter__(self):
        self.launches = self.gpu._capturing = []
        return self

    def __exit__(self, *_):
        self.gpu._capturing = None

    def replay(self, stream=None):
        for made, args in self.launches:
            self.gpu._run(made, args)


class _Event:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self, stream=None):
        self.at = self.gpu.clock
        return self

    def since(self, start):
        return self.at - start.at


def install(monkeypatch, gpu):
    """Let the campaign's modules find this GPU."""
    from minfer.campaign import environment, run, trial
    from minfer.cuda import runtime

    monkeypatch.setattr(runtime, "capture", gpu.captured, raising=False)
    monkeypatch.setattr(runtime, "Event", gpu.event, raising=False)
    monkeypatch.setattr(runtime, "checked", trial.contextlib.nullcontext, raising=False)
    used = SimpleNamespace(registers=32, static_shared_bytes=0, spill_store_bytes=0, spill_load_bytes=0)
    loaded = SimpleNamespace(compiled=SimpleNamespace(resources=used), occupancy=lambda: 4)
    monkeypatch.setattr(runtime, "load", lambda kernel: loaded, raising=False)
    monkeypatch.setattr(run, "reader_of", lambda gpu: (None, "a fake"))
    monkeypatch.setattr(environment, "driver_package", lambda: "580.1")
    return gpu


def run_prefilled(monkeypatch, probe, gpu, prefill_rounds=9, **rest):
    """Run a probe of a `Routed` workload, whole prefills included."""
    from minfer.campaign import run

    monkeypatch.setattr(run, "Prefills", Prefilled)
    model, counts = SimpleNamespace(name="7b.gguf"), {"rounds": 9, "prefill_rounds": prefill_rounds}
    return run.run_probe(probe, gpu, model=model, tokens=16, say=_nothing, **counts, **rest)


def install_observed(monkeypatch):
    """A fake GPU under `install`, with the module that takes walls apart observing it on its own clock."""
    gpu = install(monkeypatch, FakeGpu())
    monkeypatch.setattr(decompose, "reader_of", lambda gpu: (None, "a fake"))
    for module in (prefills, decompose, launch_times):
        monkeypatch.setattr(module, "time", Clock(gpu))

    class SameClock(FakeGpu):
        def __init__(self):
            super().__init__()
            self.gpu = gpu.gpu

        clock = property(
            lambda self: gpu.clock, lambda self, value: setattr(gpu, "clock", value or gpu.clock)
        )
        _capturing = property(
            lambda self: gpu._capturing, lambda self, value: setattr(gpu, "_capturing", value)
        )

    monkeypatch.setattr(decompose, "ObservingGpu", observing(SameClock))
    return gpu
