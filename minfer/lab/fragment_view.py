"""Which lane holds which element of an mma fragment, in which register: the maps of the tile layer, drawn."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle

from minfer.lab import style
from minfer.lab.picture import Picture

LETTER = {"matrix_a": "a", "matrix_b": "b", "accumulator": "c"}
TITLE = {"matrix_a": "A", "matrix_b": "B", "accumulator": "accumulator"}
ACCUMULATOR = {"f16": "f32", "bf16": "f32", "s8": "s32"}
AXES = {
    "matrix_a": ("k (column of A)", "m (row of A)"),
    "matrix_b": ("n (column of B)", "k (row of B)"),
    "accumulator": ("n (column of C)", "m (row of C)"),
}


def elements(use: str, dtype: str) -> list[dict]:
    """Every element that the 32 lanes hold: lane, element, register, part (place in the register), row,
    column.

    `use` is "matrix_a", "matrix_b" or "accumulator"; `dtype` as in `minfer.cuda.tile.maps.Fragment`.
    """
    from minfer.cuda.tile.maps import Fragment

    layout = "col_major" if use == "matrix_b" else "row_major"
    fragment = Fragment(use, dtype, layout)
    rows = []
    for lane in range(32):
        for element in range(fragment.elements):
            row, column = fragment.position(lane, element)
            register, part = divmod(element, fragment.per_register)
            rows.append(
                {
                    "lane": lane,
                    "element": element,
                    "register": f"{LETTER[use]}{register}",
                    "part": part,
                    "row": row,
                    "column": column,
                }
            )
    return rows


def draw_fragments(lane: int = 5, dtype: str = "f16") -> Picture:
    """The maps of A, B and the accumulator side by side, with one lane's elements outlined.

    A cell carries its lane; the outlined ones the register that starts there. The bold line in B and in the
    accumulator parts the two 8-column mma operands that a 16-column fragment is made of.
    """
    uses = {"matrix_a": dtype, "matrix_b": dtype, "accumulator": ACCUMULATOR[dtype]}
    widths = {"f16": (1, 1, 1), "bf16": (1, 1, 1), "s8": (2, 1, 1)}[dtype]
    fig, axes = style.figure(9.6, 4.0 if dtype != "s8" else 5.2, columns=3, width_ratios=widths)
    rows = []
    for ax, (use, kind) in zip(axes, uses.items(), strict=True):
        cells = elements(use, kind)
        _draw(ax, cells, use, lane)
        held = [cell for cell in cells if cell["lane"] == lane]
        registers = len({cell["register"] for cell in held})
        note = f"lane {lane}: {len(held)} elements in {registers} registers"
        style.title(ax, f"{TITLE[use]} ({kind})", note)
        rows += [{"use": use, **cell} for cell in cells]
    return Picture(fig, f"Fragment maps of mma {dtype}: A, B and accumulator, lane {lane} outlined", rows)


def lane_rows(lane: int, dtype: str = "f16") -> list[dict]:
    """What one lane holds of A, B and the accumulator: its (row, column) places in register order."""
    uses = {"matrix_a": dtype, "matrix_b": dtype, "accumulator": ACCUMULATOR[dtype]}
    rows = []
    for use, kind in uses.items():
        mine = [cell for cell in elements(use, kind) if cell["lane"] == lane]
        places = " ".join(f"({cell['row']},{cell['column']})" for cell in mine)
        registers = len({cell["register"] for cell in mine})
        rows.append({"fragment": f"{TITLE[use]} ({kind})", "registers": registers, "row, column": places})
    return rows


def ldmatrix_rows() -> list[dict]:
    """Which lanes give `ldmatrix.x4` the rows of which 8 x 8 matrix of A, and the register where it lands."""
    from minfer.cuda.tile.maps import Fragment

    fragment = Fragment("matrix_a", "f16")
    rows = []
    for first in range(0, 32, 8):
        (low, column), (high, _) = fragment.source(first), fragment.source(first + 7)
        where = {"lanes": f"{first}-{first + 7}", "rows": f"{low}-{high}", "byte column": column}
        rows.append({**where, "register": f"a{first // 8}"})
    return rows


def ldmatrix_cells() -> list[dict]:
    """Every element of the 16 x 16 fragment that `ldmatrix.x4` loads.

    Rows of row, column, matrix (0-3), source (the lane that names its 16 bytes), lane (that receives it) and
    register."""
    from minfer.cuda.tile.maps import Fragment

    fragment = Fragment("matrix_a", "f16")
    source = {}
    for lane in range(32):
        row, byte = fragment.source(lane)
        source |= {(row, byte // 2 + k): lane for k in range(8)}
    return [
        {
            "row": cell["row"],
            "column": cell["column"],
            "matrix": source[cell["row"], cell["column"]] // 8,
            "source": source[cell["row"], cell["column"]],
            "lane": cell["lane"],
            "register": cell["register"],
        }
        for cell in elements("matrix_a", "f16")
    ]


def draw_ldmatrix() -> Picture:
    """Who names each 16-byte row of an `ldmatrix.x4`, and who receives its elements; a colour is a matrix."""
    rows = ldmatrix_cells()
    fig, (left, right) = style.figure(9.6, 4.4, columns=2)
    shades = [style.tint(colour, 0.55) for colour in (style.BLUE, style.ORANGE, style.GREEN, style.PINK)]
    colours = np.ones((16, 16, 3))
    for cell in rows:
        colours[cell["row"], cell["column"]] = shades[cell["matrix"]]
    for ax, part in ((left, 8), (right, 1)):
        style.bare(ax)
        style.cells(ax, colours, part)
        ax.set_xticks([c + 0.5 for c in range(0, 16, 4)], range(0, 16, 4))
        ax.set_yticks([r + 0.5 for r in range(0, 16, 4)], range(0, 16, 4))
        ax.tick_params(length=0)
        style.label(ax, "k (element of a row, 2 B each)", "m (row of the fragment)")
    for cell in rows:
        x, y = cell["column"], cell["row"] + 0.54
        if x % 8 == 0:
            style.write(left, x + 4, y, f"lane {cell['source']} names these 16 B", fontsize=7)
        style.write(right, x + 0.5, y, cell["lane"], fontsize=6.2)
    handles = [Patch(color=shade, label=f"matrix {i}, register a{i}") for i, shade in enumerate(shades)]
    fig.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8.5, frameon=False)
    style.title(left, "Who gives the address", "8 rows of one matrix are one phase")
    style.title(right, "Who receives the element", "the number is the lane")
    return Picture(fig, "The lanes that name and that receive the rows of ldmatrix.x4", rows)


def same_map(accumulator: str = "f32", operand: str = "f16") -> bool:
    """Whether a lane's i-th element is the same (row, column) in an accumulator and in an A fragment."""

    def places(use: str, dtype: str) -> list[tuple[int, ...]]:
        return [(c["lane"], c["element"], c["row"], c["column"]) for c in elements(use, dtype)]

    return places("accumulator", accumulator) == places("matrix_a", operand)


