"""How much of what tensor cores alone reach the products reach, and where the rest is: in cycles or in the
clock."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.arithmetic.devices import H200
from minfer.campaign.against import Against, Comparison, newest_comparisons
from minfer.campaign.ceilings import Ceilings, ceilings_of
from minfer.campaign.records import Record
from minfer.campaign.tensor_ceilings import TensorRate
from minfer.lab import style
from minfer.lab.figures import Missing, nothing, origin, shown
from minfer.lab.picture import Picture
from minfer.lab.table import Table

MEASURE = "minfer ceilings --record and minfer bench --against torch measure that"
WHAT = "the products' share of tensor cores alone"
CYCLE_FLOP = H200.tensor_f16 / H200.boost
"""Of all multiprocessors in a cycle."""
BESIDE = {"burst": "burst", "sustained": "sustained", "alone": "sustained"}
"""Regime of a comparison -> that of the ceiling beside it."""


def known_ceilings() -> Ceilings:
    """An H200's."""
    return ceilings_of(H200.name)


def tensor_core_rows(ceilings: Ceilings | None = None) -> list[dict]:
    """What tensor cores alone reached on an H200: 10^12 operations a second, MHz, W, and the share of the
    cycles in which they could not have done more. Empty: not measured."""
    peaks = {"f16": CYCLE_FLOP, "int8": H200.tensor_int8 / H200.boost}
    return [
        {
            "instruction": rate.instruction,
            "operands": rate.dtype,
            "tile": rate.tile,
            "regime": rate.regime,
            "TOPS": rate.tops,
            "MHz": rate.mhz,
            "W": rate.watts,
            "busy": _busy(rate.tops, rate.mhz, peaks[rate.dtype]),
        }
        for rate in (ceilings or known_ceilings()).reached
    ]


def ceiling_rows(records: Sequence[Record], regime: str, ceilings: Ceilings | None = None) -> list[dict]:
    """The 7B's products beside wgmma alone: TFLOPS, share of the ceiling, share of the cycles in which the
    tensor cores are busy, and the clock as a share of the ceiling's; ours, then cuBLAS's. A share of the
    ceiling is the product of the last two, over the ceiling's own busy share. Empty: not on record.

    Args:
        regime: of the comparison; "alone" and "sustained" stand beside the sustained ceiling.
    """
    peak, found = _known(records, regime, ceilings)
    return [] if peak is None else [_row(row, peak) for row, _ in found]


def _known(
    records: Sequence[Record], regime: str, ceilings: Ceilings | None
) -> tuple[TensorRate | None, list[tuple[Comparison, Against]]]:
    peak = (ceilings or known_ceilings()).tensor_cores("f16", BESIDE[regime])
    found = newest_comparisons(records, H200.key, regime).values()
    return peak, [(row, record) for row, record in found if row.weights == "F16"]


def _row(row: Comparison, peak: TensorRate) -> dict:
    ours, theirs = row.tflops
    return {
        "regime": row.regime,
        "product": row.product,
        "tokens": row.nt,
        "TFLOPS": ours,
        "of the ceiling": ours / peak.tops,
        "busy": _busy(ours, row.ours_mhz, CYCLE_FLOP),
        "clock": None if None in (row.ours_mhz, peak.mhz) else row.ours_mhz / peak.mhz,
        "cuBLAS": theirs / peak.tops,
        "its busy": _busy(theirs, row.theirs_mhz, CYCLE_FLOP),
        "its clock": None if None in (row.theirs_mhz, peak.mhz) else row.theirs_mhz / peak.mhz,
    }


def _busy(tops: float, mhz: float | None, cycle_flop: float) -> float | None:
    return None if mhz is None else tops * 1e12 / (cycle_flop * mhz * 1e6)


def _long_regime(records: Sequence[Record]) -> str:
    """The one that stands for load that lasts: each by itself where that is on record."""
    return "alone" if newest_comparisons(records, H200.key, "alone") else "sustained"


def ceiling_table(records: Sequence[Record], ceilings: Ceilings | None = None) -> Table | Missing:
    """`ceiling_rows` of bursts and of load that lasts."""
    rows = [
        row for regime in ("burst", _long_regime(records)) for row in ceiling_rows(records, regime, ceilings)
    ]
    shares = ("of the ceiling", "busy", "clock", "cuBLAS", "its busy", "its clock")
    return shown(rows, WHAT, TFLOPS=".0f", **dict.fromkeys(shares, ".1%"))


def draw_ceiling(records: Sequence[Record], ceilings: Ceilings | None = None) -> Picture:
    """Our products and cuBLAS's as shares of wgmma alone, in bursts and under load that lasts."""
    regimes, found = ("burst", _long_regime(records)), []
    for regime in regimes:
        peak, pairs = _known(records, regime, ceilings)
        if peak is not None and pairs:
            found.append((regime, peak, [_row(row, peak) for row, _ in pairs], pairs))
    if not found:
        return nothing(WHAT, MEASURE)
    fig, axes = style.figure(9.6, 3.6 * len(found), rows=len(found))
    for ax, (regime, peak, rows, pairs) in zip(axes, found, strict=True):
        _bars(ax, rows)
        long = "" if regime == "burst" else ", each by itself" if regime == "alone" else ", by turns"
        text = f"{peak.regime}{long}: 100 % is wgmma alone, {peak.tops:,.0f} TFLOPS"
        if peak.mhz is not None:
            text += f" at {peak.mhz:,.0f} MHz"
        style.title(ax, text[0].upper() + text[1:], origin(*(record for _, record in pairs)))
    style.legend_below(fig, axes[0])
    return Picture(
        fig, "Ours and cuBLAS as shares of wgmma alone", [row for *_, rows, _ in found for row in rows]
    )


def _bars(ax, rows: Sequence[dict]) -> None:
    for key, name, colour, shift in (
        ("of the ceiling", "ours", style.GREEN, -0.2),
        ("cuBLAS", "cuBLAS", style.BLUE, 0.2),
    ):
        places = [place + shift for place in range(len(rows))]
        ax.bar(places, [100 * row[key] for row in rows], width=0.38, color=colour, label=name)
        for place, row in zip(places, rows, strict=True):
            look = {"ha": "center", "va": "top", "fontsize": 8, "color": "white"}
            ax.text(place, 100 * row[key] - 2, f"{100 * row[key]:.0f}", **look)
    ax.axhline(100, color=style.RED, linewidth=1.4, linestyle=(0, (5, 3)))
    names = [f"{row['product']}\n{row['tokens']:,}" for row in rows]
    ax.set_xticks(range(len(rows)), names, color=style.INK)
    ax.set_ylim(0, max(100.0, *(100 * row["of the ceiling"] for row in rows)) * 1.12)
    ax.grid(axis="x", visible=False)
    style.label(ax, "product and tokens", "share of the ceiling (%)")


def alone_rows(records: Sequence[Record]) -> list[dict]:
    """The products with each side by itself at its own clock: microseconds, MHz, W and mJ a launch, ours and
    cuBLAS's. Empty: not on record."""
    found = newest_comparisons(records, H200.key, "alone").values()
    return [
        {
            "product": row.label,
            "tokens": row.nt,
            "us": row.ours_us,
            "cuBLAS's us": row.theirs_us,
            "MHz": row.ours_mhz,
            "its MHz": row.theirs_mhz,
            "W": row.ours_w,
            "its W": row.theirs_w,
            "mJ": None if row.millijoules is None else row.millijoules[0],
            "its mJ": None if row.millijoules is None else row.millijoules[1],
            "of cuBLAS": row.ratio,
        }
        for row, _ in found
    ]
