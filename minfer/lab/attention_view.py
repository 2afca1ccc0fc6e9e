"""The steps of flash attention: what each takes of an SM, what a KV tile costs, what was measured on whom."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from matplotlib.ticker import MaxNLocator

from minfer.arithmetic import reference
from minfer.arithmetic.devices import DeviceSpec
from minfer.arithmetic.ledger import attention_ledger
from minfer.arithmetic.occupancy import LIMITERS, Occupancy, blocks_per_sm
from minfer.campaign.records import GpuTests, load_records, newest_measured
from minfer.lab import style
from minfer.lab.picture import Picture

HEADS, KV_HEADS, HEAD_DIM = 28, 4, 128  # Qwen2.5-7B
BARRIERS = {"serial": 4, "warp_per_row": 4, "register": 3}
"""Block barriers that a KV tile costs with one stage, by softmax: behind the copies of K, the scores (if
shared), the copies of V, and the product."""


def steps() -> dict[str, object]:
    """The seeds' steps at the 7B's shape, by name: `AttentionConfig`s in order."""
    from minfer.cuda.attention import seed_steps

    return seed_steps(HEADS, KV_HEADS, HEAD_DIM)


@cache
def registers(step: str, arch: str) -> int:
    """Registers a thread of a step, as ptxas reported them (data/reference/attention-registers.json).

    Raises:
        KeyError: no such step, or an architecture that was not compiled for.
    """
    entry = json.loads((reference.FOLDER / "attention-registers.json").read_text())["registers"]
    if step not in entry or arch not in entry[step]:
        raise KeyError(f"no registers of step {step!r} on {arch}; known: {', '.join(entry)}")
    return entry[step][arch]


def residency(step: str, device: DeviceSpec) -> Occupancy:
    """Blocks of a step that one SM of a GB10 or an H200 holds."""
    config = steps()[step]
    return blocks_per_sm(device, config.threads, registers(step, device.arch), config.shared_bytes)


def step_rows(devices: Sequence[DeviceSpec]) -> list[dict]:
    """Every step: where P.V runs, shared bytes, threads, and blocks an SM with the limiter on each device."""
    rows = []
    for name, config in steps().items():
        row = {"step": name, "TKV": config.tkv, "softmax": config.softmax, "P.V": config.pv}
        row |= {"shared (B)": config.shared_bytes, "threads": config.threads}
        for device in devices:
            held = residency(name, device)
            row[f"blocks, {device.key}"] = f"{held.blocks} ({LIMITERS[held.limiter]})"
        rows.append(row)
    return rows


@dataclass(frozen=True)
class TileCost:
    """A KV tile size for one way of doing the softmax.

    Attributes:
        tkv: rows of a KV tile. step: the name in `steps`. shared_bytes: of a block.
        tiles, barriers, rescales: of one head over the whole prompt.
        held: blocks an SM.
    """

    tkv: int
    step: str
    shared_bytes: int
    tiles: int
    barriers: int
    rescales: int
    held: Occupancy


STEPS_BY_TILE = {
    "shared": {16: "TKV=16", 32: "TKV=32", 64: "P5.3"},
    "register": {16: "FAP2, TKV=16", 32: "FAP2", 64: "FAP2, TKV=64"},
}
"""The steps that differ in TKV alone, with the softmax in shared memory and in registers."""


def tile_cost(tkv: int, softmax: str, device: DeviceSpec, nt: int = 2048) -> TileCost:
    """What a KV tile size costs a head of `nt` tokens, and how many blocks an SM holds.

    Raises:
        KeyError: a tile or a softmax that is not in `STEPS_BY_TILE`.
    """
    step = STEPS_BY_TILE[softmax][tkv]
    config = steps()[step]
    ledger = attention_ledger(nt, tkv, head_dim=HEAD_DIM, barriers_per_tile=BARRIERS[config.softmax])
    held = residency(step, device)
    return TileCost(tkv, step, config.shared_bytes, ledger.kv_tiles, ledger.barriers, ledger.rescales, held)


def tile_rows(costs: Sequence[TileCost]) -> list[dict]:
    """The costs as a table."""
    return [
        {
            "device": cost.held.device.key,
            "step": cost.step,
            "TKV": cost.tkv,
            "shared (B)": cost.shared_bytes,
            "tiles a head": cost.tiles,
            "barriers a head": cost.barriers,
            "blocks an SM": cost.held.blocks,
            "limited by": LIMITERS[cost.held.limiter],
        }
        for cost in costs
    ]


def draw_tile_costs(softmax: str, device: DeviceSpec, tkv: int = 32, nt: int = 2048) -> Picture:
    """Shared memory, blocks an SM and barriers against TKV, with one choice marked."""
    costs = [tile_cost(size, softmax, device, nt) for size in (16, 32, 64)]
    fig, axes = style.figure(9.6, 3.3, columns=3)
    panels = (
        (
            "Shared memory",
            "of a block",
            [c.shared_bytes / 1024 for c in costs],
            "shared memory (KiB)",
            "{:.1f}",
        ),
        ("Residency", device.name, [c.held.blocks for c in costs], "blocks (an SM)", "{:.0f}"),
        ("Fixed cost", f"one head, {nt:,} tokens", [c.barriers for c in costs], "block barriers", "{:,.0f}"),
    )
    for ax, (name, note, values, unit, form) in zip(axes, panels, strict=True):
        colours = [style.BLUE if c.tkv == tkv else style.tint(style.BLUE, 0.6) for c in costs]
        bars = ax.bar(range(3), values, width=0.62, color=colours)
        ax.bar_label(bars, [form.format(value) for value in values], padding=3, fontsize=9, color=style.INK)
        ax.set_xticks(range(3), [c.tkv for c in costs])
        ax.margins(y=0.18)
        ax.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        ax.grid(axis="x", visible=False)
        style.label(ax, "TKV (rows of a KV tile)", unit)
        style.title(ax, name, note)
    alt = f"Shared memory, blocks an SM and barriers against TKV, softmax in {softmax}, {device.name}"
    return Picture(fig, alt, tile_rows(costs))


def step_name(step: str, tokens: int = 2048) -> str:
    """What the records call a step's time."""
    return f"attention {tokens} tokens, {step}: ms"


