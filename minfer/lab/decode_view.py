"""A decoded token as it was measured: launches, the bandwidth of its products, where its time goes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from minfer.arithmetic.ledger import bits_a_weight
from minfer.arithmetic.work import QWEN25_7B, decode_bytes
from minfer.campaign.against import SHAPES
from minfer.campaign.records import GpuTests, Record
from minfer.campaign.wall_record import newest_walls
from minfer.cuda.token import TOKEN_STEPS
from minfer.lab import decomposition_view, style
from minfer.lab.figures import DEVICE, newest, newest_like, nothing, origin
from minfer.lab.picture import Picture
from minfer.lab.token_view import CONTEXT, READ, TYPES

# ---- launches

WAYS = {
    "launch us: LoadedKernel.launch": ("a launch from Python", "host"),
    "launch us: prepared": ("a launch with prepared arguments", "host"),
    "launch us: cuLaunchKernelEx through ctypes, alone": ("the driver's call alone", "host"),
    "graph of 300 kernels: device us a kernel": ("a kernel of a replayed graph", "device"),
}
"""A figure of the GPU tests -> what it is, and whose time it takes."""
REPLAY = "graph of 300 kernels: host us a replay"


def launch_rows(records: Sequence[Record], kernels: int) -> list[dict]:
    """What launching costs by way: us a kernel, and ms and share of the memory's time for a token of so many
    kernels. Empty: no record."""
    record = newest(records, *WAYS, REPLAY)
    if record is None:
        return []
    least = decode_bytes(QWEN25_7B, TYPES, CONTEXT) / READ * 1e3
    rows = []
    for name, (what, whose) in WAYS.items():
        ms = record.figure(name) * kernels / 1e3
        rows.append(
            {
                "way": what,
                "whose time": whose,
                "us": record.figure(name),
                "ms a token": ms,
                "of the read": ms / least,
            }
        )
    ms = record.figure(REPLAY) / 1e3
    whole = {"way": "a replay of the whole graph", "whose time": "host", "us": ms * 1e3}
    return [*rows, {**whole, "ms a token": ms, "of the read": ms / least}]


def draw_launches(records: Sequence[Record], kernels: int) -> Picture:
    """`launch_rows` as milliseconds a token beside the time that reading the weights takes."""
    rows = launch_rows(records, kernels)
    if not rows:
        return nothing("the cost of launches")
    least = decode_bytes(QWEN25_7B, TYPES, CONTEXT) / READ * 1e3
    fig, (ax,) = style.figure(9.6, 3.2)
    for place, row in enumerate(reversed(rows)):
        colour = style.BLUE if row["whose time"] == "host" else style.GREEN
        ax.barh(place, row["ms a token"], height=0.62, color=colour)
        style.beside(ax, row["ms a token"], place, f"{row['ms a token']:.3g} ms")
    for whose, colour in (("host time", style.BLUE), ("device time", style.GREEN)):
        ax.barh(0, 0, color=colour, label=whose)
    ax.axvline(least, color=style.RED, linewidth=1.4, linestyle=(0, (5, 3)))
    ax.text(
        least,
        len(rows) - 0.42,
        f" reading 4.4 GB: {least:.2f} ms",
        fontsize=8.5,
        color=style.RED,
        va="bottom",
    )
    ax.set_yticks(range(len(rows)), [row["way"] for row in reversed(rows)], color=style.INK)
    ax.set_ylim(-0.6, len(rows) + 0.1)
    ax.set_xlim(0, max(max(row["ms a token"] for row in rows), least) * 1.2)
    ax.grid(axis="y", visible=False)
    style.label(ax, f"launching {kernels} kernels (ms a token)")
    style.legend(ax, loc="lower right")
    style.title(ax, "What launching a token's kernels costs", origin(newest(records, *WAYS, REPLAY)))
    return Picture(fig, f"Milliseconds of launching {kernels} kernels in five ways", rows)


STEPS = ("one kernel an operation", *TOKEN_STEPS)
"""How a token is launched: as separate kernels, or as one, by the steps of its ladder."""


def _figure(way: str) -> str:
    return f"7B token, {way}: ms"


def _newest_steps(records: Sequence[Record]) -> GpuTests | None:
    return newest(records, _figure(STEPS[0]), _figure(STEPS[1]))


def change_rows() -> list[dict]:
    """Every step of the token kernel's ladder, and the fields of its config that it changes."""
    rows = [{"step": (first := next(iter(TOKEN_STEPS))), "changes": "-"}]
    for (_, before), (name, after) in pairwise(TOKEN_STEPS.items()):
        changed = (
            f"{field} {before[field]} -> {new}" for field, new in after.items() if before[field] != new
        )
        rows.append({"step": name, "changes": ", ".join(changed)})
    rows[0]["changes"] = ", ".join(f"{field} = {value}" for field, value in TOKEN_STEPS[first].items())
    return rows


