"""The lane player's picture and text: shared memory by bank, the tile, the banks' load, the source line."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from minfer.arithmetic.banks import BANK_BYTES, SECTOR_BYTES
from minfer.cuda.trace import Finding, Place, TracedArray
from minfer.lab import style
from minfer.lab.bank_view import verdict
from minfer.lab.lane_film import (
    EMPTY,
    FLIGHT,
    NAMES,
    STATES,
    WRITTEN,
    Film,
    Frame,
    Step,
    TileAt,
    source_lines,
)
from minfer.lab.picture import Picture

STATE_COLOURS = {
    EMPTY: style.PAPER,
    FLIGHT: style.tint(style.ORANGE, 0.45),
    WRITTEN: style.tint(style.SKY, 0.65),
}
TOUCHED, CONFLICT, HAZARD = style.BLUE, style.RED, style.INK
UNUSED = style.tint(style.RED, 0.6)
"""Of bytes in a sector of global memory that no lane asked for."""
KIND_COLOURS = {
    "copy": style.ORANGE,
    "wait": style.YELLOW,
    "load": style.BLUE,
    "store": style.SKY,
    "mma": style.GREEN,
    "shuffle": style.tint(style.GREEN, 0.6),
    "barrier": style.tint(style.INK, 0.3),
    "global": style.PINK,
}
CHUNK_WORDS = 4
"""Words of the 16-byte chunks that a lane copies or names."""
SECTOR_WORDS = SECTOR_BYTES // BANK_BYTES
LINE_WORDS = 32
MOST_LABELLED = 40
"""Rows up to which a map has a lane's number in every touched word."""


def draw_frame(frame: Frame) -> Picture:
    """A step of a film: every warp's steps on top; below, for an access of global memory its sectors, else
    shared memory by bank with its load, and the touched tile."""
    fig = Figure(figsize=(9.6, 7.4), layout="constrained", facecolor="white")
    strip = 1.1 if frame.film.warps <= 4 else 1.9
    grid = fig.add_gridspec(3, 2, height_ratios=(strip, 5.2, 1.3), width_ratios=(1.75, 1))
    top = style.dress(fig.add_subplot(grid[0, :]))
    rows = [{"panel": "steps", **row} for row in _timeline(top, frame.film, frame.step)]
    if frame.step.moved is not None:
        lines = _lines(style.dress(fig.add_subplot(grid[1:, :])), frame)
        rows += [{"panel": "lines", **row} for row in lines]
    else:
        tiled = bool(frame.film.tiles)
        left = 0 if tiled else slice(None)
        memory = style.dress(fig.add_subplot(grid[1, left]))
        load = style.dress(fig.add_subplot(grid[2, left], sharex=memory))
        rows += [{"panel": "words", **row} for row in frame.words]
        _memory(memory, frame)
        loads = enumerate(_load(load, frame))
        rows += [{"panel": "load", "bank": bank, "words": count} for bank, count in loads]
        if tiled:
            _tile(style.dress(fig.add_subplot(grid[1:, 1])), frame)
    _legend(fig)
    alt = f"{frame.film.name}, step {frame.step.number + 1} of {len(frame.film)}: {frame.step}"
    return Picture(fig, alt, rows)


def _timeline(ax: Axes, film: Film, now: Step) -> list[dict]:
    colours = np.ones((film.warps, len(film), 3))
    for step in film.steps:
        colours[step.warp, step.number] = _rgb(KIND_COLOURS[step.kind])
    style.bare(ax)
    ax.imshow(colours, extent=(0, len(film), film.warps, 0), aspect="auto", interpolation="nearest")
    marked = ((film.conflicts, "v", CONFLICT), (film.scattered, "v", CONFLICT), (film.hazards, "X", HAZARD))
    for numbers, marker, colour in marked:
        if numbers:
            ax.plot(
                [n + 0.5 for n in numbers],
                [film.steps[n].warp + 0.5 for n in numbers],
                linestyle="",
                marker=marker,
                markersize=4.5,
                color=colour,
                markeredgecolor="white",
                markeredgewidth=0.5,
            )
    ax.axvspan(now.number, now.number + 1, facecolor="none", edgecolor=style.INK, linewidth=1.4, zorder=5)
    every = 1 if film.warps <= 8 else 4
    ax.set_yticks([w + 0.5 for w in range(0, film.warps, every)], range(0, film.warps, every))
    ax.set_xlim(0, len(film))
    ax.tick_params(length=0)
    style.label(ax, "step (one instruction of one warp)", "warp")
    note = f"step {now.number + 1} of {len(film)}: {now}"
    style.title(ax, _headline(now), note)
    return [
        {
            "step": step.number,
            "warp": step.warp,
            "kind": step.kind,
            "wavefronts": step.banks.wavefronts if step.banks else None,
            "degree": step.banks.degree if step.banks else None,
            "hazard": bool(step.findings),
        }
        for step in film.steps
    ]


