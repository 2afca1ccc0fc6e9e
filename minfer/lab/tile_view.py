"""The tile explorer without its sliders: from a GEMM tile and a device to every number, and their picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.patches import Rectangle

from minfer.arithmetic.devices import DeviceSpec, device
from minfer.arithmetic.ledger import GemmLedger, GemmTile, gemm_ledger
from minfer.arithmetic.occupancy import LIMITERS, Occupancy, blocks_per_sm
from minfer.arithmetic.roofline import RooflinePoint, roofline
from minfer.lab import style
from minfer.lab.occupancy_view import draw_limits
from minfer.lab.picture import Picture
from minfer.lab.roofline_view import draw_roofline

PANEL = 0.86
"""Height over width of the panel that shows the tile."""


@dataclass(frozen=True)
class Registers:
    """Registers a thread, and how they are known: from "ptxas, <arch>" or as an "estimate"."""

    count: int
    source: str = "estimate"
    spill_bytes: int = 0

    def __str__(self) -> str:
        if self.source == "estimate":
            return f"about {self.count} (estimate)"
        spills = f", {self.spill_bytes:,} B spilled" if self.spill_bytes else ""
        return f"{self.count} ({self.source}{spills})"


@dataclass(frozen=True)
class TileChoice:
    """What the sliders choose: the block's tile, its pipeline, its warps, the device and the product."""

    tile_n: int = 64
    tile_m: int = 128
    tile_k: int = 32
    stages: int = 2
    warps: int = 8
    layout: str = "padded"
    device: str = "gb10"
    nt: int = 2048
    od: int = 18944
    id: int = 3584

    def config(self):
        """The kernel's config for this choice.

        Raises:
            ConfigRefused: the kernel cannot be built so; the message names the limit and the remedy.
        """
        from minfer.cuda.gemm import GemmConfig

        return GemmConfig(
            tile_n=self.tile_n,
            tile_m=self.tile_m,
            tile_k=self.tile_k,
            stages=self.stages,
            warps=self.warps,
            layout=self.layout,
        )


@dataclass(frozen=True)
class TileReport:
    """Everything that follows from a `TileChoice`.

    Attributes:
        refusal: why the tile cannot run, in the config's or the device's own words; None if it can.
        config, occupancy, registers: None where the config itself is refused.
    """

    choice: TileChoice
    device: DeviceSpec
    tile: GemmTile
    ledger: GemmLedger
    point: RooflinePoint
    config: object | None
    registers: Registers | None
    occupancy: Occupancy | None
    refusal: str | None

    def facts(self) -> list[dict]:
        """The numbers, one row each: quantity, value (formatted)."""
        tile, ledger = self.tile, self.ledger
        rows = [
            ("staged a k-step", f"A {tile.a_bytes:,} + B {tile.b_bytes:,} B"),
            ("bytes a kFLOP", f"{tile.bytes_per_kflop:.2f}"),
            ("barriers a MFLOP", f"{tile.barriers_per_mflop:.2f}"),
            ("mma a warp and barrier", f"{tile.mma_per_warp(self.choice.warps):g}"),
            ("through L2, whole GEMM", f"{ledger.l2_bytes / 1e9:.2f} GB"),
        ]
        if self.occupancy is not None:
            waves = ledger.blocks / max(self.occupancy.blocks * self.device.sms, 1)
            rows += [
                ("shared memory a block", f"{self.occupancy.shared_bytes:,} B"),
                ("registers a thread", str(self.registers)),
                ("blocks an SM", f"{self.occupancy.blocks}, limited by {LIMITERS[self.occupancy.limiter]}"),
                ("occupancy", f"{self.occupancy.fraction:.2%}"),
                ("waves", f"{waves:.2f}" if self.occupancy.blocks else "-"),
            ]
        wall = f"{self.point.wall}, {self.point.intensity:,.0f} FLOP a DRAM byte"
        rows.append(("wall on the roofline", wall))
        return [{"quantity": name, "value": value} for name, value in rows]


def explore(choice: TileChoice, registers: Registers | None = None) -> TileReport:
    """The report of a choice. `registers`: a compiled kernel's; the config's own estimate by default."""
    from minfer.cuda.kernel import ConfigRefused

    where = device(choice.device)
    config = occupancy = refusal = None
    try:
        config = choice.config()
    except ConfigRefused as error:
        refusal, registers = str(error), None
    if config is not None:
        registers = registers or Registers(config.registers)
        occupancy = blocks_per_sm(where, config.threads, registers.count, config.shared_bytes)
        refusal = f"{where.name}: {occupancy.refusal}" if occupancy.refusal else None
    tile = GemmTile(choice.tile_n, choice.tile_m, choice.tile_k, choice.stages)
    resident = max(occupancy.blocks if occupancy else 1, 1) * where.sms
    ledger = gemm_ledger(tile, choice.nt, choice.od, choice.id, resident_blocks=resident, l2_bytes=where.l2)
    return TileReport(
        choice=choice,
        device=where,
        tile=tile,
        ledger=ledger,
        point=roofline(where, ledger.flop, ledger.dram_bytes),
        config=config,
        registers=registers,
        occupancy=occupancy,
        refusal=refusal,
    )


