"""Measured prefill and decode of the 7B, against the work that they are made of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minfer.arithmetic.devices import DeviceSpec
from minfer.arithmetic.reference import figure
from minfer.arithmetic.roofline import decode_limit
from minfer.arithmetic.work import QWEN25_7B, decode_bytes, prefill_gmac, qwen25_7b_q4_k_m
from minfer.campaign.ceilings import ceilings_of
from minfer.campaign.peers import Peer
from minfer.campaign.records import Bench, GpuTests, Record, RecordError, Sweep
from minfer.campaign.report import DECODE, PEER_PREFILL, PREFILL
from minfer.engine.cuda.routes import ROUTES
from minfer.engine.cuda.variants import BASE
from minfer.lab import style
from minfer.lab.picture import Picture

TYPES = qwen25_7b_q4_k_m()
TOKENS = 2048
DECODED = 128
DECODE_CONTEXT = (DECODED + 1) / 2
"""Tokens of KV cache that a token of tg128 reads, on average."""
WHOLE = "whole route"
FAMILIES = {
    "GEMM": style.BLUE,
    "attention": style.GREEN,
    "convert": style.PINK,
    "weights": style.SKY,
    WHOLE: style.ORANGE,
}
"""What a prefill variant changes -> its colour."""
SENSORS = {"power (W)": "power_w", "SM clock (MHz)": "sm_mhz", "GPU (°C)": "temperature_c"}
ON_GB10 = {
    "f16": ("000", "prefill.after", "after session P5"),
    "mmq": ("003", "mmq.r1.tok_s", "R1, KD=8"),
    "mmq_raw": ("003", "mmq.raw.tok_s", "raw, KD=8"),
    "mmq_raw_wide": ("003", "mmq.wide.kd4", "wide, KD=4; KD=8 is refused there"),
    "llama.cpp": ("000", "prefill.llamacpp", ""),
}
"""Engine or route -> the seed's figure of its prefill on a GB10, and what ran there."""


def work_rows(nt: int = TOKENS) -> list[dict]:
    """GMAC of a prefill of the 7B by class: with the tail rule, its share, and without the rule."""
    ruled, whole = prefill_gmac(QWEN25_7B, nt), prefill_gmac(QWEN25_7B, nt, tail=False)
    total = sum(ruled.values())
    return [
        {"class": name, "GMAC": ruled[name], "share": ruled[name] / total, "every position": whole[name]}
        for name in ruled
    ]


def draw_work(nt: int = TOKENS) -> Picture:
    """Bars of `work_rows`; what the tail rule leaves out is pale."""
    rows = work_rows(nt)
    fig, (ax,) = style.figure(9.6, 3.4)
    for place, row in enumerate(reversed(rows)):
        ax.barh(place, row["every position"], height=0.62, color=style.tint(style.BLUE, 0.75))
        ax.barh(place, row["GMAC"], height=0.62, color=style.BLUE)
        style.beside(ax, row["every position"], place, f"{row['GMAC']:,.1f} GMAC, {row['share']:.1%}")
    ax.set_yticks(range(len(rows)), [row["class"] for row in reversed(rows)], color=style.INK)
    ax.set_xlim(0, max(row["every position"] for row in rows) * 1.28)
    ax.grid(axis="y", visible=False)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    style.label(ax, "multiply-accumulates of one prefill (GMAC)")
    saved = 1 - sum(row["GMAC"] for row in rows) / sum(row["every position"] for row in rows)
    note = f"pale: what only other positions' logits would need, {saved:.1%} of all"
    style.title(ax, f"The work of {nt:,} tokens", note)
    return Picture(fig, f"Prefill work of the 7B by class at {nt:,} tokens", rows)


def sustained_rows(benches: Mapping[str, Bench]) -> list[dict]:
    """Prefills under a load that lasts: tokens a second, their standard deviation, and what the GPU's sensors
    read meanwhile; "-" where there were none."""
    rows = []
    for route, bench in benches.items():
        result = bench.result(PREFILL)
        read = result.sensors or {}
        sensors = {name: read.get(key) for name, key in SENSORS.items()}
        rows.append({"route": route, "sustained (tok/s)": result.avg_ts, "±": result.stddev_ts} | sensors)
    return rows


