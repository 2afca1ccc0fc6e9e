"""What the steps of the Hopper ladders brought, as records hold it, against cuBLAS and cuDNN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minfer.arithmetic.devices import H200
from minfer.campaign.against import REGIMES, Against, Comparison, geometric_mean, newest_comparisons
from minfer.campaign.peers import Peer
from minfer.campaign.records import Bench, GpuTests, Record
from minfer.campaign.report import PEER_PREFILL, PREFILL
from minfer.lab import style
from minfer.lab.figures import newest, newest_like, nothing, origin
from minfer.lab.hopper_ladder import NT, Step, attention_ladder, bound, gemm_ladder, schedule_rows
from minfer.lab.picture import Picture

LADDER_FIGURE = f"GEMM TFLOPS at {NT}x4608x3584"
HOPPER_FIGURE = f"Hopper GEMM TFLOPS at {NT}x4608x3584"
BLOCKS_FIGURE = f"W4A16 Q4_K TFLOPS at {NT}x4608x3584"
CUBLAS = "torch.matmul"
"""How torch's product is called in records, or begins to be (`..., 30 in a row`)."""
COLOURS = {"seed": style.SKY, "mma.sync": style.BLUE, "wgmma": style.GREEN, "from blocks": style.ORANGE}
"""Whose step it is -> its colour."""


def _speed(record: GpuTests | None, figure: str, config: str | None) -> float | None:
    if record is None or figure not in record.measured:
        return None
    speeds = {name: speed for name, speed in record.measured[figure].items() if name != "error"}
    return speeds.get(config) if config else next(iter(speeds.values()), None)


def gemm_rows(records: Sequence[Record], steps: Sequence[Step] | None = None) -> list[dict]:
    """TFLOPS of every step at 2048 x 4608 x 3584: what arithmetic allows, what the newest run found that
    measured it, and its share of cuBLAS; None where no run did."""
    peer = cublas(records)
    figures = {"wgmma": HOPPER_FIGURE, "from blocks": BLOCKS_FIGURE}
    rows = []
    for step in steps or gemm_ladder():
        figure = figures.get(step.family, LADDER_FIGURE)
        own = None if step.family == "from blocks" else str(step.config)
        speed = _speed(newest(records, figure), figure, own)
        rows.append(
            {
                "step": step.name,
                "family": step.family,
                "predicted, at most": bound(step),
                "TFLOPS": speed,
                "of cuBLAS": None if None in (speed, peer) else speed / peer,
                "of the peak": None if speed is None else speed * 1e12 / H200.tensor_f16,
            }
        )
    return rows


def cublas(records: Sequence[Record]) -> float | None:
    """TFLOPS of cuBLAS at the ladder's product."""
    record = newest(records, LADDER_FIGURE)
    names = () if record is None else record.measured[LADDER_FIGURE]
    return next((_speed(record, LADDER_FIGURE, name) for name in names if name.startswith(CUBLAS)), None)


def draw_gemm(records: Sequence[Record]) -> Picture:
    """The ladder's TFLOPS under cuBLAS and the tensor cores' peak."""
    rows = [row for row in gemm_rows(records) if row["TFLOPS"] is not None]
    if not rows:
        return nothing("the GEMM ladder")
    peer, peak = cublas(records), H200.tensor_f16 / 1e12
    fig, (ax,) = style.figure(9.6, 1.5 + 0.4 * len(rows))
    _ladder_bars(ax, rows, "TFLOPS", "{:,.0f}")
    if peer is not None:
        _mark(ax, peer, f"cuBLAS {peer:,.0f}", len(rows))
    ax.set_xlim(0, peak * 1.02)
    style.label(ax, f"speed at {NT:,} x 4,608 x 3,584 (TFLOPS); the axis ends at the peak, {peak:,.0f}")
    style.legend(ax, loc="upper right")
    runs = (newest(records, figure) for figure in (LADDER_FIGURE, HOPPER_FIGURE, BLOCKS_FIGURE))
    style.title(ax, "The GEMM ladder on an H200", origin(*runs))
    return Picture(fig, f"TFLOPS of {len(rows)} steps of the GEMM ladder against cuBLAS", rows)


def _ladder_bars(ax, rows: Sequence[dict], key: str, form: str) -> None:
    for place, row in enumerate(reversed(rows)):
        ax.barh(place, row[key], height=0.66, color=COLOURS[row["family"]])
        style.beside(ax, row[key], place, form.format(row[key]))
    for family in dict.fromkeys(row["family"] for row in rows):
        ax.barh(0, 0, color=COLOURS[family], label=family)
    ax.set_yticks(range(len(rows)), [row["step"] for row in reversed(rows)], color=style.INK)
    ax.set_ylim(-0.6, len(rows) + 0.1)
    ax.grid(axis="y", visible=False)


def _mark(ax, at: float, text: str, rows: int) -> None:
    ax.axvline(at, color=style.RED, linewidth=1.4, linestyle=(0, (5, 3)))
    ax.text(at, rows - 0.42, f"{text} ", ha="right", va="bottom", fontsize=8.5, color=style.RED)


