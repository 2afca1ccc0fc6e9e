"""The campaign as a document: its tables, in Markdown and in HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

from minfer.arithmetic.reference import figure
from minfer.campaign.decomposition import (
    MIXED_WIDTHS,
    byte_width_rows,
    class_shares,
    products_us_per_gmac,
    rows,
    what_if,
)
from minfer.campaign.discovery import shipped
from minfer.campaign.probe import Probe
from minfer.campaign.record import origins
from minfer.campaign.records import ProbeRun, Record, RecordError, Wall
from minfer.campaign.table import newest_runs, probe_rows
from minfer.campaign.wall_record import newest_walls

SHARES = {
    "GEMM": "wall.share.gemm",
    "gate+up": "wall.share.gate_up",
    "down": "wall.share.down",
    "q+o": "wall.share.q_o",
    "FA": "wall.share.fa",
    "convert": "wall.share.convert",
    "swiglu": "wall.share.swiglu",
}
"""Classes of seed 002's decomposition -> the keys of its figures."""


@dataclass(frozen=True)
class Table:
    """A table with what a reader needs to read it.

    Attributes:
        title: of its section. columns: headings. rows: cells.
        note: where the figures come from, and what else must be known.
        words: headings of the columns that hold words, besides the first.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""
    words: tuple[str, ...] = ()

    def is_words(self, place: int) -> bool:
        """Whether a column holds words, not numbers."""
        return place == 0 or self.columns[place] in self.words

    def only(self, *columns: str) -> Table:
        """The same rows with some of the columns, without the note."""
        places = [self.columns.index(column) for column in columns]
        return replace(
            self, columns=columns, rows=[tuple(row[place] for place in places) for row in self.rows], note=""
        )


def markdown_table(table: Table) -> str:
    """The table and its note, without the title."""
    marks = ["---" if table.is_words(place) else "---:" for place in range(len(table.columns))]
    lines = [table.columns, marks, *([cell.replace("|", "\\|") for cell in row] for row in table.rows)]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{body}\n\n{table.note}" if table.note else body


def markdown(tables: Iterable[Table], title: str = "The campaign") -> str:
    """A whole document."""
    parts = [f"# {title}"]
    for table in tables:
        parts += [f"## {table.title}", markdown_table(table)]
    return "\n\n".join(parts) + "\n"


def html(tables: Iterable[Table], title: str = "The campaign") -> str:
    """A whole page, with nothing to fetch."""
    parts = [f"<h1>{escape(title)}</h1>"]
    for table in tables:
        head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
        body = "".join(
            "<tr>" + "".join(_cell(cell, table.is_words(place)) for place, cell in enumerate(row)) + "</tr>"
            for row in table.rows
        )
        parts.append(
            f"<h2>{escape(table.title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{_html(table.note)}</p>"
        )
    style = (
        "body{font:15px/1.45 system-ui,sans-serif;color:#1f2933;margin:2em auto;max-width:80em;padding:0 1em}"
        "table{border-collapse:collapse}th,td{border-bottom:1px solid #cbd2d9;padding:.3em .7em;"
        "text-align:left;vertical-align:top}td.n{text-align:right;white-space:nowrap}p{color:#52606d}"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{style}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _cell(text: str, words: bool) -> str:
    return f"<td{'' if words else ' class=n'}>{_html(text)}</td>"


def _html(text: str) -> str:
    """Escaped; what Markdown's backticks hold is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def campaign_table(
    records: Sequence[Record], device: str = "h200", probes: Sequence[Probe] | None = None
) -> Table:
    """Every probe: the seed's verdict beside ours on a device, and why they differ."""
    runs = [record for record in records if isinstance(record, ProbeRun)]
    made, measured = [], []
    for row in probe_rows(shipped() if probes is None else probes, runs):
        run = row["runs"].get(device)
        if run is None:
            made.append(
                (f"`{row['probe']}`", row["title"], row["seed verdict"] or "-", "not run", "", "", "")
            )
            continue
        measured.append(newest_runs(row["probe"], runs)[device])
        gain = "-" if run["gain"] is None else f"{run['gain']:+.1%}"
        if run["most"] is not None:
            gain = f"{run['most']:+.1%} *"
        kernels = "-" if run["kernels"] is None else f"{run['kernels']:+.1%}"
        why = run["reason"]
        if not why and row["seed verdict"] not in ("", run["verdict"]):
            why = f"not quiet: {'; '.join(run['unquiet'])}" if run["unquiet"] else "not determined"
        made.append(
            (
                f"`{row['probe']}`",
                row["title"],
                row["seed verdict"] or "-",
                run["verdict"],
                gain,
                kernels,
                why,
            )
        )
    note = (
        "Gain: tokens a second of the whole prefill, measured; `*`: no route of the engine has the variant, "
        "and this is an upper bound: all of its class of work on the wall, gaining as these kernels do. "
        "Kernels: the changed kernels alone, timed apart from the prefill; those of the MMQ probes read "
        "Q4_K, and the model's prefill has Q6_K besides."
    )
    if measured:
        note += f"\nMeasured on {origins(measured)}."
    columns = (
        "probe",
        "question",
        "seed, GB10",
        f"ours, {device.upper()}",
        "gain",
        "kernels",
        "why they differ",
    )
    return Table("Probes", columns, made, note, words=columns[1:4] + columns[-1:])


