"""A figure as a notebook shows it: a sharp PNG with its alternative text and the table behind it."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

SCALE = 1.75
"""Pixels a CSS pixel: figures stay sharp on dense screens."""
DPI = 96
COLOURS = 160
"""A figure holds few colours: a palette makes the PNG a third of the size."""


class Picture:
    """A matplotlib figure with the rows that it draws.

    Attributes:
        figure: the figure.
        alt: one sentence that says what it shows, for readers who do not see it.
        rows: the data behind it, a list of dicts: what tests assert.
    """

    def __init__(self, figure: Figure, alt: str, rows: Sequence[dict]) -> None:
        self.figure, self.alt, self.rows = figure, alt, list(rows)

    def png(self) -> bytes:
        """The picture as PNG bytes; the same figure gives the same bytes."""
        from PIL import Image

        # Drawn once: `savefig` draws a figure with a layout twice, and writes a PNG only to be read again.
        canvas = FigureCanvasAgg(self.figure)
        self.figure.set_dpi(DPI * SCALE)
        canvas.draw()
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        # The palette covers rare colours too: a legend's patch is as true as a large bar.
        how = {"method": Image.Quantize.MAXCOVERAGE, "dither": Image.Dither.NONE}
        small = io.BytesIO()
        image.quantize(COLOURS, **how).save(small, format="PNG", optimize=True)
        return small.getvalue()

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        width, height = (round(side * DPI) for side in self.figure.get_size_inches())
        metadata = {"image/png": {"width": width, "height": height}}
        return {"image/png": self.png(), "text/plain": f"[{self.alt}]"}, metadata

    def __repr__(self) -> str:
        return f"[{self.alt}]"
