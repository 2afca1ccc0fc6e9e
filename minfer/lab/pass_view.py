"""The passes that only move data, convert and store_kv: what a warp asks of memory, traced and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.patches import Rectangle

from minfer.arithmetic.banks import LINE_BYTES, SECTOR_BYTES
from minfer.arithmetic.devices import DeviceSpec
from minfer.campaign.records import GpuTests, Record, load_records, newest_measured
from minfer.lab import style
from minfer.lab.figures import newest
from minfer.lab.picture import Picture

READ_BYTES, WRITE_BYTES = 4, 2  # an element of an f32 -> f16 pass
WORD = 4
LATENCY = 600e-9
"""Seconds from a load to its data out of DRAM: an assumption, of the size that microbenchmarks report."""


@dataclass(frozen=True)
class TracedPass:
    """One simulated run of an f32 -> f16 kernel.

    Attributes:
        kernel: its name. vector: elements a thread. elements: how many were converted.
        exact: whether every output, NaN before the launch, has the bits of the NumPy reference.
        rows: of kernel, vector, access, width, requests, sectors, bytes_used: one a memory instruction.
        warp: of request, access, lane, address (of the first byte of the line that the warp starts in),
            width: what warp 0 asks for.
    """

    kernel: str
    vector: int
    elements: int
    exact: bool
    rows: list[dict]
    warp: list[dict]


def trace_convert(vector: int, n: int = 4096) -> TracedPass:
    """Run the convert kernel in the simulator on `n` seeded values.

    Raises:
        ConfigRefused: `vector` is neither 1 nor 8.
    """
    from minfer.cuda import reference
    from minfer.cuda.convert import ConvertConfig, convert_f32_f16

    config = ConvertConfig(vector=vector)
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    out = np.full(n, np.nan, np.float16)
    trace = _launch(convert_f32_f16(config), config.grid(n), x, out, n)
    return _traced("convert_f32_f16", vector, n, np.array_equal(out, reference.convert_f16(x)), trace)


def trace_store_kv(vector: int, nt: int = 8, width: int = 512) -> TracedPass:
    """Run the KV store in the simulator: `nt` rows of `width` dims to scattered places of a larger cache.

    Raises:
        ConfigRefused: `vector` is neither 1 nor 4.
    """
    from minfer.cuda import reference
    from minfer.cuda.convert import StoreKvConfig, store_kv_f16

    config = StoreKvConfig(vector=vector)
    random = np.random.default_rng(0)
    rows = random.standard_normal((nt, width)).astype(np.float32)
    positions = random.permutation(2 * nt)[:nt].astype(np.int32)
    cache = np.zeros((2 * nt, width), np.float16)
    wanted = reference.store_kv(cache, rows, positions)
    trace = _launch(store_kv_f16(config), config.grid(nt, width), rows, cache, positions, width)
    return _traced("store_kv_f16", vector, nt * width, np.array_equal(cache, wanted), trace)


def _launch(kernel, grid, *arguments):
    from minfer.cuda import simulator
    from minfer.cuda.trace import Trace

    trace = Trace()
    simulator.launch(kernel, grid, *arguments, trace=trace)
    return trace


def _traced(kernel: str, vector: int, elements: int, exact: bool, trace) -> TracedPass:
    from minfer.cuda.trace import Op, global_lines, requests

    names = {Op.LOAD_GLOBAL: "load", Op.STORE_GLOBAL: "store"}
    rows = [
        {
            "kernel": kernel,
            "vector": vector,
            "access": names[line.op],
            "width": line.width,
            "requests": line.requests,
            "sectors": line.sectors,
            "bytes_used": line.bytes_used,
        }
        for line in sorted(global_lines(trace), key=lambda line: (line.op, line.place.line))
        if line.requests * SECTOR_BYTES <= line.bytes_used  # not the one-word broadcast of positions[t]
    ]
    warp = []
    mine = [r for r in requests(trace, *names) if r.block == r.warp == 0]
    for op, name in names.items():
        asked = [r for r in mine if r.op == op and len(set(r.addresses)) == len(r.lanes)]
        base = min(min(r.addresses) for r in asked) // LINE_BYTES * LINE_BYTES
        for number, request in enumerate(sorted(asked, key=lambda r: r.addresses)):
            for lane, address in zip(request.lanes, request.addresses, strict=True):
                place = {"lane": lane, "address": address - base, "width": request.width}
                warp.append({"request": number, "access": name, **place})
    return TracedPass(kernel, vector, elements, exact, rows, warp)


def request_rows(runs: Sequence[TracedPass]) -> list[dict]:
    """Each memory instruction of each run: requests, sectors of a request, and how much of them it uses."""
    return [
        {
            "kernel": row["kernel"],
            "elements a thread": row["vector"],
            "access": f"{row['access']}, {row['width']} B a lane",
            "requests": row["requests"],
            "sectors": row["sectors"],
            "sectors a request": row["sectors"] // row["requests"],
            "used": f"{row['bytes_used'] / (row['sectors'] * SECTOR_BYTES):.0%}",
        }
        for run in runs
        for row in run.rows
    ]


def full_size_rows(runs: Sequence[TracedPass], elements: int) -> list[dict]:
    """The runs' counts for `elements` elements: requests of warps, sectors, and bytes that must move."""
    rows = []
    for run in runs:
        scale = elements / run.elements
        requests, sectors = (sum(row[key] for row in run.rows) * scale for key in ("requests", "sectors"))
        row = {
            "kernel": run.kernel,
            "elements a thread": run.vector,
            "requests (M)": round(requests / 1e6, 2),
        }
        moved = elements * (READ_BYTES + WRITE_BYTES) / 1e6
        rows.append({**row, "sectors (M)": round(sectors / 1e6, 2), "to and from DRAM (MB)": round(moved, 1)})
    return rows


