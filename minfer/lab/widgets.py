"""The lab's widgets: sliders over the pure functions of its views."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from minfer.arithmetic.banks import BankRequest, TileAddress, padded
from minfer.arithmetic.devices import DEVICES, device
from minfer.arithmetic.occupancy import Occupancy, blocks_per_sm
from minfer.lab.background import BackgroundCompiler, Compilation
from minfer.lab.bank_view import ACCESSES, draw_bank_map, verdict
from minfer.lab.compile_status import CompileStatus
from minfer.lab.explorer import Explorer, checkbox, dropdown, integers, notice, slider
from minfer.lab.fragment_view import draw_fragments, elements
from minfer.lab.occupancy_view import draw_curves
from minfer.lab.pass_view import Flight, draw_flight, flight, flight_rows
from minfer.lab.table import Table
from minfer.lab.tile_view import TileChoice, TileReport, draw_tile, explore

START = TileChoice()
DEVICE_NAMES = {d.name: key for key, d in DEVICES.items()}


class TileExplorer(Explorer):
    """A GEMM tile on a device: every number of the ledger, residency with its limiter, the roofline.

    Registers are the assembler's: the config is compiled in the background for the chosen device's
    architecture. Until that is done they are the config's estimate, and called so.

    Args:
        start: where the sliders stand at first.
        compile: False keeps to estimates.
    """

    def __init__(self, start: TileChoice = START, compile: bool = True) -> None:
        self.compiler = BackgroundCompiler("minfer.cuda.gemm:make_gemm", self._compiled) if compile else None
        self.status = CompileStatus(self.compiler) if compile else None
        self._first = True
        controls = {
            "tile_n": slider([32, 64, 128, 256], start.tile_n, "TN (tokens)"),
            "tile_m": slider([32, 64, 128, 256], start.tile_m, "TM (outputs)"),
            "tile_k": slider([16, 32, 64, 128], start.tile_k, "KS (k-step)"),
            "stages": integers(1, 6, start.stages, "stages"),
            "warps": slider([1, 2, 4, 8, 16, 32], start.warps, "warps"),
            "layout": dropdown(
                {"padded by 16 B": "padded", "XOR swizzle": "swizzled", "plain": "plain"},
                start.layout,
                "rows",
            ),
            "device": dropdown(DEVICE_NAMES, start.device, "device"),
        }
        super().__init__("tile explorer", controls, self._explore, draw_tile, tile_html)
        if self.status is not None:
            left = self.box.children[0]
            left.children = (*left.children, self.status)

    def _explore(self, **values) -> TileReport:
        choice = TileChoice(**values)
        report = explore(choice)
        if self.compiler is None:
            return report
        if report.config is None:
            self.status.show(None)
            return report
        # The first picture waits for its registers; after that the sliders never wait.
        ask = self.compiler.compile_now if self._first else self.compiler.request
        self._first = False
        compilation = ask(report.config, report.device.arch)
        self.status.show(compilation)
        return explore(choice, compilation.registers) if compilation.registers else report

    def _compiled(self, compilation: Compilation) -> None:
        self.status.show(compilation)
        if compilation.state in ("done", "failed") and self.report is not None:
            self.refresh()


def tile_html(report: TileReport) -> str:
    """The report's table, under the refusal if there is one."""
    table = Table(report.facts(), {"quantity": "", "value": ""})._repr_html_()
    return (notice(escape(report.refusal)) if report.refusal else "") + table


@dataclass(frozen=True)
class BankReport:
    """A tile's layout and one access to it.

    Attributes:
        address: (row, byte column) -> byte. row_bytes, stride, size_bytes: of a row, from row to row, of all.
        built: whether the kernels' tile layer builds this layout; others are shown to compare.
    """

    address: TileAddress
    row_bytes: int
    stride: int
    size_bytes: int
    built: bool
    access: str
    phase: int
    name: str
    request: BankRequest


def explore_banks(row_halves: int, padding: int, swizzle: bool, access: str, phase: int) -> BankReport:
    """The bank request of an access to a 32-row f16 tile of the kernels' own layout.

    Rows that the kernels do not build, because `ldmatrix` cannot read them, can still be read word by word.

    Args:
        row_halves: f16 elements a row. padding: elements added to a row. swizzle: XOR the 16-byte chunks.
        access: a key of `bank_view.ACCESSES`. phase: which phase to show, reduced to those that the access
            has.

    Raises:
        ConfigRefused: a layout that the tile layer does not build, for `ldmatrix`.
        ValueError: rows that do not start at whole words.
    """
    from minfer.cuda.kernel import ConfigRefused
    from minfer.cuda.tile.shared import SharedTile

    rows, row_bytes = 32, row_halves * 2
    width = min(row_bytes, 128) if swizzle else 0
    stride, built = row_bytes + padding * 2, True
    try:
        address = SharedTile(rows, row_bytes, padding * 2, width).address
    except ConfigRefused:
        if swizzle or access.startswith("ldmatrix"):
            raise
        address, built = padded(row_bytes, padding * 2), False
    request = ACCESSES[access].request(address)
    layout = f"{width}-byte XOR swizzle" if swizzle else f"+{padding} halves" if padding else "no padding"
    name = f"{row_halves} halves a row, {layout}"
    phase %= len(request.degrees)
    return BankReport(address, row_bytes, stride, rows * stride, built, access, phase, name, request)


