"""`minfer bench` of several routes in one process, on one copy of the weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from minfer.campaign.precompile import route_kernels
from minfer.campaign.prefills import SharedModel
from minfer.engine.bench import BenchResult, OnSample, bench_session, longest_test
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.compile_ahead import compile_ahead
from minfer.engine.cuda.devices import GpuDevice
from minfer.engine.cuda.routes import Route, check_route, choose_route


def bench_routes(
    path: str,
    names: Sequence[str],
    prompts: Sequence[int] = (512,),
    generations: Sequence[int] = (128,),
    repetitions: int = 5,
    sustained: float = 0.0,
    on_sample: OnSample | None = None,
    say: Callable[[str], None] = print,
    on_failure: Callable[[Route, Exception], None] | None = None,
) -> Iterator[list[BenchResult]]:
    """The results of each route in turn, on the GPU in use; see `minfer.engine.bench.bench_session`.

    Args:
        path: a GGUF file, or the name of a pulled model. names: of `minfer.engine.cuda.routes`.
        say: gets what takes time, and the memory plans.
        on_failure: gets a route that cannot run, and the others go on; None: its error ends all.
    """
    n_ctx = longest_test(prompts, generations)
    for name in names:
        check_route(name)
    device = GpuDevice()
    chosen = [choose_route(name, device.arch, os.environ) for name in dict.fromkeys(names)]
    shared = SharedModel(path, device, n_ctx, say, chunk=min(n_ctx, CudaBackend.default_chunk))
    passes = {part for n in prompts for part in (min(n, shared.chunk), n % shared.chunk) if part}
    lengths = (shared.chunk, *passes)
    kernels = [
        k for route in chosen for k in route_kernels(shared.model, route, lengths, device.arch, device.sms)
    ]
    compile_ahead(list(dict.fromkeys(kernels)), device.arch, say)
    for route in chosen:
        try:
            session = shared.session(route)
            results = bench_session(session, prompts, generations, repetitions, sustained, on_sample)
        except Exception as error:
            if on_failure is None:
                raise
            on_failure(route, error)
        else:
            yield results
