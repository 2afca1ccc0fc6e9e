"""Walls taken apart: the stacked wall, its conservation, upper bounds, and byte widths."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from minfer.arithmetic.devices import by_name
from minfer.arithmetic.ledger import bits_a_weight
from minfer.arithmetic.reference import figure
from minfer.campaign.counters import METRICS
from minfer.campaign.decomposition import (
    GAP,
    byte_width_rows,
    class_shares,
    rows,
)
from minfer.campaign.document import SHARES
from minfer.campaign.peers import llamacpp
from minfer.campaign.record import Record
from minfer.campaign.wall_record import CONSERVATION, Wall
from minfer.lab import style
from minfer.lab.picture import Picture

COLOURS = {
    "gate+up": style.BLUE,
    "down": style.SKY,
    "q+k+v": "#7488BE",
    "o": "#A7C6E5",
    "q+o": "#A7C6E5",
    "FA": style.GREEN,
    "convert": style.PINK,
    "quantize": "#A3588A",
    "dequantize": "#5E2750",
    "swiglu": style.ORANGE,
    "add/rms/rope": style.YELLOW,
    "tail": "#7A5C2E",
    "lm_head": style.RED,
    GAP: style.RULE,
    "the rest": style.RULE,
}
"""Class of work -> its colour; products are blue."""
DARK = ("gate+up", "quantize", "dequantize", "tail")
"""Classes whose colour asks for white text."""
ORDER = tuple(COLOURS)
SEED = "seed 002, GB10"
OTHERS = {SEED: style.QUIET, "llama.cpp": style.INK}
FORMATS = {
    "ms": ",.3f",
    "share": ".1%",
    "GMAC": ",.0f",
    "us/GMAC": ",.2f",
    "TFLOPS": ",.0f",
    "GB/s": ",.0f",
    "memory SOL": ".0%",
    "compute SOL": ".0%",
    "if free (tok/s)": ",.0f",
    "gain": "+.1%",
    **{f"ncu {name}": ".0%" for name in METRICS},
}
"""How a table shows a decomposition's rows."""
CONSERVATION_FORMATS = {
    "wall clock (ms)": ".3f",
    "buckets (ms)": ".3f",
    "gaps (ms)": ".3f",
    "off": "+.2%",
    "allowed": ".0%",
}
"""How a table shows `conservation_rows`."""


def wall_rows(walls: Sequence[Wall]) -> list[dict]:
    """Every bucket and gap of every wall: route, bucket, ms, share, in the order of `ORDER`."""
    return [
        {"route": wall.route, "bucket": row["bucket"], "ms": row["ms"], "share": row["share"]}
        for wall in walls
        for row in sorted(rows(wall), key=lambda row: rank(row["bucket"]))
    ]


def draw_walls(walls: Sequence[Wall], note: str = "") -> Picture:
    """A stacked bar for each wall, in milliseconds."""
    found = wall_rows(walls)
    fig, (ax,) = style.figure(9.6, 1.9 + 0.62 * len(walls))
    longest = max(wall.ms for wall in walls)
    for place, wall in enumerate(reversed(walls)):
        left = 0.0
        for row in (row for row in found if row["route"] == wall.route):
            ax.barh(
                place, row["ms"], left=left, height=0.62, color=COLOURS.get(row["bucket"], style.QUIET),
                edgecolor="white", linewidth=0.6,
            )  # fmt: skip
            if row["ms"] > 0.045 * longest:
                text = f"{row['ms']:.1f}" if longest >= 10 else f"{row['ms']:.2f}"
                _write(ax, left + row["ms"] / 2, place, text, row["bucket"])
            left += row["ms"]
        style.beside(ax, left, place, f"{wall.ms:,.4g} ms, {wall.tok_s:,.0f} tok/s")
    for name in dict.fromkeys(row["bucket"] for row in sorted(found, key=lambda row: rank(row["bucket"]))):
        ax.barh(0, 0, color=COLOURS.get(name, style.QUIET), label=name)
    ax.set_yticks(range(len(walls)), [wall.route for wall in reversed(walls)], color=style.INK)
    ax.set_xlim(0, longest * 1.27)
    ax.grid(axis="y", visible=False)
    phase = walls[0].phase
    style.label(ax, f"{phase} of {walls[0].tokens:,} token{'s' if walls[0].tokens > 1 else ''} (ms)")
    style.legend_below(fig, ax)
    style.title(ax, f"Where a {phase}'s time goes", note)
    names = ", ".join(wall.route for wall in walls)
    return Picture(fig, f"Stacked milliseconds of a {phase} by class of work, routes {names}", found)