def _headline(step: Step) -> str:
    if step.findings:
        return step.findings[0].kind
    if step.banks is not None:
        return verdict(step.banks)
    if step.moved is not None:
        least = -(-step.moved.bytes_used // SECTOR_BYTES)
        more = f" where {least} would do" if step.scattered else ""
        return f"{NAMES[step.op]}: {step.moved.sectors} sectors{more}"
    return {
        "copy": "copies are on their way",
        "wait": f"{len(step.landed)} copies have landed" if step.landed else "nothing lands",
        "mma": "no memory is touched",
        "shuffle": "lanes exchange registers",
        "barrier": "warps wait for each other",
    }.get(step.kind, NAMES.get(step.op, step.op.name.lower()))


def _memory(ax: Axes, frame: Frame) -> None:
    """All of shared memory as it lies in the banks, 128 bytes a row."""
    style.bare(ax)
    height = -(-len(frame.states) // 32)
    states = np.full(height * 32, EMPTY)
    states[: len(frame.states)] = frame.states
    colours = np.array([_rgb(STATE_COLOURS[state]) for state in (EMPTY, FLIGHT, WRITTEN)])
    picture = colours[states].reshape(height, 32, 3)
    for word in frame.words:
        picture[word["word"] // 32, word["bank"]] = _rgb(_word_colour(word))
    _cells(ax, picture)
    if height <= MOST_LABELLED:
        _numbers(ax, [(word["word"] // 32, word["bank"], word["lane"]) for word in frame.words], height)
    for name, tile in frame.film.tiles.items():
        first, size = tile.start / 128, (max(tile.words) + 1) * 4 / 128 - tile.start / 128
        ax.plot([32.25, 32.25], [first + 0.1, first + size - 0.1], color=style.QUIET, lw=1.5, clip_on=False)
        crowded = size < 0.2 * height
        look = {"rotation": 0 if crowded else 90, "fontsize": 8, "color": style.INK, "va": "center"}
        ax.text(32.5, first + size / 2, name.replace(", stage ", "") if crowded else name, **look)
    ax.set_xlim(-0.1, 33.6)
    ax.set_ylim(height + 0.05, -0.05)
    step = 1 << max(height // 8, 1).bit_length() - 1  # rows a tick: round numbers of bytes
    ax.set_yticks([r + 0.5 for r in range(0, height, step)], [f"{r * 128:,}" for r in range(0, height, step)])
    ax.set_xticks([b + 0.5 for b in range(0, 32, 4)], [str(b) for b in range(0, 32, 4)])
    ax.tick_params(length=0)
    style.label(ax, "bank", "shared memory (byte)")
    style.title(ax, "Shared memory, bank by bank", "a number is the lane")


def _load(ax: Axes, frame: Frame) -> list[int]:
    colours = [CONFLICT if count > 1 else TOUCHED for count in frame.load]
    ax.bar([bank + 0.5 for bank in range(32)], frame.load, width=0.86, color=colours)
    if not any(frame.load):
        ax.text(
            16,
            2.2,
            "in this step no lane asks a bank",
            ha="center",
            va="center",
            color=style.QUIET,
            fontsize=8.5,
        )
    ax.set_ylim(0, max(4, *frame.load) * 1.1)
    ax.set_xticks([b + 0.5 for b in range(0, 32, 4)], [str(b) for b in range(0, 32, 4)])
    ax.grid(axis="x", visible=False)
    ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    style.label(ax, "bank", "words a phase")
    style.title(ax, "What a phase wants from each bank")
    return frame.load


def _tile(ax: Axes, frame: Frame) -> None:
    """The tile that the step touches most, in rows and columns."""
    style.bare(ax)
    names = [word["tile"] for word in frame.words if word["tile"] is not None]
    if not names:
        ax.set_xticks([])
        ax.set_yticks([])
        style.title(ax, "No tile is touched", "the step stays in registers or global memory")
        return
    name = max(set(names), key=names.count)
    tile: TileAt = frame.film.tiles[name]
    width = tile.row_bytes // 4
    picture = np.empty((tile.rows, width, 3))
    for word, (row, byte) in tile.words.items():
        picture[row, byte // 4] = _rgb(STATE_COLOURS[int(frame.states[word])])
    mine = [word for word in frame.words if word["tile"] == name]
    for word in mine:
        picture[word["row"], word["byte"] // 4] = _rgb(_word_colour(word))
    _cells(ax, picture)
    if tile.rows <= MOST_LABELLED:
        _numbers(ax, sorted((word["row"], word["byte"] // 4, word["lane"]) for word in mine), tile.rows)
    ax.set_xlim(-0.1, width + 0.1)
    ax.set_ylim(tile.rows + 0.1, -0.1)
    every = max(width // 8, 1)
    ax.set_xticks([c + 0.5 for c in range(0, width, every)], [str(c * 4) for c in range(0, width, every)])
    ax.set_yticks([r + 0.5 for r in range(0, tile.rows, 8)], [str(r) for r in range(0, tile.rows, 8)])
    ax.tick_params(length=0)
    style.label(ax, "byte in the row (B)", "row of the tile")
    style.title(ax, name, "the same words, where the matrix has them")


def _lines(ax: Axes, frame: Frame) -> list[dict]:
    """The lines of global memory that an access touches, 128 bytes a row: rows of line, word, lane (None:
    moved with its sector, and not asked for)."""
    step = frame.step
    lanes: dict[int, int] = {}
    for lane, address in zip(step.lanes, step.addresses, strict=True):
        for word in range(address // BANK_BYTES, -(-(address + step.width) // BANK_BYTES)):
            lanes.setdefault(word, lane)
    sectors = sorted({word // SECTOR_WORDS for word in lanes})
    moved = [sector * SECTOR_WORDS + word for sector in sectors for word in range(SECTOR_WORDS)]
    found = [{"line": w // LINE_WORDS, "word": w % LINE_WORDS, "lane": lanes.get(w)} for w in moved]
    places = {line: place for place, line in enumerate(dict.fromkeys(row["line"] for row in found))}
    height = len(places)  # at most the lanes: an access is aligned
    colours = np.full((height, LINE_WORDS, 3), _rgb(style.PAPER))
    for row in found:
        colours[places[row["line"]], row["word"]] = _rgb(UNUSED if row["lane"] is None else TOUCHED)
    style.bare(ax)
    _cells(ax, colours)
    asked_for = [row for row in found if row["lane"] is not None]
    _numbers(ax, [(places[row["line"]], row["word"], row["lane"]) for row in asked_for], height)
    edges = range(0, LINE_WORDS + 1, SECTOR_WORDS)
    ax.vlines(edges, 0, height, color=style.INK, linewidth=0.9)
    names = [_where(LINE_WORDS * BANK_BYTES * line, frame.film.arrays) for line in places]
    ax.set_yticks([place + 0.5 for place in places.values()], names)
    ax.set_xticks(edges, [str(BANK_BYTES * word) for word in edges])
    ax.tick_params(length=0, axis="y", labelsize=8 if height <= 16 else 6.5)
    style.label(ax, "byte of the line (B); dark lines part sectors", "line of 128 B")
    of = f"{step.moved.bytes_used:,} of {SECTOR_BYTES * len(sectors):,} moved bytes are asked for"
    style.title(ax, "Global memory, line by line", f"a number is the lane; {of}")
    return found


def _where(address: int, arrays: Sequence[TracedArray]) -> str:
    """A global address as an array and an offset in it."""
    for array in arrays:
        if array.address <= address < array.address + array.size:
            return f"{array.name} + {address - array.address:,}"
    return f"{address:#x}"


def _cells(ax: Axes, colours: np.ndarray) -> None:
    """Cells parted by lines, where they are large enough for lines."""
    height, width, _ = colours.shape
    if height <= 2 * MOST_LABELLED:
        style.cells(ax, colours, part=CHUNK_WORDS)
    else:
        ax.imshow(colours, extent=(0, width, height, 0), aspect="auto", interpolation="nearest")


def _numbers(ax: Axes, cells: list[tuple[int, int, int]], height: int) -> None:
    """The lanes of (row, column, lane), one number for neighbours of one lane, in a map of `height` rows."""
    runs: list[list[int]] = []
    for row, column, lane in cells:
        if runs and runs[-1][:2] == [row, lane] and runs[-1][3] == column:
            runs[-1][3] += 1
        else:
            runs.append([row, lane, column, column + 1])
    look = {"ha": "center", "va": "center", "fontsize": 6.5 if height < 32 else 5.5, "color": "white"}
    for row, lane, first, end in runs:
        ax.text((first + end) / 2, row + 0.54, lane, **look).set_in_layout(False)


def _word_colour(word: dict) -> str:
    return HAZARD if word["hazard"] else CONFLICT if word["conflict"] else TOUCHED


def _rgb(colour) -> tuple[float, float, float]:
    return style.tint(colour, 0)


def _legend(fig: Figure) -> None:
    handles = [Patch(color=STATE_COLOURS[i], label=STATES[i]) for i in (EMPTY, FLIGHT, WRITTEN)]
    handles[0].set_edgecolor(style.RULE)
    handles += [
        Patch(color=TOUCHED, label="touched now"),
        Patch(color=CONFLICT, label="bank conflict (v above: or scattered)"),
        Patch(color=HAZARD, label="read before it is there (x above)"),
        Patch(color=UNUSED, label="moved, not asked for"),
    ]
    handles += [Patch(color=colour, label=f"step: {kind}") for kind, colour in KIND_COLOURS.items()]
    fig.legend(handles=handles, loc="outside lower left", ncols=5, fontsize=8, frameon=False)


def frame_html(frame: Frame) -> str:
    """The step in words, its faults, and the source line that it executes."""
    step = frame.step
    head = f"<b>Step {step.number + 1} of {len(frame.film)}</b>: {escape(str(step))}"
    facts = [head, _headline(step)] if not step.findings else [head]
    if step.kind == "global" or step.in_shared:
        facts.append(f"{len(step.lanes)} lane{'s' * (len(step.lanes) > 1)}, {step.width:,} B each")
    faults = "".join(
        f'<p style="color:{CONFLICT}"><b>{escape(text)}</b></p>'
        for text in dict.fromkeys(_fault(finding, frame.words) for finding in step.findings)
    )
    inner = "".join(
        f"<br>&nbsp;&nbsp;↳ {escape(place.file_name)}:{place.line} in {escape(place.function)}: "
        f"<code>{escape(_line(place))}</code>"
        for place in reversed(step.chain[:-1])
    )
    return (
        f'<div style="line-height:1.4">{"<br>".join(facts)}{faults}</div>'
        f"{source_html(step)}"
        f'<div style="font-size:85%;line-height:1.4">{inner.removeprefix("<br>")}</div>'
    )


def _fault(finding: Finding, words: list[dict]) -> str:
    """A fault as this step has it: `finding` names the first place and thread of many such accesses."""
    late = sum(word["hazard"] for word in words)
    text = f"{finding.kind}: {late} words of this step" if late else finding.kind
    if finding.other_place is None:
        return text
    place = finding.other_place
    return f"{text}; the other side is {place.file_name}:{place.line} in {place.function}"


def _line(place: Place) -> str:
    current = [row["text"].strip() for row in source_lines(place, 0)]
    return current[0] if current else "?"


def source_html(step: Step, around: int = 5) -> str:
    """The kernel's source around the step's line, that line marked."""
    rows = source_lines(step.place, around)
    if not rows:
        return "<p>(the source of this kernel cannot be read)</p>"
    indent = min(len(row["text"]) - len(row["text"].lstrip()) for row in rows if row["text"].strip())
    body = "".join(
        f'<div style="background:{"#FFF3B0" if row["current"] else "transparent"};color:#1F2933">'
        f'<span style="color:#7B8794">{row["number"]:>4} </span>{escape(row["text"][indent:])}</div>'
        for row in rows
    )
    place = step.place
    return (
        f'<div style="margin:.5em 0 .2em;color:#7B8794">{escape(place.file_name)}, {escape(place.function)}'
        f'</div><pre style="font-size:11px;line-height:1.35;background:#F5F7FA;padding:.5em;overflow-x:auto;'
        f'margin:0">{body}</pre>'
    )
