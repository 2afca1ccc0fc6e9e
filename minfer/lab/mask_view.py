"""The two predicates of the attention mask: which lanes hold columns that lie in the stored range and yet not
in the tile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.patches import Patch

from minfer.lab import style
from minfer.lab.fragment_view import elements
from minfer.lab.picture import Picture

WIDEST = 64
"""Columns that the lanes of a row were laid out for: TKV before it was halved."""
STATES = {
    "counts": (style.BLUE, "counts"),
    "leaks": (style.RED, "past the tile, but a stored column: only the local predicate stops it"),
    "masked": (style.YELLOW, "in the tile, not seen by this query"),
    "outside": (style.RULE, "past the tile and not seen"),
}
"""What becomes of a column, with its colour and meaning."""
LAYOUTS = {
    "pairs": ("column pairs, as the seed's", "a lane takes columns 2 x lane and 2 x lane + 1"),
    "strided": ("minfer's warp_per_row", "a lane takes columns lane and lane + 32"),
    "fragments": ("accumulator fragments", "the map of mma: the lane in every cell"),
}
"""How lanes share the columns of a row of scores, by key."""


@dataclass(frozen=True)
class MaskCase:
    """A KV tile under a query.

    Attributes:
        tkv: columns of the tile. first: the cache row that is its column 0. kv_end: cache rows stored.
        position: the query's own position; it sees rows 0 ... position.
    """

    tkv: int
    first: int
    kv_end: int
    position: int

    def state(self, column: int) -> str:
        """A key of `STATES` for a column, 0 ... 63, of the lanes' layout."""
        local = column < self.tkv
        seen = self.first + column < self.kv_end and self.first + column <= self.position
        return {(1, 1): "counts", (0, 1): "leaks", (1, 0): "masked", (0, 0): "outside"}[local, seen]


def lane_cells(case: MaskCase, layout: str) -> list[dict]:
    """Every (row, column) of a warp's scores with its lane and its state.

    "pairs" and "strided" give a warp one row, "fragments" 16 rows that end with the query at `position`.

    Raises:
        KeyError: unknown layout.
    """
    if layout == "fragments":
        return [
            {
                "row": cell["row"],
                "column": (column := cell["column"] + 16 * fragment),
                "lane": cell["lane"],
                "state": _earlier(case, 15 - cell["row"]).state(column),
            }
            for fragment in range(WIDEST // 16)
            for cell in elements("accumulator", "f32")
        ]
    lane = {"pairs": lambda column: column // 2, "strided": lambda column: column % 32}[layout]
    return [{"row": 0, "column": c, "lane": lane(c), "state": case.state(c)} for c in range(WIDEST)]


def _earlier(case: MaskCase, by: int) -> MaskCase:
    return MaskCase(case.tkv, case.first, case.kv_end, case.position - by)


def leak_rows(case: MaskCase) -> list[dict]:
    """For each layout the columns and lanes that the global predicate alone would let through."""
    rows = []
    for layout, (name, _) in LAYOUTS.items():
        leaks = [cell for cell in lane_cells(case, layout) if cell["state"] == "leaks"]
        lanes = sorted({cell["lane"] for cell in leaks})
        rows.append({"layout": name, "elements let through": len(leaks), "lanes": _ranges(lanes)})
    return rows


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers as "0-3, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in runs) or "none"


def draw_mask(case: MaskCase) -> Picture:
    """The columns of one row of scores, for every layout, with its lane and what becomes of it."""
    fig, axes = style.figure(9.6, 6.2, rows=3, height_ratios=(1.6, 1.6, 8))
    rows = []
    for ax, (layout, (name, meaning)) in zip(axes, LAYOUTS.items(), strict=True):
        cells = lane_cells(case, layout)
        _draw(ax, cells)
        style.title(ax, name, meaning)
        rows += [{"layout": layout, **cell} for cell in cells]
    style.label(axes[-1], f"column of the scores; the tile has {case.tkv}", "row of the warp")
    handles = [Patch(color=style.tint(colour, 0.45), label=text) for colour, text in STATES.values()]
    fig.legend(handles=handles, loc="outside lower left", ncols=2, fontsize=8.5, frameon=False)
    alt = f"Lanes and columns of a warp's scores at TKV={case.tkv}, and what the mask makes of them"
    return Picture(fig, alt, rows)


def _draw(ax, cells: list[dict]) -> None:
    style.bare(ax)
    height = max(cell["row"] for cell in cells) + 1
    colours = np.ones((height, WIDEST, 3))
    for cell in cells:
        colours[cell["row"], cell["column"]] = style.tint(STATES[cell["state"]][0], 0.45)
    style.cells(ax, colours)
    for cell in cells:
        style.write(ax, cell["column"] + 0.5, cell["row"] + 0.54, cell["lane"], fontsize=5.8)
    ax.set_xlim(-0.1, WIDEST + 0.1)
    ax.set_ylim(height + 0.1, -0.1)
    ax.set_xticks([c + 0.5 for c in range(0, WIDEST, 8)], range(0, WIDEST, 8))
    ax.set_yticks([r + 0.5 for r in range(0, height, 4)] if height > 1 else [], None)
    if height > 1:
        ax.set_yticklabels(range(0, height, 4))
    ax.tick_params(length=0)
    style.label(ax, "column")


def without_local_bound(tkv: int, nt: int = 64, head_dim: int = 64) -> dict[str, float]:
    """What the missing predicate does to attention, in NumPy: the greatest error with and without it.

    A row's lanes cover 64 columns of a score tile whose rows are `tkv` long: what lies past the row's end in
    shared memory are the scores of the rows below. They enter the maximum and the sum; P.V never sees them.
    """
    from minfer.cuda import reference

    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((nt, head_dim)) for _ in range(3))
    wanted = reference.attention(q[:, None], k[:, None], v[:, None], 0)[:, 0]
    return {
        name: float(np.abs(_attend(q, k, v, tkv, wide) - wanted).max())
        for name, wide in (("both predicates", tkv), ("global alone", WIDEST))
    }


def _attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, tkv: int, wide: int) -> np.ndarray:
    nt, head_dim = q.shape
    largest, total, sums = np.full(nt, -np.inf), np.zeros(nt), np.zeros((nt, head_dim))
    for first in range(0, nt, tkv):
        tile = (q @ k[first : first + tkv].T * head_dim**-0.5).ravel()
        flat = np.concatenate([tile, np.zeros(WIDEST)])
        columns = np.arange(wide)
        scores = flat[np.arange(nt)[:, None] * tkv + columns]
        scores = np.where(first + columns <= np.arange(nt)[:, None], scores, -np.inf)
        before, largest = largest, np.maximum(largest, scores.max(axis=1))
        factor, weights = np.exp(before - largest), np.exp(scores - largest[:, None])
        total = total * factor + weights.sum(axis=1)
        sums = sums * factor[:, None] + weights[:, :tkv] @ v[first : first + tkv]
    return sums / total[:, None]
