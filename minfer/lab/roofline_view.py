"""A device's roofline with kernels on it."""

from __future__ import annotations

from collections.abc import Mapping

from minfer.arithmetic.devices import DeviceSpec
from minfer.arithmetic.roofline import RooflinePoint, ridge
from minfer.lab import style

TERA = 1e12


def draw_roofline(
    ax, device: DeviceSpec, points: Mapping[str, RooflinePoint], dtype: str = "f16"
) -> list[dict]:
    """The roofs of `device` and named points on them; rows of name, intensity, attainable and wall."""
    knee, peak = ridge(device, dtype), device.tensor_peak(dtype)
    low = min([knee / 64, *(p.intensity / 2 for p in points.values())])
    high = max([knee * 32, *(p.intensity * 2 for p in points.values())])
    ax.plot([low, knee], [device.bandwidth * low / TERA, peak / TERA], color=style.BLUE, linewidth=2.2)
    ax.plot([knee, high], [peak / TERA] * 2, color=style.ORANGE, linewidth=2.2)
    ax.fill_between(
        [low, knee, high],
        [device.bandwidth * low / TERA, peak / TERA, peak / TERA],
        device.bandwidth * low / TERA / 4,
        color=style.PAPER,
        zorder=0,
    )
    for name, point in points.items():
        ax.plot(
            point.intensity,
            point.attainable / TERA,
            "o",
            color=style.RED,
            markersize=8,
            markeredgecolor="white",
            zorder=5,
        )
        ax.annotate(
            f"{name}\n{point.intensity:,.0f} FLOP/B",
            (point.intensity, point.attainable / TERA),
            (9, -4) if point.wall == "memory" else (0, 8),
            textcoords="offset points",
            ha="left" if point.wall == "memory" else "center",
            va="top" if point.wall == "memory" else "bottom",
            fontsize=8,
            color=style.INK,
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(device.bandwidth * low / TERA / 1.6, peak / TERA * 4)
    ax.text(low * 1.25, peak / TERA * 1.25, f"{peak / TERA:,.0f} TFLOPS", fontsize=8.5, color="#9A6B00")
    ax.annotate(
        f"{device.bandwidth / 1e9:,.0f} GB/s",
        (knee / 20, device.bandwidth * knee / 20 / TERA),
        (9, -4),
        textcoords="offset points",
        va="top",
        fontsize=8.5,
        color=style.BLUE,
    )
    style.label(ax, "intensity (FLOP a DRAM byte)", f"attainable ({dtype} TFLOPS)")
    return [
        {"name": name, "intensity": p.intensity, "attainable": p.attainable, "wall": p.wall}
        for name, p in points.items()
    ]