def draw_warp_loads(scalar: TracedPass, vector: TracedPass) -> Picture:
    """Which lane of warp 0 loads which word, line by line, each request in its own colour."""
    runs = (scalar, vector)
    heights = [1 + max(cell["address"] for cell in _loads(run)) // LINE_BYTES for run in runs]
    fig, axes = style.figure(9.6, 4.6, rows=2, height_ratios=[height + 1.2 for height in heights])
    rows = []
    for ax, run, height in zip(axes, runs, heights, strict=True):
        loads = _loads(run)
        _draw_lines(ax, loads, height)
        requests = 1 + max(cell["request"] for cell in loads)
        size = sum(cell["width"] for cell in loads)
        note = f"{requests} request{'s' * (requests > 1)} of a warp bring{'s' * (requests == 1)} {size:,} B"
        style.title(ax, f"{run.vector} element{'s' * (run.vector > 1)} a thread", note)
        rows += [{"vector": run.vector, **cell} for cell in loads]
    style.label(axes[-1], "byte in the 128-byte line (B); bold frames are 32-byte sectors", "line")
    style.label(axes[0], "byte in the 128-byte line (B)", "line")
    return Picture(fig, f"Words that the lanes of a warp of {scalar.kernel} load, by request", rows)


def _loads(run: TracedPass) -> list[dict]:
    return [cell for cell in run.warp if cell["access"] == "load"]


def _draw_lines(ax, loads: list[dict], height: int) -> None:
    style.bare(ax)
    width = LINE_BYTES // WORD
    colours = np.ones((height, width, 3))
    for cell in loads:
        line, column = divmod(cell["address"] // WORD, width)
        shade = style.tint((style.BLUE, style.ORANGE)[cell["request"]], 0.5 if cell["lane"] % 2 else 0.7)
        colours[line, column : column + cell["width"] // WORD] = shade
    style.cells(ax, colours)
    for cell in loads:
        line, column = divmod(cell["address"] // WORD, width)
        style.write(ax, column + cell["width"] / WORD / 2, line + 0.54, cell["lane"], fontsize=7)
    sector = SECTOR_BYTES // WORD
    for line in range(height):
        for first in range(0, width, sector):
            frame = Rectangle(
                (first, line), sector, 1, fill=False, edgecolor=style.INK, linewidth=1.3, zorder=3
            )
            ax.add_patch(frame)
    ax.set_xlim(-0.1, width + 0.1)
    ax.set_ylim(height + 0.1, -0.1)
    ax.set_xticks(range(0, width + 1, 4), range(0, LINE_BYTES + 1, 16))
    ax.set_yticks([line + 0.5 for line in range(height)], range(height))
    ax.tick_params(length=0)
    style.label(ax, y="line")


@dataclass(frozen=True)
class Flight:
    """What a pass keeps on its way from DRAM, against what the bandwidth asks for (Little's law).

    Attributes:
        device: where. vector: elements a thread. latency: seconds (assumed).
        in_flight: bytes of loads that one SM has outstanding when every resident thread waits for its own.
        needed: bytes an SM that keep DRAM busy: two of three bytes that the pass moves are loads.
        pass_limit: bytes a second of the whole pass, reads and writes, that `in_flight` allows, at most the
            device's bandwidth.
    """

    device: DeviceSpec
    vector: int
    latency: float
    in_flight: int
    needed: float
    pass_limit: float


def flight(device: DeviceSpec, vector: int, latency: float = LATENCY) -> Flight:
    """Bytes in flight of the convert pass at full occupancy.

    Raises:
        ValueError: a latency that is not positive.
    """
    if latency <= 0:
        raise ValueError(f"a load takes some time: a latency of {latency:g} s is not positive")
    in_flight = device.threads_per_sm * vector * READ_BYTES
    whole = (READ_BYTES + WRITE_BYTES) / READ_BYTES
    needed = device.bandwidth / whole * latency / device.sms
    limit = device.bandwidth * min(1.0, in_flight / needed)
    return Flight(device, vector, latency, in_flight, needed, limit)


def flight_rows(flights: Sequence[Flight]) -> list[dict]:
    """Bytes in flight beside those needed, with units in the headings."""
    return [
        {
            "device": f.device.name,
            "elements a thread": f.vector,
            "in flight an SM (KiB)": round(f.in_flight / 1024, 1),
            "needed an SM (KiB)": round(f.needed / 1024, 1),
            "pass at most (GB/s)": round(f.pass_limit / 1e9),
            "of the bandwidth": f"{f.pass_limit / f.device.bandwidth:.0%}",
        }
        for f in flights
    ]


def draw_flight(device: DeviceSpec, latency: float = LATENCY) -> Picture:
    """What the pass could reach for every number of bytes in flight, with both variants marked."""
    variants = [flight(device, vector, latency) for vector in (1, 8)]
    fig, (ax,) = style.figure(9.6, 3.6)
    most = max(variants[-1].in_flight, variants[-1].needed) * 1.1
    bend = variants[0].needed
    line = [0, bend, most]
    speed = [0, device.bandwidth / 1e9, device.bandwidth / 1e9]
    ax.plot(line, speed, color=style.QUIET, linewidth=2, zorder=2)
    ax.fill_between(line, speed, color=style.PAPER, zorder=1)
    for f, colour, name in zip(variants, (style.RED, style.BLUE), ("scalar", "8 a thread"), strict=True):
        ax.plot([f.in_flight], [f.pass_limit / 1e9], "o", color=colour, markersize=10, zorder=3, label=name)
        ax.vlines(f.in_flight, 0, f.pass_limit / 1e9, color=colour, linewidth=1, linestyle=":")
    ax.set_xlim(0, most)
    ax.set_ylim(0, device.bandwidth / 1e9 * 1.15)
    style.kib_axis(ax)
    style.label(ax, "bytes in flight an SM (KiB)", "convert pass, at most (GB/s)")
    style.title(
        ax,
        device.name,
        f"latency {latency * 1e9:.0f} ns (assumed), {device.bandwidth / 1e9:,.0f} GB/s of DRAM",
    )
    style.legend(ax, loc="lower center")
    rows = flight_rows(variants)
    return Picture(fig, f"Bytes in flight of the convert pass on {device.name}, and what they allow", rows)


PASSES = {
    "convert, 1 element a thread": "convert 2048x18944 vector=1: GB/s",
    "convert, 8 elements a thread": "convert 2048x18944 vector=8: GB/s",
    "swiglu, f32 to f32": "swiglu 2048x18944 f32->f32: GB/s",
    "swiglu, f32 to f16 (converts on its way)": "swiglu 2048x18944 f32->f16: GB/s",
    "swiglu, f16 to f16": "swiglu 2048x18944 f16->f16: GB/s",
    "rmsnorm of 2048 x 3584 with residual": "rmsnorm 2048x3584: GB/s",
}
"""Passes over 2048 tokens of the 7B, and what the records call them."""


def newest_record(device: str = "h200") -> GpuTests:
    """The newest run of the GPU tests on a device that timed every pass.

    Raises:
        RecordError: there is none.
    """
    return newest_measured(load_records(), device, PASSES.values())


def measured_rows(record: GpuTests, device: DeviceSpec) -> list[dict]:
    """GB/s of every pass in the record, and its share of the device's nominal bandwidth."""
    rows = []
    for name, key in PASSES.items():
        rate = record.figure(key)
        rows.append({"pass": name, "GB/s": round(rate), "of nominal": f"{rate * 1e9 / device.bandwidth:.0%}"})
    return rows


def draw_measured(record: GpuTests, device: DeviceSpec) -> Picture:
    """Measured bandwidth of every pass against the device's nominal one."""
    rows = measured_rows(record, device)
    fig, (ax,) = style.figure(9.6, 3.3)
    places = range(len(rows))
    colours = [style.RED if row["pass"].startswith("convert, 1 ") else style.BLUE for row in rows]
    bars = ax.barh(places, [row["GB/s"] for row in rows], height=0.6, color=colours)
    ax.bar_label(bars, [f"{row['GB/s']:,}" for row in rows], padding=4, fontsize=9, color=style.INK)
    nominal = device.bandwidth / 1e9
    ax.axvline(nominal, color=style.QUIET, linewidth=1.2, linestyle="--")
    ax.text(
        nominal, -0.62, f"nominal {nominal:,.0f}  ", ha="right", va="bottom", fontsize=8.5, color=style.QUIET
    )
    ax.set_yticks(places, [row["pass"] for row in rows])
    ax.invert_yaxis()
    ax.set_ylim(len(rows) - 0.5, -0.95)
    ax.set_xlim(0, nominal * 1.08)
    ax.grid(axis="y", visible=False)
    style.label(ax, "bytes read and written a second (GB/s)")
    style.title(ax, "Passes that only move data", f"measured: {record.origin}")
    return Picture(fig, f"Bandwidth of the elementwise passes on {record.origin}", rows)


FUSED = {
    "residual add; RMS norm to f16": "add and norm",
    "bias; RoPE; queries to f16; K and V stored": "bias rope and store",
    "swiglu; convert to f16": "swiglu and convert",
}
"""Passes of a layer that one kernel does at once, and what the GPU tests call them."""


def fused_rows(records: Sequence[Record]) -> list[dict]:
    """Microseconds of the passes as kernels of their own and as one, for 2048 tokens of the 7B, by the newest
    run on the H200 that timed them all. Empty: none did."""
    figures = {
        passes: [_fused_figure(name, way) for way in ("apart", "fused")] for passes, name in FUSED.items()
    }
    record = newest(records, *(name for pair in figures.values() for name in pair))
    if record is None:
        return []
    rows = []
    for passes, pair in figures.items():
        apart, fused = map(record.figure, pair)
        rows.append({"passes": passes, "apart (us)": apart, "fused (us)": fused, "saved": 1 - fused / apart})
    return rows


def _fused_figure(name: str, way: str) -> str:
    return f"{name}, 2048 tokens, {way}: us"