def share_rows(walls: Sequence[Wall]) -> list[dict]:
    """The seed's shares and ours in its classes: who, class, share (0 to 1); "the rest" fills up to 1."""
    found = [
        {"who": SEED, "class": name, "share": figure("002", key).value / 100}
        for name, key in SHARES.items()
        if name != "GEMM"
    ]
    for wall in walls:
        split = class_shares(wall)
        found += [
            {"who": wall.route, "class": name, "share": split[name]} for name in SHARES if name != "GEMM"
        ]
    for who in (SEED, *(wall.route for wall in walls)):
        left = 1 - sum(row["share"] for row in found if row["who"] == who)
        found.append({"who": who, "class": "the rest", "share": left})
    return found


def draw_shares(walls: Sequence[Wall], note: str = "") -> Picture:
    """The shares of `share_rows`, the seed's on top."""
    found = share_rows(walls)
    names = list(dict.fromkeys(row["who"] for row in found))
    fig, (ax,) = style.figure(9.6, 1.9 + 0.5 * len(names))
    for place, who in enumerate(reversed(names)):
        left = 0.0
        for row in (row for row in found if row["who"] == who):
            ax.barh(
                place, row["share"], left=left, height=0.62, color=COLOURS[row["class"]], edgecolor="white"
            )
            if row["share"] > 0.04:
                _write(ax, left + row["share"] / 2, place, f"{row['share']:.1%}", row["class"])
            left += row["share"]
    for name in dict.fromkeys(row["class"] for row in found):
        ax.barh(0, 0, color=COLOURS[name], label=name)
    ax.set_yticks(range(len(names)), list(reversed(names)), color=style.INK)
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.grid(axis="y", visible=False)
    style.label(ax, "share of the wall clock (%)")
    style.legend_below(fig, ax)
    style.title(ax, "The seed's split and ours", note)
    return Picture(fig, "Shares of a prefill's wall clock by class, the seed's and ours", found)


def conservation_rows(walls: Sequence[Wall]) -> list[dict]:
    """What was charged against passes that were not observed: wall clock, buckets, gaps, how far off."""
    return [
        {
            "wall": f"{wall.phase}, {wall.route}",
            "wall clock (ms)": wall.ms,
            "buckets (ms)": wall.charged_ms - wall.gap_ms,
            "gaps (ms)": wall.gap_ms,
            "off": wall.conservation,
            "allowed": CONSERVATION,
            "launches": sum(bucket.launches for bucket in wall.buckets),
            "timed by": wall.source,
        }
        for wall in walls
    ]


def bound_rows(wall: Wall) -> list[dict]:
    """The upper bounds: bucket, share, tokens a second if it were free, gain; largest first."""
    return sorted(
        (
            {key: row[key] for key in ("bucket", "ms", "share", "if free (tok/s)", "gain")}
            for row in rows(wall)
        ),
        key=lambda row: -row["gain"],
    )


def draw_bounds(wall: Wall, bar: float = 0.03, note: str = "") -> Picture:
    """What making each class free would gain, against the bar that a probe must reach."""
    found = bound_rows(wall)
    fig, (ax,) = style.figure(9.6, 1.3 + 0.28 * len(found))
    for place, row in enumerate(reversed(found)):
        reaches = row["gain"] >= bar
        colour = COLOURS.get(row["bucket"], style.QUIET)
        ax.barh(place, row["gain"], height=0.66, color=colour if reaches else style.tint(colour, 0.6))
        style.beside(ax, row["gain"], place, f"{row['gain']:+.1%}")
    ax.axvline(bar, color=style.RED, linewidth=1.2, linestyle=(0, (4, 3)))
    ax.text(bar, -0.95, f" the bar, {bar:+.0%}", color=style.RED, fontsize=8.5, va="center")
    ax.set_yticks(range(len(found)), [row["bucket"] for row in reversed(found)], color=style.INK)
    ax.set_ylim(-1.3, len(found) - 0.4)
    ax.set_xlim(0, max(row["gain"] for row in found) * 1.15)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.grid(axis="y", visible=False)
    style.label(ax, "more tokens a second if the class took no time (%)")
    style.title(ax, f"Upper bounds, route {wall.route}", note)
    return Picture(fig, f"Gain of each class of work if it were free, route {wall.route}", found)


WIDTH_FORMATS = {
    "bits a weight": ".2f", "us/GMAC": ".2f", "weights (GB)": ".3f", "reading alone (ms)": ".2f",
}  # fmt: skip