def product_rows(records: Sequence[Record], regime: str = "burst") -> list[dict]:
    """The Hopper GEMM at the 7B's products: tokens, product, TFLOPS, times as fast as cuBLAS, each by the
    newest run that compared it; the geometric mean comes last. Empty: none did.

    Args:
        regime: one of `minfer.campaign.against.REGIMES`.
    """
    found = [row for row, _ in _compared(records, regime, "F16").values()]
    rows = [
        {
            "regime": regime,
            "product": row.product,
            "tokens": row.nt,
            "tile": row.config,
            "TFLOPS": row.tflops[0],
            "kcycles": None if row.cycles is None else row.cycles[0] / 1e3,
            "cuBLAS's": None if row.cycles is None else row.cycles[1] / 1e3,
            "of cuBLAS": row.ratio,
        }
        for row in found
    ]
    if rows:
        last = {"regime": regime, "product": "geometric mean", "tokens": None, "tile": "", "TFLOPS": None}
        last |= {"kcycles": None, "cuBLAS's": None}
        rows.append({**last, "of cuBLAS": geometric_mean(found)})
    return rows


def draw_products(records: Sequence[Record]) -> Picture:
    """`product_rows` of every regime on record, as multiples of cuBLAS."""
    rows = [row for regime in REGIMES for row in product_rows(records, regime)]
    if not rows:
        return nothing("the Hopper GEMM against cuBLAS at the 7B's products")
    fig, (ax,) = style.figure(9.6, 4.0)
    bars = [row for row in rows if row["tokens"] is not None]
    names = list(dict.fromkeys(f"{row['product']}\n{row['tokens']:,}" for row in bars))
    regimes = [regime for regime in REGIMES if any(row["regime"] == regime for row in bars)]
    width = 0.8 / len(regimes)
    for turn, regime in enumerate(regimes):
        colour = {"burst": style.GREEN, "sustained": style.SKY, "alone": style.BLUE}[regime]
        for row in (row for row in bars if row["regime"] == regime):
            place = names.index(f"{row['product']}\n{row['tokens']:,}") - 0.4 + (turn + 0.5) * width
            ax.bar(place, row["of cuBLAS"], width=0.95 * width, color=colour)
            above, look = max(row["of cuBLAS"], 1) + 0.02, {"ha": "center", "fontsize": 7.5}
            turned = 90 if len(regimes) > 2 else 0
            ax.text(place, above, f"{row['of cuBLAS']:.2f}", color=style.INK, rotation=turned, **look)
        ax.bar(0, 0, color=colour, label=regime)
    ax.axhline(1, color=style.RED, linewidth=1.4, linestyle=(0, (5, 3)))
    ax.set_xticks(range(len(names)), names, color=style.INK)
    ax.set_ylim(0, max(1, *(row["of cuBLAS"] for row in bars)) * 1.3)
    ax.grid(axis="x", visible=False)
    style.label(ax, "product and tokens", "times as fast as cuBLAS")
    style.legend(ax, loc="upper right", ncols=len(regimes))
    sources = [record for regime in REGIMES for _, record in _compared(records, regime, "F16").values()]
    style.title(ax, "The Hopper GEMM at the 7B's products; 1 is cuBLAS", origin(*sources))
    return Picture(fig, f"The Hopper GEMM against cuBLAS at {len(bars)} products of the 7B", rows)


BLOCK_FORMATS = ("Q4_K", "Q6_K", "Q4_K+Q6_K")
"""Formats that W4A16 reads."""


def block_rows(records: Sequence[Record]) -> list[dict]:
    """W4A16 straight from the file's blocks beside cuBLAS on an f16 copy, by the newest runs that compared
    them: rows of format, product, tokens, tile, us, TFLOPS, of cuBLAS (bursts), sustained (of cuBLAS; None:
    not compared). The tile is that of the newer run; of bursts by another one nothing is told. Empty: no run
    did."""
    burst, lasting = (_compared(records, regime, *BLOCK_FORMATS) for regime in ("burst", "sustained"))
    rows = []
    for key in burst | lasting:
        sides = [side[key] for side in (burst, lasting) if key in side]
        newest = max(sides, key=lambda side: side[1].date)[0]
        fast, slow = (
            side[key][0] if key in side and side[key][0].config == newest.config else None
            for side in (burst, lasting)
        )
        rows.append(
            {
                "format": newest.weights,
                "product": newest.product,
                "tokens": newest.nt,
                "tile": newest.config,
                "us": fast.ours_us if fast else None,
                "TFLOPS": fast.tflops[0] if fast else None,
                "of cuBLAS": fast.ratio if fast else None,
                "sustained": slow.ratio if slow else None,
            }
        )
    return rows


