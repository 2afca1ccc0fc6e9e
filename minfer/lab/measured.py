"""The 7B's speeds: measured here where a GPU and the model are, else what the records hold."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from minfer.arithmetic.devices import DEVICES, DeviceSpec, by_name
from minfer.campaign.peers import Peer, llamacpp
from minfer.campaign.record import origins
from minfer.campaign.records import Bench, Record, Sweep
from minfer.campaign.report import DECODE, DEVICE, PREFILL, newest_sweep, routes
from minfer.lab.errors import EXPECTED, sentence
from minfer.lab.speed_view import DECODED, TOKENS
from minfer.lab.table import Table
from minfer.model.errors import ModelFileError
from minfer.model.registry import resolve

if TYPE_CHECKING:
    from minfer.engine.cuda.routes import Route

PULLED, SYNTHETIC = "qwen2.5-7b", "qwen2.5-7b-synth"


@dataclass(frozen=True)
class Speeds:
    """Speeds of the 7B on one device.

    Attributes:
        benches: by route. sweep: the variants of the route f16 on the same device, None: not measured.
        peer: another engine on the same kind of GPU, None where there are no figures of one.
        device: the table's, whose bandwidth is the limit. live: measured just now.
        origin: where and when. why: what was not measured here, and the reason; "" if all was.
    """

    benches: dict[str, Bench]
    sweep: Sweep | None
    peer: Peer | None
    device: DeviceSpec
    live: bool
    origin: str
    why: str = ""

    @property
    def note(self) -> str:
        """Where and when, and why not here."""
        return f"{self.origin}." + (f" Not measured here: {self.why}." if self.why else "")

    def rows(self) -> list[dict]:
        """A row a route: prefill and decode in tokens a second with their standard deviations."""
        found = []
        for route, bench in self.benches.items():
            prefill, decode = bench.result(PREFILL), bench.result(DECODE)
            found.append(_row(route, (prefill.avg_ts, prefill.stddev_ts), (decode.avg_ts, decode.stddev_ts)))
        if self.peer is not None:
            found.append(_row(self.peer.name, self.peer.tok_s["pp2048_ub2048"], self.peer.tok_s[DECODE]))
        return found

    def __repr__(self) -> str:
        return f"{self.note}\n{Table(self.rows(), formats=FORMATS)!r}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.note)}</p>{Table(self.rows(), formats=FORMATS)._repr_html_()}"


FORMATS = {"prefill (tok/s)": ",.0f", "± prefill": ",.0f", "decode (tok/s)": ",.1f", "± decode": ",.1f"}


def _row(name: str, prefill: tuple[float, float], decode: tuple[float, float]) -> dict:
    values = zip(FORMATS, (*prefill, *decode), strict=True)
    return {"engine": name, **dict(values)}


def from_records(records: Sequence[Record], why: str = "") -> Speeds:
    """What the records hold of the H200. `why`: the reason that nothing is measured here."""
    benches, sweep = routes(records), newest_sweep(records)
    used = [*benches.values(), *([] if sweep is None else [sweep])]
    return Speeds(benches, sweep, llamacpp(), DEVICES[DEVICE], False, f"From records: {origins(used)}", why)


Taken = tuple[dict[str, Bench], dict[str, str]]
"""Benches by route, and why other routes could not run."""


def speeds(records: Sequence[Record], measure: Callable[[Path], Taken] | None = None) -> Speeds:
    """The speeds of this machine's GPU with the 7B, or those of the records and the reason.

    Measuring takes a minute or two: `minfer bench -p 2048 -n 128` on every route that the GPU has. A route
    that cannot run (no memory, a launch that the driver refuses) is left out, and the reason is told.

    Args:
        measure: runs every route on a model file.
    """
    model, why_not = model_to_measure()
    if model is None:
        return from_records(records, why_not)
    from minfer.cuda.runtime import device

    gpu = device()
    known = by_name(gpu.name)
    if known is None:
        return from_records(records, f"the bandwidth of {gpu.name} is not in the table of devices")
    try:
        benches, failed = (measure or bench_all)(model)
    except EXPECTED as error:
        return from_records(records, sentence(error))
    why = "; ".join(f"{route}: {reason}" for route, reason in failed.items())
    if not benches:
        return from_records(records, why)
    benches = dict(sorted(benches.items(), key=lambda entry: entry[1].result(PREFILL).avg_ts))
    peer = llamacpp() if known.key == DEVICE else None
    return Speeds(benches, None, peer, known, True, f"Measured just now on {gpu}, {model.name}", why)


def model_to_measure() -> tuple[Path | None, str]:
    """The 7B's file on a machine with a GPU that can run it; else None, and the reason."""
    from minfer.engine.cuda.backend import why_unavailable

    reason = why_unavailable()
    if reason is not None:
        return None, reason
    missing = f"the 7B is not here; run `minfer pull {PULLED}`, or `minfer synth {PULLED}`"
    return find_model(), missing


def find_model() -> Path | None:
    """The pulled 7B, else the synthetic one; None: neither is there."""
    for name in (PULLED, SYNTHETIC):
        with contextlib.suppress(ModelFileError):
            return resolve(name)
    return None


def bench_all(path: Path) -> Taken:
    """`minfer bench -p 2048 -n 128` of every route of the GPU, on one copy of the weights, as records that no
    file holds.

    Raises:
        EngineError, ModelFileError: as the engine and the model files do, where no route can run.
    """
    from minfer.campaign.decompose import prefill_routes
    from minfer.campaign.route_benches import bench_routes
    from minfer.cuda.runtime import device

    gpu, failed = device(), {}

    def told(route: Route, error: Exception) -> None:
        if not isinstance(error, EXPECTED):
            raise error
        failed[route.name] = sentence(error)

    names = [route.name for route in prefill_routes(gpu.arch)]
    runs = bench_routes(str(path), names, [TOKENS], [DECODED], say=lambda line: None, on_failure=told)
    made = (
        Bench(
            file="measured here",
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            commit="this code",
            device=gpu.name,
            driver=f"of CUDA {gpu.cuda_version}",
            command=f"minfer bench -p {TOKENS} -n {DECODED} --route {','.join(names)}",
            results=results,
        )
        for results in runs
    )
    return {bench.route: bench for bench in made}, failed
