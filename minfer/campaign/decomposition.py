"""Charging a pass's milliseconds to classes of work, and what follows from it. Pure: no GPU.

What a launch is charged is the time in which it alone held the device: from its start, or the end of the
launch before it where that is later (launches overlap at their seams), to its end. The gap comes from other
passes: it is what the wall clock of those that nobody observed has beside all launches in one CUDA graph; by
events, which cannot part a launch from its launching, beside what a pass takes from its first launch to the
end of its last. So the check, that buckets and gap add up to that wall clock, compares three measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minfer.campaign.observe import INT8_KERNELS, PRODUCTS, TAIL, Observed
from minfer.campaign.wall_record import Bucket, Wall

GAP = "host gap"
CLASSES = (
    "GEMM", "gate+up", "down", "q+o", "k+v", "FA", "convert", "quantize", "swiglu", "add/rms/rope", "lm_head",
    TAIL, GAP,
)  # fmt: skip
"""The seed's classes, in the order of its table; GEMM is the sum of the four behind it."""


@dataclass(frozen=True)
class Span:
    """When a launch ran, in nanoseconds of one clock."""

    start: int
    end: int


def exclusive(spans: Sequence[Span]) -> list[float]:
    """Milliseconds that each launch alone held the device, in the order of their starts.

    Raises:
        ValueError: spans out of order, or one that ends before it starts.
    """
    held, until = [], None
    for span in spans:
        if span.end < span.start or (until is not None and held and span.start < spans[len(held) - 1].start):
            raise ValueError(f"a launch from {span.start} to {span.end} ns: spans must be in order of start")
        begin = span.start if until is None else max(span.start, until)
        held.append(max(0, span.end - begin) / 1e6)
        until = span.end if until is None else max(until, span.end)
    return held


def buckets(launches: Sequence[Observed], times: Sequence[float]) -> list[Bucket]:
    """The classes of a pass in the order of their first launch; times in milliseconds.

    Raises:
        ValueError: another number of times than of launches.
    """
    if len(launches) != len(times):
        raise ValueError(f"{len(times)} times for {len(launches)} launches")
    found: dict[str, list[tuple[Observed, float]]] = {}
    for launch, time in zip(launches, times, strict=True):
        found.setdefault(launch.bucket, []).append((launch, time))
    return [_bucket(name, members) for name, members in found.items()]


def _bucket(name: str, members: Sequence[tuple[Observed, float]]) -> Bucket:
    kernels: dict[str, float] = {}
    for launch, time in members:
        kernels[str(launch.kernel)] = kernels.get(str(launch.kernel), 0.0) + time
    gmac = math.fsum(launch.gmac for launch, _ in members)
    weighted = math.fsum(launch.gmac * launch.weight_bits for launch, _ in members)
    return Bucket(
        name=name,
        ms=math.fsum(kernels.values()),
        launches=len(members),
        gmac=gmac,
        int8_gmac=math.fsum(launch.gmac for launch, _ in members if launch.kernel.name in INT8_KERNELS),
        nbytes=math.fsum(launch.nbytes for launch, _ in members),
        weight_bits=weighted / gmac if gmac else 0.0,
        kernels=kernels,
    )


def rows(wall: Wall) -> list[dict]:
    """The decomposition as a table, largest bucket first, the gap last.

    Each row: bucket, ms, share (of the wall clock), launches, GMAC, us/GMAC, TFLOPS, GB/s, memory SOL and
    compute SOL (shares of what the device reaches: memory as measured, tensor cores as specified for f16 or
    int8, whichever a product takes), if free (tokens a second without the bucket), gain; where counters were
    read, "ncu <counter>" of the bucket's largest launch. A quantity that a bucket does not have is None.
    """
    counted = list(dict.fromkeys(name for values in wall.counters.values() for name in values))
    copy = wall.ceilings.get("copy_gb_s")
    made = []
    for bucket in sorted(wall.buckets, key=lambda bucket: -bucket.ms):
        seconds = bucket.ms / 1e3
        rate = bucket.nbytes / seconds / 1e9 if seconds and bucket.nbytes else None
        tflops = 2 * bucket.gmac / seconds / 1e3 if seconds and bucket.gmac else None
        made.append(
            {
                "bucket": bucket.name,
                "ms": bucket.ms,
                "share": bucket.ms / wall.ms,
                "launches": bucket.launches,
                "GMAC": bucket.gmac or None,
                "us/GMAC": bucket.ms * 1e3 / bucket.gmac if bucket.gmac else None,
                "TFLOPS": tflops,
                "GB/s": rate,
                "memory SOL": rate / copy if rate and copy else None,
                "compute SOL": wall.compute_sol(bucket),
            }
            | _free(wall, bucket.ms)
            | {f"ncu {name}": wall.counters.get(bucket.name, {}).get(name) for name in counted}
        )
    gap = {"bucket": GAP, "ms": wall.gap_ms, "share": wall.gap_ms / wall.ms, "launches": 0}
    empty = dict.fromkeys(("GMAC", "us/GMAC", "TFLOPS", "GB/s", "memory SOL", "compute SOL"))
    return [*made, gap | empty | _free(wall, wall.gap_ms) | {f"ncu {name}": None for name in counted}]