def step_rows(records: Sequence[Record]) -> list[dict]:
    """The device time of a token of the 7B by how it is launched: ms, tokens a second of that time alone, and
    the share of it that reading the weights at the measured bandwidth takes, of the ways that the newest
    record has. Empty: no record."""
    record = _newest_steps(records)
    if record is None:
        return []
    least = decode_bytes(QWEN25_7B, TYPES, CONTEXT) / READ * 1e3
    times = {way: record.figure(_figure(way)) for way in STEPS if _figure(way) in record.measured}
    return [
        {"launched as": way, "ms": ms, "tok/s": 1e3 / ms, "of the read": least / ms}
        for way, ms in times.items()
    ]


# ---- bandwidth of the products

_GEMV = re.compile(r"gemv (\w+) (\d+)x(\d+)( pdl)?: GB/s")
_NAMES = {shape: name for name, shape in SHAPES.items()} | {(152064, 3584): "lm_head"}


def gemv_rows(records: Sequence[Record]) -> list[dict]:
    """The products of a token as one GEMV each, by the newest run that timed them: product, format, MB, us,
    GB/s alone and overlapping its neighbours (pdl), and the share of READ. Smallest first."""
    record = newest_like(records, "gemv ", " pdl: GB/s")
    rows = []
    for name in {} if record is None else record.measured:
        match = _GEMV.fullmatch(name)
        if not match or not match[4]:
            continue
        alone = name.replace(" pdl", "")
        size = int(match[2]) * int(match[3]) * bits_a_weight(match[1]) / 8
        speed = record.figure(name)
        rows.append(
            {
                "product": _NAMES.get((int(match[2]), int(match[3])), f"{match[2]} x {match[3]}"),
                "format": match[1],
                "MB": size / 1e6,
                "us": record.figure(name.replace("GB/s", "us")),
                "alone (GB/s)": record.figure(alone) if alone in record.measured else None,
                "overlapping (GB/s)": speed,
                "of the read": speed * 1e9 / READ,
            }
        )
    return sorted(rows, key=lambda row: row["MB"])


def repacked_rows(records: Sequence[Record]) -> list[dict]:
    """Q6_K read as blocks and repacked (`minfer.cuda.gemv_planes`), by the newest run that timed both:
    product, us of either, and how many times as fast repacked. Empty: none did."""
    rows = []
    for product, (od, dim) in {"down": SHAPES["down"], "lm_head": (152064, 3584)}.items():
        names = [f"gemv Q6_K {od}x{dim}{layout} pdl: us" for layout in ("", " planes")]
        if record := newest(records, *names):
            blocks, planes = map(record.figure, names)
            rows.append(
                {"product": product, "blocks (us)": blocks, "planes (us)": planes, "times": blocks / planes}
            )
    return rows


def draw_gemv(records: Sequence[Record]) -> Picture:
    """`gemv_rows` as bars under the measured read."""
    rows, read = gemv_rows(records), READ / 1e9
    if not rows:
        return nothing("the bandwidth of GEMVs")
    fig, (ax,) = style.figure(9.6, 3.8)
    for key, colour, shift in (("alone (GB/s)", style.SKY, -0.2), ("overlapping (GB/s)", style.BLUE, 0.2)):
        for place, row in enumerate(rows):
            if row[key] is not None:
                ax.bar(place + shift, row[key], width=0.38, color=colour)
                look = {"ha": "center", "va": "top", "fontsize": 7.5}
                look["color"] = "white" if colour == style.BLUE else style.INK
                ax.text(place + shift, row[key] - 50, f"{row[key]:,.0f}", **look)
        ax.bar(0, 0, color=colour, label=key.partition(" (")[0])
    ax.axhline(read, color=style.RED, linewidth=1.4, linestyle=(0, (5, 3)))
    ax.text(-0.45, read + 60, f"measured read, {read:,.0f} GB/s", fontsize=8.5, color=style.RED)
    names = [f"{row['product']} {row['format']}\n{row['MB']:,.1f} MB" for row in rows]
    ax.set_xticks(range(len(rows)), names, color=style.INK)
    ax.set_ylim(0, read * 1.16)
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.grid(axis="x", visible=False)
    style.label(ax, "product, smallest first", "bytes of the blocks (GB/s)")
    style.legend(ax, loc="upper left", bbox_to_anchor=(0, 0.84))
    note = origin(newest_like(records, "gemv ", " pdl: GB/s"))
    style.title(ax, "Small products do not reach the memory's speed", note)
    return Picture(fig, f"Bandwidth of {len(rows)} GEMVs of a token against the measured read", rows)