def width_rows(walls: Sequence[Wall]) -> list[dict]:
    """Bits a weight and us/GMAC: our products', llama.cpp's on the same GPU, the seed's two paths'."""
    found = [
        {
            "who": f"{row['route']}, {row['product']}",
            "route": row["route"],
            "bits a weight": row["bits a weight"],
            "us/GMAC": row["us/GMAC"],
            "weights (GB)": row["weights (GB)"],
            "reading alone (ms)": row["reading alone (ms)"],
        }
        for row in byte_width_rows(walls)
    ]
    peer = llamacpp()
    if by_name(peer.device) == by_name(walls[0].device):
        for kernel, bits in (("q4_K gate/up", bits_a_weight("Q4_K")), ("q6_K", bits_a_weight("Q6_K"))):
            found.append(
                {"who": f"{peer.name}: {kernel}", "route": peer.name, "bits a weight": bits}
                | {"us/GMAC": peer.us_per_gmac[kernel], "weights (GB)": None, "reading alone (ms)": None}
            )
    for who, bits in (("ours", 16.0), ("llamacpp", bits_a_weight("Q4_K"))):
        rate = figure("002", f"gemm.us_per_gmac.{who}").value
        name = "f16" if who == "ours" else "llama.cpp's MMQ"
        found.append(
            {"who": f"{SEED}: {name}", "route": SEED, "bits a weight": bits, "us/GMAC": rate}
            | dict.fromkeys(("weights (GB)", "reading alone (ms)"))
        )
    return found


def counter_rows(records: Sequence[Record]) -> list[dict]:
    """Hardware counters of each class's largest launch, of the newest wall of each phase and route that has
    them, beside what the seed tells: who, class, and a share of its peak for each counter."""
    walls = {(r.phase, r.route): r for r in records if isinstance(r, Wall) and r.counters}
    told = figure("002", "gate_up.mem_sol").value / 100
    found = [{"who": SEED, "class": "gate+up"} | dict.fromkeys(METRICS) | {"memory": told}]
    for (phase, route), wall in walls.items():
        found += [
            {"who": f"{phase}, {route}", "class": name} | values
            for name, values in sorted(wall.counters.items(), key=lambda item: rank(item[0]))
        ]
    return found


def draw_widths(walls: Sequence[Wall], note: str = "") -> Picture:
    """us/GMAC over bits a weight, on logarithmic axes; the lines are the tensor cores' rates."""
    found = width_rows(walls)
    fig, (ax,) = style.figure(9.6, 4.6)
    routes = list(dict.fromkeys(row["route"] for row in found))
    colours = len(style.SEQUENCE)
    for place, route in enumerate(routes):
        points = [row for row in found if row["route"] == route]
        aside = 2 ** (0.016 * (place - (len(routes) - 1) / 2))  # so that no route hides another
        ax.plot(
            [row["bits a weight"] * aside for row in points], [row["us/GMAC"] for row in points],
            "os^"[place // colours], markersize=7, markeredgecolor="white", label=route,
            color=OTHERS.get(route, style.SEQUENCE[place % colours]),
        )  # fmt: skip
    known = by_name(walls[0].device)
    if known is not None:
        for dtype, dash in (("f16", "-"), ("int8", "--")):
            least = 2e15 / known.tensor_peak(dtype)
            ax.axhline(least, color=style.RED, linewidth=1.1, linestyle=dash)
            text = f" {known.name}'s {dtype} tensor cores, {least:.2f}"
            ax.text(5.8, least, text, fontsize=8.5, color=style.RED, va="bottom")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks([4.5, 6.56, 8, 16], ["4.5\nQ4_K", "6.56\nQ6_K", "8", "16\nf16"])
    ax.set_xticks([], minor=True)
    ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    ax.set_yticks([], minor=True)
    ax.set_xlim(4, 18.5)
    ax.set_ylim(0.8, 90)
    style.label(ax, "stored size of a weight (bits); routes stand side by side", "time of a GMAC (us)")
    style.legend_below(fig, ax)
    style.title(ax, "Byte width and what a product costs", note)
    return Picture(fig, "Microseconds a GMAC of each product over its stored bits a weight", found)


def _write(ax: Axes, x: float, y: float, text: str, bucket: str) -> None:
    colour = "white" if bucket in DARK else style.INK
    ax.text(x, y, text, ha="center", va="center", fontsize=8, color=colour)


def rank(bucket: str) -> int:
    """Where a class stands in a stack, in the order of `ORDER`; unknown ones come last."""
    return ORDER.index(bucket) if bucket in ORDER else len(ORDER)