def _free(wall: Wall, ms: float) -> dict:
    """The upper bound: the pass without so many milliseconds."""
    left = wall.ms - ms
    return {"if free (tok/s)": wall.tokens / left * 1e3, "gain": wall.ms / left - 1}


def products_ms(wall: Wall) -> float:
    """Milliseconds of the layers' products."""
    return math.fsum(bucket.ms for bucket in wall.buckets if bucket.name in PRODUCTS)


def products_us_per_gmac(wall: Wall) -> float:
    """Microseconds a GMAC of the layers' products together.

    Raises:
        ValueError: the decomposition has no products.
    """
    gmac = math.fsum(bucket.gmac for bucket in wall.buckets if bucket.name in PRODUCTS)
    if not gmac:
        raise ValueError(f"{wall.file}: no bucket of {', '.join(PRODUCTS)} has work")
    return products_ms(wall) * 1e3 / gmac


MIXED_WIDTHS = (
    "Bits between two formats' are a mean over layers. Where w4a16 or w4a8 show more than 7 for q, k and v, "
    "the wall is from when layers with v in another format than q and k had an f16 copy of the three."
)
"""A footnote to `byte_width_rows`."""


def byte_width_rows(walls: Sequence[Wall]) -> list[dict]:
    """The byte-width ledger beside the measured split: for each decomposition and product, stored bits a
    weight, the weights' bytes, us/GMAC, and the time that reading those weights alone would take."""
    made = []
    for wall in walls:
        read = wall.ceilings.get("read_gb_s")
        for bucket in wall.buckets:
            if bucket.name not in PRODUCTS:
                continue
            weights = bucket.gmac * 1e9 / wall.tokens
            nbytes = weights * bucket.weight_bits / 8
            made.append(
                {
                    "route": wall.route,
                    "product": bucket.name,
                    "bits a weight": bucket.weight_bits,
                    "weights (GB)": nbytes / 1e9,
                    "ms": bucket.ms,
                    "us/GMAC": bucket.ms * 1e3 / bucket.gmac,
                    "reading alone (ms)": nbytes / read / 1e6 if read else None,
                }
            )
    return made


def what_if(
    wall: Wall, us_per_gmac: float | None = None, free: Sequence[str] = (), factors: Mapping[str, float] = {}
) -> float:
    """Tokens a second if the layers' products took `us_per_gmac` (None: as measured), buckets named in `free`
    nothing, and others a factor of their time.

    Raises:
        KeyError: no such bucket. ValueError: nothing would be left.
    """
    ms = wall.ms
    if us_per_gmac is not None:
        gmac = math.fsum(bucket.gmac for bucket in wall.buckets if bucket.name in PRODUCTS)
        ms += us_per_gmac * gmac / 1e3 - products_ms(wall)
    for name, factor in (dict.fromkeys(free, 0.0) | dict(factors)).items():
        held = wall.gap_ms if name == GAP else wall.bucket(name).ms
        if us_per_gmac is not None and name in PRODUCTS:
            raise ValueError(f"{name} has a rate already: give it a factor or a rate, not both")
        ms += (factor - 1) * held
    if ms <= 0:
        raise ValueError("nothing would be left of the wall clock")
    return wall.tokens / ms * 1e3


def class_shares(wall: Wall) -> dict[str, float]:
    """Shares of the wall clock in the seed's classes (seed 002 section 3.1), the gap among them, and of all
    products as "GEMM". A product of q, k and v together is divided by their multiply-accumulates."""
    ms = {bucket.name: bucket.ms for bucket in wall.buckets} | {GAP: wall.gap_ms}
    qkv = ms.pop("q+k+v", 0.0)
    q = float(wall.settings.get("q_share", 1.0)) * qkv
    ms |= {"GEMM": products_ms(wall), "q+o": ms.pop("o", 0.0) + q, "k+v": qkv - q}
    return {name: ms.pop(name, 0.0) / wall.ms for name in CLASSES} | {n: v / wall.ms for n, v in ms.items()}