def wall_table(wall: Wall) -> Table:
    """One decomposition."""
    formats = {
        "ms": ",.3f", "share": ".1%", "launches": "d", "GMAC": ",.0f", "us/GMAC": ",.2f", "TFLOPS": ",.0f",
        "GB/s": ",.0f", "memory SOL": ".0%", "compute SOL": ".0%", "if free (tok/s)": ",.0f",
    }  # fmt: skip
    if wall.phase == "decode":
        formats |= {"GMAC": ",.3f", "TFLOPS": ",.2f", "if free (tok/s)": ",.1f"}
    table = rows(wall)
    formats |= {name: ".0%" for name in table[0] if name.startswith("ncu ")}
    made = [
        (row["bucket"], *("" if row[key] is None else format(row[key], f) for key, f in formats.items()))
        for row in table
    ]
    note = (
        f"Wall clock {wall.ms:.3f} ms, {wall.tok_s:,.0f} tokens a second; buckets and gaps together "
        f"differ from it by {wall.conservation:+.2%}. {wall.source}. SOL: share of what memory was measured "
        "to copy, and of the tensor cores' specified rate, f16 or int8. "
        f"{'. '.join(wall.notes)}. {wall.origin}."
    )
    if wall.counters:
        note += (
            " ncu: the class's largest launch, profiled by itself: the busiest unit of the memory system, "
            "DRAM, the busiest unit of the multiprocessors, and resident warps, as shares of their peaks."
        )
    if disturbed := wall.unquiet():
        note += f" Not quiet: {'; '.join(disturbed)}."
    what = f"{wall.tokens} tokens" if wall.phase == "prefill" else f"one token after {wall.context}"
    return Table(f"Wall of a {wall.phase}, route {wall.route}, {what}", ("bucket", *formats), made, note)


def shares_table(walls: Sequence[Wall]) -> Table:
    """The seed's split of a prefill beside ours."""
    split = {wall.route: class_shares(wall) for wall in walls}
    made = [
        (
            name,
            f"{figure('002', SHARES[name]).value:.1f}%" if name in SHARES else "",
            *(f"{found.get(name, 0.0):.1%}" for found in split.values()),
        )
        for name in dict.fromkeys(name for found in split.values() for name in found)
    ]
    made.append(
        (
            "us a GMAC of the products",
            f"{figure('002', 'gemm.us_per_gmac.ours').value:g}",
            *(f"{products_us_per_gmac(wall):.2f}" for wall in walls),
        )
    )
    note = (
        f"Seed 002: {figure('002', 'wall.tokens').value:,} tokens on a GB10; ours: {walls[0].tokens:,} "
        f"tokens on {origins(walls)}. Where q, k and v are one product, "
        "their parts are told by MACs. tail: the last layer past its K and V, for the last token alone. "
        "Empty: the seed does not tell. 0.0%: no such pass, or part of another class's kernels. The passes "
        "of a wall rest between each other, so that their clocks are higher than a bench's."
    )
    return Table("The seed's split beside ours", ("class", "seed", *split), made, note)


def byte_table(walls: Sequence[Wall]) -> Table:
    """The byte-width ledger beside the measured split."""
    formats = {
        "product": "", "bits a weight": ".2f", "weights (GB)": ".2f", "ms": ".2f", "us/GMAC": ".2f",
        "reading alone (ms)": ".2f",
    }  # fmt: skip
    made = [
        (row["route"], *("" if row[key] is None else format(row[key], f) for key, f in formats.items()))
        for row in byte_width_rows(walls)
    ]
    note = (
        f"Reading alone: the time to read these weights once at the measured read bandwidth. {MIXED_WIDTHS}"
    )
    return Table("Byte widths", ("route", *formats), made, note, words=("product",))


def target_table(walls: Sequence[Wall]) -> Table:
    """Tokens a second of each route if its products took another's us a GMAC."""
    rates = {wall.route: products_us_per_gmac(wall) for wall in walls}
    made = [
        (wall.route, f"{wall.tok_s:,.0f}", *(f"{what_if(wall, rate):,.0f}" for rate in rates.values()))
        for wall in walls
    ]
    note = (
        "Everything but the products as measured: tokens a second, measured, and at each route's us a GMAC."
    )
    return Table("What if", ("route", "as measured", *(f"at {name}'s" for name in rates)), made, note)


def document(records: Sequence[Record], device: str = "h200") -> list[Table]:
    """Every table that the records of a device give.

    Raises:
        RecordError: they have no probe and no wall of this device.
    """
    known = {record.device_key or record.device for record in records if isinstance(record, ProbeRun | Wall)}
    if device not in known:
        there = ", ".join(sorted(known)) or "no device"
        raise RecordError(f"no probe and no wall of {device} is recorded; there are records of {there}")
    tables = [campaign_table(records, device)]
    walls = newest_walls(records, device)
    if walls:
        tables += [shares_table(walls), byte_table(walls), target_table(walls)]
    return tables + [wall_table(w) for w in (*walls, *newest_walls(records, device, "decode"))]
