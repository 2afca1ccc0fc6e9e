"""Waves: how many rounds a product's tiles take on a GPU, and how much of it idles in the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minfer.campaign.against import SHAPES
from minfer.lab import style
from minfer.lab.explorer import Explorer, dropdown, integers, notice, slider
from minfer.lab.picture import Picture
from minfer.lab.table import Table

TILE_N = 64 * 2
"""Tokens of a Hopper tile: two warpgroups of 64 rows."""
WIDTHS = (64, 96, 112, 128, 144, 160, 192, 224, 240, 256)
SMS = 132


@dataclass(frozen=True)
class Waves:
    """Tiles of 128 tokens x `width` outputs over multiprocessors that take one at a time.

    Attributes:
        tiles, waves: of the product. last: tiles of the last wave.
        idle: share of all multiprocessor time in which one has no tile, 0 to 1.
        beyond: share spent on rows and columns that the product does not have.
        useful: what is left of 1.
    """

    nt: int
    od: int
    width: int
    sms: int
    tiles: int
    waves: int
    last: int
    idle: float
    beyond: float
    useful: float


def waves(nt: int, od: int, width: int, sms: int = SMS, tokens: int = TILE_N) -> Waves:
    """The waves of an nt x od product in tiles of `tokens` x `width`.

    Raises:
        ValueError: a size below 1.
    """
    if min(nt, od, width, sms, tokens) < 1:
        raise ValueError(f"sizes start at 1, got {nt} tokens x {od} outputs, tiles of {width}, {sms} SMs")
    tiles = -(-nt // tokens) * -(-od // width)
    rounds = -(-tiles // sms)
    idle = 1 - tiles / (rounds * sms)
    useful = nt * od / (rounds * sms * tokens * width)
    return Waves(
        nt, od, width, sms, tiles, rounds, tiles - (rounds - 1) * sms, idle, 1 - idle - useful, useful
    )


def wave_rows(nt: int, od: int, widths: Sequence[int] = WIDTHS, sms: int = SMS) -> list[dict]:
    """A row a tile width; `time` is waves x width: what the product takes where only the tensor cores count,
    as a multiple of the best width's."""
    found = [waves(nt, od, width, sms) for width in widths]
    best = min(w.waves * w.width for w in found)
    return [
        {
            "tile": f"{TILE_N} x {w.width}",
            "tiles": w.tiles,
            "waves": w.waves,
            "tiles in the last": w.last,
            "idle": w.idle,
            "beyond the edge": w.beyond,
            "useful": w.useful,
            "time": w.waves * w.width / best,
        }
        for w in found
    ]


def chosen_rows(nts: Sequence[int] = (512, 2048)) -> list[dict]:
    """The tile that the Hopper GEMM takes for every product of a layer, and its waves; of tiles that two
    blocks share there is one, on twice as many multiprocessors."""
    from minfer.cuda.gemm_hopper import choose

    rows = []
    for nt in nts:
        for name, (od, depth) in SHAPES.items():
            config = choose(nt, od, depth)
            found = waves(nt, od, config.tile_m, tokens=config.tile_n)
            widest = waves(nt, od, 256)
            rows.append(
                {
                    "tokens": nt,
                    "product": name,
                    "tile": str(config),
                    "tiles": found.tiles,
                    "waves": found.waves,
                    "useful": found.useful * (1 + config.split_k),
                    "useful with 256": widest.useful,
                }
            )
    return rows


def draw_waves(nt: int, od: int, width: int, sms: int = SMS) -> Picture:
    """Multiprocessor time by tile width, the chosen width outlined: useful, beyond the edge, idle."""
    widths = sorted({*WIDTHS, width})
    rows = wave_rows(nt, od, widths, sms)
    fig, (ax, last) = style.figure(9.6, 4.0, columns=2, width_ratios=(1.7, 1))
    parts = (
        ("useful", style.BLUE, "useful"),
        ("beyond the edge", style.ORANGE, "beyond the product's edge"),
        ("idle", style.RULE, "idle: no tile left"),
    )
    for place, row in enumerate(rows):
        bottom = 0.0
        for key, colour, _ in parts:
            ax.bar(place, row[key], bottom=bottom, width=0.72, color=colour)
            bottom += row[key]
        ax.text(
            place, 1.015, f"x{row['time']:.2f}", ha="center", fontsize=8,
            color=style.INK, fontweight="bold" if widths[place] == width else "normal",
        )  # fmt: skip
    ax.bar(widths.index(width), 1, width=0.84, fill=False, edgecolor=style.RED, linewidth=1.6)
    for _, colour, name in parts:
        ax.bar(0, 0, color=colour, label=name)
    ax.set_xticks(range(len(widths)), widths)
    ax.set_ylim(0, 1.1)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.grid(axis="x", visible=False)
    style.label(ax, "tile width (outputs)", "multiprocessor time (share)")
    style.legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    style.title(
        ax, f"{nt:,} tokens x {od:,} outputs", "above: time against the best width, tensor cores alone"
    )
    _draw_last(last, waves(nt, od, width, sms))
    return Picture(fig, f"Waves of a {nt} x {od} product over tile widths, {width} outlined", rows)


def _draw_last(ax, found: Waves) -> None:
    """The multiprocessors in the last wave, a square each."""
    columns = 12
    style.bare(ax)
    for sm in range(found.sms):
        busy = sm < found.last
        ax.add_patch(
            _square(sm % columns, sm // columns, style.BLUE if busy else style.RULE),
        )
    height = -(-found.sms // columns)
    ax.set_xlim(-0.6, columns - 0.4)
    ax.set_ylim(height - 0.4, -0.6)
    ax.set_aspect("equal")
    ax.set_xticks([])
    ax.set_yticks([])
    style.label(ax, f"{found.sms} multiprocessors (a square each)")
    style.title(ax, f"Wave {found.waves} of {found.waves}", f"{found.last} of {found.sms} have a tile")


def _square(x: float, y: float, colour: str):
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.42, y - 0.42), 0.84, 0.84, color=colour)


def wave_explorer() -> Explorer:
    """Tokens, product and tile width -> tiles, waves, the idle share."""
    controls = {
        "product": dropdown({f"{n} ({od:,})": od for n, (od, _) in SHAPES.items()}, 4608, "product"),
        "nt": integers(1, 4096, 2048, "tokens"),
        "width": slider(list(range(64, 257, 8)), 256, "tile width"),
        "sms": dropdown({"H200: 132 SMs": 132, "GB10: 48 SMs": 48, "RTX 4090: 128 SMs": 128}, 132, "device"),
    }

    def html(found: Waves) -> str:
        colour = "#009E73" if found.useful > 0.9 else "#D55E00"
        head = notice(f"{found.useful:.1%} of the multiprocessors' time is useful", colour)
        rows = [
            {"quantity": "tiles", "value": f"{found.tiles:,}"},
            {"quantity": "waves", "value": f"{found.waves:,} (exactly {found.tiles / found.sms:.2f})"},
            {"quantity": "idle", "value": f"{found.idle:.1%}"},
            {"quantity": "beyond the edge", "value": f"{found.beyond:.1%}"},
        ]
        return head + Table(rows, {"quantity": "", "value": ""})._repr_html_()

    def report(product: int, nt: int, width: int, sms: int) -> Waves:
        return waves(nt, product, width, sms)

    return Explorer(
        "waves", controls, report, lambda found: draw_waves(found.nt, found.od, found.width, found.sms), html
    )
