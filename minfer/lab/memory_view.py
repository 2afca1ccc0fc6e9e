"""The memory of a model on a GPU, before anything is loaded: the cuda backend's own plan, drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape

from minfer.arithmetic.devices import DEVICES, DeviceSpec, device
from minfer.engine.cuda.plan import PARTS, RESERVE_BYTES, MatrixShape, MemoryPlan, plan_memory
from minfer.engine.cuda.routes import choose_route
from minfer.engine.errors import EngineError
from minfer.lab import style
from minfer.lab.explorer import Explorer, dropdown, integers, notice, slider
from minfer.lab.picture import Picture
from minfer.lab.table import Table
from minfer.model.config import ModelConfig, RopeConfig
from minfer.model.synth import PRESETS, q4_k_m_type

GB = 1e9
NO_LIMIT = 1 << 62
COLOURS = (style.BLUE, style.GREEN, style.PINK, style.ORANGE)
"""Of the parts of a plan, in its order: blocks, KV cache, activations, f16 weights or scratch."""


@dataclass(frozen=True)
class Shapes:
    """What a plan needs to know of a model."""

    config: ModelConfig
    layers: list[list[list[MatrixShape]]]
    tables: list[MatrixShape]


def shapes(preset: str = "qwen2.5-7b") -> Shapes:
    """A synthetic model's config and matrices, without making it. KeyError: no such preset."""
    p = PRESETS[preset]
    q_dim, kv_dim = p.n_heads * p.head_dim, p.n_kv_heads * p.head_dim

    def matrix(part: str, rows: int, row: int, layer: int = 0) -> MatrixShape:
        return MatrixShape(q4_k_m_type(part, layer, p.n_layers, row, p.tied_output).name, rows, row)

    layers = [
        [
            [
                matrix("attn_q", q_dim, p.hidden, i),
                matrix("attn_k", kv_dim, p.hidden, i),
                matrix("attn_v", kv_dim, p.hidden, i),
            ],
            [matrix("attn_output", p.hidden, q_dim, i)],
            [matrix("ffn_gate", p.ffn, p.hidden, i), matrix("ffn_up", p.ffn, p.hidden, i)],
            [matrix("ffn_down", p.hidden, p.ffn, i)],
        ]
        for i in range(p.n_layers)
    ]
    parts = ("token_embd",) if p.tied_output else ("token_embd", "output")
    config = ModelConfig(
        architecture="qwen2",
        name=preset,
        n_layers=p.n_layers,
        hidden=p.hidden,
        n_heads=p.n_heads,
        n_kv_heads=p.n_kv_heads,
        head_dim=p.head_dim,
        ffn=p.ffn,
        vocab_size=p.vocab_size,
        context_length=p.context_length,
        rms_eps=1e-6,
        rope=RopeConfig(p.head_dim, 1e6, interleaved=False),
        tied_output=p.tied_output,
        has_qkv_bias=True,
        has_qk_norm=False,
    )
    return Shapes(config, layers, [matrix(part, p.vocab_size, p.hidden) for part in parts])


def plan(
    model: Shapes, where: DeviceSpec, n_ctx: int, chunk: int, free: int, route: str = "auto"
) -> MemoryPlan:
    """The plan of the cuda backend on a device with `free` bytes, by a route (auto: the one that it would
    take there); of its ways to have the weights, those in which the GEMMs read f16, unless the route leaves
    nothing to copy.

    Raises:
        EngineError: the model does not fit; the message holds the numbers.
    """
    chosen = choose_route(route, where.arch, {})
    config, ways = model.config, ("resident", "scratch")
    return plan_memory(config, model.layers, model.tables, n_ctx, chunk, chosen, free, where.sms, ways=ways)


