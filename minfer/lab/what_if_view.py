"""What the wall would be if: products at another rate, attention and row-wise passes at a factor, no gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from minfer.campaign.decomposition import GAP, products_us_per_gmac, what_if
from minfer.campaign.observe import PRODUCTS
from minfer.campaign.wall_record import Wall
from minfer.lab import style
from minfer.lab.decomposition_view import COLOURS, rank
from minfer.lab.explorer import Explorer, checkbox, dropdown, slider
from minfer.lab.picture import Picture
from minfer.lab.table import Table

RATES = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 15, 20)
"""Microseconds a GMAC to suppose, beside the routes' own."""


@dataclass(frozen=True)
class WhatIf:
    """A wall as it was measured, and as it would be.

    Attributes:
        tok_s, target: tokens a second, measured and supposed. parts: milliseconds of each bucket, both ways.
    """

    wall: Wall
    tok_s: float
    target: float
    parts: dict[str, tuple[float, float]]
    supposed: str


def suppose(
    wall: Wall,
    us_per_gmac: float | None = None,
    attention: float = 1.0,
    row_passes: float = 1.0,
    no_gaps: bool = False,
) -> WhatIf:
    """The wall with products at another rate, attention and the row-wise passes (add/rms/rope, swiglu,
    convert, quantize) at a factor of their time, and without gaps.

    Raises:
        ValueError: nothing would be left.
    """
    factors = {}
    for bucket in wall.buckets:
        if bucket.name == "FA":
            factors["FA"] = attention
        elif bucket.name in ("add/rms/rope", "swiglu", "convert", "quantize", "dequantize"):
            factors[bucket.name] = row_passes
    target = what_if(wall, us_per_gmac, free=[GAP] if no_gaps else [], factors=factors)
    parts = {}
    for bucket in wall.buckets:
        now = bucket.ms * factors.get(bucket.name, 1.0)
        if us_per_gmac is not None and bucket.name in PRODUCTS:
            now = us_per_gmac * bucket.gmac / 1e3
        parts[bucket.name] = (bucket.ms, now)
    parts[GAP] = (wall.gap_ms, 0.0 if no_gaps else wall.gap_ms)
    said = []
    if us_per_gmac is not None:
        said.append(f"products at {us_per_gmac:.4g} us/GMAC instead of {products_us_per_gmac(wall):.2f}")
    said += [
        f"{name} x {factor:g}"
        for name, factor in (("FA", attention), ("row-wise passes", row_passes))
        if factor != 1
    ]
    said += ["no gaps"] if no_gaps else []
    return WhatIf(wall, wall.tok_s, target, parts, ", ".join(said) or "as measured")


def draw_what_if(report: WhatIf) -> Picture:
    """Both walls, stacked."""
    fig, (ax,) = style.figure(9.6, 3.1)
    found = []
    for place, (label, which) in enumerate((("supposed", 1), ("measured", 0))):
        left = 0.0
        for name in sorted(report.parts, key=rank):
            ms = report.parts[name][which]
            ax.barh(place, ms, left=left, height=0.6, color=COLOURS.get(name, style.QUIET), edgecolor="white")
            found.append({"wall": label, "bucket": name, "ms": ms})
            left += ms
        rate = report.target if which else report.tok_s
        style.beside(ax, left, place, f"{rate:,.0f} tok/s", fontweight="bold")
    for name in sorted(report.parts, key=rank):
        ax.barh(0, 0, color=COLOURS.get(name, style.QUIET), label=name)
    longest = max(sum(part[which] for part in report.parts.values()) for which in (0, 1))
    ax.set_xlim(0, longest * 1.18)
    ax.set_yticks([0, 1], ["supposed", "measured"], color=style.INK)
    ax.grid(axis="y", visible=False)
    style.label(ax, f"{report.wall.phase} (ms)")
    style.legend_below(fig, ax)
    style.title(ax, f"{report.wall.route}: {report.target / report.tok_s - 1:+.1%}", report.supposed)
    return Picture(fig, f"The wall of {report.wall.route}, measured and supposed", found)


def what_if_html(report: WhatIf) -> str:
    """The buckets that change."""
    changed = [
        {"class": name, "measured (ms)": was, "supposed (ms)": now}
        for name, (was, now) in report.parts.items()
        if was != now
    ]
    head = (
        f"<p>{escape(report.supposed)}: <b>{report.target:,.0f} tok/s</b>, measured {report.tok_s:,.0f}</p>"
    )
    return head + (
        Table(changed, formats=dict.fromkeys(("measured (ms)", "supposed (ms)"), ".2f"))._repr_html_()
        if changed
        else ""
    )


def what_if_explorer(walls: Sequence[Wall]) -> Explorer:
    """Sliders over `suppose`."""
    by_route = {wall.route: wall for wall in walls}
    rates = {rate: f"{rate:g}" for rate in RATES} | {
        products_us_per_gmac(wall): f"{products_us_per_gmac(wall):.2f} ({name})"
        for name, wall in by_route.items()
    }
    stops = {"as measured": 0.0} | {
        rates[rate]: float(rate) for rate in sorted(rates)
    }  # None would be no stop
    factors = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0]
    controls = {
        "route": dropdown({name: name for name in by_route}, walls[-1].route, "route"),
        "us_per_gmac": slider(stops, 0.0, "us/GMAC"),
        "attention": slider(factors, 1.0, "attention x"),
        "row_passes": slider(factors, 1.0, "row passes x"),
        "no_gaps": checkbox("no gaps"),
    }

    def report(route: str, us_per_gmac: float, **chosen) -> WhatIf:
        return suppose(by_route[route], us_per_gmac or None, **chosen)

    return Explorer("what if", controls, report, draw_what_if, what_if_html)
