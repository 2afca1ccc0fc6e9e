"""Speed of a model on a backend, by llama-bench's definitions and field names."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

import numpy as np

import minfer
from minfer.engine.backend import Backend, KvDtype, Progress
from minfer.engine.errors import EngineError, InputError, check_whole
from minfer.engine.session import Session
from minfer.model.model import Model

OnSample = Callable[[str, int, int], None]
STEADY = 0.01
"""Change of a run's time, as a part of it, below which the device counts as steady."""


@dataclass(frozen=True)
class BenchResult:
    """One test: pp N (n_gen 0) is one prompt of N random tokens, tg N (n_prompt 0) is N single-token decodes.

    samples_ns: nanoseconds of each repetition; samples_ts: tokens per second; avg_* and stddev_* over these.
    test_time: when the test ended, ISO 8601, UTC. backends: `backend`, by llama-bench's name.
    regime: "burst", the repetitions right after a warm-up, or "sustained", after the device has worked until
    its speed was steady; sensors: the means of what the device reported after the repetitions.
    """

    test: str
    n_prompt: int
    n_gen: int
    avg_ns: int
    stddev_ns: int
    avg_ts: float
    stddev_ts: float
    samples_ns: list[int]
    samples_ts: list[float]
    model_filename: str
    model_type: str
    model_size: int
    model_n_params: int
    backend: str
    device: str
    type_k: str
    type_v: str
    n_ubatch: int
    test_time: str
    settings: dict[str, str]
    versions: dict[str, str]
    backends: str = ""
    regime: str = "burst"
    sensors: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.backends:
            object.__setattr__(self, "backends", self.backend)

    def as_dict(self) -> dict:
        """The fields, ready for JSON."""
        return asdict(self)


def bench(
    model: Model,
    backend: Backend,
    prompts: Sequence[int] = (512,),
    generations: Sequence[int] = (128,),
    repetitions: int = 5,
    kv_dtype: KvDtype = "f16",
    chunk: int | None = None,
    sustained: float = 0.0,
    on_sample: OnSample | None = None,
    progress: Progress | None = None,
) -> list[BenchResult]:
    """`bench_session` in a session of its own, long enough for the longest test. progress: of its loading."""
    session = Session(model, backend, longest_test(prompts, generations), kv_dtype, chunk, progress)
    return bench_session(session, prompts, generations, repetitions, sustained, on_sample)


def decode(session: Session, ids: np.ndarray) -> np.ndarray:
    """As many single-token decodes as `ids`; the last one's logits."""
    if not session.chooses:
        for i in range(len(ids)):
            logits = session.forward(ids[i : i + 1])
        return logits
    token = int(ids[0])
    for chosen in session.greedy(token, len(ids) - 1):
        token = chosen
    return session.forward([token])


def longest_test(prompts: Sequence[int], generations: Sequence[int]) -> int:
    """Tokens of context that the longest test takes. Raises InputError for none, or a negative length."""
    for n in (*prompts, *generations):
        check_whole(tokens=n)
    tests = [n for n in (*prompts, *generations) if n]
    if not tests:
        raise InputError("nothing to measure: give a prompt length or a number of tokens to generate above 0")
    if min(tests) < 0:
        raise InputError(f"a test of {min(tests)} tokens is not possible: lengths must not be negative")
    return max(tests)


