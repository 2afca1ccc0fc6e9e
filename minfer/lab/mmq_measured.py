"""MMQ in the records: its routes' prefills, what each step of the ladder brought, what was tried besides, and
int8 on Hopper's tensor cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minfer.campaign.against import SHAPES
from minfer.campaign.decomposition import products_us_per_gmac
from minfer.campaign.observe import PRODUCTS
from minfer.campaign.peers import llamacpp
from minfer.campaign.records import Record
from minfer.campaign.report import PREFILL, routes
from minfer.campaign.wall_record import newest_walls
from minfer.lab import style
from minfer.lab.figures import newest, nothing, origin
from minfer.lab.picture import Picture

if TYPE_CHECKING:
    from minfer.cuda.mmq import MmqConfig
    from minfer.cuda.mmq.ladder import Step

NT = 2048
TIMED = {name: SHAPES[name] for name in ("gate+up", "down")}
"""The 7B's products that every step was timed on: many tiles, and few."""
COLOURS = {"gate+up": style.BLUE, "down": style.SKY}
PEER = {"Q4_K": "q4_K gate/up", "Q6_K": "q6_K"}
"""Format -> what llama.cpp's figure is called."""


ROUTES = {
    "mmq": "R1",
    "mmq_raw": "raw, narrow KD=8",
    "mmq_raw_wide": "raw, wide KD=8",
    "mmq_fast": "128 x 256 (Q6_K: 128 x 128), stream-k",
    "f16": "f16 weights, mma.sync",
}
"""Routes by what runs on them."""


def _prefills(records: Sequence[Record]) -> dict[str, tuple[float, Record]]:
    """Tokens a second of the 7B's prefill by route: of a bench record where there is one, else of a GPU
    test."""
    found: dict[str, tuple[float, Record]] = {}
    for route in ROUTES:
        name = f"7B prefill of {NT} tokens, {route}: tok/s"
        if (record := newest(records, name)) is not None:
            found[route] = record.figure(name), record
    found |= {
        route: (bench.result(PREFILL).avg_ts, bench)
        for route, bench in routes(records).items()
        if route in ROUTES
    }
    return {route: found[route] for route in ROUTES if route in found}


def route_origins(records: Sequence[Record]) -> str:
    """Where and when the routes were measured, a line a run."""
    return "\n".join(dict.fromkeys(record.origin for _, record in _prefills(records).values()))


def route_rows(records: Sequence[Record]) -> list[dict]:
    """Tokens a second of every measured route, beside R1's and beside f16's."""
    rates = {route: rate for route, (rate, _) in _prefills(records).items()}
    return [
        {
            "route": route,
            "kernel": ROUTES[route],
            "tok/s": round(rate),
            "of R1": f"x{rate / rates['mmq']:.2f}",
            "of f16": f"x{rate / rates['f16']:.2f}",
        }
        for route, rate in rates.items()
    ]


def product_rows(records: Sequence[Record]) -> list[dict]:
    """us a GMAC of the products in a whole prefill, by the newest decomposition of each MMQ route, beside
    llama.cpp's MMQ. Empty: none was taken apart."""
    rows = []
    for wall in newest_walls(records):
        if wall.route in ROUTES and wall.route != "f16":
            times = {bucket.name: bucket.ms * 1e3 / bucket.gmac for bucket in wall.buckets if bucket.gmac}
            each = {product: round(times[product], 2) for product in PRODUCTS}
            rows.append({"route": wall.route, **each, "all": round(products_us_per_gmac(wall), 2)})
    if rows:
        peer, unknown = llamacpp().us_per_gmac, dict.fromkeys(PRODUCTS, "")
        known = {"gate+up": peer["q4_K gate/up"], "all": peer["all MMQ"]}
        rows.append({"route": "llama.cpp"} | unknown | known)
    return rows


def _figure(config: MmqConfig, product: str) -> str:
    od, depth = TIMED[product]
    return f"mmq {config} {od}x{depth} {NT} tokens: us/GMAC"


def _time(records: Sequence[Record], config: MmqConfig, product: str) -> float | None:
    """us a GMAC by the newest run of the GPU tests that timed it; None: nothing did."""
    name = _figure(config, product)
    record = newest(records, name)
    return None if record is None else record.figure(name)


