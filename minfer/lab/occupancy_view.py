"""Occupancy against shared memory and registers: the staircases, and where a kernel stands on them."""

from __future__ import annotations

from collections.abc import Mapping

from minfer.arithmetic.devices import SHARED_ALLOCATION_UNIT, DeviceSpec
from minfer.arithmetic.occupancy import LIMITERS, Occupancy, blocks_per_sm
from minfer.lab import style
from minfer.lab.picture import Picture

COLOURS = {
    "shared": style.BLUE,
    "registers": style.ORANGE,
    "warps": style.GREEN,
    "blocks": style.PINK,
    "barriers": style.SKY,
}
"""The colour of every limiting resource, the same in all figures."""
LABEL = 7.5
"""Height of a mark's two-line label, in warps of the axis."""


def shared_curve(device: DeviceSpec, threads: int, registers: int) -> list[dict]:
    """Blocks and occupancy for every amount of shared memory at which they change.

    Returns:
        Rows of shared_bytes (the largest amount that still gives this many blocks), blocks, warps, fraction
        and limiter, from no shared memory to the device's cap.
    """
    rows: list[dict] = []
    for shared in range(0, device.shared_per_block + 1, SHARED_ALLOCATION_UNIT):
        row = _row(blocks_per_sm(device, threads, registers, shared), shared_bytes=shared)
        if rows and (rows[-1]["blocks"], rows[-1]["limiter"]) == (row["blocks"], row["limiter"]):
            rows[-1] = row
        else:
            rows.append(row)
    return rows


def register_curve(device: DeviceSpec, threads: int, shared_bytes: int) -> list[dict]:
    """The same for registers a thread, 8 to 255: rows with `registers` in place of `shared_bytes`."""
    rows: list[dict] = []
    for registers in (*range(8, device.registers_per_thread, 8), device.registers_per_thread):
        row = _row(blocks_per_sm(device, threads, registers, shared_bytes), registers=registers)
        if rows and (rows[-1]["blocks"], rows[-1]["limiter"]) == (row["blocks"], row["limiter"]):
            rows[-1] = row
        else:
            rows.append(row)
    return rows


def draw_curves(device: DeviceSpec, threads: int, registers: int, marks: Mapping[str, int]) -> Picture:
    """Both staircases, with named kernels on them.

    Args:
        registers: registers a thread, common to all marks.
        marks: name -> shared bytes of a kernel, at least one; one over the cap is drawn beyond it as refused.
            The staircase over registers is drawn at the first one's shared memory.
    """
    fig, axes = style.figure(9.6, 3.9, columns=2)
    shared = shared_curve(device, threads, registers)
    _staircase(axes[0], shared, "shared_bytes", device)
    _marks(axes[0], device, threads, registers, marks)
    style.kib_axis(axes[0])
    style.label(axes[0], "shared memory a block (KiB)", "resident warps an SM")
    heading = f"{device.name}: {threads} threads, {registers} registers"
    style.title(axes[0], heading, "each step is one block fewer")
    rows = [{"axis": "shared", **row} for row in shared]
    name, amount = next(iter(marks.items()))
    by_registers = register_curve(device, threads, amount)
    here = blocks_per_sm(device, threads, registers, amount)
    _staircase(axes[1], by_registers, "registers", device)
    axes[1].plot(registers, here.warps, "o", color=style.INK, ms=8, markeredgecolor="white", zorder=5)
    style.label(axes[1], "registers a thread", "resident warps an SM")
    note = f"limited by {LIMITERS[here.limiter]} here"
    style.title(axes[1], f"{name}: {amount:,} B of shared memory", note)
    style.legend_below(fig, *axes)
    rows += [{"axis": "registers", **row} for row in by_registers]
    alt = f"Resident warps on {device.name} against shared memory and registers a block"
    return Picture(fig, alt, rows)


def limits_rows(occupancy: Occupancy) -> list[dict]:
    """What each resource alone would allow: rows of resource, blocks and limiting, in `LIMITERS` order.

    Named barriers are listed only where they limit.
    """
    return [
        {"resource": name, "blocks": occupancy.limits[key], "limiting": key in occupancy.limiters}
        for key, name in LIMITERS.items()
        if key != "barriers" or key in occupancy.limiters
    ]


