"""A decoded token in arithmetic: the bytes that it reads, the kernels that it launches, its least time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from minfer.arithmetic.devices import DEVICES, H200
from minfer.arithmetic.ledger import bits_a_weight
from minfer.arithmetic.roofline import RooflinePoint, decode_limit, roofline
from minfer.arithmetic.work import MATRICES, QWEN25_7B, decode_bytes, qwen25_7b_q4_k_m
from minfer.campaign.ceilings import ceilings_of
from minfer.lab import style
from minfer.lab.explorer import Explorer, integers, notice
from minfer.lab.picture import Picture
from minfer.lab.roofline_view import draw_roofline
from minfer.lab.table import Table

TYPES = qwen25_7b_q4_k_m()
STACKS = {"q+k+v": ("q", "k", "v"), "o": ("o",), "gate+up": ("gate", "up"), "down": ("down",)}
"""The products of a layer -> their matrices."""
COLOURS = {
    "q+k+v": style.SKY,
    "o": style.PINK,
    "gate+up": style.BLUE,
    "down": style.GREEN,
    "lm_head": style.ORANGE,
    "KV cache": style.RED,
    "launches": style.QUIET,
}
READ = ceilings_of(H200.name).read
"""Bytes a second that an H200 was measured to read (`minfer ceilings`)."""
CONTEXT = 64
"""Tokens in the cache of an average step of a 128-token decode."""


# ---- bytes


def byte_rows(bandwidth: float = READ, context: int = CONTEXT) -> list[dict]:
    """What a token reads: stack and format, how many matrices, MB, share, and us at `bandwidth` (bytes a
    second)."""
    found: dict[tuple[str, str], list[float]] = {}
    for stack, names in STACKS.items():
        for name in names:
            for kind in TYPES[name]:
                size = QWEN25_7B.weights(name) * bits_a_weight(kind) / 8
                found.setdefault((stack, kind), []).append(size)
    head = TYPES["lm_head"][0]
    found["lm_head", head] = [QWEN25_7B.weights("lm_head") * bits_a_weight(head) / 8]
    cache_bytes = decode_bytes(QWEN25_7B, TYPES, context) - decode_bytes(QWEN25_7B, TYPES)
    found["KV cache", f"f16, {context:,} tokens"] = [cache_bytes]
    total = decode_bytes(QWEN25_7B, TYPES, context)
    return [
        {
            "stack": stack,
            "format": kind,
            "matrices": len(sizes) if stack != "KV cache" else None,
            "MB": sum(sizes) / 1e6,
            "share": sum(sizes) / total,
            "us": sum(sizes) / bandwidth * 1e6,
        }
        for (stack, kind), sizes in found.items()
    ]


def limits() -> list[dict]:
    """Tokens a second that reading at READ allows, over the context."""
    return [
        {
            "context": context,
            "GB a token": decode_bytes(QWEN25_7B, TYPES, context) / 1e9,
            "at most (tok/s)": decode_limit(READ, decode_bytes(QWEN25_7B, TYPES, context)),
        }
        for context in (0, CONTEXT, 2048, 8192, 32768)
    ]


def intensity_rows(batches: Sequence[int] = (1, 2, 4, 16, 64, 256, 2048)) -> list[dict]:
    """FLOP a byte of the 7B's matrices when so many tokens share a read of the weights."""
    return [
        {"tokens": n, "FLOP a byte": p.intensity, "wall": p.wall, "of the tensor peak": p.fraction}
        for n in batches
        for p in (_point(n),)
    ]


def _point(tokens: int) -> RooflinePoint:
    weights = QWEN25_7B.layers * QWEN25_7B.weights(*MATRICES) + QWEN25_7B.weights("lm_head")
    return roofline(H200, 2 * weights * tokens, decode_bytes(QWEN25_7B, TYPES), bandwidth=READ)


