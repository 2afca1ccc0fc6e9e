"""Our products against cuBLAS's, side by side in one process through torch, where that is installed.

Each product is timed within a CUDA graph of launches over weights that take turns, so that they come from
memory and not from L2. Ours and cuBLAS's alternate in random order; what counts is the median. A burst begins
on a GPU that has rested; `soak` seconds of work before it give the clock that the GPU can hold. Every output
starts as NaN, and is checked before and after the timing.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

from minfer.campaign.record import Record, checked_positive
from minfer.engine.errors import EngineError

SHAPES = {"q+k+v": (4608, 3584), "o": (3584, 3584), "gate+up": (37888, 3584), "down": (3584, 18944)}
"""Rows and columns of the matrices of Qwen2.5-7B's layers."""
GRAPH_S = 1.5e-3  # of work in a graph
COLD_BYTES = 160e6  # of weights that take turns: more than any L2 holds
REST_S = 8e-3
TOLERANCE = 1e-3  # relative, of f16 results


@dataclass(frozen=True)
class Comparison:
    """One product: C[nt, od] = A[nt, id] B[od, id]^T in f16.

    Attributes:
        product: its name. nt, od, depth: sizes. config: our kernel's.
        ours_us, theirs_us: medians, microseconds. regime: "burst" or "sustained".
        ours_mhz, theirs_mhz: medians of NVML's SM clock while it ran; None: it does not tell, or it was a
            burst, which is over before NVML's reading has followed it.
    """

    product: str
    nt: int
    od: int
    depth: int
    config: str
    ours_us: float
    theirs_us: float
    regime: str
    ours_mhz: float | None = None
    theirs_mhz: float | None = None

    @property
    def cycles(self) -> tuple[float, float] | None:
        """Clock cycles of a launch: (ours, cuBLAS's)."""
        if self.ours_mhz is None or self.theirs_mhz is None:
            return None
        return self.ours_us * self.ours_mhz, self.theirs_us * self.theirs_mhz

    @property
    def ratio(self) -> float:
        """How many times as fast as cuBLAS."""
        return self.theirs_us / self.ours_us

    @property
    def tflops(self) -> tuple[float, float]:
        """(ours, cuBLAS's)."""
        flop = 2.0 * self.nt * self.od * self.depth
        return flop / self.ours_us / 1e6, flop / self.theirs_us / 1e6

    def __str__(self) -> str:
        ours, theirs = self.tflops
        what = f"{self.product:<8} {self.nt:>5} tokens {self.regime:<9}"
        text = f"{what} {ours:6.0f} TFLOPS, cuBLAS {theirs:4.0f}: {self.ratio:.3f}  ({self.config})"
        if self.cycles is not None:
            clocks = f"{self.ours_mhz:.0f} and {self.theirs_mhz:.0f} MHz"
            text += f"  {self.cycles[0] / 1e3:.1f} and {self.cycles[1] / 1e3:.1f} kilocycles at {clocks}"
        return text

    def as_dict(self) -> dict:
        """The fields and the ratio, ready for JSON."""
        return asdict(self) | {"ratio": self.ratio}


@dataclass(frozen=True, kw_only=True)
class Against(Record):
    """Our products beside another library's, interleaved in one process; `command` is its command line.

    Attributes:
        library: whose, with its version.
    """

    kind: ClassVar[str] = "against"

    command: str
    library: str
    results: list[Comparison]

    def check(self) -> None:
        super().check()
        if len({result.regime for result in self.results}) != 1:
            raise ValueError("results: a list of at least one product is needed, all of one regime")
        for place, result in enumerate(self.results):
            try:
                checked_positive(result, "nt", "od", "depth", "ours_us", "theirs_us")
                if result.product not in SHAPES:
                    raise ValueError(f"product: {result.product!r} is none of {', '.join(SHAPES)}")
            except ValueError as error:
                raise ValueError(f"results[{place}].{error}") from None

    @property
    def regime(self) -> str:
        """ "burst" or "sustained"."""
        return self.results[0].regime

    @property
    def stem(self) -> str:
        """The beginning of its file's name."""
        return f"against-cublas-{self.regime}"


def newest_comparisons(
    records: Iterable[Record], device: str, regime: str
) -> dict[tuple[int, str], tuple[Comparison, Against]]:
    """By tokens and product the newest comparison on a device (a key of `minfer.arithmetic.devices`), and the
    record that it is of. records: oldest first."""
    found = {}
    for record in records:
        if isinstance(record, Against) and record.device_key == device and record.regime == regime:
            found |= {(row.nt, row.product): (row, record) for row in record.results}
    order = list(SHAPES)
    return dict(sorted(found.items(), key=lambda item: (item[0][0], order.index(item[0][1]))))


