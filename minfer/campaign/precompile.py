"""Compiling what probes and routes launch into the kernel cache, before it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from minfer.campaign.prefills import separate
from minfer.campaign.probe import Probe
from minfer.campaign.trial import kernels_of
from minfer.cuda.kernel import ConfigRefused, Kernel
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.compile_ahead import compile_ahead, kernels_for
from minfer.engine.cuda.devices import DryDevice
from minfer.engine.cuda.launches import origin
from minfer.engine.cuda.routes import Route
from minfer.model.model import Model


def routes_of(probes: Iterable[Probe], arch: str) -> list[Route]:
    """The engine's routes that probes' configs are part of on an architecture, each once, as their prefills
    or decodes run them."""
    found = [
        route if probe.workload.phase == "decode" else separate(route)
        for probe in probes
        if probe.workload is not None
        for _, config in probe.sides
        if (route := probe.workload.route(config, arch)) is not None
    ]
    return list(dict.fromkeys(found))


def route_kernels(
    model: Model,
    route: Route,
    prompts: Sequence[int],
    arch: str = "sm_90a",
    sms: int = 132,
    weights: str = "auto",
) -> list[Kernel]:
    """`kernels_for` prompts of these lengths, each a chunk. weights: as `CudaBackend` takes it."""
    chunk = max(prompts)
    plan = CudaBackend(route, DryDevice(arch, sms), weights=weights).plan(model, chunk, chunk)
    return kernels_for(model, route, plan, prompts, arch, sms)


def precompile(
    probes: Sequence[Probe],
    arch: str,
    *,
    model: Model | None = None,
    routes: Iterable[Route] = (),
    prompts: Sequence[int] = (2048,),
    say: Callable[[str], None] = print,
) -> None:
    """Compile what the cache lacks: of the probes, and of a model's routes (the probes' and `routes`).

    Kernels of a user's own modules, and what does not compile, are left to their launch.
    """
    kernels: list[Kernel] = []
    for probe in probes:
        with suppress(Exception):  # a probe's code may raise anything: its run says so
            kernels += kernels_of(probe, arch)
    if model is not None:
        for route in dict.fromkeys([*routes_of(probes, arch), *routes]):
            try:
                kernels += route_kernels(model, route, prompts, arch)
            except ConfigRefused:
                continue  # the probe's run says so
    compile_ahead([kernel for kernel in dict.fromkeys(kernels) if _ours(kernel)], arch, say)


def _ours(kernel: Kernel) -> bool:
    """Whether another process can make this kernel again."""
    try:
        factory, _ = origin(kernel)
    except KeyError:
        return False
    return factory.__module__.startswith("minfer.")
