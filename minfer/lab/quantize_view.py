"""Activations as int8: a pad40 chunk byte by byte, and what the passes that make them ask of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.patches import Rectangle

from minfer.campaign.ceilings import ceilings_of
from minfer.campaign.records import GpuTests, load_records, newest_measured
from minfer.lab import style
from minfer.lab.picture import Picture

RUN, CHUNK_BYTES, COPY_BYTES = 32, 40, 8
PARTS = (
    ("d, f16", 0, 2, style.BLUE),
    ("zero", 2, 4, style.RULE),
    ("32 int8", 4, 36, style.SKY),
    ("their sum, int32", 36, 40, style.ORANGE),
)
"""Bytes of a chunk: name, start, stop, colour."""


@dataclass(frozen=True)
class Chunk:
    """32 activations and the 40 bytes that stand for them."""

    x: np.ndarray
    raw: bytes

    @property
    def d(self) -> float:
        return float(np.frombuffer(self.raw, np.float16, 1, 0)[0])

    @property
    def q(self) -> np.ndarray:
        """int8 [32]."""
        return np.frombuffer(self.raw, np.int8, RUN, 4)

    @property
    def sum(self) -> int:
        return int(np.frombuffer(self.raw, np.int32, 1, 36)[0])

    @property
    def error(self) -> float:
        """The greatest difference between an activation and what is stored for it, in steps of d."""
        return float(np.abs(self.q * np.float64(self.d) - self.x).max() / self.d)


def chunk_of(x: np.ndarray) -> Chunk:
    """The chunk of 32 activations, by the NumPy reference."""
    from minfer.cuda.reference import pack_pad40, quantize_pad40

    return Chunk(x, pack_pad40(*quantize_pad40(x[None])).tobytes())


def toy_activations(seed: int = 0) -> np.ndarray:
    """32 seeded values, one of them large, as activations often are."""
    x = np.random.default_rng(seed).standard_normal(RUN).astype(np.float32)
    x[12] *= 2
    return x


def chunk_rows(chunk: Chunk) -> list[dict]:
    """What the parts of a chunk hold."""
    here = {
        "d, f16": f"{chunk.d:.6g} = max|x| / 127",
        "zero": "0, so that the int8 start at a multiple of 4",
        "32 int8": " ".join(map(str, chunk.q[:6])) + " ...",
        "their sum, int32": str(chunk.sum),
    }
    return [
        {"bytes": f"{start}-{stop - 1}", "size (B)": stop - start, "part": name, "here": here[name]}
        for name, start, stop, _ in PARTS
    ]


def draw_chunk(chunk: Chunk) -> Picture:
    """The activations with their steps, and the 40 bytes, 8 a line as cp.async copies them."""
    fig, (left, right) = style.figure(9.6, 3.9, columns=2, width_ratios=(1.3, 1))
    rows = [
        {"place": i, "x": float(x), "q": int(q), "stored": float(q * chunk.d)}
        for i, (x, q) in enumerate(zip(chunk.x, chunk.q, strict=True))
    ]
    left.vlines([row["place"] for row in rows], 0, [row["x"] for row in rows], color=style.RULE, linewidth=5)
    left.scatter(
        [row["place"] for row in rows],
        [row["stored"] for row in rows],
        s=16,
        color=style.RED,
        zorder=3,
        label="q · d",
    )
    left.axhline(0, color=style.QUIET, linewidth=0.8)
    for row in rows:
        above = row["x"] >= 0
        left.annotate(
            row["q"],
            (row["place"], row["stored"]),
            (0, 5 if above else -11),
            textcoords="offset points",
            ha="center",
            fontsize=6.5,
            color=style.INK,
        ).set_in_layout(False)
    style.legend(left, loc="upper right")
    left.margins(y=0.16)
    style.label(left, "place in the run of 32", "activation")
    style.title(left, f"one scale for 32: d = {chunk.d:.5f}", f"bars: x; off by at most {chunk.error:.2f} d")
    _draw_bytes(right, chunk)
    return Picture(fig, "32 activations, their int8 and the 40 bytes of their pad40 chunk", rows)


def _draw_bytes(ax, chunk: Chunk) -> None:
    style.bare(ax)
    lines = CHUNK_BYTES // COPY_BYTES
    colours = np.ones((lines, COPY_BYTES, 3))
    for _, start, stop, colour in PARTS:
        for byte in range(start, stop):
            colours[divmod(byte, COPY_BYTES)] = style.tint(colour, 0.65)
    style.cells(ax, colours)
    for byte, value in enumerate(chunk.raw):
        line, column = divmod(byte, COPY_BYTES)
        style.write(ax, column + 0.5, line + 0.54, f"{value:02x}", fontsize=8, family="monospace")
    for word in range(0, CHUNK_BYTES, 4):
        line, column = divmod(word, COPY_BYTES)
        frame = Rectangle((column, line), 4, 1, fill=False, edgecolor=style.INK, linewidth=1.1, zorder=3)
        ax.add_patch(frame)
    ax.set_xlim(-0.1, COPY_BYTES + 0.1)
    ax.set_ylim(lines + 0.1, -0.1)
    ax.set_xticks([c + 0.5 for c in range(COPY_BYTES)], range(COPY_BYTES))
    ax.set_yticks([r + 0.5 for r in range(lines)], [COPY_BYTES * r for r in range(lines)])
    ax.tick_params(length=0)
    style.label(ax, "byte of an 8-byte copy; frames are words", "first byte of the copy")
    style.title(ax, "40 bytes in five copies", "blue d, sky the int8, orange their sum")


@dataclass(frozen=True)
class TracedQuantize:
    """One simulated run of a form of the quantize pass.

    Attributes:
        form: as in `minfer.cuda.quantize.FORMS`. activations: how many.
        exact: whether all bytes, poisoned before, are the reference's.
        rows: of access, width (B a lane), requests, sectors, bytes: one a kind of access.
    """

    form: str
    activations: int
    exact: bool
    rows: list[dict]


def trace_quantize(form: str, nt: int = 8, dim: int = 1024) -> TracedQuantize:
    """Run a form of quantize_q8_0_pad40 in the simulator on seeded activations.

    Raises:
        ConfigRefused: no such form.
    """
    from minfer.cuda import reference, simulator
    from minfer.cuda.quantize import QuantizePad40Config, quantize_q8_0_pad40
    from minfer.cuda.trace import Op, Trace, global_lines

    config = QuantizePad40Config(form, threads=256)
    x = np.random.default_rng(0).standard_normal((nt, dim)).astype(np.float32)
    chunks = np.full((nt, dim // RUN, CHUNK_BYTES), 0xA5, np.uint8)
    trace = Trace()
    kernel = quantize_q8_0_pad40(config)
    simulator.launch(kernel, config.grid(nt, dim), x, chunks, nt * dim // RUN, trace=trace)
    names = {Op.LOAD_GLOBAL: "load", Op.STORE_GLOBAL: "store"}
    kinds: dict[tuple[str, int], dict] = {}
    for line in global_lines(trace):
        empty = {"requests": 0, "sectors": 0, "bytes": 0}
        kind = kinds.setdefault((names[line.op], line.width), empty)
        kind["requests"] += line.requests
        kind["sectors"] += line.sectors
        kind["bytes"] += line.bytes_used
    rows = [{"access": access, "width": width, **kinds[access, width]} for access, width in sorted(kinds)]
    wanted = reference.pack_pad40(*reference.quantize_pad40(x))
    return TracedQuantize(form, nt * dim, bool(np.array_equal(chunks, wanted)), rows)


def traffic_rows(runs: Sequence[TracedQuantize]) -> list[dict]:
    """Requests of warps and sectors of every form, for 1024 activations each."""
    rows = []
    for run in runs:
        scale = 1024 / run.activations
        row: dict = {"form": run.form, "the reference's bits": run.exact}
        for access in ("load", "store"):
            mine = [r for r in run.rows if r["access"] == access]
            requests, sectors = (sum(r[key] for r in mine) for key in ("requests", "sectors"))
            row[f"{access} requests"] = round(requests * scale)
            row[f"{access} sectors"] = round(sectors * scale)
            row[f"sectors a {access}"] = round(sectors / requests, 1)
        rows.append(row)
    return rows


MEASURED = {
    "serial": "serial f32 threads=256",
    "tree": "tree f32 threads=256",
    "warp": "warp f32 threads=256",
    "warp, two fours a thread": "warp f32 unroll=2 threads=256",
}
"""Forms of the pass, and what the records call them."""


def _key(form: str) -> str:
    return f"quantize pad40 2048x18944 {MEASURED[form]}: GB/s"


def newest_record(device: str = "h200") -> GpuTests:
    """The newest run of the GPU tests on a device that timed every form.

    Raises:
        RecordError: there is none.
    """
    return newest_measured(load_records(), device, [_key(form) for form in MEASURED])


def measured_rows(record: GpuTests) -> list[dict]:
    """GB/s of every form on 2048 tokens of the 7B's widest activation, and its share of a copy's."""
    copy = ceilings_of(record.device).copy / 1e9
    rates = {form: record.figure(_key(form)) for form in MEASURED}
    return [
        {"form": form, "GB/s": round(rate), "of a copy": f"{rate / copy:.0%}"} for form, rate in rates.items()
    ]
