"""MMQ: which words a lane multiplies, what a tile stages, and what that takes of an SM."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import Rectangle

from minfer.arithmetic import reference
from minfer.arithmetic.devices import DeviceSpec
from minfer.arithmetic.occupancy import LIMITERS, Occupancy, blocks_per_sm
from minfer.lab import style
from minfer.lab.block_view import RUN, Block
from minfer.lab.fragment_view import lane_colour
from minfer.lab.occupancy_view import draw_limits
from minfer.lab.picture import Picture

if TYPE_CHECKING:
    from minfer.cuda.mmq import MmqConfig

KERNELS = {"R1": ("r1", 64), "narrow": ("raw", 64), "wide": ("raw", 128)}
"""The seed's kernels: how weights are staged, and the tokens of a tile."""
PARTS = {
    "activations": style.BLUE,
    "raw weights": style.ORANGE,
    "expanded weights": style.RED,
    "scales": style.GREEN,
}


def config(kernel: str, kd: int = 8, stages: int = 2) -> MmqConfig:
    """The Q4_K config of one of `KERNELS`.

    Raises:
        KeyError: no such kernel. ConfigRefused: a tile that no device holds.
    """
    from minfer.cuda.mmq import MmqConfig

    variant, tokens = KERNELS[kernel]
    return MmqConfig(variant, "Q4_K", tokens_tile=tokens, kd=kd, stages=stages)


@cache
def registers(kernel: str, kd: int, arch: str) -> int:
    """Registers a thread with two stages, as ptxas reported them (data/reference/mmq-registers.json).

    Raises:
        KeyError: no such kernel, or an architecture that was not compiled for.
    """
    entry = json.loads((reference.FOLDER / "mmq-registers.json").read_text())["registers"]
    name = f"{kernel} KD={kd}"
    if name not in entry or arch not in entry[name]:
        raise KeyError(f"no registers of {name!r} on {arch}; known: {', '.join(entry)}")
    return entry[name][arch]


# ---- words of fragments


def fragment_words(use: str) -> list[dict]:
    """The words of an s8 fragment: lane, register, row (token, or weight row), word (4 k-values each) of the
    chunk. From the tile layer's map; of B the first 8 rows."""
    from minfer.cuda.tile.maps import Fragment

    fragment = Fragment(use, "s8", "row_major" if use == "matrix_a" else "col_major")
    rows = []
    for lane in range(32):
        for register in range(fragment.registers if use == "matrix_a" else 2):
            row, k = fragment.position(lane, 4 * register)
            if use == "matrix_b":
                row, k = k, row
            letter = "a" if use == "matrix_a" else "b"
            rows.append({"lane": lane, "register": f"{letter}{register}", "row": row, "word": k // 4})
    return rows


def unpack_rows(block: Block, chunk: int, lane: int) -> list[dict]:
    """What a lane does with its two words of a chunk of a weight row: where they are, and what comes out of
    a shift and a mask."""
    rows = []
    for word in fragment_words("matrix_b"):
        if word["lane"] != lane:
            continue
        at = 16 + chunk // 2 * RUN + 4 * word["word"]
        raw = int.from_bytes(block.raw[at : at + 4], "little")
        shift = 4 * (chunk % 2)
        first = chunk * RUN + 4 * word["word"]
        rows.append(
            {
                "register": word["register"],
                "bytes": f"{at}-{at + 3}",
                "word": f"{raw:08x}",
                "shift": shift,
                "masked": f"{raw >> shift & 0x0F0F0F0F:08x}",
                "weights": f"{first}-{first + 3}",
            }
        )
    return rows


def draw_words(chunk: int = 0, lane: int = 5) -> Picture:
    """Which lane takes which word of a chunk: 8 weight rows of a Q4_K block, and 16 tokens of pad40."""
    fig, axes = style.figure(9.6, 4.6, columns=2)
    nibble = "high" if chunk % 2 else "low"
    first = 16 + chunk // 2 * RUN
    panels = {
        "matrix_b": ("weights", f"{nibble} nibbles of bytes {first} to {first + 31} of a row's block", first),
        "matrix_a": ("activations", "bytes 4 to 35 of a token's chunk, as they are", 4),
    }
    rows = []
    for ax, (use, (what, note, start)) in zip(axes, panels.items(), strict=True):
        words = fragment_words(use)
        _draw_words(ax, words, lane, start)
        style.label(ax, "byte of the block" if use == "matrix_b" else "byte of the chunk", f"row ({what})")
        style.title(ax, f"{what}: lane {lane} takes {sum(w['lane'] == lane for w in words)} words", note)
        rows += [{"operand": what, **word} for word in words]
    alt = f"Words that the lanes of a warp take of chunk {chunk}: weights and activations, lane {lane}"
    return Picture(fig, alt, rows)


def _draw_words(ax, words: list[dict], lane: int, start: int) -> None:
    style.bare(ax)
    height, width = max(w["row"] for w in words) + 1, 8
    colours = np.ones((height, width, 3))
    for word in words:
        colours[word["row"], word["word"]] = lane_colour(word["lane"])
    style.cells(ax, colours)
    for word in words:
        x, y = word["word"], word["row"]
        mine = word["lane"] == lane
        text = word["register"] if mine else word["lane"]
        style.write(ax, x + 0.5, y + 0.54, text, fontsize=8, fontweight="bold" if mine else "normal")
        if mine:
            ax.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor=style.RED, linewidth=2, zorder=4))
    ax.set_xlim(-0.05, width + 0.05)
    ax.set_ylim(height + 0.05, -0.05)
    ax.set_xticks(range(width), [start + 4 * i for i in range(width)])
    ax.set_yticks([r + 0.5 for r in range(height)], range(height))
    ax.tick_params(length=0)