def draw_intensity(batches: Sequence[int] = (1, 16, 2048)) -> Picture:
    """The 7B's matrices on the H200's roofline, for one token and for many."""
    fig, (ax,) = style.figure(9.6, 3.8)
    names = {f"{n:,} token{'s' if n > 1 else ''}": _point(n) for n in batches}
    rows = draw_roofline(ax, H200, names)
    style.title(ax, "A token alone uses the tensor cores for nothing: it waits for bytes", H200.name)
    return Picture(fig, f"Roofline of the 7B's matrices on an H200 for {', '.join(names)}", rows)


# ---- a token's least time, with what launching adds


@dataclass(frozen=True)
class Token:
    """A decoded token as arithmetic has it: seconds of reading matrices and cache, and of launches."""

    bandwidth: float
    context: int
    kernels: int
    launch: float
    matrices: float
    cache: float
    launches: float

    @property
    def seconds(self) -> float:
        return self.matrices + self.cache + self.launches

    @property
    def tok_s(self) -> float:
        return 1 / self.seconds


def token(bandwidth: float = READ, context: int = CONTEXT, layer: int = 5, launch: float = 0.0) -> Token:
    """The time of a token.

    Args:
        bandwidth: bytes a second. layer: kernels a layer; three more stand around the layers (embedding,
            lm_head, choice). launch: seconds that each kernel adds.

    Raises:
        ValueError: a bandwidth of nothing, or a negative context, count or time.
    """
    if bandwidth <= 0 or min(context, layer, launch) < 0:
        raise ValueError("bandwidth is above 0; context, kernels and time a kernel are not below")
    kernels = QWEN25_7B.layers * layer + 3
    matrices = decode_bytes(QWEN25_7B, TYPES)
    rest = decode_bytes(QWEN25_7B, TYPES, context) - matrices
    return Token(
        bandwidth, context, kernels, launch, matrices / bandwidth, rest / bandwidth, kernels * launch
    )


def draw_token(found: Token) -> Picture:
    """The token's time in parts, and tokens a second over the context at the same bandwidth."""
    fig, (ax, curve) = style.figure(9.6, 3.6, columns=2, width_ratios=(1, 1.25))
    parts = {
        "matrices": (found.matrices, style.BLUE),
        "KV cache": (found.cache, style.RED),
        "launches": (found.launches, style.ORANGE),
    }
    bottom = 0.0
    for name, (seconds, colour) in parts.items():
        ax.bar(
            0, seconds * 1e3, bottom=bottom, width=0.5, color=colour, label=f"{name} {seconds * 1e3:.3f} ms"
        )
        bottom += seconds * 1e3
    ax.set_xlim(-0.5, 1.6)
    ax.set_xticks([0], ["one token"], color=style.INK)
    ax.grid(axis="x", visible=False)
    style.label(ax, "decode", "time (ms)")
    style.legend(ax, loc="upper right")
    style.title(ax, f"{found.tok_s:,.0f} tokens a second", f"{found.bandwidth / 1e9:,.0f} GB/s")
    contexts = np.geomspace(32, 32768, 50)
    layer = (found.kernels - 3) // QWEN25_7B.layers
    rates = [token(found.bandwidth, int(n), layer, found.launch).tok_s for n in contexts]
    free = [token(found.bandwidth, int(n), layer).tok_s for n in contexts]
    curve.plot(contexts, free, color=style.SKY, linestyle="--", linewidth=1.8, label="launches for nothing")
    curve.plot(contexts, rates, color=style.BLUE, linewidth=2.2, label="with launches")
    curve.plot(
        max(found.context, 32), found.tok_s, "o", color=style.RED, markeredgecolor="white", markersize=9
    )
    curve.set_xscale("log", base=2)
    ticks = [32, 256, 2048, 32768]
    curve.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    curve.set_ylim(0, max(free) * 1.12)
    style.label(curve, "tokens in the KV cache", "decode (tokens a second)")
    style.legend(curve, loc="lower left")
    style.title(curve, "A context costs what its K and V weigh", f"{found.kernels} kernels a token")
    rows = [{"part": name, "ms": seconds * 1e3} for name, (seconds, _) in parts.items()]
    alt = f"A token of the 7B at {found.bandwidth / 1e9:,.0f} GB/s and {found.context:,} tokens of context"
    return Picture(fig, alt, rows)


