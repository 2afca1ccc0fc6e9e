"""The 32 banks under a shared-memory tile: which word lies where, and what one warp's access costs.

The layout comes as the kernel's own address function, so that the picture is of what runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.patches import Rectangle

from minfer.arithmetic.banks import (
    BANK_BYTES,
    BANKS,
    BankRequest,
    TileAddress,
    bank_of,
    global_request,
    ldmatrix_request,
    ldmatrix_rows,
    padded,
    shared_request,
)
from minfer.arithmetic.reference import FOLDER
from minfer.lab import style
from minfer.lab.picture import Picture


@dataclass(frozen=True)
class Access:
    """One way in which a warp reads a tile of f16.

    Attributes:
        name: as the widget shows it. rows: tile rows that it touches.
        request: tile address function -> its bank request.
        touched: phase -> the (row, byte column, bytes) that the phase reads.
    """

    name: str
    rows: int
    request: Callable[[TileAddress], BankRequest]
    touched: Callable[[int], list[tuple[int, int, int]]]


ACCESSES = {
    "ldmatrix.x4": Access(
        "ldmatrix.x4: a 16 x 16 fragment, 8 rows of 16 B a phase",
        16,
        lambda tile: ldmatrix_request(ldmatrix_rows(tile)),
        lambda phase: [(phase % 2 * 8 + row, phase // 2 * 16, 16) for row in range(8)],
    ),
    "column": Access(
        "ld.shared.u32: lane = row, one column of words",
        32,
        lambda tile: shared_request(lambda lane: tile(lane, 0)),
        lambda phase: [(row, 0, 4) for row in range(32)],
    ),
    "row": Access(
        "ld.shared.u32: a row of 32 words",
        1,
        lambda tile: shared_request(lambda lane: tile(0, lane * 4)),
        lambda phase: [(0, lane * 4, 4) for lane in range(32)],
    ),
}
"""The accesses that the bank map can show, by key."""


def words(tile: TileAddress, access: Access, row_bytes: int, phase: int = 0) -> list[dict]:
    """Every word of the rows that the access touches: row, word, address, bank, read (by `phase`)."""
    read = {
        (row, column + step)
        for row, column, size in access.touched(phase)
        for step in range(0, size, BANK_BYTES)
    }
    return [
        {
            "row": row,
            "word": column // BANK_BYTES,
            "address": tile(row, column),
            "bank": int(bank_of(tile(row, column))),
            "read": (row, column) in read,
        }
        for row in range(access.rows)
        for column in range(0, row_bytes, BANK_BYTES)
    ]


def verdict(request: BankRequest) -> str:
    """The request in a sentence."""
    if request.degree == 1:
        return f"no conflict: {request.wavefronts} wavefront{'s' * (request.wavefronts > 1)}, one a phase"
    return (
        f"{request.degree}-way conflict: {request.wavefronts} wavefronts where "
        f"{request.wavefronts - request.conflicts} would do"
    )


def draw_bank_map(
    tile: TileAddress, row_bytes: int, access: str = "ldmatrix.x4", phase: int = 0, name: str = ""
) -> Picture:
    """The tile's words coloured by bank, one phase of the access outlined, and its load on the 32 banks
    beside it.

    Args:
        tile: (row, byte column) -> byte address.
        row_bytes: bytes of a row that hold data (padding lies between rows and is not drawn).
        access: a key of `ACCESSES`. phase: which of its phases to outline.
        name: what the tile is, for the title.

    Raises:
        KeyError: unknown access. ValueError: the access cannot read this layout (ldmatrix rows not 16-byte
            aligned).
    """
    how = ACCESSES[access]
    request = how.request(tile)
    rows = words(tile, how, row_bytes, phase)
    fig, (left, right) = style.figure(9.6, max(2.6, 1.5 + how.rows * 0.17), columns=2, width_ratios=(2.5, 1))
    _map(left, rows, how.rows, row_bytes // BANK_BYTES)
    style.title(left, name or "bank of every word", how.name)
    _load(right, request, phase)
    note = f"phase {phase} of {len(request.degrees)}: words by bank"
    style.title(right, verdict(request).split(":")[0], note)
    alt = f"Bank map, {name or 'tile'} with rows of {row_bytes} bytes, {access}: {verdict(request)}"
    return Picture(fig, alt, rows)


def _map(ax, rows: list[dict], height: int, width: int) -> None:
    style.bare(ax)
    numbers = width <= 40
    colours = np.ones((height, width, 3))
    for cell in rows:
        group = style.GROUPS[cell["bank"] // 4]
        colours[cell["row"], cell["word"]] = style.tint(group, 0 if cell["read"] else 0.45)
    style.cells(ax, colours)
    for cell in rows:
        if numbers or cell["word"] % 4 == 0:
            x = cell["word"] + (0.5 if numbers else 2)
            look = {"fontweight": "bold"} if cell["read"] else {"alpha": 0.55}
            style.write(ax, x, cell["row"] + 0.54, cell["bank"], fontsize=6.2, **look)
    for row, start, stop in _runs(rows):
        ax.add_patch(Rectangle((start, row), stop - start, 1, fill=False, edgecolor=style.INK, linewidth=1.6))
    ax.set_xlim(-0.1, width + 0.1)
    ax.set_ylim(height + 0.1, -0.1)
    ax.set_xticks([w + 0.5 for w in range(0, width, 4)], [str(w * 4) for w in range(0, width, 4)])
    step = 1 if height <= 16 else 4
    ax.set_yticks([r + 0.5 for r in range(0, height, step)], [str(r) for r in range(0, height, step)])
    ax.tick_params(length=0)
    style.label(ax, "byte in the row (B); the number in a cell is its bank", "tile row")


def _load(ax, request: BankRequest, phase: int) -> None:
    load = request.load()[phase]
    colours = [style.RED if count > 1 else style.BLUE for count in load]
    ax.bar(range(BANKS), load, width=0.86, color=colours)
    ax.set_xlim(-0.8, BANKS - 0.2)
    ax.set_ylim(0, max(8, request.degree) * 1.08)
    ax.set_xticks(range(0, BANKS, 4))
    ax.grid(axis="x", visible=False)
    style.label(ax, "bank", "words wanted (wavefronts)")


def _runs(rows: list[dict]) -> list[tuple[int, int, int]]:
    """(row, first word, past the last word) of each run of words that are read."""
    runs: list[tuple[int, int, int]] = []
    for cell in rows:
        if not cell["read"]:
            continue
        if runs and runs[-1][0] == cell["row"] and runs[-1][2] == cell["word"]:
            runs[-1] = (cell["row"], runs[-1][1], cell["word"] + 1)
        else:
            runs.append((cell["row"], cell["word"], cell["word"] + 1))
    return runs


def stride_rows(strides: Sequence[int]) -> list[dict]:
    """A warp's read of one word a lane at each stride, in words."""
    rows = []
    for stride in strides:
        request = shared_request([lane * stride * BANK_BYTES for lane in range(32)])
        rows.append({"stride (words)": stride, "degree": request.degree, "wavefronts": request.wavefronts})
    return rows


