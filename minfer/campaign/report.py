"""The measured tables of README.md, made from the records.

minfer report --readme  rewrite what stands between the markers
minfer report --check   exit with 1 if that would change anything
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from minfer.campaign.document import campaign_table, markdown_table, newest_walls, shares_table
from minfer.campaign.peers import Peer, llamacpp
from minfer.campaign.records import Bench, Record, RecordError, load_records, newest_measured

README = Path(__file__).resolve().parents[2] / "README.md"
MODEL = "qwen2.5-7b, synthetic, seed 0"
DEVICE = "h200"
PREFILL, DECODE = "pp2048", "tg128"
PEER_PREFILL = "pp2048_ub2048"
LAUNCHES = {
    "launch us: LoadedKernel.launch": "a launch, host time",
    "launch us: prepared": "a launch with its arguments prepared, host time",
    "graph of 300 kernels: device us a kernel": "a small kernel in a replayed CUDA graph, device time",
}
"""What the GPU tests measured of launching -> how the table calls it."""


def routes(records: Sequence[Record], model: str = MODEL, device: str = DEVICE) -> dict[str, Bench]:
    """The newest bench of a model on a device by its route, slowest prefill first.

    Raises:
        RecordError: a bench of the model without the tests `PREFILL` and `DECODE`.
    """
    found: dict[str, Bench] = {}
    for record in records:
        if (
            isinstance(record, Bench)
            and record.device_key == device
            and record.results[0].model_type == model
        ):
            found[record.result(PREFILL).settings.get("route", record.result(PREFILL).backend)] = record
    return dict(sorted(found.items(), key=lambda item: item[1].result(PREFILL).avg_ts))


def speed_table(records: Sequence[Record], peer: Peer) -> str:
    """Prefill and decode of the 7B by route, against another engine on the same GPU, as Markdown.

    Raises:
        RecordError: no bench of the 7B, or of other devices than the peer's.
    """
    benches = routes(records)
    if not benches:
        raise RecordError(f"no bench of {MODEL} on {DEVICE} among {len(records)} records")
    rows = [("", "prefill, 2048 tokens", "slowest to fastest", "decode, 128 tokens")]
    for route, bench in benches.items():
        prefill, decode = bench.result(PREFILL), bench.result(DECODE)
        if bench.device != peer.device:
            raise RecordError(f"{bench.file}: device: {bench.device}, but {peer.name} ran on {peer.device}")
        rows.append(
            (
                f"minfer, route `{route}`",
                _spread(prefill.avg_ts, prefill.stddev_ts),
                f"{min(prefill.samples_ts):,.0f} to {max(prefill.samples_ts):,.0f}",
                _spread(decode.avg_ts, decode.stddev_ts),
            )
        )
    rows.append((peer.name, _spread(*peer.tok_s[PEER_PREFILL]), "not recorded", _spread(*peer.tok_s[DECODE])))
    origins = sorted({bench.origin for bench in benches.values()})
    tests = [bench.result(PREFILL) for bench in benches.values()]
    lasted = [sum(test.samples_ns) / 1e9 for test in tests]
    repetitions = _all(len(test.samples_ns) for test in tests)
    note = (
        f"Tokens a second, mean ± standard deviation of {repetitions} repetitions after a warm-up.\n"
        f"All repetitions of a prefill together last {min(lasted):.1f} to {max(lasted):.1f} s: "
        "this is the speed of a **burst**.\n"
        "A GPU under lasting load may meet its power limit and slow down; no record of that exists yet.\n\n"
        f"minfer: {'; '.join(origins)}.\n{peer.what}; prefill in micro-batches of 2048."
    )
    return f"{_markdown(rows)}\n\n{note}"


def launch_table(records: Sequence[Record]) -> str:
    """What launching a kernel from Python costs, by the newest run of the GPU tests that measured it.

    Raises:
        RecordError: no run of the GPU tests on the device measured all of it.
    """
    record = newest_measured(records, DEVICE, LAUNCHES)
    rows = [("", "microseconds")]
    rows += [(what, f"{record.figure(name):.3g}") for name, what in LAUNCHES.items()]
    return f"{_markdown(rows)}\n\nMeasured by the GPU tests: {record.origin}."


def walls_text(records: Sequence[Record]) -> str:
    """Where a prefill's time goes, route by route, in the seed's classes."""
    walls = newest_walls(records, DEVICE)
    return markdown_table(shares_table(walls)) if walls else f"No wall of a prefill on {DEVICE} is recorded."


TABLES: dict[str, Callable[[Sequence[Record]], str]] = {
    "speed": lambda records: speed_table(records, llamacpp()),
    "launches": launch_table,
    "campaign": lambda records: markdown_table(campaign_table(records, DEVICE)),
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


def _spread(mean: float, deviation: float) -> str:
    return f"{mean:,.0f} ± {deviation:,.0f}" if mean >= 1000 else f"{mean:,.1f} ± {deviation:,.1f}"


def _all(counts) -> str:
    return " or ".join(str(count) for count in sorted(set(counts)))


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the header; all columns but the first are right-aligned."""
    head, *body = rows
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
    README.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