def bank_html(report: BankReport) -> str:
    """The verdict, then what each phase costs."""
    colour = "#009E73" if report.request.degree == 1 else "#D55E00"
    rows = [{"phase": i, "wavefronts": degree} for i, degree in enumerate(report.request.degrees)]
    stride = f"rows are {report.stride:,} B apart, the tile takes {report.size_bytes:,} B"
    if not report.built:
        stride += ". The kernels do not build these rows: <code>ldmatrix</code> cannot read them"
    return notice(verdict(report.request), colour) + f"<p>{stride}.</p>" + Table(rows)._repr_html_()


def bank_explorer() -> Explorer:
    """The 32-bank map of a shared tile: padding, XOR swizzle, and three ways to read it."""
    controls = {
        "row_halves": slider([32, 64, 128], 64, "row (halves)"),
        "padding": integers(0, 16, 0, "padding (halves)"),
        "swizzle": checkbox("XOR swizzle"),
        "access": dropdown({how.name: key for key, how in ACCESSES.items()}, "ldmatrix.x4", "access"),
        "phase": integers(0, 3, 0, "phase"),
    }

    def picture(report: BankReport):
        return draw_bank_map(report.address, report.row_bytes, report.access, report.phase, report.name)

    return Explorer("bank map", controls, explore_banks, picture, bank_html)


def occupancy_explorer() -> Explorer:
    """Residency against shared memory and registers on any device of the table."""
    controls = {
        "where": dropdown(DEVICE_NAMES, "gb10", "device"),
        "warps": slider([1, 2, 4, 8, 12, 16, 24, 32], 8, "warps a block"),
        "registers": slider([*range(16, 256, 8), 255], 128, "registers"),
        "shared_kib": integers(0, 227, 68, "shared (KiB)"),
    }

    def report(where: str, warps: int, registers: int, shared_kib: int) -> Occupancy:
        return blocks_per_sm(device(where), warps * 32, registers, shared_kib * 1024)

    def picture(o: Occupancy):
        return draw_curves(o.device, o.threads, o.registers, {"this kernel": o.shared_bytes})

    def html(o: Occupancy) -> str:
        return notice(escape(str(o)), "#D55E00" if o.refusal else "#0072B2")

    return Explorer("occupancy curve", controls, report, picture, html)


def fragment_explorer() -> Explorer:
    """The lanes and registers of an mma's fragments, one lane outlined."""
    controls = {
        "lane": integers(0, 31, 5, "lane"),
        "dtype": dropdown({"f16 (m16n8k16)": "f16", "s8 (m16n8k32)": "s8"}, "f16", "operands"),
    }

    def report(lane: int, dtype: str) -> tuple[int, str]:
        return lane, dtype

    def html(chosen: tuple[int, str]) -> str:
        lane, dtype = chosen
        rows = [cell for cell in elements("matrix_a", dtype) if cell["lane"] == lane]
        heads = {"register": "register", "part": "part", "row": "row", "column": "column"}
        return f"<p>Lane {lane} of A:</p>" + Table(rows, heads)._repr_html_()

    return Explorer("fragment map", controls, report, lambda chosen: draw_fragments(*chosen), html)


def flight_explorer() -> Explorer:
    """Bytes that the convert pass keeps in flight on any device, for a DRAM latency that one may doubt."""
    controls = {
        "device": dropdown(DEVICE_NAMES, "h200", "device"),
        "latency": integers(200, 1200, 600, "latency (ns)"),
    }

    def report(device: str, latency: int) -> list[Flight]:
        return [flight(DEVICES[device], vector, latency * 1e-9) for vector in (1, 8)]

    def html(flights: list[Flight]) -> str:
        heads = ("elements a thread", "in flight an SM (KiB)", "pass at most (GB/s)", "of the bandwidth")
        needed = f"<p>{flights[0].needed / 1024:.1f} KiB an SM keep DRAM busy.</p>"
        return needed + Table(flight_rows(flights), {head: head for head in heads})._repr_html_()

    return Explorer(
        "bytes in flight", controls, report, lambda f: draw_flight(f[0].device, f[0].latency), html
    )
