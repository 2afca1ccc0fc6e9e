"""Requests of warps as bars: what each takes, and what the same bytes need at least."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.lab import style
from minfer.lab.picture import Picture

UNITS = {"sectors": style.BLUE, "wavefronts": style.ORANGE}
MEMORY = {"sectors": "global memory, 32 B each", "wavefronts": "shared memory: passes through its banks"}


def draw_requests(rows: Sequence[dict], alt: str) -> Picture:
    """Sectors of global memory on the left, wavefronts of shared memory on the right.

    Args:
        rows: of name, unit, "a request" and "at best". What a bar has past the least is red.
    """
    parts = {unit: [row for row in rows if row["unit"] == unit] for unit in UNITS}
    parts = {unit: part for unit, part in parts.items() if part} or {"sectors": []}
    most = max(map(len, parts.values()))
    fig, axes = style.figure(9.6, 1.5 + 0.27 * most, columns=len(parts))
    for ax, (unit, mine) in zip(axes, parts.items(), strict=True):
        places = range(len(mine))
        least = [min(row["at best"], row["a request"]) for row in mine]
        more = [row["a request"] - part for row, part in zip(mine, least, strict=True)]
        ax.barh(places, least, color=UNITS[unit], label=f"{unit}, the least")
        ax.barh(places, more, left=least, color=style.RED, label="more than that")
        for place, row in zip(places, mine, strict=True):
            style.beside(ax, row["a request"], place, f"{row['a request']:.3g}")
        ax.set_yticks(places, [row["name"] for row in mine], color=style.INK)
        ax.tick_params(axis="y", labelsize=8)
        ax.set_xlim(0, 1.15 * max((row["a request"] for row in mine), default=1))
        ax.set_ylim(len(mine) - 0.4, -0.6)
        ax.grid(axis="y", visible=False)
        style.label(ax, f"{unit} a request of a warp")
        memory = (
            "global memory, 32 B each" if unit == "sectors" else "shared memory: passes through its banks"
        )
        style.title(ax, f"{unit.capitalize()} a request", memory)
    style.legend_below(fig, *axes)
    return Picture(fig, alt, rows)
