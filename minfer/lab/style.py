"""How every figure looks: one set of colours, one set of axes, made for colour-blind readers and small
screens.

Colours are Okabe and Ito's (Color Universal Design, 2008), which stay apart under every common colour
blindness. Figures are built on `matplotlib.figure.Figure` directly, so that nothing is kept alive by
pyplot.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MultipleLocator

BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
ORANGE = "#E69F00"
RED = "#D55E00"
PINK = "#CC79A7"
INK = "#1F2933"
QUIET = "#7B8794"
RULE = "#CBD2D9"
PAPER = "#F5F7FA"
RIM = [withStroke(linewidth=3, foreground="white")]
"""Around text that may meet a line, so that it stays readable."""
SEQUENCE = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW)

# Eight tints in the order of a hue circle, for cyclic quantities (bank groups): neighbours differ in
# lightness too.
GROUPS = ("#9ECAE1", "#FDD9A0", "#A8DDB5", "#E7C6DD", "#6BAED6", "#F7B267", "#66C2A4", "#D4A5C9")


def tint(colour: str, amount: float) -> tuple[float, float, float]:
    """`colour` mixed with white: 0 leaves it as it is, 1 gives white."""
    return tuple(c + (1 - c) * amount for c in to_rgb(colour))


def figure(
    width: float = 9.6, height: float = 4.2, columns: int = 1, rows: int = 1, **grid
) -> tuple[Figure, list[Axes]]:
    """A figure in inches and its axes in reading order. `grid` goes to `Figure.subplots` (width_ratios)."""
    fig = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes = fig.subplots(rows, columns, squeeze=False, **grid)
    flat = [ax for row in axes for ax in row]
    for ax in flat:
        dress(ax)
    return fig, flat


def dress(ax: Axes) -> Axes:
    """Quiet axes: no box, light grid behind the data, small grey ticks."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(RULE)
    ax.tick_params(colors=QUIET, labelsize=8.5, length=3, width=0.8)
    ax.tick_params(which="minor", color=RULE, length=2)
    ax.grid(True, color=RULE, linewidth=0.6, alpha=0.6)
    ax.set_axisbelow(True)
    ax.xaxis.label.set(color=INK, fontsize=9.5)
    ax.yaxis.label.set(color=INK, fontsize=9.5)
    return ax


def bare(ax: Axes) -> Axes:
    """Axes for a drawing: no grid, no spines."""
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return ax


def cells(ax: Axes, colours: np.ndarray, part: int = 1) -> None:
    """A grid of cells from (rows, columns, 3) colours, cell (0, 0) on top; thin white lines part the rows and
    every so many columns."""
    height, width, _ = colours.shape
    ax.imshow(colours, extent=(0, width, height, 0), aspect="auto", interpolation="nearest")
    ax.hlines(range(1, height), 0, width, color="white", linewidth=0.5)
    ax.vlines(range(part, width, part), 0, height, color="white", linewidth=0.5)


def write(ax: Axes, x: float, y: float, text: object, **look) -> None:
    """Text in the middle of a cell. It takes no part in the layout, which would cost more than drawing it."""
    ax.text(x, y, str(text), ha="center", va="center", color=INK, **look).set_in_layout(False)


def beside(ax: Axes, x: float, y: float, text: str, **look) -> None:
    """What a bar says, to the right of its end."""
    look = {"fontsize": 8.5, "color": INK, "path_effects": RIM} | look
    ax.annotate(text, (x, y), (5, 0), textcoords="offset points", va="center", **look)


def title(ax: Axes, text: str, note: str = "") -> None:
    """A bold statement above the axes, with an optional quiet note (of a line or more) under it."""
    pad = 8 + 12 * len(note.splitlines())
    ax.set_title(text, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=pad)
    if note:
        ax.annotate(
            note,
            (0, 1),
            (0, 7),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=8.5,
            color=QUIET,
        )


def label(ax: Axes, x: str = "", y: str = "") -> None:
    """Axis labels; they carry the unit in parentheses."""
    ax.set_xlabel(x, fontsize=9.5, color=INK)
    ax.set_ylabel(y, fontsize=9.5, color=INK)


def legend(ax: Axes, **where) -> None:
    """A legend on a quiet white ground."""
    ground = {"facecolor": "white", "edgecolor": "none", "framealpha": 0.8}
    ax.legend(fontsize=8.5, labelcolor=INK, handlelength=1.6, **ground, **where)


def legend_below(fig: Figure, *axes: Axes, columns: int = 7) -> None:
    """A legend of what these axes hold, each label once, under all axes, where it covers nothing."""
    named: dict = {}
    for ax in axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    rows = -(-len(named) // columns)
    look = {"fontsize": 8.5, "labelcolor": INK, "handlelength": 1.6, "frameon": False}
    where = {"loc": "outside lower center", "ncols": -(-len(named) // rows)}
    fig.legend(named.values(), named.keys(), **where, **look)


def kib_axis(ax: Axes) -> None:
    """Ticks in KiB, at round numbers, for an x axis in bytes."""
    ax.xaxis.set_major_locator(MultipleLocator(_kib_step(ax.get_xlim()[1])))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1024:g}"))


def _kib_step(span: float) -> int:
    return next(step * 1024 for step in (1, 2, 4, 8, 16, 32, 64, 128) if span / (step * 1024) <= 9)
