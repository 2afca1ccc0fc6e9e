"""The measured tables of README.md, made from the records.

minfer report --readme  rewrite what stands between the markers
minfer report --check   exit with 1 if that would change anything
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from minfer.campaign.against import REGIMES, Comparison, geometric_mean, newest_comparisons
from minfer.campaign.decomposition import class_shares
from minfer.campaign.document import Table, campaign_table, markdown_table, shares_table
from minfer.campaign.peers import Peer, llamacpp
from minfer.campaign.record import origins
from minfer.campaign.records import Bench, Record, RecordError, Sweep, load_records, newest_measured
from minfer.campaign.wall_record import newest_walls
from minfer.engine.bench import BenchResult
from minfer.model.whole_file import whole_file

README = Path(__file__).resolve().parents[2] / "README.md"
MODEL = "qwen2.5-7b, synthetic, seed 0"
DEVICE = "h200"
PREFILL, DECODE = "pp2048", "tg128"
PEER_PREFILL = "pp2048_ub2048"
SPEEDS = ("prefill, burst", "prefill, sustained", "decode", "decode, sustained")
LAUNCHES = {
    "launch us: LoadedKernel.launch": "a launch, host time",
    "launch us: prepared": "a launch with its arguments prepared, host time",
    "graph of 300 kernels: device us a kernel": "a small kernel in a replayed CUDA graph, device time",
}
"""What the GPU tests measured of launching -> how the table calls it."""
DETAILS = ("kernels", "why they differ")
"""Columns of the campaign's table that README folds."""


WHAT = {
    "f16": "mma.sync on f16 copies of the weights",
    "f16-wgmma": "wgmma on f16 copies",
    "w4a16": "wgmma; the blocks become f16 in registers",
    "w4a8": "as w4a16, but gate and up in int8",
    "mmq": "int8 mma.sync on the blocks, expanded in shared memory",
    "mmq_raw": "int8 mma.sync on the blocks' raw bytes",
    "mmq_raw_wide": "int8 mma.sync on raw bytes, 128 tokens a tile",
    "mmq_fast": "int8 mma.sync on the blocks, the fastest tiles",
}
"""A route -> what its prefill multiplies, and with what."""


def routes(
    records: Sequence[Record], model: str = MODEL, device: str = DEVICE, regime: str = "burst"
) -> dict[str, Bench]:
    """The newest bench of a model on a device by its route, slowest prefill first. One of other tests than
    `PREFILL` and, in a burst, `DECODE` takes nobody's place.

    Args:
        regime: "burst" or "sustained".
    """
    tests = {PREFILL, DECODE} if regime == "burst" else {PREFILL}
    found: dict[str, Bench] = {}
    for record in records:
        if (
            isinstance(record, Bench)
            and record.device_key == device
            and record.regime == regime
            and record.results[0].model_type == model
            and tests <= {result.test for result in record.results}
        ):
            found[record.route] = record
    return dict(sorted(found.items(), key=lambda item: item[1].result(PREFILL).avg_ts))


def newest_sweep(records: Sequence[Record], model: str = MODEL, device: str = DEVICE) -> Sweep | None:
    """The sweep of prefills of a model on a device with the most variants, of those the newest; None: there
    is none."""
    found = [
        record
        for record in records
        if isinstance(record, Sweep)
        and record.device_key == device
        and (record.results[0].model_type, record.results[0].test) == (model, PREFILL)
    ]
    return max(found, key=lambda r: (len(r.results), datetime.fromisoformat(r.date)), default=None)


