"""The kernel view: Python source, PTX and SASS side by side, linked by line, and two configs compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import shorten
from typing import Any

from matplotlib.axes import Axes

from minfer.cuda.kernel import Kernel
from minfer.lab import style
from minfer.lab.background import BackgroundCompiler, Compilation, DirectCompiler
from minfer.lab.compile_status import CompileStatus
from minfer.lab.explorer import Explorer, checkbox, dropdown, integers, notice
from minfer.lab.kernel_code import Line, Listing, class_rows, difference, short
from minfer.lab.picture import Picture

CURRENT = "#FFF3B0"
AROUND = 14
"""Lines of source shown before and after the marked one."""
SIGNS = {"-": "#F8D7C4", "+": "#CBEADF", " ": "transparent"}
"""Ground of lines that only the first, only the second config has."""


def draw_classes(listings: Sequence[Listing], source: int) -> Picture:
    """Machine instructions by class, a bar for each of one or two kernels: all of them, and a line's own (of
    the first alone, where they have different sources)."""
    rows = class_rows(listings)
    if not rows:
        fig, (ax,) = style.figure(9.6, 1.6)
        style.bare(ax).set(xticks=[], yticks=[])
        style.title(ax, "No machine code to count", listings[0].missing or "")
        return Picture(fig, f"No machine code of {listings[0].kernel}", [{"class": None}])
    of_line = ["class", *(short(code) for code in listings if code.same_source(listings[0]))]
    own = [{name: row[name] for name in of_line} for row in class_rows(listings, source)]
    fig, axes = style.figure(9.6, 1.3 + 0.34 * len(rows), columns=2, width_ratios=(1.5, 1))
    for ax, shown in zip(axes, (rows, own), strict=True):
        _bars(ax, shown)
    axes[1].tick_params(labelleft=False)
    registers = " and ".join(str(code.registers) for code in listings)
    style.title(axes[0], "The whole kernel", f"{listings[0].arch}, {registers} registers a thread")
    text = shorten(listings[0].text_of(source), 42, placeholder=" ...")
    open_call = text.endswith("(")
    style.title(axes[1], f"Line {source}", f"{text}...)" if open_call else text)
    style.legend_below(fig, axes[0])
    what = " and ".join(code.kernel for code in listings)
    data = [{"of": "kernel", **row} for row in rows] + [{"of": f"line {source}", **row} for row in own]
    return Picture(fig, f"Machine instructions by class of {what}, and of line {source}", data)


def _bars(ax: Axes, rows: list[dict]) -> None:
    names = [name for name in rows[0] if name != "class"]
    height = 0.8 / len(names)
    most = max(row[name] for row in rows for name in names)
    for i, (name, colour) in enumerate(zip(names, (style.BLUE, style.ORANGE), strict=False)):
        places = [place + (i - (len(names) - 1) / 2) * height for place in range(len(rows))]
        bars = ax.barh(places, [row[name] for row in rows], height=0.9 * height, color=colour, label=name)
        ax.bar_label(bars, padding=3, fontsize=8, color=style.INK)
    ax.set_yticks(range(len(rows)), [row["class"] for row in rows], color=style.INK)
    ax.invert_yaxis()
    ax.set_xlim(0, max(most, 1) * 1.14)
    ax.grid(axis="y", visible=False)
    style.label(ax, "machine instructions", "")


def code_html(code: Listing, source: int | None = None, whole: bool = False) -> str:
    """Source, PTX and SASS in three columns. Pointing at a line marks what belongs to it in the others.

    Args:
        source: the line of the source to mark. whole: show all of PTX and SASS instead of that line's part.
    """
    counts = code.by_line()
    lines = code.source_lines()
    if not whole and source is not None:
        lines = [line for line in lines if abs(line.source - source) <= AROUND]
    python = "".join(_row(line, source, counts.get(line.source), number=True) for line in lines)

    def part(language: str) -> list[Line]:
        return list(getattr(code, language)) if whole or source is None else code.of(language, source)

    ptx = "".join(_row(line, source) for line in part("ptx")) or _nothing(source)
    sass = "".join(_row(line, source) for line in part("sass")) or _nothing(source)
    if code.missing:
        sass = notice(escape(code.missing))
    shown = {line.source for line in (*lines, *part("ptx"), *part("sass")) if line.source is not None}
    return _columns({f"{code.file} (instructions a line)": python, "PTX": ptx, "SASS": sass}, shown)


def difference_html(first: Listing, second: Listing, source: int) -> str:
    """Two kernels compared: the source, then the opcodes that go and that come, of one line where both have
    the same source, else of the whole kernels."""
    same = first.same_source(second)
    counts, others = first.by_line(), second.by_line()
    lines = [line for line in first.source_lines() if abs(line.source - source) <= AROUND]
    numbers = [
        _arrow(counts[line.source], others[line.source]) if same else counts[line.source] for line in lines
    ]
    python = "".join(
        _row(line, source, number, number=True) for line, number in zip(lines, numbers, strict=True)
    )
    changes = difference(first, second, source if same else None)
    body = "".join(
        f'<div style="background:{SIGNS[change.sign]}">{change.sign} {escape(change.text)}</div>'
        for change in changes
    )
    if first.missing:
        body = notice(escape(first.missing))
    part = "SASS" if same else "SASS of the whole kernels"
    heads = f"{part}: - {escape(short(first))}, + {escape(short(second))}"
    columns = {f"{first.file} (instructions a line)": python, heads: body or _nothing(source)}
    return _columns(columns, {line.source for line in lines})


def _arrow(before: int, after: int) -> str:
    return f"{before}→{after}" if before or after else ""


def _row(line: Line, source: int | None, count: Any = None, number: bool = False) -> str:
    ground = f"background:{CURRENT};" if source is not None and line.source == source else ""
    kind = f' class="l{line.source}"' if line.source is not None else ""
    margin = f'<span style="color:#7B8794">{line.source:>4} {count or "":>8} </span>' if number else ""
    return f'<div{kind} style="{ground}color:#1F2933">{margin}{escape(line.text) or " "}</div>'


def _nothing(source: int | None) -> str:
    return f'<div style="color:#7B8794">nothing of its own at line {source}</div>'


def _columns(columns: Mapping[str, str], lines: set[int]) -> str:
    # The one link that HTML without scripts can have: what is pointed at marks its kind everywhere.
    links = "".join(f".minfer-code:has(.l{n}:hover) .l{n}{{background:{CURRENT}!important}}" for n in lines)
    look = "font-size:10.5px;line-height:1.3;background:#F5F7FA;padding:.4em;margin:0;height:380px;"
    look += "overflow:auto;white-space:pre;overflow-wrap:normal;word-break:normal"
    quiet = "color:#7B8794;font-size:85%;white-space:nowrap;overflow:hidden;text-overflow:ellipsis"
    body = "".join(
        f'<div style="min-width:0"><div style="{quiet}" title="{head}">{head}</div>'
        f'<pre style="{look}">{text}</pre></div>'
        for head, text in columns.items()
    )
    widths = " ".join(["1.3fr"] + ["1fr"] * (len(columns) - 1))
    return (
        f'<style>{links}</style><div class="minfer-code" style="display:grid;gap:8px;'
        f'grid-template-columns:{widths}">{body}</div>'
    )


@dataclass(frozen=True)
class Code:
    """What the kernel view shows: one or two listings at a line of the source."""

    listings: tuple[Listing, ...]
    line: int
    whole: bool

    def html(self) -> str:
        if len(self.listings) == 2:
            return difference_html(*self.listings, self.line)
        return code_html(self.listings[0], self.line, self.whole)


class KernelView(Explorer):
    """A kernel's source, PTX and SASS, and what changes from one config to another.

    The first config is compiled before the view is shown; others in the background, with what they replace
    left standing until they are done.

    Args:
        compiler: compiles `configs` with listings. configs: name -> config, the first shown at first.
        line: where the line slider stands at first. arch: what is compiled for.
    """

    def __init__(
        self,
        compiler: BackgroundCompiler | DirectCompiler,
        configs: Mapping[str, Any],
        line: int,
        arch: str = "sm_90a",
    ) -> None:
        self.configs, self.arch = dict(configs), arch
        self.compiler = compiler
        self.compiler.notify = self._compiled
        first = next(iter(self.configs))
        names = {name: name for name in self.configs}
        self.status = CompileStatus(self.compiler)
        self._first = True
        controls = {
            "config": dropdown(names, first, "config"),
            "against": dropdown({"(no other)": "", **names}, "", "compare with"),
            "line": integers(line, line, line, "source line"),
            "whole": checkbox("all of PTX and SASS"),
        }
        super().__init__("kernel view", controls, self._code, self._draw, Code.html)
        self.panel.layout.flex = "1 1 100%"
        self.panel.layout.margin = "8px 0 0 0"
        left = self.box.children[0]
        left.children = (*left.children, self.status)

    def _draw(self, code: Code) -> Picture:
        return draw_classes(code.listings, code.line)

    def _code(self, config: str, against: str, line: int, whole: bool) -> Code | None:
        found = []
        for name in dict.fromkeys(filter(None, (config, against))):
            # The first picture waits for its compile; after that the controls never wait.
            ask = self.compiler.compile_now if self._first else self.compiler.request
            compilation = self.compiler.known(self.configs[name], self.arch) or ask(
                self.configs[name], self.arch
            )
            self.status.show(compilation)
            if compilation.state == "failed":
                raise ValueError(compilation.error)
            if compilation.listing is None:
                return self.report  # what stands is left standing until the compile is done
            found.append(compilation.listing)
        self._first = False
        slider = self.controls["line"]
        last = found[0].first + len(found[0].source) - 1
        if (slider.min, slider.max) != (found[0].first, last):
            # Bounds before values: a slider never holds a value outside of them.
            with slider.hold_trait_notifications():
                slider.min, slider.max = found[0].first, last
        return Code(tuple(found), line, whole)

    def _compiled(self, compilation: Compilation) -> None:
        self.status.show(compilation)
        if compilation.state in ("done", "failed") and self.report is not None:
            self.refresh()


def gemm_view(arch: str = "sm_90a") -> KernelView:
    """The GEMM of the campaign's first steps, at the line that multiplies."""
    from minfer.cuda.gemm import GemmConfig, make_gemm

    configs = {
        "TM=64": GemmConfig(),
        "TM=128": GemmConfig(tile_m=128),
        "TM=64, swizzled": GemmConfig(layout="swizzled"),
        "TM=64, KS=64": GemmConfig(tile_k=64),
    }
    compiler = BackgroundCompiler("minfer.cuda.gemm:make_gemm", listing=True)
    return KernelView(compiler, configs, line_of(make_gemm(GemmConfig()), "multiply_k16("), arch)


def view_of(kernels: Mapping[str, Kernel], arch: str = "sm_90a") -> KernelView:
    """Kernels of this process, by name, at the line that most machine instructions come from.

    Raises:
        ValueError: the first does not compile.
    """
    compiler = DirectCompiler()
    first = compiler.request(next(iter(kernels.values())), arch)
    if first.listing is None:
        raise ValueError(first.error)
    counts = first.listing.by_line()
    line = max(counts, key=counts.__getitem__, default=first.listing.first)
    return KernelView(compiler, kernels, line, arch)


def line_of(kernel: Any, text: str) -> int:
    """The first line of a kernel function that holds `text`.

    Raises:
        ValueError: no line does.
    """
    import linecache

    code = kernel.function.__code__
    lines = linecache.getlines(code.co_filename)
    for number in range(code.co_firstlineno, len(lines) + 1):
        if text in lines[number - 1]:
            return number
    raise ValueError(f"{kernel.name} has no line with {text!r}")