@dataclass(frozen=True)
class MemoryReport:
    """Both ways to hold a model, and which of them a device has room for.

    Attributes:
        free: bytes that other programs leave. limit: those minus what is kept in reserve.
        choices: bytes by part, with f16 copies of the weights (True) and without.
        chosen: the plan's choice, None where neither fits; `refusal` then says so.
    """

    device: DeviceSpec
    n_ctx: int
    chunk: int
    free: int
    choices: dict[bool, dict[str, int]]
    chosen: bool | None
    refusal: str | None

    @property
    def limit(self) -> int:
        return self.free - RESERVE_BYTES

    def rows(self) -> list[dict]:
        """One row for each part of either choice: weights, part, bytes, chosen."""
        return [
            {"weights": NAMES[copied], "part": part, "bytes": size, "chosen": copied == self.chosen}
            for copied, parts in self.choices.items()
            for part, size in parts.items()
        ]


NAMES = {True: "f16 copies beside the blocks", False: "blocks, made f16 one matrix at a time"}


def memory_report(
    where: str, n_ctx: int, chunk: int, held_gb: int, preset: str = "qwen2.5-7b"
) -> MemoryReport:
    """How a model would lie on the device with key `where`, of which other programs hold `held_gb` GB.

    Args:
        n_ctx: tokens of the KV cache. chunk: tokens of a prefill pass.

    Raises:
        ValueError: the others hold more than there is. KeyError: no such device.
    """
    gpu, model = device(where), shapes(preset)
    free = int(gpu.memory - held_gb * GB)
    if free <= 0:
        raise ValueError(f"{gpu.name} has {gpu.memory / GB:.0f} GB: others cannot hold {held_gb} GB of it")
    copied = plan(model, gpu, n_ctx, chunk, NO_LIMIT)
    # One byte too few for the copies: what the plan falls back to.
    fallback = plan(model, gpu, n_ctx, chunk, copied.total + RESERVE_BYTES - 1)
    chosen, refusal = None, None
    try:
        chosen = plan(model, gpu, n_ctx, chunk, free).resident
    except EngineError as error:
        refusal = str(error)
    choices = {True: copied.parts, False: fallback.parts}
    return MemoryReport(gpu, n_ctx, chunk, free, choices, chosen, refusal)


def need_rows(contexts: Iterable[int], chunk: int = 2048, preset: str = "qwen2.5-7b") -> list[dict]:
    """GB that must be free on an H200 for each context length: with f16 copies of the weights, without, and
    on the route w4a16, which multiplies the blocks themselves."""
    rows, w4a16 = [], partial(plan, shapes(preset), device("h200"), free=NO_LIMIT, route="w4a16")
    for n_ctx in contexts:
        report = memory_report("h200", n_ctx, chunk, 0, preset)
        blocks, cache, activations, *parts, copies = report.choices[True].values()
        scratch = report.choices[False]["f16 scratch of one matrix"]
        shared = blocks + cache + activations + sum(parts) + RESERVE_BYTES
        rows.append(
            {
                "context": n_ctx,
                "blocks": blocks / GB,
                "KV cache": cache / GB,
                "activations": activations / GB,
                "reserve": RESERVE_BYTES / GB,
                "without f16 copies": (shared + scratch) / GB,
                "with f16 copies": (shared + copies) / GB,
                "w4a16": (w4a16(n_ctx, chunk).total + RESERVE_BYTES) / GB,
            }
        )
    return rows


def device_rows(devices: Sequence[DeviceSpec], n_ctx: int = 32768, chunk: int = 2048) -> list[dict]:
    """What every device has room for, all of its nominal memory being free.

    Rows of device, memory and the room left at `n_ctx` tokens with f16 copies (GB), and the longest context
    (tokens of KV cache) beside the copies and without them.
    """
    model = shapes()
    rows = []
    for gpu in devices:
        free = int(gpu.memory)
        made = plan(model, gpu, n_ctx, chunk, free)
        rows.append(
            {
                "device": gpu.name,
                "memory (GB)": gpu.memory / GB,
                "f16 copies": made.resident,
                "left (GB)": (free - RESERVE_BYTES - made.total) / GB,
                "longest context with copies": longest_context(model, gpu, free, True, chunk),
                "without": longest_context(model, gpu, free, False, chunk),
            }
        )
    return rows


