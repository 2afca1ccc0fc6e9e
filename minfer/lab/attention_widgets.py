"""Sliders over the attention views: online softmax, the mask's predicates, the KV tile."""

from __future__ import annotations

from minfer.arithmetic.devices import device as device_named
from minfer.lab.attention_view import TileCost, draw_tile_costs, tile_cost, tile_rows
from minfer.lab.explorer import Explorer, dropdown, integers, notice, slider
from minfer.lab.mask_view import MaskCase, draw_mask, leak_rows
from minfer.lab.softmax_view import Step, draw_online_softmax, online_softmax, step_rows, toy_row
from minfer.lab.table import Table


def softmax_explorer() -> Explorer:
    """Online softmax of one query over 12 keys, for every tile size and causal mask."""
    controls = {
        "tkv": slider([1, 2, 3, 4, 6, 12], 2, "keys a tile"),
        "seen": integers(1, 12, 11, "keys seen"),
    }

    def report(tkv: int, seen: int) -> list[Step]:
        return online_softmax(*toy_row(), tkv, seen)

    def html(steps: list[Step]) -> str:
        heads = ("tile", "maximum m", "rescale factor", "running sum l")
        return Table(step_rows(steps), {head: head for head in heads})._repr_html_()

    return Explorer("online softmax", controls, report, draw_online_softmax, html)


def mask_explorer() -> Explorer:
    """Which lanes the mask's predicates stop, for a KV tile under a query."""
    controls = {
        "tkv": slider([16, 32, 64], 16, "TKV"),
        "tile": integers(0, 7, 2, "KV tile"),
        "kv_end": integers(1, 256, 160, "rows stored"),
        "position": integers(0, 255, 60, "query position"),
    }

    def report(tkv: int, tile: int, kv_end: int, position: int) -> MaskCase:
        return MaskCase(tkv, tile * tkv, kv_end, position)

    def html(case: MaskCase) -> str:
        rows = leak_rows(case)
        leaks = any(row["elements let through"] for row in rows)
        sentence = (
            "The global predicate alone lets columns through." if leaks else "Nothing slips through here."
        )
        return notice(sentence, "#D55E00" if leaks else "#009E73") + Table(rows)._repr_html_()

    return Explorer("mask predicates", controls, report, draw_mask, html)


def tkv_explorer() -> Explorer:
    """Shared memory, blocks an SM and the fixed cost of a KV tile size."""
    controls = {
        "tkv": slider([16, 32, 64], 32, "TKV"),
        "softmax": dropdown({"in shared memory": "shared", "in registers": "register"}, "shared", "softmax"),
        "device": dropdown({"NVIDIA GB10": "gb10", "NVIDIA H200": "h200"}, "gb10", "device"),
        "nt": slider([128, 512, 2048, 8192], 2048, "tokens"),
    }

    def report(tkv: int, softmax: str, device: str, nt: int) -> tuple[str, int, TileCost]:
        return softmax, nt, tile_cost(tkv, softmax, device_named(device), nt)

    def picture(chosen: tuple[str, int, TileCost]):
        softmax, nt, cost = chosen
        return draw_tile_costs(softmax, cost.held.device, cost.tkv, nt)

    def html(chosen: tuple[str, int, TileCost]) -> str:
        (row,) = tile_rows([chosen[2]])
        facts = [
            {"quantity": name, "value": f"{v:,}" if isinstance(v, int) else v} for name, v in row.items()
        ]
        return Table(facts, {"quantity": "", "value": ""})._repr_html_()

    return Explorer("KV tile", controls, report, picture, html)
