"""Sliders over the MMQ views: a block's bytes, fragment words, KD, and the phantom's launch."""

from __future__ import annotations

from html import escape

from minfer.arithmetic.devices import DEVICES
from minfer.arithmetic.devices import device as device_named
from minfer.lab.block_view import BLOCK_BYTES, Block, draw_block, field_of, meaning, real_block
from minfer.lab.explorer import Explorer, checkbox, dropdown, integers, notice, slider
from minfer.lab.mmq_view import (
    Depth,
    depth,
    draw_depth,
    draw_words,
    shared_parts,
    unpack_rows,
)
from minfer.lab.phantom_view import Attempt, attempt, draw_attempt, verdict
from minfer.lab.table import Table

_DEVICES = {d.name: key for key, d in DEVICES.items()}
_KERNELS = {"R1 (64 tokens)": "R1", "raw, narrow (64 tokens)": "narrow", "raw, wide (128 tokens)": "wide"}
_GOOD, _BAD = "#009E73", "#D55E00"


def block_explorer() -> Explorer:
    """The bytes of a Q4_K block of the project's model, and what each of them says."""
    controls = {
        "row": integers(0, 767, 0, "weight row"),
        "at": integers(0, BLOCK_BYTES - 1, 37, "byte"),
    }

    def report(row: int, at: int) -> tuple[Block, int]:
        return real_block(row), at

    def html(chosen: tuple[Block, int]) -> str:
        block, at = chosen
        field = field_of(at)
        head = f"<p>Byte {at} of {BLOCK_BYTES}, {field.name}: {escape(field.what)}.</p>"
        return head + Table(meaning(block, at))._repr_html_()

    return Explorer("Q4_K block", controls, report, lambda chosen: draw_block(*chosen), html)


def words_explorer() -> Explorer:
    """The words of a chunk that a lane multiplies, and how nibbles become an operand."""
    controls = {"chunk": integers(0, 7, 0, "chunk"), "lane": integers(0, 31, 5, "lane")}

    def report(chunk: int, lane: int) -> tuple[int, int]:
        return chunk, lane

    def html(chosen: tuple[int, int]) -> str:
        chunk, lane = chosen
        rows = unpack_rows(real_block(lane // 4), chunk, lane)
        head = f"<p>Lane {lane} takes row {lane // 4}: a shift, a mask, an operand.</p>"
        return head + Table(rows)._repr_html_()

    return Explorer("fragment words", controls, report, lambda chosen: draw_words(*chosen), html)


def depth_explorer() -> Explorer:
    """What a kernel at a KD takes of an SM, on any device."""
    controls = {
        "kernel": dropdown(_KERNELS, "wide", "kernel"),
        "kd": slider([4, 8], 8, "KD"),
        "stages": integers(2, 4, 2, "stages"),
        "device": dropdown(_DEVICES, "gb10", "device"),
    }

    def report(kernel: str, kd: int, stages: int, device: str) -> Depth:
        return depth(kernel, kd, device_named(device), stages)

    def html(found: Depth) -> str:
        rows = [
            {"quantity": f"{part} (B)", "value": f"{size:,}"}
            for part, size in shared_parts(found.config).items()
            if size
        ]
        rows.append({"quantity": "a block (B)", "value": f"{found.config.shared_bytes:,}"})
        refusal = found.held.refusal
        head = notice(escape(str(found.held)), _BAD if refusal else _GOOD)
        return head + Table(rows, {"quantity": "", "value": ""})._repr_html_()

    return Explorer("KD", controls, report, draw_depth, html)


def phantom_explorer() -> Explorer:
    """A launch with its statuses heeded or not: the outputs, and what a benchmark says."""
    controls = {
        "kernel": dropdown(_KERNELS, "wide", "kernel"),
        "kd": slider([4, 8], 8, "KD"),
        "stages": integers(2, 4, 2, "stages"),
        "device": dropdown(_DEVICES, "gb10", "device"),
        "heed": checkbox("look at what the driver says"),
    }

    def report(kernel: str, kd: int, stages: int, device: str, heed: bool) -> tuple[Attempt, str, int, int]:
        where = device_named(device)
        tried = attempt(kernel, kd, where, heed=heed, stages=stages, simulate=False)
        return tried, kernel, kd, stages

    def html(chosen: tuple[Attempt, str, int, int]) -> str:
        tried = chosen[0]
        rows = [
            {"call": "cuFuncSetAttribute", "said": tried.opt_in},
            {"call": "cuLaunchKernel", "said": tried.launch},
            {"call": "the launcher", "said": "raised" if tried.refusal else "returned"},
        ]
        if tried.unwritten:
            said, colour = verdict(tried, 1.0), _BAD
        else:
            said, colour = "every output is written: there is something to time", _GOOD
        return Table(rows)._repr_html_() + notice(f"benchmark: {escape(said)}", colour)

    return Explorer("phantom", controls, report, lambda chosen: draw_attempt(*chosen), html)