# ---- what a tile stages


def shared_parts(made: MmqConfig) -> dict[str, int]:
    """Bytes of shared memory by purpose; they add up to the config's."""
    return {
        "activations": made.stages * made.activation_bytes,
        "raw weights": made.stages * (made.stage_bytes - made.activation_bytes),
        "expanded weights": 2 * made.word_bytes,
        "scales": 2 * made.scale_bytes,
    }


def ledger_rows(kd: int = 8) -> list[dict]:
    """What a block of each kernel does for one k-tile, in bytes and words."""
    rows = []
    for kernel in KERNELS:
        made = config(kernel, kd)
        weights = made.rows_tile * made.block_bytes * kd // 8
        activations = made.tokens_tile * kd * 40
        words = made.rows_tile * kd * RUN // 4
        raw = made.variant == "raw"
        rows.append(
            {
                "kernel": kernel,
                "tile": f"{made.tokens_tile} x {made.rows_tile} x {kd * RUN}",
                "by cp.async (B)": activations + (made.rows_tile * made.block_bytes if raw else 0),
                "through registers (B)": 0 if raw else weights,
                "expanded, stored (B)": 0 if raw else 4 * words,
                "words unpacked": words * (made.warps_tokens if raw else 1),
                "where": "between two mma" if raw else "on the way in",
                "bytes of weights a kMAC": round(weights / (made.tokens_tile * words * 4) * 1000, 2),
            }
        )
    return rows


@dataclass(frozen=True)
class Depth:
    """A kernel at a KD on a device."""

    kernel: str
    config: MmqConfig
    held: Occupancy


def depth(kernel: str, kd: int, device: DeviceSpec, stages: int = 2) -> Depth:
    """Residency of a kernel at a KD; one that is refused has 0 blocks, and says why.

    Raises:
        ConfigRefused: more shared memory than any device has.
    """
    made = config(kernel, kd, stages)
    held = blocks_per_sm(device, made.threads, registers(kernel, kd, device.arch), made.shared_bytes)
    return Depth(kernel, made, held)


def depth_rows(devices: Sequence[DeviceSpec], kds: Sequence[int] = (4, 8)) -> list[dict]:
    """Every kernel and KD: shared memory, and blocks an SM with the limiter on each device."""
    rows = []
    for kernel in KERNELS:
        for kd in kds:
            row: dict = {"kernel": kernel, "KD": kd, "shared (B)": config(kernel, kd).shared_bytes}
            for device in devices:
                held = depth(kernel, kd, device).held
                limiter = "refused" if held.refusal else LIMITERS[held.limiter]
                row[f"blocks, {device.key}"] = f"{held.blocks} ({limiter})"
            rows.append(row)
    return rows


def draw_shared(devices: Sequence[DeviceSpec]) -> Picture:
    """Shared memory of every kernel and KD by purpose, against what a block may use on each device."""
    fig, (ax,) = style.figure(9.6, 3.6)
    names, rows = [], []
    for kernel in KERNELS:
        for kd in (4, 8):
            made = config(kernel, kd)
            names.append(f"{kernel} KD={kd}")
            rows += [
                {"kernel": kernel, "kd": kd, "part": part, "bytes": size}
                for part, size in shared_parts(made).items()
            ]
    _stack(ax, names, rows)
    for device in devices:
        ax.axvline(device.shared_per_block, color=style.INK, linewidth=1.2, linestyle=(0, (4, 3)))
        name = device.name.removeprefix("NVIDIA ").split(" ")[0]
        ax.annotate(
            name,
            (device.shared_per_block, 1),
            (3, -3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=8.5,
            va="top",
            color=style.INK,
        )
    ax.set_xlim(0, max(device.shared_per_block for device in devices) * 1.08)
    style.kib_axis(ax)
    style.label(ax, "shared memory of a block (KiB)")
    style.legend_below(fig, ax)
    note = "raw weights come in whole super-blocks at any KD; dashed: what a block may use"
    style.title(ax, "KD doubles the activations, not the raw weights", note)
    return Picture(fig, "Shared memory of the MMQ kernels by purpose, and the devices' caps", rows)


def _stack(ax, names: list[str], rows: list[dict]) -> None:
    left = np.zeros(len(names))
    for part, colour in PARTS.items():
        sizes = np.array([row["bytes"] for row in rows if row["part"] == part])
        if sizes.any():
            ax.barh(range(len(names)), sizes, left=left, height=0.62, color=colour, label=part)
        left += sizes
    for place, total in enumerate(left):
        style.beside(ax, total, place, f"{total:,.0f} B", fontsize=8)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)