def token_explorer() -> Explorer:
    """Bandwidth, context, kernels a layer and time a kernel -> the token's time."""
    most = int(max(d.bandwidth for d in DEVICES.values()) / 1e9)
    bandwidth = integers(250, most, round(READ / 1e10) * 10, "read (GB/s)")
    bandwidth.step = 10
    controls = {
        "bandwidth": bandwidth,
        "context": integers(0, 32768, 2048, "context (tokens)"),
        "layer": integers(1, 16, 5, "kernels a layer"),
        "launch": integers(0, 25000, 850, "a kernel (ns)"),
    }

    def report(bandwidth: int, context: int, layer: int, launch: int) -> Token:
        return token(bandwidth * 1e9, context, layer, launch * 1e-9)

    def html(found: Token) -> str:
        limit = 1 / (found.matrices + found.cache)
        head = notice(f"{found.tok_s:,.0f} tokens a second, {found.tok_s / limit:.0%} of the memory's limit")
        rows = [
            {
                "quantity": "read a token",
                "value": f"{(found.matrices + found.cache) * found.bandwidth / 1e9:.3f} GB",
            },
            {"quantity": "memory's limit", "value": f"{limit:,.0f} tok/s"},
            {"quantity": "launches", "value": f"{found.kernels} kernels, {found.launches * 1e3:.3f} ms"},
        ]
        return head + Table(rows, {"quantity": "", "value": ""})._repr_html_()

    return Explorer("a token", controls, report, draw_token, html)


# ---- the kernels of a step


@cache
def step_kernels(fused: bool = False) -> tuple[str, ...]:
    """The kernels that a decode step of the project's small model launches on Hopper, in order; the engine's
    own forward, on a device that only remembers.

    Args:
        fused: one kernel for the layers (`Route.token_kernel`) instead of one an operation.
    """
    from minfer.engine.cuda.backend import CudaBackend
    from minfer.engine.cuda.devices import DryDevice
    from minfer.engine.cuda.routes import choose_route
    from minfer.engine.transformer import Buffers, forward
    from minfer.lab.generate import TINY
    from minfer.model.model import Model

    model, device = Model.load(str(TINY)), DryDevice()
    route = choose_route("auto", device.arch, {})
    route = route if fused else replace(route, token_kernel=None)
    backend = CudaBackend(route, device, on_plan=lambda line: None)
    runtime = backend.open(model, 256, "f16", 128)
    buffers = Buffers.allocate(runtime, model.config, 128, 1)
    runtime.set_tokens([0], 200)
    device.launches.clear()
    forward(runtime, model.config, buffers, 1, "last")
    runtime.read(buffers.logits[:1])  # what waits for the choice of a token is launched now
    return tuple(kernel.name for kernel in device.launches)


def layers() -> int:
    """Layers of the project's small model."""
    from minfer.lab.generate import TINY
    from minfer.model.model import Model

    return Model.load(str(TINY)).config.n_layers


def kernel_rows(fused: bool = False) -> list[dict]:
    """The kernels of a decode step of the small model, and how often each is launched."""
    return [{"kernel": name, "launches": count} for name, count in Counter(step_kernels(fused)).items()]


def token_kernels() -> int:
    """Kernels of a token of the 7B where each operation is one: those of the small model's layers for each of
    its 28 (in both half of the layers hold v in a format of its own), and embedding, last norm and output
    matrix."""
    return round((len(step_kernels()) - 3) / layers() * QWEN25_7B.layers) + 3
