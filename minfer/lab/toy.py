"""Kernels at toy sizes in the simulator: the source that runs on a GPU, every lane's accesses counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minfer.lab import style
from minfer.lab.picture import Picture

INSTRUCTIONS = {
    "LDMATRIX": "ldmatrix (fragments from shared memory)",
    "COPY_READ": "cp.async (from global memory)",
    "STORE_GLOBAL": "st.global (the result)",
}
"""What the tracer's operations are called in tables."""


@dataclass(frozen=True)
class ToyGemm:
    """One simulated GEMM.

    Attributes:
        config: its `GemmConfig`. shape: (nt, od, id).
        error: the greatest difference from the f32 product, which is at most `bound` if the kernel is right.
        shared: rows of layout, instruction, requests, wavefronts, ideal, degree, of the lanes' own accesses
            (copies are not among them).
        sectors: rows of layout, instruction, requests, sectors, per_request, efficiency.
        findings: what the race checker objects to, a sentence each; empty if nothing.
    """

    config: object
    shape: tuple[int, int, int]
    error: float
    bound: float
    shared: list[dict]
    sectors: list[dict]
    findings: list[str]


def simulate_gemm(
    nt: int = 64,
    od: int = 64,
    id: int = 64,
    *,
    tile: tuple[int, int, int] = (64, 64, 32),
    layout: str = "padded",
) -> ToyGemm:
    """Run the f16 GEMM kernel in the simulator on seeded random operands, its output poisoned with NaN first.

    Args:
        nt, od, id: the product's sizes; id a multiple of 8.
        tile: TN, TM, KS. layout: "padded", "swizzled" or "plain" rows in shared memory.

    Raises:
        ConfigRefused: a tile that cannot run.
    """
    from minfer.cuda import simulator
    from minfer.cuda.gemm import GemmConfig, make_gemm
    from minfer.cuda.trace import Trace, check, global_lines, shared_lines

    config = GemmConfig(*tile, layout=layout)
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, id)).astype(np.float16) for rows in (nt, od))
    c = np.full((nt, od), np.nan, np.float32)
    trace = Trace()
    simulator.launch(make_gemm(config), config.grid(nt, od), a, b, c, nt, od, id, trace=trace)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T
    return ToyGemm(
        config=config,
        shape=(nt, od, id),
        error=float(np.abs(c - exact).max()),
        bound=float(id * 2.0**-24 * magnitude.max()),
        shared=[{"layout": layout, **row} for row in _shared(shared_lines(trace))],
        sectors=[{"layout": layout, **row} for row in _sectors(global_lines(trace))],
        findings=[str(finding) for finding in check(trace)],
    )


def _grouped(lines: Sequence) -> dict[str, list]:
    groups: dict[str, list] = {}
    for line in lines:
        groups.setdefault(INSTRUCTIONS.get(line.op.name, line.op.name), []).append(line)
    return groups


def _shared(lines: Sequence) -> list[dict]:
    return [
        {
            "instruction": name,
            "requests": sum(line.requests for line in group),
            "wavefronts": sum(line.wavefronts for line in group),
            "ideal": sum(line.ideal for line in group),
            "degree": max(line.degree for line in group),
        }
        for name, group in sorted(_grouped(lines).items())
    ]


def _sectors(lines: Sequence) -> list[dict]:
    rows = []
    for name, group in sorted(_grouped(lines).items()):
        requests, sectors = sum(line.requests for line in group), sum(line.sectors for line in group)
        used = sum(line.bytes_used for line in group)
        row = {"instruction": name, "requests": requests, "sectors": sectors}
        rows.append({**row, "per_request": sectors / requests, "efficiency": used / (sectors * 32)})
    return rows


def draw_wavefronts(runs: Sequence[ToyGemm]) -> Picture:
    """Wavefronts that each layout's shared-memory instructions took, above what they would take at best."""
    rows = [row for run in runs for row in run.shared]
    names = sorted({row["instruction"] for row in rows})
    fig, axes = style.figure(6.4 * len(names), 3.0, columns=len(names))
    for ax, name in zip(axes, names, strict=True):
        mine = [row for row in rows if row["instruction"] == name]
        places = range(len(mine))
        ideal = [row["ideal"] for row in mine]
        extra = [row["wavefronts"] - row["ideal"] for row in mine]
        ax.barh(places, ideal, height=0.55, color=style.BLUE, label="needed")
        bars = ax.barh(places, extra, left=ideal, height=0.55, color=style.RED, label="conflicts")
        texts = [f"{row['degree']}-way conflict" if row["degree"] > 1 else "no conflict" for row in mine]
        ax.bar_label(bars, texts, padding=4, fontsize=9, color=style.INK)
        ax.set_yticks(places, [row["layout"] for row in mine])
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.margins(x=0.22)
        style.label(ax, "wavefronts of all warps", "rows in shared memory")
        style.title(ax, name.split(" (")[0], name.split("(")[1].rstrip(")"))
        style.legend(ax, loc="lower right")
    shape = " x ".join(map(str, runs[0].shape))
    return Picture(fig, f"Wavefronts by layout of a simulated {shape} GEMM", rows)