def variant_rows(benches: Mapping[str, Bench], sweep: Sweep | None, peer: Peer | None) -> list[dict]:
    """Every measured prefill of `TOKENS` tokens, slowest first.

    Args:
        benches: by route (`minfer.campaign.report.routes`). sweep: the variants of the route f16, measured
            beside it; its f16 then stands for the bench's. peer: another engine on the same GPU.

    Returns:
        Rows of variant, changes (a key of FAMILIES; the peer's is its own name), ms, tok/s and its standard
        deviation, TFLOPS (of the work that the tail rule leaves), of f16 (None: not of the sweep), and of the
        peer (None: there is no peer).
    """
    variants = {} if sweep is None else sweep.variants
    found = [(name, r.settings["changes"] or WHOLE, r.avg_ts, r.stddev_ts) for name, r in variants.items()]
    for route, bench in benches.items():
        if route not in variants:
            prefill = bench.result(PREFILL)
            found.append((route, WHOLE, prefill.avg_ts, prefill.stddev_ts))
    line = None
    if peer is not None:
        line, spread = peer.tok_s[PEER_PREFILL]
        found.append((peer.name, peer.name, line, spread))
    flop = 2e9 * sum(prefill_gmac(QWEN25_7B, TOKENS).values())
    return [
        {
            "variant": name,
            "changes": family,
            "ms": TOKENS / rate * 1e3,
            "tok/s": rate,
            "±": spread,
            "TFLOPS": flop * rate / TOKENS / 1e12,
            "of f16": rate / variants[BASE].avg_ts if name in variants else None,
            "of the peer": None if line is None else rate / line,
        }
        for name, family, rate, spread in sorted(found, key=lambda entry: entry[2])
    ]


STEPS = {
    "TM 64 to 128": ("tm64", "tm128", "gemm.tm128.gain", "LANDED"),
    "KS 32 to 64 at TM 128": ("tm128", "tm128-ks64", "gemm.k64.delta", "REVERTED"),
    "TM 128 to 256, 16 warps": ("tm128", "tm256", "gemm.tm256.delta", "REVERTED"),
    "convert A inside the GEMM (AF32)": ("tm128", "tm128-af32", "gemm.af32.delta", "REVERTED"),
}
"""A step of seed 000 -> the variants before and after it, the seed's figure (%) and its verdict."""


def step_rows(sweep: Sweep) -> list[dict]:
    """The GEMM steps of seed 000 as they turned out on its GB10, and the same kernels in a sweep.

    Rows of step, GB10 (%, as the seed states it), verdict there, and of the sweep ms before, after and %.

    Raises:
        RecordError: a variant that a step compares is not in the sweep.
    """
    rows = []
    for step, (before, after, key, verdict) in STEPS.items():
        ms = [sweep.variant(name).avg_ns / 1e6 for name in (before, after)]
        rows.append(
            {
                "step": step,
                "GB10 (%)": figure("000", key).value,
                "verdict there": verdict,
                "before (ms)": ms[0],
                "after (ms)": ms[1],
                "speed (%)": (ms[0] / ms[1] - 1) * 100,
            }
        )
    return rows


def gb10_rows(benches: Mapping[str, Bench], peer: Peer) -> list[dict]:
    """Prefills of the seeds' routes on a GB10, as the seeds state them, and of the same routes on an H200.

    Args:
        benches: by route, and peer: another engine, both of the H200.
    """
    here = {route: bench.result(PREFILL).avg_ts for route, bench in benches.items()}
    here[peer.name] = peer.tok_s[PEER_PREFILL][0]
    rows = []
    for engine, (seed, key, what) in ON_GB10.items():
        there = figure(seed, key)
        middle = sum(there.value) / 2 if isinstance(there.value, tuple) else there.value
        row = {"engine": engine, "on the GB10": what, "GB10 (tok/s)": middle, "H200 (tok/s)": here[engine]}
        rows.append(row | {"times": here[engine] / middle})
    return rows