def newest_record(device: str = "h200", tokens: int = 2048) -> GpuTests:
    """The newest run of the GPU tests on a device that timed every step.

    Raises:
        RecordError: there is none.
    """
    return newest_measured(load_records(), device, [step_name(step, tokens) for step in steps()])


def measured_rows(record: GpuTests, tokens: int = 2048) -> list[dict]:
    """ms and TFLOPS of every step in the record."""
    rows = []
    for name in steps():
        key = step_name(name, tokens)
        row = {"step": name, "ms": record.figure(key)}
        rows.append({**row, "TFLOPS": round(record.figure(key.replace(": ms", ": TFLOPS")), 1)})
    return rows


def draw_measured(record: GpuTests, tokens: int = 2048) -> Picture:
    """Time of every step in the record, on a logarithmic axis, coloured by where the softmax runs."""
    rows = measured_rows(record, tokens)
    fig, (ax,) = style.figure(9.6, 4.4)
    look = {
        "serial": (style.ORANGE, "softmax: one thread a row"),
        "warp_per_row": (style.SKY, "softmax: one warp a row"),
        "register": (style.GREEN, "softmax in registers"),
    }
    places = {name: place for place, name in enumerate(steps())}
    for softmax, (colour, text) in look.items():
        mine = [row for row in rows if steps()[row["step"]].softmax == softmax]
        bars = ax.barh(
            [places[r["step"]] for r in mine], [r["ms"] for r in mine], 0.62, color=colour, label=text
        )
        labels = [f"{row['ms']:.3f} ms" for row in mine]
        ax.bar_label(bars, labels, padding=4, fontsize=9, color=style.INK)
    ax.set_xscale("log")
    ax.set_xlim(0.05, max(row["ms"] for row in rows) * 2)
    ax.set_xticks([0.05, 0.1, 0.2, 0.5, 1, 2], ["0.05", "0.1", "0.2", "0.5", "1", "2"])
    ax.set_xticks([], minor=True)
    ax.set_yticks(list(places.values()), list(places))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    style.label(ax, "time of a layer's attention (ms), logarithmic")
    style.title(
        ax, f"A prompt of {tokens:,} tokens, {HEADS} heads of {HEAD_DIM}", f"measured: {record.origin}"
    )
    style.legend(ax, loc="lower right")
    return Picture(fig, f"Attention times by step on {record.origin}", rows)


@dataclass(frozen=True)
class Verdict:
    """One decision of the seeds: `step` in place of `against`.

    Attributes:
        figures: the (seed, key)s of data/reference/ that it rests on: a change in percent, or two times.
        kept: whether the seed kept it.
    """

    step: str
    against: str
    figures: tuple[tuple[str, str], ...]
    kept: bool

    def seed_ratio(self) -> float:
        """The step's time over that of `against`, from the seed's figures."""
        values = [reference.figure(*key) for key in self.figures]
        if len(values) == 2:
            return values[1].value / values[0].value
        return 1 + values[0].value / 100


VERDICTS = (
    Verdict("P5.0", "before P5", (("000", "fa.pv_tensor.before"), ("000", "fa.pv_tensor.after")), True),
    Verdict("P5.3", "P5.0", (("000", "fa.softmax_pad.before"), ("000", "fa.softmax_pad.after")), True),
    Verdict("TKV=32", "P5.3", (("002", "fa.tkv32.kernel"),), False),
    Verdict("TKV=32, padded scores", "P5.3", (("002", "fa.r46.kernel"),), False),
)
"""The decisions for which a seed gives kernel times."""


def verdict_rows(record: GpuTests) -> list[dict]:
    """Each decision's time ratio on the seeds' GB10 and in the record, and whether the sign turns around."""
    rows = []
    for verdict in VERDICTS:
        ours = record.figure(step_name(verdict.step)) / record.figure(step_name(verdict.against))
        seed = verdict.seed_ratio()
        rows.append(
            {
                "step": verdict.step,
                "against": verdict.against,
                "time, gb10": f"x{seed:.2f}",
                "seed": "LANDED" if verdict.kept else "REVERTED",
                f"time, {record.device.split()[-1].lower()}": f"x{ours:.2f}",
                "faster there, slower here": seed < 1 < ours,
            }
        )
    return rows
