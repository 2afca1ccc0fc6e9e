"""The phantom: a launch over the shared-memory cap whose reports nobody reads, and what then is measured.

The seed's wide kernel at KD=8 asked for more shared memory than its GPU gives a block. The driver said so
twice; both reports were dropped, the kernel never ran, and the prefill came out 4.5 times as fast. Here the
same two calls are answered by the arithmetic of a device of the table, and kernels that are let through run
in the simulator; on a machine with a GPU its driver answers (`on_this_gpu`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.patches import Rectangle

from minfer.arithmetic.devices import DeviceSpec
from minfer.arithmetic.ledger import mmq_shared_bytes
from minfer.arithmetic.reference import figure
from minfer.arithmetic.work import MATRICES, QWEN25_7B, qwen25_7b_q4_k_m
from minfer.campaign.records import load_records, newest_measured
from minfer.lab import style
from minfer.lab.mmq_view import PARTS, config, shared_parts, toy_operands
from minfer.lab.picture import Picture

SUCCESS, INVALID_VALUE = "CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE"
TOKENS = 2048
TOY = (9, 10)
"""Tokens and rows of the toy product."""


class NothingRan(RuntimeError):
    """A benchmark's refusal: outputs that nobody wrote are no result, so their time is no speed."""


@dataclass(frozen=True)
class Attempt:
    """One launch.

    Attributes:
        kernel: its name. asked, allowed: bytes of shared memory a block. device: whose.
        opt_in, launch: what the driver said to setting the attribute and to the launch.
        out: f32, poisoned with NaN before. refusal: what the launcher raised, None where it kept quiet.
    """

    kernel: str
    asked: int
    allowed: int
    device: str
    opt_in: str
    launch: str
    out: np.ndarray
    refusal: str | None = None

    @property
    def unwritten(self) -> int:
        """Outputs that still hold their poison."""
        return int(np.isnan(self.out).sum())


class ToyDriver:
    """The two calls of a launch, answered as a driver answers them on a device of the table."""

    def __init__(self, device: DeviceSpec) -> None:
        self.device = device
        self._opted = 48 * 1024

    def set_shared(self, nbytes: int) -> str:
        """cuFuncSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)."""
        if nbytes > self.device.shared_per_block:
            return INVALID_VALUE
        self._opted = max(self._opted, nbytes)
        return SUCCESS

    def launch(self, nbytes: int, run) -> str:
        """cuLaunchKernel: calls `run` where the block gets its memory, and does nothing where not."""
        if nbytes > self._opted:
            return INVALID_VALUE
        run()
        return SUCCESS


def attempt(
    kernel: str,
    kd: int,
    device: DeviceSpec,
    *,
    heed: bool = False,
    stages: int = 2,
    simulate: bool = True,
    before: np.ndarray | None = None,
) -> Attempt:
    """Launch a kernel of the family as the seed's launcher did (heed=False: no status is looked at), or as
    this project's does (heed=True: the first one that is not success is an error).

    Args:
        simulate: False takes the result of a launch that is let through from NumPy, for sliders.
        before: what lies in the output buffer; poison by default.

    Raises:
        ConfigRefused: more shared memory than any device has.
    """
    from minfer.cuda.kernel import LaunchRefused
    from minfer.cuda.mmq import mmq

    made, driver, (nt, od) = config(kernel, kd, stages), ToyDriver(device), TOY
    weights, chunks = toy_operands(nt, od)
    out = np.full((nt, od), np.nan, np.float32) if before is None else before.copy()
    name = f"{kernel} KD={kd}"

    def run() -> None:
        if simulate:
            from minfer.cuda import simulator

            simulator.launch(mmq(made), made.grid(nt, od), weights, chunks, out, nt, od, 256)
        else:
            from minfer.cuda.mmq.reference import product

            out[...] = product("Q4_K", weights, chunks)[0]

    asked, allowed = made.shared_bytes, device.shared_per_block
    opt_in = driver.set_shared(asked)
    if heed and opt_in != SUCCESS:
        error = LaunchRefused(
            "mmq", made, asked, allowed, device.name, "bytes of shared memory a block", "use KD=4"
        )
        return Attempt(name, asked, allowed, device.name, opt_in, "not called", out, str(error))
    status = driver.launch(asked, run)
    return Attempt(name, asked, allowed, device.name, opt_in, status, out)