def speed_table(records: Sequence[Record], peer: Peer) -> str:
    """Every route with its prefill and decode of the 7B, against another engine on the same GPU, as Markdown.

    Raises:
        RecordError: no bench of the 7B, or of other devices than the peer's.
    """
    benches, lasting = routes(records), routes(records, regime="sustained")
    if not benches:
        raise RecordError(f"no bench of {MODEL} on {DEVICE} among {len(records)} records")
    multiplies, rows = "prefill multiplies", []
    for route, bench in benches.items():
        prefill, decode = bench.result(PREFILL), bench.result(DECODE)
        if bench.device != peer.device:
            raise RecordError(f"{bench.file}: device: {bench.device}, but {peer.name} ran on {peer.device}")
        long = lasting.get(route)
        rows.append(
            (
                f"minfer, route `{route}`",
                WHAT.get(route, ""),
                prefill.settings.get("memory", ""),
                _speed(prefill),
                "" if long is None else _speed(long.result(PREFILL)),
                _speed(decode),
                "" if long is None else _speed(long.result(DECODE)),
            )
        )
    peers = (_spread(*peer.tok_s[name]) for name in (PEER_PREFILL, DECODE))
    rows.append((peer.name, "the blocks", "", next(peers), "", next(peers), ""))
    tests = [bench.result(PREFILL) for bench in benches.values()]
    lasted = [sum(test.samples_ns) / 1e9 for test in tests]
    repetitions = _all(len(test.samples_ns) for test in tests)
    note = (
        f"Tokens a second, mean ± standard deviation of {repetitions} repetitions after a warm-up: a prefill "
        "of 2048 tokens, a decode of 128. Memory: weights, KV cache and activations of 2048 tokens.\n"
        f"A **burst**: all repetitions of a prefill together last {min(lasted):.1f} to {max(lasted):.1f} s; "
        "the fastest prefills and all decodes reach the power limit within them, where the clock first falls "
        "below what it settles at: hence their spread. "
        "**Sustained**: the same after seconds of it, at the clock that the GPU's power limit leaves"
        f"{_clocks(lasting)}; measured for the two fastest at f16's accuracy.\n\n"
        f"minfer: {origins([*benches.values(), *lasting.values()])}.\n"
        f"{peer.what}; prefill in micro-batches of 2048."
    )
    return markdown_table(Table("Speed", ("", multiplies, "memory", *SPEEDS), rows, note, (multiplies,)))


def _clocks(lasting: Mapping[str, Bench]) -> str:
    """The clocks and the power of sustained prefills, in brackets."""
    seen = [bench.result(PREFILL).sensors for bench in lasting.values()]
    known = [s for s in seen if {"sm_mhz", "power_w"} <= s.keys()]
    if not known:
        return ""
    clocks = " and ".join(f"{s['sm_mhz']:,.0f} MHz at {s['power_w']:.0f} W" for s in known)
    return f" (prefill: {clocks})"


def launch_table(records: Sequence[Record]) -> str:
    """What launching a kernel from Python costs, by the newest run of the GPU tests that measured it.

    Raises:
        RecordError: no run of the GPU tests on the device measured all of it.
    """
    record = newest_measured(records, DEVICE, LAUNCHES)
    rows = [(what, f"{record.figure(name):.3g}") for name, what in LAUNCHES.items()]
    note = f"Measured by the GPU tests: {record.origin}."
    return markdown_table(Table("Launches", ("", "microseconds"), rows, note))


def products_table(records: Sequence[Record]) -> str:
    """Hopper's kernels at the 7B's products and attention as a multiple of cuBLAS's and cuDNN's speed, by the
    newest comparisons.

    Raises:
        RecordError: nothing was compared on the device.
    """
    found = {regime: newest_comparisons(records, DEVICE, regime) for regime in REGIMES}
    alone = [row for row, _ in found["alone"].values()]
    if not alone:
        del found["alone"]
    if not found["burst"]:
        raise RecordError(f"no comparison with cuBLAS on {DEVICE} among {len(records)} records")
    tokens = sorted({nt for nt, *_ in found["burst"]})
    labels = {key[1:]: row.label for key, (row, _) in found["burst"].items()}
    columns, rows = ("", *(f"{nt:,} tokens, {regime}" for nt in tokens for regime in found)), []
    for key, label in labels.items():
        cells = (found[regime].get((nt, *key)) for nt in tokens for regime in found)
        rows.append((label, *("" if cell is None else f"{cell[0].ratio:.3f}" for cell in cells)))
    origins = sorted(
        {f"{record.origin}, `{record.command}`" for rows in found.values() for _, record in rows.values()}
    )
    peers = " or ".join(sorted({row.peer.partition(",")[0] for row, _ in found["burst"].values()}))
    note = (
        f"Times as fast as {peers}, both in one process, theirs always on f16; Q4_K, Q6_K: our kernel reads "
        "the blocks; a figure is from the newest of these runs that has it (`-r`: rounds; `--sustained`: "
        "seconds of load before them)"
    )
    shown = [row for row in alone if row.nt in tokens and (row.weights, row.product) in labels]
    note = f"{note}: {'; '.join(origins)}.{_alone(shown)}"
    return markdown_table(Table("Products", columns, rows, note))