def draw_variants(rows: Sequence[dict], note: str = "") -> Picture:
    """Bars of `variant_rows`, fastest on top; the peer is a line. `note`: where and when."""
    bars = [row for row in rows if row["changes"] in FAMILIES]
    peers = [row for row in rows if row["changes"] not in FAMILIES]
    fig, (ax,) = style.figure(9.6, 1.6 + 0.27 * len(bars))
    for place, row in enumerate(bars):
        ax.barh(place, row["tok/s"], height=0.7, color=FAMILIES[row["changes"]])
        style.beside(ax, row["tok/s"], place, f"{row['tok/s']:,.0f}", fontsize=8)
    for peer in peers:
        ax.vlines(
            peer["tok/s"], -0.6, len(bars) - 0.35, color=style.RED, linewidth=1.4, linestyle=(0, (5, 3))
        )
        ax.text(
            peer["tok/s"],
            len(bars) - 0.3,
            f"{peer['variant']} {peer['tok/s']:,.0f}",
            fontsize=8.5,
            color=style.RED,
            ha="center",
            va="bottom",
        )
    for family, colour in FAMILIES.items():
        if any(row["changes"] == family for row in bars):
            ax.barh(0, 0, color=colour, label=family)
    ax.set_yticks(range(len(bars)), [row["variant"] for row in bars], color=style.INK)
    ax.set_ylim(-0.6, len(bars) + 0.5)
    ax.set_xlim(0, max(row["tok/s"] for row in rows) * 1.1)
    ax.grid(axis="y", visible=False)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    style.label(ax, f"prefill of {TOKENS:,} tokens (tokens a second)")
    style.legend(ax, loc="lower right", title="what it changes", title_fontsize=8.5)
    style.title(ax, "Every measured prefill of the 7B", note)
    return Picture(fig, f"Prefill speed of {len(bars)} variants of the 7B", rows)


def peer_wall_rows(peer: Peer) -> list[dict]:
    """Where the peer's prefill of 2048 tokens goes: kernels, ms, share."""
    whole = sum(peer.prefill_ms.values())
    return [{"kernels": name, "ms": ms, "share": ms / whole} for name, ms in peer.prefill_ms.items()]


def decode_rows(benches: Mapping[str, Bench], peer: Peer | None, where: DeviceSpec) -> list[dict]:
    """Decoding against the memory's limit: tok/s, context, bytes a token, GB/s, share of what the device was
    measured to read (`minfer ceilings`), or of the datasheet's where nobody has measured it.

    The bytes are those that must be read: every weight once, and the KV cache.
    """
    read = read_rate(where)
    found = [(route, DECODE_CONTEXT, bench.result(DECODE).avg_ts) for route, bench in benches.items()]
    if peer is not None:
        found.append((peer.name, DECODE_CONTEXT, peer.tok_s[DECODE][0]))
        found.append((peer.name, TOKENS + DECODE_CONTEXT, peer.tok_s["tg128_at_depth_2048"][0]))
    rows = []
    for name, context, rate in found:
        size = decode_bytes(QWEN25_7B, TYPES, context)
        rows.append(
            {
                "engine": name,
                "context": context,
                "tok/s": rate,
                "GB a token": size / 1e9,
                "GB/s": rate * size / 1e9,
                "of the read": rate / decode_limit(read, size),
            }
        )
    return rows


def limit_rows(devices: Sequence[DeviceSpec], contexts: Sequence[int]) -> list[dict]:
    """Tokens a second that each device's datasheet bandwidth allows, a column for every context length."""
    return [
        {"device": gpu.name, "GB/s": gpu.bandwidth / 1e9}
        | {
            f"at {context:,} tokens": decode_limit(gpu.bandwidth, decode_bytes(QWEN25_7B, TYPES, context))
            for context in contexts
        }
        for gpu in devices
    ]


def read_rate(where: DeviceSpec) -> float:
    """Bytes a second that a device was measured to read and do nothing else; unmeasured, the datasheet's."""
    known = ceilings_of(where.name)
    return where.bandwidth if known is None else known.read


def _newest_figures(records: Sequence[Record]) -> dict[str, Any]:
    """Every figure of the GPU tests by the newest run that measured it; records come oldest first."""
    runs = (record.measured for record in records if isinstance(record, GpuTests))
    return {name: value for run in runs for name, value in run.items()}