def on_this_gpu() -> Attempt:
    """The same on the GPU in use: a kernel that runs, launched with one KiB more than its cap, its statuses
    unheeded. Harmless: what the driver refuses does not run.

    Raises:
        NoDevice: there is no GPU.
    """
    from minfer.cuda import runtime
    from minfer.cuda.mmq import mmq
    from minfer.cuda.runtime.sandbox import launch_unheeded

    gpu, made, (nt, od) = runtime.device(), config("narrow", 4), TOY
    weights, chunks = toy_operands(nt, od)
    out = runtime.to_device(np.full((nt, od), np.nan, np.float32))
    asked = gpu.shared_optin_bytes + 1024
    inputs = runtime.to_device(weights), runtime.to_device(chunks)
    said = launch_unheeded(runtime.load(mmq(made)), asked, made.grid(nt, od), *inputs, out, nt, od, 256)
    name, allowed = "narrow KD=4", gpu.shared_optin_bytes
    return Attempt(name, asked, allowed, gpu.name, said.opt_in, said.launch, out.to_host())


MEASURED = ("phantom: outputs unwritten, %", "phantom: bytes over the cap")


def recorded(device: str = "h200") -> str:
    """What the newest run of the GPU tests on a device saw of the phantom, in a sentence.

    Raises:
        RecordError: no run looked.
    """
    record = newest_measured(load_records(), device, MEASURED)
    unwritten, over = (record.figure(name) for name in MEASURED)
    return f"{over:,.0f} B over the cap: {unwritten:.0f} % of the outputs unwritten ({record.origin})"


def speed(tried: Attempt, seconds: float, tokens: int = TOKENS) -> float:
    """Tokens a second of a launch that took `seconds`.

    Raises:
        NothingRan: outputs hold their poison: whatever the clock says, it timed nothing.
    """
    if tried.unwritten:
        raise NothingRan(
            f"{tried.kernel}: {tried.unwritten} of {tried.out.size} outputs were never written; the driver "
            f"said {tried.opt_in} to the opt-in and {tried.launch} to the launch of {tried.asked:,} B, "
            f"{tried.allowed:,} are allowed: no speed is reported"
        )
    return tokens / seconds


def parity(tried: Attempt) -> bool:
    """Whether the outputs are those of NumPy, as a test would ask that looks at nothing else."""
    from minfer.cuda.mmq.reference import product

    wanted, magnitude = product("Q4_K", *toy_operands(*tried.out.shape))
    return bool((np.abs(tried.out - wanted) <= 1e-6 * magnitude + 1e-9).all())


def verdict(tried: Attempt, seconds: float) -> str:
    """What a benchmark that looks at its outputs reports."""
    if tried.refusal is not None:
        return f"refused: {tried.refusal}"
    try:
        return f"{speed(tried, seconds):,.0f} tok/s"
    except NothingRan as error:
        return f"refused: {error}"


def attempt_rows(attempts: Sequence[Attempt]) -> list[dict]:
    """What was asked, what the driver said, and what is in the outputs."""
    return [
        {
            "kernel": tried.kernel,
            "device": tried.device,
            "asked (B)": tried.asked,
            "allowed (B)": tried.allowed,
            "opt-in": tried.opt_in,
            "launch": tried.launch,
            "raised": tried.refusal is not None,
            "unwritten": f"{tried.unwritten} of {tried.out.size}",
        }
        for tried in attempts
    ]


# ---- the arithmetic of the cap