def lane_colour(lane: int) -> tuple[float, float, float]:
    """A lane's colour: its group of four by hue order of viridis, kept light enough for dark text."""
    return style.tint(to_rgb(colormaps["viridis"](lane / 31)), 0.5)


def _draw(ax, cells: list[dict], use: str, lane: int) -> None:
    style.bare(ax)
    height, width = (max(cell[key] for cell in cells) + 1 for key in ("row", "column"))
    colours = np.ones((height, width, 3))
    for cell in cells:
        colours[cell["row"], cell["column"]] = lane_colour(cell["lane"])
    style.cells(ax, colours)
    for cell in cells:
        x, y = cell["column"], cell["row"]
        if cell["lane"] == lane:
            ax.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor=style.RED, linewidth=2, zorder=4))
            if cell["part"] == 0:
                style.write(
                    ax, x + 0.5, y + 0.52, cell["register"], fontsize=6.2, fontweight="bold", zorder=5
                )
        else:
            style.write(ax, x + 0.5, y + 0.54, cell["lane"], fontsize=5.8)
    if use != "matrix_a":
        ax.plot([8, 8], [0, height], color=style.INK, linewidth=1.6)
    ax.set_xlim(-0.1, width + 0.1)
    ax.set_ylim(height + 0.1, -0.1)
    ax.set_aspect("equal")
    ax.set_xticks([c + 0.5 for c in range(0, width, 4)], range(0, width, 4))
    ax.set_yticks([r + 0.5 for r in range(0, height, 4)], range(0, height, 4))
    ax.tick_params(length=0)
    style.label(ax, *AXES[use])