def longest_context(model: Shapes, where: DeviceSpec, free: int, copies: bool, chunk: int = 2048) -> int:
    """The most tokens of KV cache that fit in `free` bytes, with f16 copies of the weights or without.

    0 if there is no room for one token. What the model was trained for is another limit.
    """

    def fits(n_ctx: int) -> bool:
        try:
            return plan(model, where, n_ctx, chunk, free).resident or not copies
        except EngineError:
            return False

    low, high = 0, 1 << 24
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def draw_memory(report: MemoryReport) -> Picture:
    """Both choices as stacked bars against what is free; the chosen one is dark."""
    fig, (ax,) = style.figure(9.6, 3.3)
    for place, (copied, parts) in enumerate(reversed(report.choices.items())):
        left, dark = 0.0, copied == report.chosen
        for colour, size in zip(_colours(parts), parts.values(), strict=True):
            shade = colour if dark else style.tint(colour, 0.65)
            ax.barh(place, size / GB, left=left, height=0.52, color=shade, edgecolor="white")
            left += size / GB
        weight = "bold" if dark else "normal"
        style.beside(ax, left, place, f"{left:.1f} GB", fontweight=weight)
    ax.axvline(report.limit / GB, color=style.RED, linewidth=1.4)
    top = max(sum(parts.values()) for parts in report.choices.values())
    ax.set_xlim(0, max(min(report.limit, 2 * top), top) * 1.18 / GB)
    if report.limit / GB < ax.get_xlim()[1]:
        ax.text(report.limit / GB, 1.42, f" free: {report.limit / GB:.1f} GB", fontsize=8.5, color=style.RED)
    ax.set_ylim(-0.5, 1.7)
    ax.set_yticks(range(2), [NAMES[copied].replace(", ", ",\n") for copied in reversed(report.choices)])
    ax.tick_params(axis="y", labelcolor=style.INK)
    ax.grid(axis="y", visible=False)
    style.label(ax, "memory of the GPU (GB)")
    alike = zip(*report.choices.values(), strict=True)
    for colour, names in zip(_colours(report.choices[True]), alike, strict=True):
        ax.barh(0, 0, color=colour, label=" or ".join(dict.fromkeys(names)))
    style.legend(ax, ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.2))
    verdict = "does not fit" if report.chosen is None else NAMES[report.chosen]
    note = f"{report.n_ctx:,} tokens of context, passes of {report.chunk:,}; {report.free / GB:.1f} GB free"
    style.title(
        ax, f"{report.device.name}: {verdict}", f"{note}, {RESERVE_BYTES / GB:.2f} GB of it in reserve"
    )
    return Picture(fig, f"Memory of the 7B on {report.device.name}: {verdict}", report.rows())


def _colours(parts: Iterable[str]) -> list[str]:
    """Of parts in their order; one that only some routes have takes no other's colour."""
    others = iter(COLOURS)
    return [style.YELLOW if part == PARTS else next(others) for part in parts]


def memory_html(report: MemoryReport) -> str:
    """The chosen plan's parts as a table, or why there is none."""
    if report.chosen is None:
        return notice(escape(report.refusal or ""))
    parts = report.choices[report.chosen]
    rows = [{"part": part, "GB": size / GB} for part, size in parts.items()]
    rows.append({"part": "in all", "GB": sum(parts.values()) / GB})
    return Table(rows, formats={"GB": ".2f"})._repr_html_()


def memory_explorer() -> Explorer:
    """The 7B's memory plan on any device of the table."""
    controls = {
        "where": dropdown({d.name: key for key, d in DEVICES.items()}, "rtx4090", "device"),
        "n_ctx": slider([512, 2048, 4096, 8192, 16384, 32768], 4096, "context"),
        "chunk": slider([128, 512, 1024, 2048, 4096], 2048, "tokens a pass"),
        "held_gb": integers(0, 140, 0, "others hold (GB)"),
    }
    return Explorer("memory plan", controls, memory_report, draw_memory, memory_html)
