"""The Hopper ladder: from mma.sync to wgmma and TMA, each step a config; what it changes, what it brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from minfer.arithmetic.devices import H200
from minfer.campaign.peers import Peer
from minfer.campaign.records import Bench, GpuTests, Record
from minfer.campaign.report import PEER_PREFILL, PREFILL
from minfer.lab import style
from minfer.lab.figures import newest, newest_like, nothing, origin
from minfer.lab.kernel_view import KernelView, line_of
from minfer.lab.picture import Picture
from minfer.lab.waves_view import PRODUCTS

NT = 2048
LADDER_FIGURE = f"GEMM TFLOPS at {NT}x4608x3584"
HOPPER_FIGURE = f"Hopper GEMM TFLOPS at {NT}x4608x3584"
BLOCKS_FIGURE = f"W4A16 Q4_K TFLOPS at {NT}x4608x3584"
CUBLAS = "torch.matmul, 30 in a row"
REGIMES = {"bursts": "burst", "sustained": "sustained"}
"""How the record calls a regime of measuring -> how we do."""
COLOURS = {"seed": style.SKY, "mma.sync": style.BLUE, "wgmma": style.GREEN, "from blocks": style.ORANGE}
"""Whose step it is -> its colour."""
MMA_FLOP, MMA_BYTES = 2 * 16 * 8 * 16, 512
"""FLOP of an m16n8k16 product; bytes that an ldmatrix.x4 reads."""


@dataclass(frozen=True)
class Step:
    """A step of a ladder: `why` is the mechanism; `family` a key of `COLOURS`."""

    name: str
    config: Any
    family: str
    why: str


def gemm_ladder() -> tuple[Step, ...]:
    """The f16 GEMM from the seed's tile to Hopper's, then from the file's own blocks."""
    from minfer.cuda.gemm import GemmConfig
    from minfer.cuda.gemm_hopper import choose
    from minfer.cuda.w4a16 import W4A16Config

    square = {"tile_n": 128, "tile_m": 128, "layout": "swizzled"}
    return (
        Step("64 x 64", GemmConfig(), "seed", "the seed's first tile"),
        Step("64 x 128", GemmConfig(tile_m=128), "seed", "A is shared by twice the outputs"),
        Step("swizzled", GemmConfig(tile_m=128, layout="swizzled"), "mma.sync", "copies without conflicts"),
        Step("128 x 128", GemmConfig(**square, stages=4), "mma.sync", "fewer bytes a FLOP, more in flight"),
        Step("k-step 64", GemmConfig(**square, tile_k=64, stages=3), "mma.sync", "half the barriers"),
        Step(
            "128 x 256",
            GemmConfig(128, 256, 64, 3, layout="swizzled"),
            "mma.sync",
            "fewer bytes again; 128 sums a thread leave no room",
        ),
        Step("wgmma + TMA", choose(NT, 4608, 3584), "wgmma", "operands from shared memory, a copying thread"),
        Step("W4A16", W4A16Config("Q4_K", tokens=192, stages=5), "from blocks", "no f16 copy of the weights"),
    )


def change(before: Any, after: Any) -> str:
    """What differs between two configs, field by field; between two families their names."""
    if type(before) is not type(after):
        return f"{type(before).__name__} -> {type(after).__name__}"
    names = [f.name for f in fields(after) if getattr(before, f.name) != getattr(after, f.name)]
    return ", ".join(f"{name} {getattr(before, name)} -> {getattr(after, name)}" for name in names) or "-"


def change_rows(steps: Sequence[Step]) -> list[dict]:
    """Every step, what it changes in the config of the one before, and why."""
    rows = [{"step": steps[0].name, "config": str(steps[0].config), "change": "-", "why": steps[0].why}]
    for before, step in pairwise(steps):
        rows.append(
            {
                "step": step.name,
                "config": str(step.config),
                "change": change(before.config, step.config),
                "why": step.why,
            }
        )
    return rows


