"""Where a GEMM's bytes go: each operand's share by tile, and how blocks share panels through L2."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import ListedColormap

from minfer.arithmetic.ledger import GemmLedger, GemmTile
from minfer.lab import style
from minfer.lab.picture import Picture

ORDERS = {
    "od-tile-major": "token tile fastest: neighbours share a panel of B",
    "nt-tile-major": "output tile fastest",
}
"""Orders in which blocks are numbered, and what that means. The kernels use the first."""


def step_rows(tiles: list[GemmTile]) -> list[dict]:
    """The ledger of one k-step of each tile, with units in the headings."""
    return [
        {
            "TN": tile.tn,
            "TM": tile.tm,
            "KS": tile.ks,
            "A (B)": tile.a_bytes,
            "B (B)": tile.b_bytes,
            "FLOP": tile.flop,
            "B a kFLOP": round(tile.bytes_per_kflop, 2),
            "barriers a MFLOP": round(tile.barriers_per_mflop, 2),
        }
        for tile in tiles
    ]


def gemm_rows(ledgers: list[GemmLedger]) -> list[dict]:
    """The ledger of a whole GEMM on each tile, with units in the headings."""
    return [
        {
            "TM": ledger.tile.tm,
            "KS": ledger.tile.ks,
            "blocks": ledger.blocks,
            "k-steps": ledger.k_steps,
            "barriers": ledger.barriers,
            "A through L2 (GB)": round(ledger.a_l2_bytes / 1e9, 2),
            "B through L2 (GB)": round(ledger.b_l2_bytes / 1e9, 2),
        }
        for ledger in ledgers
    ]


def order_rows(ledger: GemmLedger, resident: int, l2_bytes: int) -> list[dict]:
    """What the first wave of each launch order reads, and whether L2 holds it."""
    rows = []
    for order in ORDERS:
        panels = panels_in_wave(waves(ledger, resident, order))
        size = panel_bytes(ledger, panels)
        row = {"order": order, "panels of A": panels["a"], "panels of B": panels["b"], "bytes": size}
        rows.append({**row, "fits in L2": size <= l2_bytes})
    return rows


def traffic_rows(tiles: list[GemmTile]) -> list[dict]:
    """Each tile's share of A and B in the bytes a kFLOP, and its barriers a MFLOP."""
    return [
        {
            "tile": f"{t.tn} x {t.tm} x {t.ks}",
            "a": t.a_bytes / t.flop * 1000,
            "b": t.b_bytes / t.flop * 1000,
            "bytes_per_kflop": t.bytes_per_kflop,
            "barriers_per_mflop": t.barriers_per_mflop,
        }
        for t in tiles
    ]


def draw_traffic(tiles: list[GemmTile]) -> Picture:
    """Bytes into shared memory a kFLOP, split by operand, and barriers a MFLOP, for each tile."""
    rows = traffic_rows(tiles)
    fig, (left, right) = style.figure(9.6, 3.4, columns=2)
    places = range(len(rows))
    a, b, barriers = ([row[key] for row in rows] for key in ("a", "b", "barriers_per_mflop"))
    left.bar(places, b, width=0.6, color=style.ORANGE, label="B (weights)")
    tops = left.bar(places, a, bottom=b, width=0.6, color=style.BLUE, label="A (activations)")
    left.bar_label(tops, [f"{row['bytes_per_kflop']:.2f}" for row in rows], padding=3, fontsize=9)
    right.bar_label(
        right.bar(places, barriers, width=0.6, color=style.GREEN), fmt="%.2f", padding=3, fontsize=9
    )
    for ax in (left, right):
        ax.set_xticks(places, [row["tile"] for row in rows])
        ax.grid(axis="x", visible=False)
        ax.margins(y=0.2)
    style.legend(left, loc="upper right", ncols=2)
    style.label(left, "TN x TM x KS", "bytes into shared memory (B a kFLOP)")
    style.label(right, "TN x TM x KS", "block barriers (a MFLOP)")
    style.title(left, "A wider TM saves on A", "every FLOP still needs as much of B")
    style.title(right, "Barriers go down with the tile", "one a k-step")
    return Picture(fig, "Bytes a kFLOP by operand and barriers a MFLOP for GEMM tiles", rows)


def waves(ledger: GemmLedger, resident: int, order: str = "od-tile-major") -> list[dict]:
    """Every block of a GEMM: its tile (n_tile, m_tile), number in launch order, and the wave that runs it.

    `resident` blocks run at a time. Raises KeyError for an order that is not in `ORDERS`.
    """
    inner = {"od-tile-major": ledger.n_tiles, "nt-tile-major": ledger.m_tiles}[order]
    rows = []
    for number in range(ledger.blocks):
        outer, fastest = divmod(number, inner)
        n_tile, m_tile = (fastest, outer) if order == "od-tile-major" else (outer, fastest)
        wave = number // resident
        rows.append({"order": order, "n_tile": n_tile, "m_tile": m_tile, "block": number, "wave": wave})
    return rows


def panels_in_wave(rows: list[dict], wave: int = 0) -> dict[str, int]:
    """Panels of A and of B that the blocks of one wave read: what L2 has to hold for them to be shared."""
    mine = [row for row in rows if row["wave"] == wave]
    return {"a": len({row["n_tile"] for row in mine}), "b": len({row["m_tile"] for row in mine})}


def panel_bytes(ledger: GemmLedger, panels: dict[str, int]) -> int:
    """Bytes of so many panels of A and B."""
    tile = ledger.tile
    elements = panels["a"] * tile.tn * tile.a_bits + panels["b"] * tile.tm * tile.b_bits
    return round(elements * ledger.id / 8)


def draw_orders(ledger: GemmLedger, resident: int) -> Picture:
    """The first waves of both launch orders over the grid of tiles, with what the first one reads."""
    fig, axes = style.figure(9.6, 4.2, columns=2)
    colours = ListedColormap([style.BLUE, style.ORANGE, style.GREEN, style.PAPER])
    everything = []
    edges = 0.3 if ledger.m_tiles <= 80 else 0
    for ax, (order, meaning) in zip(axes, ORDERS.items(), strict=True):
        rows = waves(ledger, resident, order)
        grid = np.full((ledger.n_tiles, ledger.m_tiles), 3)
        for row in rows[: 3 * resident]:
            grid[row["n_tile"], row["m_tile"]] = row["wave"]
        ax.pcolormesh(grid, cmap=colours, vmin=-0.5, vmax=3.5, edgecolors="white", linewidth=edges)
        ax.invert_yaxis()
        ax.grid(False)
        style.label(ax, "output tile (a panel of B each)", "token tile (a panel of A each)")
        panels = panels_in_wave(rows)
        size = panel_bytes(ledger, panels) / 2**20
        of_a = f"{panels['a']} panel{'s' * (panels['a'] > 1)} of A"
        note = f"{meaning}\nthe first wave reads {of_a}, {panels['b']} of B: {size:.1f} MiB"
        style.title(ax, order, note)
        everything += rows
    for wave, colour in enumerate(colours.colors[:3], 1):
        axes[0].plot([], [], "s", color=colour, markersize=9, label=f"wave {wave}")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
    shape = f"{ledger.n_tiles} x {ledger.m_tiles}"
    alt = f"The first three waves of {resident} blocks over {shape} tiles, in two orders"
    return Picture(fig, alt, everything)
