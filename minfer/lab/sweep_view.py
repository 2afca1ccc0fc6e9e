"""The sweep over TM and KS: what the ledger and residency say of every tile, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minfer.arithmetic.devices import DeviceSpec
from minfer.lab import style
from minfer.lab.picture import Picture
from minfer.lab.tile_view import TileChoice, explore

TMS = (64, 128, 256)
KSS = (16, 32, 64, 128)
COLOURS = dict(zip(KSS, (style.SKY, style.BLUE, style.ORANGE, style.RED), strict=True))


def sweep_choices(device: str) -> list[TileChoice]:
    """Every TM and KS of the sweep with the seed's warps: 8, and 16 for TM=256."""
    return [
        replace(TileChoice(device=device), tile_m=tm, tile_k=ks, warps=16 if tm == 256 else 8)
        for tm in TMS
        for ks in KSS
    ]


def sweep_rows(devices: Sequence[DeviceSpec]) -> list[dict]:
    """Bytes a kFLOP, barriers a MFLOP, shared memory, and blocks and resident warps an SM on each device.

    Registers are the config's estimate. A tile that cannot run has 0 blocks.
    """
    rows: dict[tuple[int, int], dict] = {}
    for device in devices:
        for choice in sweep_choices(device.key):
            report = explore(choice)
            row = rows.setdefault(
                (choice.tile_m, choice.tile_k),
                {
                    "TM": choice.tile_m,
                    "KS": choice.tile_k,
                    "B a kFLOP": round(report.tile.bytes_per_kflop, 2),
                    "barriers a MFLOP": round(report.tile.barriers_per_mflop, 2),
                    "shared (B)": None if report.config is None else report.config.shared_bytes,
                },
            )
            there = report.occupancy
            row[f"blocks, {device.key}"] = there.blocks if there else 0
            row[f"warps, {device.key}"] = there.warps if there else 0
    return list(rows.values())


def draw_sweep(devices: Sequence[DeviceSpec]) -> Picture:
    """Barriers and bytes of every tile, and the warps that stay resident on two devices."""
    rows = sweep_rows(devices)
    fig, axes = style.figure(9.6, 3.6, columns=1 + len(devices), width_ratios=(1, *[1.15] * len(devices)))
    ledger, *resident = axes
    for ks in KSS:
        mine = [row for row in rows if row["KS"] == ks]
        ledger.plot(
            [row["B a kFLOP"] for row in mine],
            [row["barriers a MFLOP"] for row in mine],
            "o-",
            color=COLOURS[ks],
            label=f"KS={ks}",
            markersize=5,
        )
    for tm in TMS:
        top = next(row for row in rows if (row["TM"], row["KS"]) == (tm, KSS[0]))
        where = (top["B a kFLOP"], top["barriers a MFLOP"])
        ledger.annotate(f"TM={tm}", where, (-4, 5), textcoords="offset points", fontsize=8.5, ha="right")
    ledger.margins(x=0.45, y=0.16)
    style.label(ledger, "bytes into shared memory (B a kFLOP)", "block barriers (a MFLOP)")
    style.title(ledger, "What a tile saves", "down and left is less work")
    for ax, device in zip(resident, devices, strict=True):
        for i, ks in enumerate(KSS):
            mine = [row for row in rows if row["KS"] == ks]
            places = [place + (i - 1.5) * 0.2 for place in range(len(TMS))]
            warps = [row[f"warps, {device.key}"] for row in mine]
            bars = ax.bar(places, warps, width=0.18, color=COLOURS[ks], label=f"KS={ks}")
            blocks = [str(row[f"blocks, {device.key}"]) for row in mine]
            ax.bar_label(bars, blocks, padding=2, fontsize=7.5, color=style.INK)
        ax.set_xticks(range(len(TMS)), [f"TM={tm}" for tm in TMS])
        ax.set_ylim(0, device.warps_per_sm * 1.08)
        ax.axhline(device.warps_per_sm, color=style.QUIET, linewidth=0.8, linestyle=":")
        ax.grid(axis="x", visible=False)
        style.label(ax, "outputs of a tile; on a bar its blocks an SM", "resident warps an SM")
        style.title(ax, f"On {device.name}", f"of {device.warps_per_sm} warps; estimated registers")
    style.legend_below(fig, ledger)
    names = " and ".join(device.name for device in devices)
    return Picture(fig, f"Bytes, barriers and resident warps of GEMM tiles over TM and KS on {names}", rows)


def draw_steps(rows: Sequence[dict], note: str = "") -> Picture:
    """What each step of seed 000 did to the prefill's speed, there and here, as `speed_view.step_rows` has
    it. `note`: where and when "here" is."""
    fig, (ax,) = style.figure(9.6, 3.2)
    for offset, key, colour, name in (
        (-0.2, "GB10 (%)", style.BLUE, "GB10, seed 000"),
        (0.2, "speed (%)", style.ORANGE, "NVIDIA H200"),
    ):
        places = [place + offset for place in range(len(rows))]
        bars = ax.barh(places, [row[key] for row in rows], height=0.36, color=colour, label=name)
        ax.bar_label(bars, [f"{row[key]:+.0f} %" for row in rows], padding=4, fontsize=8.5, color=style.INK)
    ax.axvline(0, color=style.INK, linewidth=0.9)
    ax.axvline(3, color=style.GREEN, linewidth=0.9, linestyle="--", label="the bar: +3 %")
    ax.set_yticks(
        range(len(rows)), [f"{row['step']}\n{row['verdict there']} there" for row in rows], color=style.INK
    )
    ax.invert_yaxis()
    ax.margins(x=0.16)
    ax.grid(axis="y", visible=False)
    style.label(ax, "change of the whole prefill's speed (%)")
    style.legend(ax, loc="lower right")
    style.title(ax, "One change at a time, on two GPUs", note)
    return Picture(fig, "Effect of seed 000's GEMM steps on prefill speed, on a GB10 and on an H200", rows)