def ledger_rows(steps: Sequence[Step]) -> list[dict]:
    """What f16 tiles cost: FLOP of a product instruction, instructions for 1 MFLOP, bytes that the products
    read from shared memory and that are copied into it for 1 kFLOP, sums a thread.

    mma.sync takes operands from registers: `ldmatrix` brings them, once for each warp that needs them. wgmma
    reads both operands from shared memory: each of the two warpgroups its 64 rows of A, and all of B.
    """
    rows = []
    for step in steps:
        config = step.config
        if step.family == "from blocks":
            continue
        flop = 2 * config.tile_n * config.tile_m * config.tile_k
        copied = 2 * (config.tile_n + config.tile_m) * config.tile_k
        if step.family == "wgmma":
            one = 2 * 64 * config.tile_m * 16
            loads, read = 0, 2 * (config.tile_n + 2 * config.tile_m) * config.tile_k
            sums = config.tile_m // 2
        else:
            one = MMA_FLOP
            tokens, outputs = config.warp_tile
            loads = config.warps * (tokens + outputs) // 16 * (config.tile_k // 16)
            read, sums = loads * MMA_BYTES, config.accumulators
        rows.append(
            {
                "step": step.name,
                "FLOP an instruction": one,
                "products a MFLOP": flop / one / flop * 1e6,
                "ldmatrix a MFLOP": loads / flop * 1e6,
                "read from shared (B a kFLOP)": read / flop * 1e3,
                "copied in (B a kFLOP)": copied / flop * 1e3,
                "sums a thread": sums,
            }
        )
    return rows


def _speed(record: GpuTests | None, figure: str, config: str | None) -> float | None:
    if record is None or figure not in record.measured:
        return None
    speeds = {name: speed for name, speed in record.measured[figure].items() if name != "error"}
    return speeds.get(config) if config else next(iter(speeds.values()), None)


def gemm_rows(records: Sequence[Record], steps: Sequence[Step] | None = None) -> list[dict]:
    """TFLOPS of every step at 2048 x 4608 x 3584, each from the newest run that measured it, and its share of
    cuBLAS; None where no run did."""
    peer = cublas(records)
    figures = {"wgmma": HOPPER_FIGURE, "from blocks": BLOCKS_FIGURE}
    rows = []
    for step in steps or gemm_ladder():
        figure = figures.get(step.family, LADDER_FIGURE)
        own = None if step.family in figures else str(step.config)
        speed = _speed(newest(records, figure), figure, own)
        rows.append(
            {
                "step": step.name,
                "family": step.family,
                "TFLOPS": speed,
                "of cuBLAS": None if None in (speed, peer) else speed / peer,
                "of the peak": None if speed is None else speed * 1e12 / H200.tensor_f16,
            }
        )
    return rows


