"""Walls of the 7B: taken apart here where a GPU and the model are, else those of the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from minfer.campaign.record import origins
from minfer.campaign.records import Record, Wall
from minfer.campaign.report import DEVICE
from minfer.campaign.wall_record import newest_walls
from minfer.lab.errors import EXPECTED, sentence
from minfer.lab.measured import model_to_measure

TOKENS = 2048


@dataclass(frozen=True)
class Walls:
    """Decompositions of one device.

    Attributes:
        prefills: by route, slowest first. decodes: of one token. live: measured just now.
        origin: where and when. why: what was not measured here, and the reason; "" if all was.
    """

    prefills: list[Wall]
    decodes: list[Wall]
    live: bool
    origin: str
    why: str = ""

    def __repr__(self) -> str:
        return f"{self.origin}." + (f" Not measured here: {self.why}." if self.why else "")

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>"


def from_records(records: Sequence[Record], why: str = "") -> Walls:
    """What the records hold of the H200."""
    prefills, decodes = newest_walls(records, DEVICE), newest_walls(records, DEVICE, "decode")
    return Walls(prefills, decodes, False, f"From records: {origins([*prefills, *decodes])}", why)


Taken = tuple[list[Wall], dict[str, str]]
"""Walls, and why others were not taken apart, by "<phase> <route>"."""


def walls(records: Sequence[Record], measure: Callable[[Path], Taken] | None = None) -> Walls:
    """The walls of this machine's GPU with the 7B, or those of the records and the reason.

    Measuring takes about a minute. A wall that cannot be taken apart is left out, and the reason is told.

    Args:
        measure: takes the walls of a model file apart.
    """
    model, why_not = model_to_measure()
    if model is None:
        return from_records(records, why_not)
    try:
        found, failed = (measure or take_apart)(model)
    except (*EXPECTED, RuntimeError) as error:
        return from_records(records, sentence(error))
    why = "; ".join(f"{what}: {reason}" for what, reason in failed.items())
    prefills = sorted((wall for wall in found if wall.phase == "prefill"), key=lambda wall: wall.tok_s)
    if not prefills:
        return from_records(records, why or "no wall was conserved")
    decodes = [wall for wall in found if wall.phase == "decode"]
    return Walls(prefills, decodes, True, f"Measured just now: {found[0].origin}, {model.name}", why)


def take_apart(path: Path) -> Taken:
    """The walls that `minfer probe run r23-decomposition` records, of a model file."""
    from minfer.campaign.decompose import decompose_all, prefill_routes
    from minfer.campaign.precompile import precompile
    from minfer.campaign.prefills import SharedModel
    from minfer.engine.cuda.devices import GpuDevice

    def silent(_: str) -> None:
        pass

    device = GpuDevice()
    shared = SharedModel(path, device, TOKENS, silent)
    routes = prefill_routes(device.arch)
    precompile([], device.arch, model=shared.model, routes=routes, prompts=[TOKENS], say=silent)
    return decompose_all(shared, TOKENS, silent)