def draw_tile(report: TileReport) -> Picture:
    """The block's tile to scale, what each resource allows, and the product on the device's roofline."""
    fig, (left, middle, right) = style.figure(9.6, 3.7, columns=3, width_ratios=(1.15, 1, 1.1))
    rows = [{"panel": "tile", **row} for row in _tile(left, report)]
    if report.occupancy is not None:
        rows += [{"panel": "limits", **row} for row in draw_limits(middle, report.occupancy)]
        blocks, limiter = report.occupancy.blocks, LIMITERS[report.occupancy.limiter]
        plural = "s" if blocks != 1 else ""
        style.title(middle, f"{blocks} block{plural} an SM", f"limited by {limiter}, {report.device.name}")
    else:
        style.bare(middle)
        middle.set_xticks([])
        middle.set_yticks([])
        style.title(middle, "refused")
        why = textwrap.fill(report.refusal, 38)
        middle.text(0, 0.97, why, transform=middle.transAxes, va="top", fontsize=8.5, color=style.RED)
    name = f"{report.choice.nt} x {report.choice.od} x {report.choice.id}"
    points = draw_roofline(right, report.device, {name: report.point})
    rows += [{"panel": "roofline", **row} for row in points]
    derived = report.device.source("tensor_f16").startswith("derived")
    roofs = "derived tensor rate" if derived else "datasheet rates"
    style.title(right, f"{report.point.wall} is the wall", f"{report.device.name}, {roofs}")
    choice = report.choice
    shape = f"{choice.tile_n} x {choice.tile_m} x {choice.tile_k}"
    alt = f"GEMM tile {shape} on {report.device.name}: {report.refusal or report.occupancy}"
    return Picture(fig, alt, rows)


def _tile(ax, report: TileReport) -> list[dict]:
    tile, choice = report.tile, report.choice
    style.bare(ax)
    gap = 0.06 * max(tile.tn, tile.tm)
    parts = [
        ("A", (-tile.ks - gap, 0), tile.ks, tile.tn, style.BLUE, tile.a_bytes),
        ("B", (0, -tile.ks - gap), tile.tm, tile.ks, style.ORANGE, tile.b_bytes),
        ("C", (0, 0), tile.tm, tile.tn, style.GREEN, None),
    ]
    for name, (x, y), width, height, colour, size in parts:
        pale = style.tint(colour, 0.7)
        ax.add_patch(Rectangle((x, y), width, height, facecolor=pale, edgecolor=colour, lw=1.6))
        text = f"{name}: {size:,} B" if size else f"{name}: {tile.tn} x {tile.tm}"
        narrow, tall = width < 0.34 * (tile.tm + tile.ks), height > 0.5 * tile.tm
        ax.text(
            x + width / 2,
            y + height / 2,
            text.replace(": ", ":\n") if narrow and not tall else text,
            ha="center",
            va="center",
            fontsize=7.5 if narrow else 8.5,
            color=style.INK,
            rotation=90 if narrow and tall else 0,
            bbox={"boxstyle": "round,pad=.2", "fc": pale, "ec": "none"},
            zorder=5,
        )
    if report.config is not None:
        rows, columns = report.config.warp_tile
        for y in range(rows, tile.tn, rows):
            ax.plot([0, tile.tm], [y, y], color=style.GREEN, lw=0.8)
        for x in range(columns, tile.tm, columns):
            ax.plot([x, x], [0, tile.tn], color=style.GREEN, lw=0.8)
    # To scale without an equal aspect, which would shrink the axes away from their neighbours'.
    middle_x, middle_y = (tile.tm - tile.ks - gap) / 2, (tile.tn - tile.ks - gap) / 2
    side = 1.08 * max(tile.tm + tile.ks + gap, (tile.tn + tile.ks + gap) / PANEL)
    ax.set_xlim(middle_x - side / 2, middle_x + side / 2)
    ax.set_ylim(middle_y + side * PANEL / 2, middle_y - side * PANEL / 2)
    ax.set_xticks([0, tile.tm])
    ax.set_yticks([0, tile.tn])
    style.label(ax, "outputs (rows of B)", "tokens (rows of A)")
    note = f"a k-step of {tile.ks}; {choice.warps} warps share C"
    style.title(ax, f"{tile.bytes_per_kflop:.2f} bytes a kFLOP", note)
    return [
        {"part": name, "width": width, "height": height, "bytes": size}
        for name, _, width, height, _, size in parts
    ]


def probe_rows(choices: Sequence[TileChoice], devices: Sequence[DeviceSpec]) -> list[dict]:
    """Shared memory of each choice, and the blocks an SM that it alone leaves room for on each device.

    Raises:
        ConfigRefused: a choice that no device can run.
    """
    rows = []
    for choice in choices:
        config = choice.config()
        rows.append(
            {
                "TM": choice.tile_m,
                "KS": choice.tile_k,
                "warps": choice.warps,
                "shared (B)": config.shared_bytes,
                **{f"blocks, {d.key}": _room(d, config) for d in devices},
            }
        )
    return rows


def _room(device: DeviceSpec, config) -> int:
    # 32 registers never limit first: what is left is the limit of shared memory.
    return blocks_per_sm(device, config.threads, 32, config.shared_bytes).limits["shared"]