def gemv_rows(records: Sequence[Record]) -> list[dict]:
    """The decode products that the GPU tests timed, smallest first: format, matrix, us, GB/s of the blocks.

    Those launched as decoding launches them, each overlapping the end of the one before.
    """
    found, figures = [], _newest_figures(records)
    for name, speed in figures.items():
        if match := re.fullmatch(r"gemv (\w+) (\d+x\d+) pdl: GB/s", name):
            time = figures[name.replace("GB/s", "us")]
            found.append({"format": match[1], "matrix": match[2], "us": time, "GB/s": speed})
    return sorted(found, key=lambda row: row["us"])


def products_ms(records: Sequence[Record]) -> float:
    """Milliseconds of a decoded token's matrix products alone, by `gemv_rows`; q, k and v as if all in Q4_K.

    Raises:
        RecordError: a product was not timed.
    """
    times = {(row["format"], row["matrix"]): row["us"] for row in gemv_rows(records)}
    layers = [("Q4_K", "4608x3584"), ("Q4_K", "3584x3584"), ("Q4_K", "37888x3584")] * QWEN25_7B.layers
    needed = [
        *layers,
        *((kind, "3584x18944") for kind in TYPES["down"]),
        (TYPES["lm_head"][0], "152064x3584"),
    ]
    if missing := set(needed) - times.keys():
        raise RecordError(f"no gpu-tests record timed the products {sorted(missing)}")
    return sum(times[product] for product in needed) / 1e3


def _alike(rows: Sequence[dict]) -> list[list[dict]]:
    """Rows of `decode_rows`, those of our routes whose points would hide each other together."""
    groups: list[list[dict]] = []
    for row in sorted(rows, key=lambda row: (row["engine"] not in ROUTES, row["context"], row["tok/s"])):
        last = groups[-1][-1] if groups else None
        near = last is not None and (last["engine"] in ROUTES) == (row["engine"] in ROUTES)
        if near and row["context"] == last["context"] and row["tok/s"] < 1.05 * last["tok/s"]:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def draw_decode(rows: Sequence[dict], where: DeviceSpec, note: str = "") -> Picture:
    """Measured decode speeds under the limits of the memory, as specified and as measured, over the context
    length.

    Args:
        rows: `decode_rows`. note: where and when.
    """
    fig, (ax,) = style.figure(9.6, 4.4)
    contexts = np.geomspace(32, 32768, 60)
    sizes = np.array([decode_bytes(QWEN25_7B, TYPES, context) for context in contexts])
    roofs = [(f"datasheet, {where.bandwidth / 1e9:,.0f} GB/s", where.bandwidth, style.BLUE, "-")]
    if (read := read_rate(where)) != where.bandwidth:
        roofs.append((f"read, measured, {read / 1e9:,.0f} GB/s", read, style.SKY, "--"))
    for name, bandwidth, colour, dash in roofs:
        ax.plot(contexts, bandwidth / sizes, color=colour, linestyle=dash, linewidth=2, label=name)
    top = where.bandwidth / sizes[0] * 1.15
    free: dict[float, float] = {}  # by context: from where on labels are free of the ones below them
    for group in sorted(_alike(rows), key=lambda group: group[-1]["tok/s"]):
        context, rates = group[0]["context"], [row["tok/s"] for row in group]
        colour = style.GREEN if group[0]["engine"] in ROUTES else style.RED
        ax.plot([context] * len(rates), rates, "o", markersize=8, markeredgecolor="white", color=colour)
        names = [row["engine"] for row in group]
        who = ", ".join(names) if len(names) < 4 else f"{len(names)} routes"
        low, high = round(min(rates)), round(max(rates))
        speed = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        y = max(sum(rates) / len(rates), free.get(context, 0.0))
        free[context] = y + 0.045 * top
        text = f"{who}: {speed} tok/s"
        ax.text(context * 1.12, y, text, va="center", fontsize=8.5, color=style.INK)
    ax.set_xscale("log", base=2)
    ticks = [32, 128, 512, 2048, 8192, 32768]
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ax.set_ylim(0, top)
    style.label(ax, "tokens in the KV cache", "decode (tokens a second)")
    style.legend(ax, loc="lower left")
    style.title(ax, f"Decoding the 7B on {where.name}: the memory's limit and what is reached", note)
    return Picture(fig, f"Decode speed of the 7B under the bandwidth limit of {where.name}", rows)