def sector_rows(patterns: Mapping[str, tuple[int, int]]) -> list[dict]:
    """A warp's global read for each named (stride in bytes, bytes a lane)."""
    rows = []
    for name, (stride, width) in patterns.items():
        request = global_request([lane * stride for lane in range(32)], width)
        row = {"pattern": name, "sectors": request.sectors, "bytes used": request.bytes_used}
        rows.append({**row, "efficiency": f"{request.efficiency:.1%}"})
    return rows


def measured_rows(kind: str = "requests") -> list[dict]:
    """What Nsight Compute counted on an H200 (data/reference/banks-h200.json): "requests" or "copies"."""
    return json.loads((FOLDER / "banks-h200.json").read_text())[kind]


def padding_sweep(
    row_halves: int, access: str = "ldmatrix.x4", pads: Sequence[int] = range(17)
) -> list[dict]:
    """Conflict degree and wavefronts of an access for every padding: rows of pad, degree, wavefronts,
    refused.

    A padding that the access cannot read (ldmatrix needs rows at multiples of 16 bytes) has `refused` and
    no numbers.
    """
    rows = []
    for pad in pads:
        try:
            request = ACCESSES[access].request(padded(row_halves * 2, pad * 2))
        except ValueError as error:
            rows.append({"pad": pad, "degree": None, "wavefronts": None, "refused": str(error)})
            continue
        rows.append({"pad": pad, "degree": request.degree, "wavefronts": request.wavefronts, "refused": None})
    return rows


def draw_padding(row_halves: int, pads: Sequence[int] = range(17)) -> Picture:
    """The conflict degree of ldmatrix and of a column of words for every padding of an f16 tile's rows."""
    fig, axes = style.figure(9.6, 3.0, columns=2)
    rows = []
    for ax, access in zip(axes, ("ldmatrix.x4", "column"), strict=True):
        sweep = padding_sweep(row_halves, access, pads)
        legal = [row for row in sweep if row["degree"] is not None]
        colours = [style.BLUE if row["degree"] == 1 else style.RED for row in legal]
        bars = ax.bar(
            [row["pad"] for row in legal], [row["degree"] for row in legal], width=0.7, color=colours
        )
        ax.bar_label(bars, padding=2, fontsize=8.5)
        for row in sweep:
            if row["degree"] is None:
                ax.text(row["pad"], 0.1, "x", ha="center", va="bottom", fontsize=8.5, color=style.QUIET)
        ax.set_xticks(list(pads))
        ax.set_xlim(pads[0] - 0.7, pads[-1] + 0.7)
        ax.margins(y=0.18)
        ax.grid(axis="x", visible=False)
        style.label(ax, "padding (halves a row)", "conflict degree (1: none)")
        refused = len(legal) < len(sweep)
        note = (
            "x: rows not aligned to the access, which the instruction refuses"
            if refused
            else ACCESSES[access].name
        )
        style.title(ax, "ldmatrix.x4" if access == "ldmatrix.x4" else "lane = row, one word each", note)
        rows += [{"access": access, **row} for row in sweep]
    return Picture(fig, f"Conflict degree against padding, rows of {row_halves} halves", rows)