def draw_limits(ax, occupancy: Occupancy) -> list[dict]:
    """Bars of `limits_rows`, the limiting resource dark, the others pale; returns the rows."""
    rows = limits_rows(occupancy)
    by_name = {name: key for key, name in LIMITERS.items()}
    top = max(max(row["blocks"] for row in rows), 1)
    for place, row in enumerate(reversed(rows)):
        colour = COLOURS[by_name[row["resource"]]]
        pale = style.tint(colour, 0.72)
        ax.barh(place, row["blocks"], height=0.62, color=colour if row["limiting"] else pale)
        weight = "bold" if row["limiting"] else "normal"
        style.beside(ax, row["blocks"], place, f"{row['blocks']}", fontweight=weight)
    ax.set_yticks(range(len(rows)), [row["resource"] for row in reversed(rows)], color=style.INK)
    ax.set_xlim(0, top * 1.12)
    ax.grid(axis="y", visible=False)
    style.label(ax, "blocks an SM that each resource allows")
    return rows


def _row(occupancy: Occupancy, **at) -> dict:
    return {
        **at,
        "blocks": occupancy.blocks,
        "warps": occupancy.warps,
        "fraction": occupancy.fraction,
        "limiter": occupancy.limiter,
    }


def _staircase(ax, rows: list[dict], key: str, device: DeviceSpec) -> None:
    left = 0
    seen = set()
    for row in rows:
        colour = COLOURS[row["limiter"]]
        name = None if row["limiter"] in seen else f"limited by {LIMITERS[row['limiter']]}"
        seen.add(row["limiter"])
        ax.fill_between([left, row[key]], row["warps"], color=style.tint(colour, 0.8), linewidth=0)
        ax.plot([left, row[key]], [row["warps"]] * 2, color=colour, linewidth=2.2, label=name)
        left = row[key]
    ax.axhline(device.warps_per_sm, color=style.QUIET, linewidth=0.9, linestyle=(0, (4, 3)))
    look = {"va": "bottom", "fontsize": 8, "color": style.QUIET, "path_effects": style.RIM}
    ax.text(0, device.warps_per_sm + 0.5, " all warps", **look)
    ax.set_ylim(0, device.warps_per_sm * 1.13)
    ax.set_xlim(left=0)


def _marks(ax, device: DeviceSpec, threads: int, registers: int, marks: Mapping[str, int]) -> None:
    cap = device.shared_per_block
    ax.axvline(cap, color=style.RED, linewidth=1.2)
    ax.annotate(
        f"cap {cap / 1024:g} KiB ",
        (cap, 1),
        (-2, -10),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right",
        fontsize=8.5,
        color=style.RED,
        path_effects=style.RIM,
    )
    edge = max([cap, *marks.values()])
    ax.set_xlim(0, edge * 1.04)
    if edge > cap:
        ax.axvspan(
            cap, edge * 1.04, facecolor=style.tint(style.RED, 0.88), hatch="///", edgecolor="white", lw=0
        )
    taken: list[tuple[float, float]] = []
    for name, amount in sorted(marks.items(), key=lambda mark: mark[1]):
        occupancy = blocks_per_sm(device, threads, registers, amount)
        refused = occupancy.blocks == 0
        ax.plot(
            amount,
            occupancy.warps,
            "X" if refused else "o",
            color=style.RED if refused else style.INK,
            markersize=9 if refused else 7,
            markeredgecolor="white",
            zorder=5,
            clip_on=False,
        )
        # The staircase descends, so the room to the right of a point and above it is free; near the edge the
        # label stands to the left. One stands over the other where two would meet.
        height = occupancy.warps + 1.2
        while any(abs(amount - x) < 0.24 * edge and abs(height - y) < LABEL for x, y in taken):
            height += 0.5
        taken.append((amount, height))
        side = 1 if amount < 0.72 * edge else -1
        ax.annotate(
            f"{name}\nrefused" if refused else f"{name}\n{occupancy.blocks} x {threads // 32} warps",
            (amount, occupancy.warps),
            (amount + 0.012 * side * edge, height),
            ha="left" if side > 0 else "right",
            va="bottom",
            fontsize=8,
            color=style.INK,
            path_effects=style.RIM,
            arrowprops={"arrowstyle": "-", "color": style.QUIET, "lw": 0.7},
        )
