"""The cuda backend: which device, which route, and whether a model fits."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from minfer.engine.backend import KvDtype, Progress, Weights
from minfer.engine.errors import EngineError, InputError
from minfer.model.model import Model

if TYPE_CHECKING:
    from minfer.engine.cuda.plan import MemoryPlan
    from minfer.engine.cuda.routes import Route
    from minfer.engine.cuda.runtime import CudaRuntime
    from minfer.engine.cuda.weights import Run

HEAD_DIMS = (64, 128)
_PACKAGES = ("numba", "numba-cuda", "numpy", "nvidia-cuda-nvcc")


def why_unavailable() -> str | None:
    """Why no GPU can be used here, in one sentence; None if one can."""
    from minfer.cuda.kernel import NoDevice
    from minfer.cuda.runtime import device

    try:
        device()
    except NoDevice as error:
        return str(error)
    return None


class CudaBackend:
    """Runs models on a GPU.

    route: a name in `minfer.engine.cuda.routes.ROUTES`, or a `Route` of one's own. device: a
    `minfer.engine.cuda.devices.Device`, None: the GPU in use. on_plan: is told the memory plan, what takes
    time and where a kernel of the route cannot run, a line each; None: printed to stderr. weights: how
    prefill has them, one of `minfer.engine.cuda.plan.WAYS`, or "auto": the first that fits.

    Raises InputError or EngineError for a route that does not exist, or not here; NoDevice without a GPU.
    """

    name = "cuda"
    default_chunk = 2048

    def __init__(
        self,
        route: str | Route = "auto",
        device: Any = None,
        on_plan: Callable[[str], None] | None = None,
        weights: str = "auto",
    ):
        from minfer.engine.cuda.devices import GpuDevice
        from minfer.engine.cuda.plan import WAYS
        from minfer.engine.cuda.routes import choose_route

        if weights not in ("auto", *WAYS):
            raise InputError(f"weights {weights!r}: choose one of auto, {', '.join(WAYS)}")
        self._ways = WAYS if weights == "auto" else (weights,)
        self._auto = route == weights == "auto"
        self._plan: MemoryPlan | None = None
        self._decode: dict[str, str] = {}  # of the last model opened
        self.device = GpuDevice() if device is None else device
        self._asked = choose_route(route, self.device.arch, os.environ) if isinstance(route, str) else route
        self.route = self._asked  # or what has taken its place for the last model planned
        self._on_plan = on_plan or (lambda line: print(line, file=sys.stderr))

    def describe(self) -> str:
        """The device, and the route."""
        return f"{self.device}, route {self.route.name}"

    def versions(self) -> dict[str, str]:
        """Versions of the software that the figures depend on, by name."""
        found = {}
        for package in _PACKAGES:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue  # such as a CUDA toolkit's ptxas in place of the wheel
        gpu = getattr(self.device, "gpu", None)
        return found if gpu is None else found | {"driver's CUDA": gpu.cuda_version}

    def settings(self) -> dict[str, str]:
        """The route's choices, and the memory plan's for the last model opened."""
        plan = self._plan
        chosen = {} if plan is None else {"weights": plan.read, "memory": f"{plan.total / 1e9:.2f} GB"}
        return self.route.settings() | chosen | self._decode

    def sensors(self) -> dict[str, float]:
        """The GPU's clock, power and temperature, where NVML tells them."""
        from minfer.cuda.runtime import read_sensors

        gpu = getattr(self.device, "gpu", None)
        return {} if gpu is None else read_sensors(gpu)

    def plan(self, model: Model, n_ctx: int, chunk: int) -> MemoryPlan:
        """What `open` would put where; raises EngineError, with the numbers, if nothing fits.

        A route that was left open becomes w4a16 where Hopper's f16 copies of the weights do not fit."""
        from minfer.engine.cuda.routes import choose_route

        self.route = self._asked
        made = self._plan_route(model, n_ctx, chunk)
        if self._auto and self.route.name == "f16-wgmma" and not made.resident:
            self.route = choose_route("w4a16", self.device.arch, os.environ)
            made = self._plan_route(model, n_ctx, chunk)
        return made

    def _plan_route(self, model: Model, n_ctx: int, chunk: int) -> MemoryPlan:
        from minfer.engine.cuda.plan import plan_memory
        from minfer.engine.cuda.weights import layer_stacks, matrix_shape

        config = model.config
        layers = [
            [[matrix_shape(model, name) for name in names] for names in layer_stacks(model.layer(i)).values()]
            for i in range(config.n_layers)
        ]
        tables = [matrix_shape(model, name) for name in dict.fromkeys((model.embedding, model.output))]
        device = self.device
        return plan_memory(
            config,
            layers,
            tables,
            n_ctx,
            chunk,
            self.route,
            device.free_bytes(),
            device.sms,
            device.shared_bytes,
            self._ways,
        )

    def open(
        self, model: Model, n_ctx: int, kv_dtype: KvDtype, chunk: int, progress: Progress | None = None
    ) -> CudaRuntime:
        """Plan the memory, compile and load the kernels, load the weights; see `Backend.open`."""
        from minfer.engine.cuda.compile_ahead import compile_ahead, load_ahead, needed_kernels
        from minfer.engine.cuda.devices import GpuDevice

        _check(model, kv_dtype)
        plan = self._plan = self.plan(model, n_ctx, chunk)
        if self.route is not self._asked:
            self._on_plan(f"f16 copies of the weights do not fit: route {self.route.name} reads the blocks")
        self._on_plan(str(plan))
        if isinstance(self.device, GpuDevice):
            needed = needed_kernels(model, self.route, plan, self.device.arch, self.device.sms)
            compile_ahead(needed, self.device.arch, self._on_plan, progress)
            load_ahead(needed, self.device.arch)
        try:
            return self._runtime(model, plan, progress, self._on_plan)
        except MemoryError as error:
            raise EngineError(f"the model was planned to fit, and does not: {error}") from error

    def _runtime(
        self,
        model: Model,
        plan: MemoryPlan,
        progress: Progress | None,
        tell: Callable[[str], None],
        loaded: tuple[Weights, Run] | None = None,
    ) -> CudaRuntime:
        """The plan's runtime, on those weights if they are loaded; `settings` tells how it decodes."""
        from minfer.engine.cuda.runtime import CudaRuntime

        made = CudaRuntime(model, self.device, self.route, plan, progress, tell, loaded)
        self._decode = {"decode": made.decode}
        return made


def _check(model: Model, kv_dtype: KvDtype) -> None:
    """Refuse, with EngineError, what no kernel here computes."""
    config = model.config
    if kv_dtype != "f16":
        raise EngineError(f"the cuda backend keeps its KV cache in f16, not {kv_dtype}: use f16 or the host")
    if config.head_dim not in HEAD_DIMS:
        raise EngineError(
            f"heads of {config.head_dim}: the cuda backend's attention takes "
            f"{' or '.join(map(str, HEAD_DIMS))}; use the host backend"
        )
    for name, width in (("embedding_length", config.hidden), ("feed_forward_length", config.ffn)):
        if width % 8:
            raise EngineError(
                f"{name} is {width}: the cuda backend needs a multiple of 8; use the host backend"
            )
    if config.rope.dimension_count % 8:
        raise EngineError(
            f"{config.rope.dimension_count} rotary dims: the cuda backend needs a multiple of 8; use the "
            "host backend"
        )