def bench_session(
    session: Session,
    prompts: Sequence[int] = (512,),
    generations: Sequence[int] = (128,),
    repetitions: int = 5,
    sustained: float = 0.0,
    on_sample: OnSample | None = None,
) -> list[BenchResult]:
    """Run pp N for each N in `prompts` (logits of the last token only), tg N for each in `generations`.

    Each starts from an empty context, after one warm-up run; nothing is tokenised. Where the device chooses
    tokens (`Session.greedy`), tg decodes its choices, as greedy generation does; else random tokens, and
    nothing is sampled. A length of 0 is left out. sustained: seconds that each test runs before it is timed,
    so that a GPU reaches its power limit and the clock that it can hold; longer, up to three times, until the
    speed changes by less than 1 %. 0: a burst, as llama-bench measures. on_sample is called with (test,
    repetitions done, repetitions). Raises InputError for lengths that the session's context does not hold,
    EngineError where logits are not finite after a run: what was timed was no forward then.
    """
    check_whole(repetitions=repetitions)
    if repetitions < 1:
        raise InputError(f"{repetitions} repetitions: there must be at least 1")
    if not 0 <= sustained < math.inf:
        raise InputError(f"{sustained} seconds before a test: must be at least 0, and finite")
    tests = [("pp", n) for n in prompts if n] + [("tg", n) for n in generations if n]
    ids = np.random.default_rng(0).integers(0, session.config.vocab_size, longest_test(prompts, generations))

    def run(kind: str, n: int) -> int:
        session.reset()
        start = time.perf_counter_ns()
        if kind == "pp":
            logits = session.forward(ids[:n])
        else:
            logits = decode(session, ids[:n])
        elapsed = time.perf_counter_ns() - start
        check_finite(f"{kind}{n}", logits)
        return elapsed

    results = []
    for kind, n in tests:
        run(kind, n if kind == "pp" else min(n, 1 + session.chooses))  # warm-up
        if sustained:
            _until_steady(lambda kind=kind, n=n: run(kind, n), sustained)
        samples, readings = [], []
        for repetition in range(repetitions):
            samples.append(run(kind, n))
            readings.append(session.backend.sensors())
            if on_sample is not None:
                on_sample(f"{kind}{n}", repetition + 1, repetitions)
        regime = "sustained" if sustained else "burst"
        results.append(result_of(kind, n, samples, session, regime, readings))
    return results


def check_finite(test: str, logits: np.ndarray) -> None:
    """Raise EngineError for logits of a test that are not all finite: nothing that may be timed."""
    if not np.isfinite(logits).all():
        raise EngineError(
            f"{test}: {np.count_nonzero(~np.isfinite(logits)):,} of {logits.size:,} logits are NaN or "
            "infinite: what was timed was no forward pass, and no speed is reported"
        )


def _until_steady(run: Callable[[], int], seconds: float) -> None:
    """Repeat a run (it returns its nanoseconds) for some seconds, and on until a quarter of that brings less
    than 1 % of change; at most three times as long."""
    start = time.perf_counter()
    before, part, begun = 0.0, [], start
    while True:
        part.append(run())
        now = time.perf_counter()
        if now - begun < seconds / 4:
            continue
        middle = statistics.median(part)
        steady = before > 0 and abs(middle - before) < STEADY * before
        if now - start >= 3 * seconds or (steady and now - start >= seconds):
            return
        before, part, begun = middle, [], now


def _means(readings: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each sensor that every reading has."""
    names = set(readings[0]).intersection(*readings)
    return {name: round(statistics.mean(r[name] for r in readings), 1) for name in sorted(names)}


def result_of(
    kind: str,
    n: int,
    samples: list[int],
    session: Session,
    regime: str = "burst",
    readings: Sequence[dict[str, float]] = ({},),
) -> BenchResult:
    """The result of a test ("pp" or "tg" of n tokens) from the nanoseconds of its repetitions.

    readings: of the backend's sensors, one after each repetition.
    """
    rates = [n / (ns * 1e-9) for ns in samples]
    file = session.model.file
    return BenchResult(
        test=f"{kind}{n}",
        n_prompt=n if kind == "pp" else 0,
        n_gen=n if kind == "tg" else 0,
        avg_ns=round(statistics.mean(samples)),
        stddev_ns=round(statistics.stdev(samples)) if len(samples) > 1 else 0,
        avg_ts=statistics.mean(rates),
        stddev_ts=statistics.stdev(rates) if len(rates) > 1 else 0.0,
        samples_ns=samples,
        samples_ts=rates,
        model_filename=file.paths[0].name,
        model_type=session.config.name,
        model_size=sum(tensor.nbytes for tensor in file.tensors.values()),
        model_n_params=sum(int(np.prod(tensor.shape)) for tensor in file.tensors.values()),
        backend=session.backend.name,
        device=session.backend.describe(),
        type_k=session.kv_dtype,
        type_v=session.kv_dtype,
        n_ubatch=session.chunk,
        test_time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        settings=session.backend.settings(),
        versions={
            "minfer": minfer.__version__,
            "python": platform.python_version(),
            **session.backend.versions(),
        },
        regime=regime,
        sensors=_means(readings),
    )