def cap_rows(devices: Sequence[DeviceSpec]) -> list[dict]:
    """The wide tile by the seed's own formula and by what ours stages, against each device's cap."""
    rows = []
    for kd in (4, 8):
        asked = {
            "seed": mmq_shared_bytes(kd, tokens=128, rows=128, scale_stages=2).total,
            "minfer": config("wide", kd).shared_bytes,
        }
        for whose, nbytes in asked.items():
            row: dict = {"wide tile": whose, "KD": kd, "asked (B)": nbytes}
            for device in devices:
                over = nbytes - device.shared_per_block
                row[f"{device.key} ({device.shared_per_block:,} B)"] = (
                    f"{over:,} B over" if over > 0 else "fits"
                )
            rows.append(row)
    return rows


# ---- what the clock timed


@dataclass(frozen=True)
class Walls:
    """Seconds of the seed's 2048-token prefills, and what they are made of if the raw kernels, which took
    Q4_K alone, were what fell silent.

    Attributes:
        r1, raw, phantom, f16: whole prefills, from the published rates.
        q6_share: of the weights' MACs that are Q6_K, which R1 went on computing.
        gemm: R1's time in all GEMMs. other: everything else. Solved from r1 and phantom.
    """

    r1: float
    raw: float
    phantom: float
    f16: float
    q6_share: float

    @property
    def gemm(self) -> float:
        return (self.r1 - self.phantom) / (1 - self.q6_share)

    @property
    def other(self) -> float:
        return self.phantom - self.q6_share * self.gemm


def walls() -> Walls:
    """From seed 003's published rates and the 7B's shapes."""
    keys = ("mmq.r1.tok_s", "mmq.raw.tok_s", "mmq.wide.phantom", "prefill.f16")
    seconds = [TOKENS / figure("003", key).value for key in keys]
    return Walls(*seconds, q6_share=_share("Q6_K"))


def _share(format: str) -> float:
    types = qwen25_7b_q4_k_m()
    weights = {name: QWEN25_7B.weights(name) for name in MATRICES}
    mine = sum(weights[name] for name in MATRICES for kind in types[name] if kind == format)
    return mine / (QWEN25_7B.layers * sum(weights.values()))


def wall_rows(found: Walls) -> list[dict]:
    """The published rates as seconds, next to the f16 prefill."""
    names = {
        "R1": found.r1,
        "raw narrow KD=8": found.raw,
        "the phantom": found.phantom,
        "f16, for comparison": found.f16,
    }
    return [
        {"prefill": name, "tok/s": round(TOKENS / s), "seconds": round(s, 3), "of R1": f"{s / found.r1:.0%}"}
        for name, s in names.items()
    ]


def needed_tops(found: Walls) -> float:
    """The rate, in 1e12 operations a second, that the phantom would have needed for all of its GEMMs."""
    macs = QWEN25_7B.layers * QWEN25_7B.weights() * TOKENS
    return 2 * macs / found.phantom / 1e12


def draw_walls(found: Walls) -> Picture:
    """What R1's second is made of, and what of it the phantom left."""
    q6 = found.q6_share * found.gemm
    q4 = found.gemm - q6
    bars = {
        "R1": {"Q4_K products": q4, "Q6_K products": q6, "the rest": found.other},
        "the phantom": {"Q4_K products": 0.0, "Q6_K products": q6, "the rest": found.other},
    }
    colours = {"Q4_K products": style.ORANGE, "Q6_K products": style.PINK, "the rest": style.BLUE}
    fig, (ax,) = style.figure(9.6, 2.9)
    rows = [
        {"prefill": name, "part": part, "seconds": s}
        for name, parts in bars.items()
        for part, s in parts.items()
    ]
    left = np.zeros(len(bars))
    for part, colour in colours.items():
        sizes = np.array([parts[part] for parts in bars.values()])
        ax.barh(range(len(bars)), sizes, left=left, height=0.55, color=colour, label=part)
        left += sizes
    ax.barh(len(bars), found.f16, height=0.55, color=style.RULE, label="f16 route, whole")
    for place, total in enumerate([*left, found.f16]):
        style.beside(ax, total, place, f"{total:.2f} s = {TOKENS / total:,.0f} tok/s")
    ax.set_yticks(range(len(bars) + 1), [*bars, "f16"])
    ax.invert_yaxis()
    ax.set_xlim(0, 1.22 * found.r1)
    ax.grid(axis="y", visible=False)
    style.legend(ax, loc="lower right", ncols=2)
    style.label(ax, "seconds of a prefill of 2048 tokens")
    note = "GB10, 2026-09-01, seed 003; the split follows from the two walls and the share of Q6_K"
    style.title(ax, "The phantom is R1 without its Q4_K products", note)
    rows.append({"prefill": "f16", "part": "whole", "seconds": found.f16})
    return Picture(fig, "Seconds of R1's prefill by part, and what the phantom left of them", rows)