# ---- where the time goes


def time_rows(records: Sequence[Record]) -> list[dict]:
    """A token of one kernel an operation, taken apart by arithmetic: ms of reading at the measured read, what
    the products take beyond that, and the rest (attention, norms, seams). Empty: a figure is missing.

    q, k and v count as if all in Q4_K (half of the layers hold v as Q6_K).
    """
    run = _newest_steps(records)
    speeds = {(row["product"], row["format"]): row["us"] for row in gemv_rows(records)}
    kinds = [(stack, "Q4_K") for stack in ("q+k+v", "o", "gate+up")] * QWEN25_7B.layers
    kinds += [("down", kind) for kind in TYPES["down"]] + [("lm_head", TYPES["lm_head"][0])]
    if run is None or set(kinds) - speeds.keys():
        return []
    whole = run.figure(_figure(STEPS[0]))
    least = decode_bytes(QWEN25_7B, TYPES, CONTEXT) / READ * 1e3
    products = sum(speeds[kind] for kind in kinds) / 1e3
    parts = {
        "reading, at the measured read": least,
        "the products beyond that": products - least,
        "all else: attention, norms, seams": whole - products,
    }
    return [{"part": name, "ms": ms, "share": ms / whole} for name, ms in parts.items()]


def draw_time(records: Sequence[Record]) -> Picture:
    """`time_rows` as one bar."""
    rows = time_rows(records)
    if not rows:
        return nothing("both the decode's speed and its products'")
    fig, (ax,) = style.figure(9.6, 2.3)
    left = 0.0
    for row, colour in zip(rows, (style.BLUE, style.SKY, style.ORANGE), strict=True):
        ax.barh(0, row["ms"], left=left, height=0.6, color=colour, edgecolor="white", label=row["part"])
        light = colour == style.BLUE
        ax.text(
            left + row["ms"] / 2, 0, f"{row['ms']:.2f} ms\n{row['share']:.0%}", ha="center", va="center",
            fontsize=8.5, color="white" if light else style.INK,
        )  # fmt: skip
        left += row["ms"]
    ax.set_yticks([])
    ax.set_xlim(0, left * 1.02)
    ax.grid(axis="y", visible=False)
    style.label(ax, "one decoded token (ms)")
    style.legend_below(fig, ax)
    note = origin(_newest_steps(records))
    style.title(ax, "A token of one kernel an operation", note)
    return Picture(fig, "A decoded token's milliseconds: reading, slower products, all else", rows)


def draw_walls(records: Sequence[Record]) -> Picture:
    """The newest decompositions of a decode: every launch charged to a class of work."""
    walls = newest_walls(records, DEVICE, "decode")
    if not walls:
        return nothing("a decode's wall", "`minfer probe run r23-decomposition` takes it apart")
    origins = dict.fromkeys(wall.origin for wall in walls)
    return decomposition_view.draw_walls(walls, "\n".join(origins))


ATTENTION = re.compile(r"decode attention (\d+) rows, (\d+) splits, combined: us")


def attention_rows(records: Sequence[Record]) -> list[dict]:
    """Decode attention by cache rows: the best number of splits, us, and us that reading K and V takes."""
    record = newest_like(records, "decode attention ", "combined: us")
    best: dict[int, tuple[float, int]] = {}
    for name in {} if record is None else record.measured:
        if match := ATTENTION.fullmatch(name):
            length, splits = int(match[1]), int(match[2])
            best[length] = min(best.get(length, (float("inf"), 0)), (record.figure(name), splits))
    cache_bytes = 2 * QWEN25_7B.kv_heads * QWEN25_7B.head_dim * 2
    return [
        {
            "cache rows": length,
            "splits": splits,
            "us": us,
            "reading alone (us)": length * cache_bytes / READ * 1e6,
        }
        for length, (us, splits) in sorted(best.items())
    ]