def _rows(records: Sequence[Record], steps: Sequence[Step]) -> list[dict]:
    rows = []
    for step in steps:
        times = {product: _time(records, step.config, product) for product in TIMED}
        if None not in times.values():
            rows.append({"step": step.name, **times, "mechanism": step.mechanism})
    return rows


def ladder_rows(records: Sequence[Record], weight_type: str = "Q4_K") -> list[dict]:
    """The ladder of a format, us a GMAC at 2048 tokens, and what a step takes of the one that it changes on
    `down`; steps that no record holds are left out."""
    from minfer.cuda.mmq import ladder

    steps = ladder(weight_type)
    bases = {step.name: step.base for step in steps}
    rows, on_down, before = [], {}, ""
    for row in _rows(records, steps):
        name, base = row["step"], bases[row["step"]]
        of = on_down.get(base or before)
        change = "" if of is None else f"{row['down'] / of - 1:+.0%}" + (f" of {base}" if base else "")
        rows.append({key: row[key] for key in ("step", *TIMED)} | {"on down": change} | row)
        on_down[name], before = row["down"], name
    return rows


def tried_rows(records: Sequence[Record], weight_type: str = "Q4_K") -> list[dict]:
    """What was tried on the tile of 128 x 128, against it."""
    from minfer.cuda.mmq import fast, tried

    base = _time(records, fast(weight_type), "gate+up")
    rows = []
    for row in _rows(records, tried(weight_type)):
        against = "" if base is None else f"{row['gate+up'] / base - 1:+.0%}"
        rows.append({key: row[key] for key in ("step", *TIMED)} | {"on gate+up": against} | row)
    return rows


def hopper_rows(records: Sequence[Record]) -> list[dict]:
    """W4A8 (s8 wgmma on Q4_K) with the quantization of its activations, us a GMAC at 2048 tokens."""
    rows = []
    for product, (od, depth) in SHAPES.items():
        name = f"w4a8 {od}x{depth} {NT} tokens, with quantization: us/GMAC"
        if (record := newest(records, name)) is not None:
            rows.append(
                {"product": product, "rows x depth": f"{od} x {depth}", "us/GMAC": record.figure(name)}
            )
    return rows


def draw_ladder(records: Sequence[Record], weight_type: str = "Q4_K") -> Picture:
    """us a GMAC of every step, beside llama.cpp's."""
    from minfer.cuda.mmq import ladder

    rows = ladder_rows(records, weight_type)
    if not rows:
        return nothing(f"the ladder of {weight_type}")
    peer = llamacpp().us_per_gmac[PEER[weight_type]]
    fig, (ax,) = style.figure(9.6, 1.5 + 0.42 * len(rows))
    for place, row in enumerate(reversed(rows)):
        for product, up in zip(TIMED, (0.19, -0.19), strict=True):
            label = product if place == 0 else None
            ax.barh(place + up, row[product], height=0.36, color=COLOURS[product], label=label)
            style.beside(ax, row[product], place + up, f"{row[product]:.1f}", fontsize=8)
    ax.axvline(peer, color=style.RED, linewidth=1.4, linestyle=(0, (5, 3)))
    ax.text(peer, len(rows) - 0.42, f" llama.cpp {peer:g}", va="bottom", fontsize=8.5, color=style.RED)
    ax.set_yticks(range(len(rows)), [row["step"] for row in reversed(rows)], color=style.INK)
    ax.set_ylim(-0.6, len(rows) + 0.2)
    ax.set_xlim(0, 1.1 * max(row[product] for row in rows for product in TIMED))
    ax.grid(axis="y", visible=False)
    style.label(ax, f"us a GMAC, {NT:,} tokens")
    style.legend(ax, loc="lower right")
    runs = (newest(records, _figure(step.config, "down")) for step in ladder(weight_type))
    style.title(ax, f"{weight_type} on an H200: from R1 to {rows[-1]['step']}", origin(*runs))
    return Picture(fig, f"us a GMAC of {len(rows)} steps of the {weight_type} ladder against llama.cpp", rows)