def _alone(rows: Sequence[Comparison]) -> str:
    """What the regime is, and the energy that it tells."""
    if not rows:
        return ""
    text = (
        " Sustained, both take turns within milliseconds and share a clock; alone, each runs by itself for "
        "tenths of a second, at its own clock"
    )
    known = [row.millijoules for row in rows if row.millijoules is not None]
    if known:
        energy = statistics.geometric_mean(ours / theirs for ours, theirs in known)
        powers = [watts for row in rows for watts in (row.ours_w, row.theirs_w) if watts is not None]
        text += (
            f" ({min(powers):.0f} to {max(powers):.0f} W): times as fast {geometric_mean(rows):.3f} and of "
            f"the energy {energy:.3f}, geometric means"
        )
    return text + "."


def campaign_text(records: Sequence[Record]) -> str:
    """Every probe with both verdicts and its gain; folded, its kernels alone and why the verdicts differ."""
    whole = campaign_table(records, DEVICE)
    shown = [column for column in whole.columns if column not in DETAILS]
    details = whole.only(whole.columns[0], *DETAILS)
    folded = _folded("The kernels alone, and why verdicts differ", markdown_table(details))
    return f"{markdown_table(whole.only(*shown))}\n\n{folded}\n\n{whole.note}"


def walls_text(records: Sequence[Record]) -> str:
    """Where a prefill's time goes, route by route, in the seed's classes: folded."""
    walls = newest_walls(records, DEVICE)
    if not walls:
        return f"No wall of a prefill on {DEVICE} is recorded."
    shares = [class_shares(wall)["GEMM"] for wall in walls]
    summary = f"GEMMs take {min(shares):.0%} to {max(shares):.0%} of a prefill; every class, route by route"
    return _folded(summary, markdown_table(shares_table(walls)))


def _folded(summary: str, text: str) -> str:
    """Markdown that is shown when its summary is clicked."""
    return f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>"


TABLES: dict[str, Callable[[Sequence[Record]], str]] = {
    "speed": lambda records: speed_table(records, llamacpp()),
    "launches": launch_table,
    "products": products_table,
    "campaign": campaign_text,
    "walls": walls_text,
}
"""The name in a pair of markers -> what makes the text between them."""


def regenerate(text: str, records: Sequence[Record]) -> str:
    """`text` with what stands between each pair of markers made anew.

    Raises:
        RecordError: a table has no pair of markers, or a pair names no table.
    """
    named = re.findall(r"^<!-- measured: ([\w-]+) -->$", text, flags=re.MULTILINE)
    if sorted(named) != sorted(TABLES):
        raise RecordError(f"markers for {', '.join(named) or 'nothing'}; tables: {', '.join(TABLES)}")
    for name, make in TABLES.items():
        first, last = f"<!-- measured: {name} -->\n", "<!-- /measured -->"
        before, _, rest = text.partition(first)
        _, found, after = rest.partition(last)
        if not found or "<!-- measured:" in rest[: rest.find(last)]:
            raise RecordError(f"the marker of {name} is not closed by {last}")
        text = f"{before}{first}\n{make(records)}\n\n{last}{after}"
    return text


def _speed(test: BenchResult) -> str:
    return _spread(test.avg_ts, test.stddev_ts)


def _spread(mean: float, deviation: float) -> str:
    return f"{mean:,.0f} ± {deviation:,.0f}" if mean >= 1000 else f"{mean:,.1f} ± {deviation:,.1f}"


def _all(counts) -> str:
    return " or ".join(str(count) for count in sorted(set(counts)))


def main(arguments: list[str] | None = None) -> int:
    """Rewrite README.md, or check it; 1 if it was stale and only checked."""
    parser = argparse.ArgumentParser(prog="minfer report --readme", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 if something would")
    options = parser.parse_args(arguments)
    text = README.read_text(encoding="utf-8")
    fresh = regenerate(text, load_records())
    if fresh == text:
        return 0
    if options.check:
        print(f"{README.name} differs from the records: run minfer report --readme", file=sys.stderr)
        return 1
    with whole_file(README, len(fresh), RecordError) as part:
        part.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
