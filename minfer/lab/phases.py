"""The two phases of inference in numbers: tokens of a text, what a token costs, whether the phases agree."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minfer.lab import style
from minfer.lab.generate import Report, weight_bytes
from minfer.lab.picture import Picture

if TYPE_CHECKING:
    from minfer.model.model import Model
    from minfer.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenTable:
    """The tokens of a text as (id, bytes) pairs; a notebook shows them as boxes."""

    rows: tuple[tuple[int, bytes], ...]

    def __repr__(self) -> str:
        return "\n".join(f"{token_id:>6}  {piece!r}" for token_id, piece in self.rows)

    def _repr_html_(self) -> str:
        boxes = (
            '<span style="display: inline-block; border: 1px solid #888; border-radius: 4px; margin: 2px; '
            'padding: 2px 6px; text-align: center">'
            f"<code>{html.escape(piece.decode(errors='backslashreplace')).replace(' ', '␣')}</code>"
            f'<br><small style="color: #777">{token_id}</small></span>'
            for token_id, piece in self.rows
        )
        return f"<div>{''.join(boxes)}</div>"


def tokens(tokenizer: Tokenizer, text: str) -> TokenTable:
    """The tokens of a text."""
    return TokenTable(tuple((i, tokenizer.token_bytes(i)) for i in tokenizer.encode(text)))


@dataclass(frozen=True)
class TokenCost:
    """What one decoded token costs at an empty context: multiply-accumulates and bytes of weights read."""

    macs: int
    weight_bytes: int

    @property
    def flop_per_byte(self) -> float:
        """Arithmetic intensity: a multiply-accumulate is two operations."""
        return 2 * self.macs / self.weight_bytes


def token_cost(model: Model) -> TokenCost:
    """Every weight of a matrix is read once and used in one multiply-accumulate."""
    skipped = {model.embedding} - {model.output}
    macs = sum(
        tensor.n_elements
        for name, tensor in model.file.tensors.items()
        if name not in skipped and len(tensor.shape) == 2
    )
    return TokenCost(macs, weight_bytes(model))


def one_by_one_difference(model: Model, ids: Sequence[int]) -> float:
    """How far the logits of a token-by-token run are from those of a prefill, relative RMS.

    On the host, whose KV cache can be f32.
    """
    import numpy as np

    from minfer.engine.backend import choose_backend
    from minfer.engine.session import Session

    chosen, _ = choose_backend("host")
    together = Session(model, chosen, n_ctx=len(ids), kv_dtype="f32").forward(ids, logits="all")
    session = Session(model, chosen, n_ctx=len(ids), kv_dtype="f32")
    apart = np.stack([session.forward([token_id], logits="last") for token_id in ids])
    return float(np.sqrt(np.mean((apart - together) ** 2) / np.mean(together**2)))


def arrivals(report: Report) -> Picture:
    """When each piece of text came out: the prefill is the wait at the start, decoding the slope after it.

    Rows: `seconds` since the start of the prefill, `pieces` of text by then; none if nothing came out.
    """
    if not report.arrivals:
        figure, (axes,) = style.figure(7.2, 0.8)
        style.bare(axes).set(xticks=[], yticks=[])
        style.title(axes, "No text came out", report.error or report.stop_reason)
        return Picture(figure, "No text came out: there is nothing to draw over time", [])
    rows = [{"seconds": at, "pieces": count} for count, at in enumerate(report.arrivals, 1)]
    figure, (axes,) = style.figure(7.2, 3.0)
    axes.axvspan(0, report.prefill_s, color=style.tint(style.ORANGE, 0.6), label="prefill")
    axes.step(report.arrivals, range(1, len(rows) + 1), where="post", color=style.BLUE, label="decode")
    axes.set(xlim=(0, None), ylim=(0, None))
    style.label(axes, "time since the start of the prefill (s)", "pieces of text")
    style.legend(axes, loc="lower right")
    style.title(axes, "When the text came", report.backend)
    alt = f"{len(rows)} pieces of text over time: a wait for the prefill, then one by one while decoding"
    return Picture(figure, alt, rows)