def _compared(
    records: Sequence[Record], regime: str, *weights: str
) -> dict[tuple[int, str, str], tuple[Comparison, Against]]:
    """`newest_comparisons` of products whose weights are one of these."""
    found = newest_comparisons(records, H200.key, regime)
    return {key: pair for key, pair in found.items() if pair[0].weights in weights}


# ---- attention


def attention_rows(records: Sequence[Record], nt: int = NT, regime: str = "burst") -> list[dict]:
    """Causal attention of the 7B over `nt` tokens, step by step: ms, TFLOPS, times as fast as cuDNN.

    The mma.sync kernels come before the ladder; steps that no run measured are left out.
    """
    flop = 28 * 4 * 128 * nt * (nt + 1) / 2
    found: list[tuple[str, str, float]] = []
    for step, family in (
        ("before P5", "seed"),
        ("P5.3", "seed"),
        ("FAP2", "seed"),
        ("FAP2, TKV=64", "mma.sync"),
    ):
        name = f"attention {nt} tokens, {step}: ms"
        if record := newest(records, name):
            found.append((step, family, record.figure(name)))
    for step in attention_ladder():
        name = f"attention {nt} tokens, {step.name}, {regime}: ms"
        if record := newest(records, name):
            found.append((step.name, step.family, record.figure(name)))
    peer = cudnn(records, nt, regime)
    return [
        {
            "step": step,
            "family": family,
            "ms": ms,
            "TFLOPS": flop / ms / 1e9,
            "of cuDNN": None if peer is None else peer / ms,
        }
        for step, family, ms in found
    ]


def cudnn(records: Sequence[Record], nt: int = NT, regime: str = "burst") -> float | None:
    """Milliseconds of cuDNN's attention in the same run, the faster of its two ways to take grouped heads."""
    names = [f"attention {nt} tokens, {name}, {regime}: ms" for name in ("cuDNN", "cuDNN, grouped")]
    record = newest(records, *names)
    return None if record is None else min(map(record.figure, names))


def order_rows(records: Sequence[Record], regime: str = "burst") -> list[dict]:
    """`schedule_rows`, and how many times as fast LPT order made the attention in the newest run."""
    rows = schedule_rows()
    for row in rows:
        times = {one["step"]: one["ms"] for one in attention_rows(records, row["tokens"], regime)}
        both = {"overlap", "LPT order"} <= times.keys()
        row["measured"] = times["overlap"] / times["LPT order"] if both else None
    return rows


def length_rows(records: Sequence[Record], nts: Sequence[int] = (512, NT, 8192)) -> list[dict]:
    """The attention that the engine takes, by length and regime: ms and times as fast as cuDNN, by the newest
    run of the GPU tests that measured it, and the latter by the newest `minfer bench --against torch` too;
    lengths that no test measured are left out."""
    rows = []
    for nt in nts:
        for regime in ("burst", "sustained"):
            bench = {row.nt: row.ratio for row, _ in _compared(records, regime, "").values()}
            for row in attention_rows(records, nt, regime)[-1:]:
                rows.append({"tokens": nt, "regime": regime, **row, "of cuDNN (bench)": bench.get(nt)})
    return rows


def draw_attention(records: Sequence[Record], nt: int = NT) -> Picture:
    """The attention ladder's TFLOPS under cuDNN's."""
    rows = attention_rows(records, nt)
    if not rows:
        return nothing(f"attention over {nt} tokens")
    fig, (ax,) = style.figure(9.6, 1.5 + 0.36 * len(rows))
    _ladder_bars(ax, rows, "TFLOPS", "{:,.0f}")
    peer = cudnn(records, nt)
    if peer is not None:
        speed = 28 * 4 * 128 * nt * (nt + 1) / 2 / peer / 1e9
        _mark(ax, speed, f"cuDNN {speed:,.0f}", len(rows))
    ax.set_xlim(0, max(row["TFLOPS"] for row in rows) * 1.15)
    style.label(ax, f"causal attention over {nt:,} tokens (TFLOPS)")
    style.legend(ax, loc="upper right")
    before = newest_like(records, f"attention {nt} tokens, FAP2")
    ladder = newest_like(records, f"attention {nt} tokens, no overlap")
    note = origin(before, ladder) + ("" if ladder else "\nthe wgmma ladder is in no record yet")
    style.title(ax, "The attention ladder on an H200", note)
    return Picture(fig, f"TFLOPS of {len(rows)} attention kernels over {nt} tokens", rows)


# ---- what it makes of a prefill


def prefill_rows(benches: Mapping[str, Bench], peer: Peer | None) -> list[dict]:
    """Prefill of the 7B by route: tok/s, and the multiple of another engine's on the same GPU."""
    found = [(route, bench.result(PREFILL).avg_ts) for route, bench in benches.items()]
    line = None if peer is None else peer.tok_s[PEER_PREFILL][0]
    if peer is not None:
        found.append((peer.name, line))
    return [
        {"route": name, "tok/s": rate, "of the peer": None if line is None else rate / line}
        for name, rate in sorted(found, key=lambda entry: entry[1])
    ]