def geometric_mean(rows: Sequence[Comparison]) -> float:
    """Of the ratios."""
    return math.exp(statistics.fmean(math.log(row.ratio) for row in rows))


def copies(od: int, depth: int) -> int:
    """Matrices of f16 weights that take turns."""
    return max(1, math.ceil(COLD_BYTES / (2 * od * depth)))


def launches(nt: int, od: int, depth: int, flops: float = 7e14) -> int:
    """Launches of a graph: so many that it takes about GRAPH_S, and every matrix its turn."""
    turns = copies(od, depth)
    return turns * math.ceil(max(1.0, GRAPH_S * flops / (2.0 * nt * od * depth)) / turns)


def compare_products(
    tokens: Sequence[int],
    shapes: Mapping[str, tuple[int, int]] = SHAPES,
    rounds: int = 9,
    soak: float = 0.0,
    on_row: Callable[[Comparison], None] | None = None,
) -> list[Comparison]:
    """Measure every product at every number of tokens; on_row is told each result.

    Raises EngineError without torch or without a GPU that Hopper's GEMM runs on, or where a result is wrong.
    """
    torch = _torch()
    rows = []
    for nt in tokens:
        for name, (od, depth) in shapes.items():
            rows.append(_compare(torch, name, nt, od, depth, rounds, soak))
            torch.cuda.empty_cache()
            if on_row is not None:
                on_row(rows[-1])
    return rows


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise EngineError(
            "torch is not installed: a comparison with cuBLAS needs it: pip install torch"
        ) from None
    from minfer.cuda.runtime import device

    if not torch.cuda.is_available() or device().arch != "sm_90a":
        raise EngineError("the comparison is of Hopper's GEMM: it needs a GPU of sm_90 (H100, H200)")
    return torch


def _compare(torch: Any, name: str, nt: int, od: int, depth: int, rounds: int, soak: float) -> Comparison:
    from minfer.cuda import runtime
    from minfer.cuda.gemm_hopper import choose, make_gemm_hopper
    from minfer.cuda.runtime.sensors import read_sensors

    device = runtime.device()
    sms = device.sms
    config = choose(nt, od, depth, sms)
    loaded = runtime.load(make_gemm_hopper(config))
    a = torch.randn(nt, depth, device="cuda", dtype=torch.float16)
    weights = [torch.randn(od, depth, device="cuda", dtype=torch.float16) for _ in range(copies(od, depth))]
    outputs = {side: torch.empty(nt, od, device="cuda", dtype=torch.float16) for side in ("ours", "theirs")}
    wanted = a.float() @ weights[0].float().T

    def bind(b: Any) -> Any:
        arrays = zip("abc", (a, b, outputs["ours"]), strict=True)
        maps = [runtime.tensor_map(array, *config.boxes[which]) for which, array in arrays]
        return loaded.prepare(config.grid(nt, od, sms), *maps, nt, od, depth, config.group(nt, od))

    def launch(bound: Any) -> None:
        bound(torch.cuda.current_stream().cuda_stream)

    calls = {
        "ours": [partial(launch, bind(b)) for b in weights],
        "theirs": [partial(torch.matmul, a, b.T, out=outputs["theirs"]) for b in weights],
    }

    def check(side: str) -> None:
        outputs[side].fill_(float("nan"))
        calls[side][0]()
        error = float((outputs[side].float() - wanted).norm() / wanted.norm())
        if not error < TOLERANCE:
            raise EngineError(f"{name} at {nt} tokens, {side} ({config}): off by {error:.1e}, not timed")

    graphs, count = {}, launches(nt, od, depth)
    for side in calls:
        check(side)
        graphs[side] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[side]):
            for i in range(count):
                calls[side][i % len(weights)]()

    clocks: dict[str, list[float]] = {side: [] for side in calls}

    def replay(side: str) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graphs[side].replay()
        end.record()
        clocks[side].append(read_sensors(device).get("sm_mhz", 0.0))
        end.synchronize()
        return start.elapsed_time(end) / count * 1e3

    times: dict[str, list[float]] = {side: [] for side in calls}
    begun = time.perf_counter()
    while time.perf_counter() - begun < soak:
        replay("ours"), replay("theirs")
    for side in calls:
        replay(side)
        clocks[side].clear()
    for _ in range(rounds):
        for side in random.sample(list(calls), len(calls)):
            if soak:
                replay(side)  # under the load of the one that is timed
            else:
                time.sleep(REST_S)
            times[side].append(replay(side))
    for side in calls:
        check(side)
    medians = [statistics.median(found[side]) for found in (times, clocks) for side in ("ours", "theirs")]
    ours, theirs, *mhz = medians
    seen = [clock if soak and clock else None for clock in mhz]
    return Comparison(name, nt, od, depth, str(config), ours, theirs, "sustained" if soak else "burst", *seen)