def draw_attempt(tried: Attempt, kernel: str, kd: int, stages: int = 2) -> Picture:
    """A block's shared memory against the cap, and what is in the outputs after the launch."""
    fig, (left, right) = style.figure(9.6, 3.6, columns=2, width_ratios=(1.15, 1))
    at = 0
    rows: list[dict] = []
    for part, size in shared_parts(config(kernel, kd, stages)).items():
        if size:
            left.barh(0, size, left=at, height=0.5, color=PARTS[part], label=part)
        at += size
        rows.append({"panel": "shared", "part": part, "bytes": size})
    over = tried.asked > tried.allowed
    left.axvline(tried.allowed, color=style.RED if over else style.INK, linewidth=1.6, label="cap")
    left.set_xlim(0, 1.15 * max(tried.asked, tried.allowed))
    left.set_ylim(0.9, -0.6)
    left.set_yticks([])
    style.kib_axis(left)
    style.legend_below(fig, left)
    style.label(left, "shared memory of a block (KiB)")
    excess = f"{tried.asked - tried.allowed:,} B over the cap" if over else "under the cap"
    style.title(left, f"{tried.asked:,} B: {excess}", f"{tried.device} allows {tried.allowed:,} B")
    rows += _draw_outputs(right, tried)
    alt = (
        f"{tried.kernel} on {tried.device}: {excess}, {tried.unwritten} of {tried.out.size} outputs unwritten"
    )
    return Picture(fig, alt, rows)


def _draw_outputs(ax, tried: Attempt) -> list[dict]:
    style.bare(ax)
    height, width = tried.out.shape
    top = float(np.nanmax(np.abs(tried.out))) if tried.unwritten < tried.out.size else 1.0
    colours = np.ones((height, width, 3))
    rows: list[dict] = []
    for (t, r), value in np.ndenumerate(tried.out):
        poison = bool(np.isnan(value))
        colour = style.RED if poison else (style.BLUE if value >= 0 else style.ORANGE)
        colours[t, r] = style.tint(colour, 0.45 if poison else 1 - 0.9 * abs(float(value)) / top)
        text = "NaN" if poison else f"{value + 0.0:.1f}".replace("-0.0", "0.0")
        rows.append({"panel": "outputs", "token": t, "row": r, "written": not poison})
        style.write(ax, r + 0.5, t + 0.54, text, fontsize=6.5)
    style.cells(ax, colours)
    ax.add_patch(Rectangle((0, 0), width, height, fill=False, edgecolor=style.RULE, linewidth=1))
    ax.set_xlim(-0.05, width + 0.05)
    ax.set_ylim(height + 0.05, -0.05)
    ax.set_xticks([r + 0.5 for r in range(width)], range(width))
    ax.set_yticks([t + 0.5 for t in range(height)], range(height))
    ax.tick_params(length=0)
    style.label(ax, "output row", "token")
    written = tried.out.size - tried.unwritten
    style.title(ax, f"{written} of {tried.out.size} outputs written", f"launch: {tried.launch}")
    return rows
