"""A list of dicts as a table: aligned text in a terminal, HTML in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape


class Table:
    """Rows with the same keys, shown in their order.

    Args:
        rows: dicts; the first one's keys are the columns unless `columns` names them.
        columns: key -> heading, to choose, order and rename.
        formats: key -> format specification (",", ".2f", ".1%"); integers get thousands separators anyway.
    """

    def __init__(
        self,
        rows: Sequence[Mapping],
        columns: Mapping[str, str] | None = None,
        formats: Mapping[str, str] | None = None,
    ) -> None:
        self.rows = [dict(row) for row in rows]
        keys = list(self.rows[0]) if self.rows else []
        self.columns = dict(columns) if columns is not None else {key: key for key in keys}
        self.formats = dict(formats or {})

    def cells(self) -> list[list[str]]:
        """The formatted cells, row by row."""
        return [[self._show(key, row[key]) for key in self.columns] for row in self.rows]

    def _show(self, key: str, value) -> str:
        if value is None:
            return "-"
        if key in self.formats:
            return format(value, self.formats[key])
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int):
            return f"{value:,}"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    def _right(self) -> list[bool]:
        def number(value) -> bool:
            return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))

        return [all(number(row[key]) for row in self.rows) for key in self.columns]

    def __repr__(self) -> str:
        heads, cells, right = list(self.columns.values()), self.cells(), self._right()
        widths = [max(len(head), *(len(row[i]) for row in cells), 0) for i, head in enumerate(heads)]

        def line(texts: Sequence[str]) -> str:
            padded = [
                text.rjust(width) if r else text.ljust(width)
                for text, width, r in zip(texts, widths, right, strict=True)
            ]
            return "  ".join(padded).rstrip()

        return "\n".join([line(heads), line(["-" * width for width in widths]), *map(line, cells)])

    def _repr_html_(self) -> str:
        align = ["right" if right else "left" for right in self._right()]

        def row(tag: str, texts: Sequence[str]) -> str:
            inner = "".join(
                f'<{tag} style="text-align:{a};padding:.25em .9em">{escape(t)}</{tag}>'
                for t, a in zip(texts, align, strict=True)
            )
            return f"<tr>{inner}</tr>"

        head = row("th", list(self.columns.values()))
        body = "".join(row("td", cells) for cells in self.cells())
        return (
            '<table style="line-height:1.5;font-variant-numeric:tabular-nums;border-collapse:collapse">'
            f"<thead>{head}</thead><tbody>{body}</tbody></table>"
        )
