"""Variants of a prefill in one process: interleaved, on one copy of the weights, a result of bench each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from minfer.campaign.environment import stamps
from minfer.campaign.precompile import route_kernels
from minfer.campaign.prefills import REST_S, SharedModel, prefill
from minfer.campaign.records import Sweep
from minfer.campaign.telemetry import Watch, reader_of
from minfer.cuda.kernel import CompileError, ConfigRefused, LaunchRefused
from minfer.engine.bench import BenchResult, check_finite, result_of
from minfer.engine.cuda.compile_ahead import compile_ahead
from minfer.engine.cuda.devices import Device, GpuDevice
from minfer.engine.cuda.routes import WIDE_ARCHITECTURES
from minfer.engine.cuda.variants import Variant, choose
from minfer.engine.errors import EngineError
from minfer.engine.session import Session
from minfer.model.model import Model

CANNOT_RUN = (ConfigRefused, LaunchRefused, CompileError)
APART = 0.1
"""Logits of variants differ by at most so many of their standard deviations: they compute the same."""


def sweep(
    path: str, names: Sequence[str], tokens: int, repetitions: int, say: Callable[[str], None]
) -> Sweep:
    """Measure variants by name, f16 among them, on the GPU in use; the record, not yet written.

    Args:
        path: a GGUF file, or the name of a pulled model. names: see `minfer.engine.cuda.variants.choose`.
        say: gets what takes time, and each variant that cannot run here.

    Raises:
        NoDevice: no GPU. InputError: an unknown name, or more tokens than the model's context has.
        EngineError: logits that are no number, not those of f16, or changed while they were timed.
    """
    choose(names, WIDE_ARCHITECTURES[0])  # a name that is none is told before that there is no GPU
    device = GpuDevice()
    chosen = choose(names, device.arch)
    compile_variants(Model.load(path), chosen, tokens, device, say)
    watch = Watch(*reader_of(device.gpu))
    results = measure(SharedModel(path, device, tokens, say), chosen, tokens, repetitions, watch, say)
    variants = " ".join(f"--variant {name}" for name in names)
    return Sweep(
        **stamps(device.gpu),
        command=f"minfer bench -m {results[0].model_filename} -p {tokens} -r {repetitions} {variants}",
        rest_s=REST_S,
        telemetry=watch.summary(),
        results=results,
    )


def compile_variants(
    model: Model, chosen: Sequence[Variant], tokens: int, device: Device, say: Callable[[str], None]
) -> None:
    """Compile what prefills of so many tokens launch on a device; needs no GPU."""
    kernels = []
    for variant in chosen:
        route, weights = variant.route, variant.weights
        kernels += route_kernels(model, route, (tokens,), device.arch, device.sms, weights)
    compile_ahead(list(dict.fromkeys(kernels)), device.arch, say)


def measure(
    shared: SharedModel,
    chosen: Sequence[Variant],
    tokens: int,
    repetitions: int,
    watch: Watch,
    say: Callable[[str], None],
) -> list[BenchResult]:
    """Prefills of each variant by the host's clock, after one that warms up, one of each in every round; the
    order within a round is drawn anew, and the GPU rests before each.

    What cannot run here is left out, and `say` is told.

    Raises:
        InputError, EngineError: see `sweep`.
    """
    ids = shared.prompt(tokens)
    running: list[tuple[Variant, Session, np.ndarray]] = []
    for variant in chosen:
        try:
            session = shared.session(variant.route, weights=variant.weights)
            logits = prefill(session, ids)
        except CANNOT_RUN as error:
            say(f"{variant.name}: left out: {error}")
            continue
        check_finite(variant.name, logits)
        running.append((variant, session, logits))
        _check_alike(variant.name, logits, running[0][2])
    samples: list[list[int]] = [[] for _ in running]
    readings: list[list[dict[str, float]]] = [[] for _ in running]
    for turn in range(repetitions):
        for place in np.random.default_rng(turn).permutation(len(running)):
            variant, session, wanted = running[place]
            time.sleep(REST_S)
            start = time.perf_counter_ns()
            logits = prefill(session, ids)
            samples[place].append(time.perf_counter_ns() - start)
            readings[place].append(session.backend.sensors())
            watch.look()
            if not np.array_equal(logits, wanted):
                raise EngineError(f"{variant.name}: the logits changed while they were timed")
    results = []
    for (variant, session, _), times, seen in zip(running, samples, readings, strict=True):
        found = result_of("pp", tokens, times, session, readings=seen)
        named = {"variant": variant.name, "changes": variant.changes}
        results.append(replace(found, settings=named | found.settings))
    return results


def _check_alike(name: str, logits: np.ndarray, base: np.ndarray) -> None:
    apart = float(abs(logits - base).max() / base.std())
    if apart > APART:
        raise EngineError(
            f"{name}: logits differ from those of f16 by {apart:.2f} of their standard deviation, allowed "
            f"{APART}: it is not timed"
        )