def cublas(records: Sequence[Record]) -> float | None:
    """TFLOPS of cuBLAS at the ladder's product."""
    return _speed(newest(records, LADDER_FIGURE), LADDER_FIGURE, CUBLAS)


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
        ax.annotate(
            form.format(row[key]), (row[key], place), (6, 0), textcoords="offset points", va="center",
            fontsize=8.5, color=style.INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    for family in dict.fromkeys(row["family"] for row in rows):
        ax.barh(0, 0, color=COLOURS[family], label=family)
    ax.set_yticks(range(len(rows)), [row["step"] for row in reversed(rows)], color=style.INK)
    ax.set_ylim(-0.6, len(rows) + 0.1)
    ax.grid(axis="y", visible=False)


def _mark(ax, at: float, text: str, rows: int) -> None:
    ax.axvline(at, color=style.RED, linewidth=1.4, linestyle=(0, (5, 3)))
    ax.text(at, rows - 0.42, f"{text} ", ha="right", va="bottom", fontsize=8.5, color=style.RED)


def product_rows(records: Sequence[Record], regime: str = "bursts") -> list[dict]:
    """The Hopper GEMM at the 7B's products: tokens, product, TFLOPS, times as fast as cuBLAS, by the newest
    run that compared them; the geometric mean comes last. Empty: none did.

    Args:
        regime: a key of `REGIMES`.
    """
    names = (f"Hopper GEMM TFLOPS, {regime}", f"Hopper GEMM against cuBLAS, {regime}")
    record = newest(records, *names)
    if record is None:
        return []
    speeds, ratios = (record.measured[name] for name in names)
    rows = [
        {
            "regime": REGIMES[regime],
            "product": name.rpartition(" ")[0],
            "tokens": int(name.rpartition(" ")[2]),
            "TFLOPS": speed,
            "of cuBLAS": ratios[name],
        }
        for name, speed in speeds.items()
    ]
    mean = ratios.get("geometric mean")
    last = {"regime": REGIMES[regime], "product": "geometric mean", "tokens": None, "TFLOPS": None}
    return rows if mean is None else [*rows, {**last, "of cuBLAS": mean}]


def speed_rows(records: Sequence[Record]) -> list[dict]:
    """The Hopper GEMM at a layer's products: product, tile, TFLOPS, share of the peak, by the newest run of
    each. Empty: no record."""
    rows = []
    for name, (od, depth) in PRODUCTS.items():
        figure = f"Hopper GEMM TFLOPS at {NT}x{od}x{depth}"
        if record := newest(records, figure):
            tile, speed = next(iter(record.measured[figure].items()))
            peak = speed * 1e12 / H200.tensor_f16
            rows.append({"product": name, "tile": tile, "TFLOPS": speed, "of the peak": peak})
    return rows


def draw_products(records: Sequence[Record]) -> Picture:
    """`product_rows` of both regimes, as multiples of cuBLAS."""
    rows = [row for regime in REGIMES for row in product_rows(records, regime)]
    if not rows:
        return nothing("the Hopper GEMM against cuBLAS at the 7B's products")
    fig, (ax,) = style.figure(9.6, 4.0)
    bars = [row for row in rows if row["tokens"] is not None]
    names = list(dict.fromkeys(f"{row['product']}\n{row['tokens']:,}" for row in bars))
    for regime, colour, shift in (("burst", style.GREEN, -0.2), ("sustained", style.SKY, 0.2)):
        for row in (row for row in bars if row["regime"] == regime):
            place = names.index(f"{row['product']}\n{row['tokens']:,}") + shift
            ax.bar(place, row["of cuBLAS"], width=0.38, color=colour)
            above = max(row["of cuBLAS"], 1) + 0.02
            ax.text(place, above, f"{row['of cuBLAS']:.2f}", ha="center", fontsize=7.5, color=style.INK)
        if any(row["regime"] == regime for row in bars):
            ax.bar(0, 0, color=colour, label=regime)
    ax.axhline(1, color=style.RED, linewidth=1.4, linestyle=(0, (5, 3)))
    ax.set_xticks(range(len(names)), names, color=style.INK)
    ax.set_ylim(0, max(1, *(row["of cuBLAS"] for row in bars)) * 1.3)
    ax.grid(axis="x", visible=False)
    style.label(ax, "product and tokens", "times as fast as cuBLAS")
    style.legend(ax, loc="upper right", ncols=2)
    record = newest(records, "Hopper GEMM against cuBLAS, bursts")
    style.title(ax, "The Hopper GEMM at the 7B's products; 1 is cuBLAS", origin(record))
    return Picture(fig, f"The Hopper GEMM against cuBLAS at {len(bars)} products of the 7B", rows)


def block_rows(records: Sequence[Record]) -> list[dict]:
    """W4A16 at 2048 tokens, straight from the file's blocks, beside the f16 kernel of the same product.

    Rows of format, product, tile, TFLOPS, of the f16 kernel (None: not measured). Empty: no record.
    """
    beginning, rows = "W4A16 ", []
    record = newest_like(records, beginning)
    sizes = {shape: name for name, shape in PRODUCTS.items()}
    for figure, speeds in ({} if record is None else record.measured).items():
        if not figure.startswith(beginning):
            continue
        kind, shape = figure.removeprefix(beginning).split(" TFLOPS at ")
        nt, od, depth = map(int, shape.split("x"))
        f16 = f"Hopper GEMM TFLOPS at {shape}"
        line = _speed(newest(records, f16), f16, None)
        for config, speed in speeds.items():
            if config != "error":
                rows.append(
                    {
                        "format": kind,
                        "product": sizes.get((od, depth), f"{od} x {depth}"),
                        "tokens": nt,
                        "tile": config,
                        "TFLOPS": speed,
                        "of f16": None if line is None else speed / line,
                    }
                )
    return rows


# ---- attention


def attention_ladder(heads: int = 28, kv_heads: int = 4) -> tuple[Step, ...]:
    """The steps of the Hopper attention, with what each is for."""
    from minfer.cuda.attention import hopper_steps

    why = {
        "no overlap": "wgmma and TMA, persistent; one product at a time",
        "overlap": "the next Q K^T is issued with this P V: both run under the exponentials",
        "LPT order": "the longest tiles first, each to the block that has least to do",
        "late V": "V is awaited only when P V needs it",
        "lazy rescale": "the sums are rescaled only where a maximum has outgrown its reference by 2^8",
        "no running maximum": "the diagonal's maximum is the reference: no shuffles afterwards",
        "staggered start": "one warpgroup's products run under the other's exponentials",
        "Q in registers": "wgmma reads A from registers: a third less from shared memory",
    }
    steps = hopper_steps(heads, kv_heads)
    return tuple(Step(name, config, "wgmma", why.get(name, "")) for name, config in steps.items())


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


# ---- what it makes of a prefill, and what lost


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


LOST = (
    {
        "probe": "clusters of 4",
        "of": "GEMM",
        "idea": "a fourth of the reads of B",
        "outcome": "x0.6",
        "why": "30 clusters of 4 fit at a time: 120 of 132 SMs; most of the loss is not explained",
    },
    {
        "probe": "128 x 256 on mma.sync",
        "of": "GEMM",
        "idea": "fewer bytes a FLOP",
        "outcome": "x0.7",
        "why": "147,456 B of stages: one block an SM, where 128 x 128 has two",
    },
    {
        "probe": "two blocks share a tile's depth",
        "of": "GEMM, 512 tokens",
        "idea": "fill the wave that few tiles leave empty",
        "outcome": "x0.9",
        "why": "exchanging the sums costs what wider tiles save",
    },
    {
        "probe": "programmatic dependent launch",
        "of": "GEMM, 512 tokens",
        "idea": "load weights while the kernel before ends",
        "outcome": "x1.0",
        "why": "5 % fewer cycles, at a clock 5 % lower: the power limit decides",
    },
    {
        "probe": "W4A16 of Q6_K",
        "of": "down, 2048 tokens",
        "idea": "as Q4_K: no f16 copy",
        "outcome": "x0.9 of cuBLAS",
        "why": "210-byte blocks: more unpacking than runs under the tensor cores",
    },
    {
        "probe": "half of the diagonal tile",
        "of": "attention",
        "idea": "skip what the causal mask throws away",
        "outcome": "x0.95",
        "why": "not explained",
    },
)
"""Probes that lost, as read off single experiments on an H200, 2026-11-30: outcome is speed against the step
that stayed."""


def hopper_kernel_view(arch: str = "sm_90a") -> KernelView:
    """The Hopper GEMM's source, PTX and SASS, at its consumers' call."""
    from minfer.cuda.gemm_hopper import GemmHopperConfig, make_gemm_hopper

    configs = {
        "256 wide": GemmHopperConfig(),
        "192 wide": GemmHopperConfig(192),
        "256 wide, clusters of 2": GemmHopperConfig(cluster=2),
        "256 wide, swiglu": GemmHopperConfig(epilogue="swiglu"),
        "256 wide, added to f32": GemmHopperConfig(out="f32", epilogue="add"),
    }
    line = line_of(make_gemm_hopper(GemmHopperConfig()), "consume(")
    return KernelView("minfer.cuda.gemm_hopper:make_gemm_hopper", configs, line, arch)
