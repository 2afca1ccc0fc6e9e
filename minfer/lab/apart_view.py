"""Where the time of a run went: its prefill and its decode, by class of work."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from minfer.campaign.decomposition import GAP, buckets
from minfer.campaign.host_wall import Apart, Part
from minfer.lab import decomposition_view, style
from minfer.lab.errors import EXPECTED, sentence
from minfer.lab.generate import ONE_AT_A_TIME, Request, load
from minfer.lab.picture import Picture
from minfer.lab.table import Table

COLOURS = {
    **decomposition_view.COLOURS,
    "attention": decomposition_view.COLOURS["FA"],
    "norms": style.YELLOW,
    "RoPE, KV cache": style.tint(style.YELLOW, 0.65),
    "embedding": style.QUIET,
}
"""Class of work -> its colour, as in the decompositions of notebook 5."""
PLACES = {name: place for place, name in enumerate(COLOURS)}


class TakenApart:
    """The passes of one request by class of work, as a table; or the reason that there are none.

    Attributes:
        passes: prefill and decode. why: the reason, a sentence; None if there are passes.
    """

    def __init__(self, passes: Sequence[Apart] = (), why: str | None = None) -> None:
        self.passes, self.why = tuple(passes), why

    def rows(self) -> list[dict]:
        """`Apart.rows` of all passes."""
        return [row for one in self.passes for row in one.rows()]

    def conserved(self) -> str:
        """How the parts compare with the pass as it is, a sentence for each."""
        return "\n".join(
            f"{one.phase} of {one.tokens} token{'s' * (one.tokens > 1)}: {one.wall_ms:.2f} ms as it is, "
            f"{one.observed_ms:.2f} ms in parts"
            for one in self.passes
        )

    def _table(self) -> Table:
        return Table(self.rows(), formats={"ms": ".3f", "share": ".1%", "GB/s": ".1f"})

    def __repr__(self) -> str:
        return self.why or f"{self.conserved()}\n\n{self._table()!r}"

    def _repr_html_(self) -> str:
        if self.why:
            return f"<p>{escape(self.why)}</p>"
        return f"<p>{self.conserved().replace(chr(10), '<br>')}</p>{self._table()._repr_html_()}"


def take_apart(request: Request) -> TakenApart:
    """Run a request's prompt, and a token after it, with every class of work timed, on the device that the
    request's backend chooses."""
    from minfer.campaign import host_wall
    from minfer.engine.backend import choose_backend

    try:
        with ONE_AT_A_TIME:
            model = load(request.model)
            ids = model.tokenizer.encode(request.prompt)
            backend, _ = choose_backend(request.backend)
            if backend.name == "host":
                return TakenApart(host_wall.take_apart(model, ids))
            return TakenApart(_on_gpu(request.model, len(ids)))
    except (*EXPECTED, RuntimeError) as error:  # a pass that cannot be told apart
        return TakenApart(why=sentence(error))


def _on_gpu(path: Path, tokens: int) -> list[Apart]:
    """Prefill and decode in CUDA graphs, one for each class; the host's part is what they leave."""
    from minfer.campaign.decompose import PASSES, by_class
    from minfer.campaign.precompile import precompile
    from minfer.campaign.prefills import SharedModel
    from minfer.campaign.telemetry import Watch
    from minfer.engine.cuda.devices import GpuDevice
    from minfer.engine.cuda.routes import choose_route

    def silent(_: str) -> None:
        pass

    device = GpuDevice()
    shared = SharedModel(path, device, tokens + 1, silent)
    route = replace(choose_route("auto", device.arch, {}), token_kernel=None)  # one kernel has no classes
    precompile([], device.arch, model=shared.model, routes=[route], prompts=[tokens], say=silent)
    found = []
    for phase, count, context in (("prefill", tokens, 0), ("decode", 1, tokens)):
        taken = by_class(shared, route, phase, count, context, PASSES, Watch(None, "nobody reads it"))
        wall = statistics.median(taken.walls)
        parts = [
            Part(bucket.name, bucket.ms, bucket.launches, round(bucket.nbytes))
            for bucket in buckets(taken.chosen.launches, taken.chosen.times)
        ]
        parts.append(Part(GAP, max(wall - taken.launched, 0.0)))
        found.append(Apart(phase, count, str(device.gpu), wall, tuple(parts)))
    return found


def draw_apart(taken: TakenApart) -> Picture:
    """A stacked bar for each pass, by class of work."""
    if not taken.passes:
        why = textwrap.fill(taken.why or "", 100)
        fig, (ax,) = style.figure(7.2, 0.8 + 0.2 * why.count("\n"))
        style.bare(ax).set(xticks=[], yticks=[])
        style.title(ax, "Nothing was taken apart", why)
        return Picture(fig, "Nothing was taken apart: there is no time to draw", [])
    fig, axes = style.figure(9.6, 1.3 + 1.05 * len(taken.passes), rows=len(taken.passes))
    patches = {}
    for ax, one in zip(axes, taken.passes, strict=True):
        left = 0.0
        for part in sorted(one.parts, key=lambda part: PLACES.get(part.name, len(PLACES))):
            colour = COLOURS.get(part.name, style.RULE)
            bar = ax.barh(0, part.ms, left=left, height=0.7, color=colour, edgecolor="white", linewidth=0.6)
            patches.setdefault(part.name, bar)
            if part.ms > 0.04 * one.observed_ms:
                dark = part.name in decomposition_view.DARK
                look = {"fontsize": 8, "color": "white" if dark else style.INK}
                text = f"{part.ms:.3g}" if part.ms >= 0.1 else f"{part.ms:.2g}"
                ax.text(left + part.ms / 2, 0, text, ha="center", va="center", **look)
            left += part.ms
        ax.set_yticks([])
        ax.set_xlim(0, left)
        ax.grid(False)
        style.label(ax, "time of the parts (ms)")
        tokens = f"{one.tokens} tokens" if one.tokens > 1 else "one token"
        style.title(ax, f"{one.phase.capitalize()} of {tokens}", one.where)
    shown = {name: patches[name] for name in sorted(patches, key=lambda name: PLACES.get(name, len(PLACES)))}
    fig.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=5, fontsize=8.5, frameon=False)
    what = " and ".join(f"the {one.phase}" for one in taken.passes)
    return Picture(fig, f"Time of {what} by class of work", taken.rows())