def draw_depth(found: Depth) -> Picture:
    """A block's shared memory against the device's cap, and what each resource allows."""
    device = found.held.device
    fig, (left, right) = style.figure(9.6, 3.2, columns=2, width_ratios=(1.25, 1))
    kd = found.config.kd
    parts = shared_parts(found.config)
    rows: list[dict] = [{"panel": "shared", "part": part, "bytes": size} for part, size in parts.items()]
    _stack(left, [f"{found.kernel}\nKD={kd}"], rows)
    cap = device.shared_per_block
    left.axvline(cap, color=style.RED if found.held.refusal else style.INK, linewidth=1.6, label="cap")
    left.set_xlim(0, 1.25 * max(cap, found.config.shared_bytes))
    left.set_ylim(0.9, -0.6)
    style.kib_axis(left)
    style.legend_below(fig, left)
    style.label(left, "shared memory of a block (KiB)")
    verdict = "over the cap" if found.held.refusal else "fits"
    style.title(left, f"{found.config.shared_bytes:,} B: {verdict}", f"{device.name} allows {cap:,} B")
    rows += [{"panel": "limits", **row} for row in draw_limits(right, found.held)]
    blocks = found.held.blocks
    verdict = f"{blocks} block{'s' * (blocks > 1)} an SM" if blocks else "refused"
    style.title(right, verdict, f"limited by {LIMITERS[found.held.limiter]}")
    alt = f"Shared memory of the {found.kernel} kernel at KD={kd} on {device.name}: {found.held}"
    return Picture(fig, alt, rows)


# ---- the kernels themselves


@dataclass(frozen=True)
class ToyMmq:
    """One simulated product of Q4_K weights.

    Attributes:
        name: of the kernel. out: f32 [nt, od]. exact: its integer sums are NumPy's, every one.
        error: greatest difference from the product in float64, relative to the terms' magnitudes.
        unwritten: outputs that still hold their poison.
    """

    name: str
    out: np.ndarray
    exact: bool
    error: float
    unwritten: int


def toy_operands(nt: int, od: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows of the project's model as raw blocks, seeded activations as chunks), 256 deep."""
    from minfer.cuda.reference import pack_pad40, quantize_pad40
    from minfer.lab.block_view import FILE, TENSOR
    from minfer.model.model import Model

    weights = np.ascontiguousarray(Model.load(FILE).file.raw(TENSOR)[:od])
    x = np.random.default_rng(0).standard_normal((nt, 256)).astype(np.float32)
    return weights.reshape(od, -1), pack_pad40(*quantize_pad40(x))


def simulate(kernel: str, kd: int = 8, nt: int = 9, od: int = 10) -> ToyMmq:
    """Run a kernel in the simulator on poisoned outputs, for its f32 result and for its integer sums."""
    from minfer.cuda import simulator
    from minfer.cuda.mmq import mmq
    from minfer.cuda.mmq.reference import integer_sums, product

    made = config(kernel, kd)
    weights, chunks = toy_operands(nt, od)
    out = np.full((nt, od), np.nan, np.float32)
    simulator.launch(mmq(made), made.grid(nt, od), weights, chunks, out, nt, od, 256)
    whole = replace(made, out="sums")
    sums = np.full(whole.sums_shape(nt, od, 256), -(2**31), np.int32)
    simulator.launch(mmq(whole), whole.grid(nt, od), weights, chunks, sums, nt, od, 256)
    wanted, magnitude = product("Q4_K", weights, chunks)
    return ToyMmq(
        name=f"{kernel} KD={kd}",
        out=out,
        exact=bool(np.array_equal(sums, integer_sums("Q4_K", weights, chunks))),
        error=float((np.abs(out - wanted) / magnitude).max()),
        unwritten=int(np.isnan(out).sum()),
    )


def toy_rows(runs: Sequence[ToyMmq]) -> list[dict]:
    """The runs beside the first one."""
    return [
        {
            "kernel": run.name,
            "integer sums exact": run.exact,
            "error under 1e-6": run.error < 1e-6,
            "unwritten": run.unwritten,
            "same bits as the first": bool(np.array_equal(run.out, runs[0].out)),
        }
        for run in runs
    ]
