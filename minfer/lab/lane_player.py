"""The lane player: a time slider through one block of a simulated kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import CellType, FunctionType
from typing import Any

import ipywidgets
import numpy as np

from minfer.cuda.kernel import Kernel
from minfer.lab.explorer import Explorer, dropdown, integers
from minfer.lab.lane_film import Film, Frame, TileAt, film
from minfer.lab.lane_view import draw_frame, frame_html

FAULTS = ("none", "late wait")
"""What can be wrong with the kernel of `gemm_film`: nothing, or it waits for one copy group too few."""

JUMPS = {
    "conflicts": ("conflict", "step-forward"),
    "scattered": ("scattered", "random"),
    "hazards": ("hazard", "exclamation-triangle"),
}
"""Lists of a `Film` that a button leads through: its name and icon."""


def with_names(kernel: Kernel, **names: Any) -> Kernel:
    """A copy of a kernel in which names of its function's closure mean something else: a planted fault.

    Raises:
        KeyError: the function has no such free variable.
    """
    function = kernel.function
    free = function.__code__.co_freevars
    unknown = names.keys() - set(free)
    if unknown:
        raise KeyError(f"{kernel.name} uses no {', '.join(sorted(unknown))}; it has {', '.join(free)}")
    cells = tuple(
        CellType(names[name]) if name in names else cell
        for name, cell in zip(free, function.__closure__ or (), strict=True)
    )
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
    return replace(kernel, function=copy)


@lru_cache(maxsize=16)
def gemm_film(layout: str = "padded", fault: str = "none") -> Film:
    """A 32 x 32 x 48 product by one block of two warps of the f16 GEMM kernel, k-steps of 16, two stages.

    Args:
        layout: "plain", "padded" or "swizzled" rows. fault: a key of `FAULTS`.

    Raises:
        ConfigRefused: an unknown layout. KeyError: an unknown fault.
    """
    from minfer.cuda import ptx, simulator
    from minfer.cuda.gemm import GemmConfig, make_gemm
    from minfer.cuda.trace import Trace

    if fault not in FAULTS:
        raise KeyError(f"no fault {fault!r}: choose one of {', '.join(FAULTS)}")
    config = GemmConfig(32, 32, 16, stages=2, warps=2, warps_n=1, layout=layout)
    kernel = make_gemm(config)
    if fault == "late wait":
        kernel = with_names(kernel, wait=ptx.cp_async_wait_group(config.stages - 1))
    nt = od = 32
    depth = 48
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, depth)).astype(np.float16) for rows in (nt, od))
    c = np.full((nt, od), np.nan, np.float32)
    trace = Trace()
    arguments = (a, b, c, nt, od, depth)
    simulator.launch(kernel, config.grid(nt, od), *arguments, trace=trace, strict=False)
    return film(trace, tiles=gemm_tiles(config))


def gemm_tiles(config: Any) -> dict[str, TileAt]:
    """Where the stages of a GEMM's f16 tiles lie in shared memory."""
    where = {}
    a, b = config.tiles
    for stage in range(config.stages):
        start = stage * config.stage_bytes
        for name, tile, at in (("A", a, start), ("B", b, start + a.size_bytes)):
            where[f"{name}, stage {stage}"] = TileAt(at, tile.rows, tile.row_bytes, tile.address)
    return where


@lru_cache(maxsize=1)
def hopper_film() -> Film:
    """A 128 x 64 x 192 product by one block of the Hopper GEMM: a warp that loads by TMA, two warpgroups that
    multiply by wgmma, a ring of two stages between them."""
    from minfer.cuda import simulator
    from minfer.cuda.gemm_hopper import GemmHopperConfig, make_gemm_hopper
    from minfer.cuda.tile.shared import SharedTile
    from minfer.cuda.trace import Trace

    config, (nt, od, depth) = GemmHopperConfig(64, 2), (128, 64, 192)
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, depth)).astype(np.float16) for rows in (nt, od))
    c = np.full((nt, od), np.nan, np.float16)
    maps = [
        simulator.tensor_map(array, *config.boxes[name]) for name, array in zip("abc", (a, b, c), strict=True)
    ]
    trace = Trace()
    simulator.launch(make_gemm_hopper(config), 1, *maps, nt, od, depth, 1, trace=trace, strict=False)
    tiles = {}
    for stage in range(config.stages):
        start = stage * config.stage_bytes
        for name, rows, at in (("A", config.tile_n, start), ("B", config.tile_m, start + config.a_bytes)):
            tile = SharedTile(rows, 2 * config.tile_k, swizzle=128)
            tiles[f"{name}, stage {stage}"] = TileAt(at, rows, tile.row_bytes, tile.address)
    return film(trace, tiles=tiles)


class LanePlayer(Explorer):
    """A time slider through the films of one kernel.

    Args:
        films: name -> film, the first one shown first.
        step: where the slider stands at first; None: at the first conflict, else the first scattered access,
            if there is one.
    """

    def __init__(self, films: Mapping[str, Film], step: int | None = None) -> None:
        self.films = dict(films)
        first = next(iter(self.films))
        if step is None:
            step = next(iter(self.films[first].conflicts + self.films[first].scattered), 0)
        controls = {
            "name": dropdown({name: name for name in self.films}, first, "kernel"),
            "step": integers(0, len(self.films[first]) - 1, step, "step"),
        }
        super().__init__("lane player", controls, self._frame, draw_frame, frame_html)
        self.play = ipywidgets.Play(step, max=len(self.films[first]) - 1, interval=1200)
        ipywidgets.jslink((self.play, "value"), (controls["step"], "value"))
        self.buttons = {
            what: ipywidgets.Button(description=f"next {name}", icon=icon, layout={"width": "auto"})
            for what, (name, icon) in JUMPS.items()
        }
        for what, button in self.buttons.items():
            button.on_click(lambda _, what=what: self.jump(what))
        self._buttons()
        left = self.box.children[0]
        left.children = (*left.children, self.play, ipywidgets.HBox(list(self.buttons.values())))

    @property
    def film(self) -> Film:
        """The film that is shown."""
        return self.films[self.controls["name"].value]

    def jump(self, what: str) -> None:
        """Go to the next step of a kind, a key of `JUMPS`, from the start again at the end."""
        number = self.film.next(getattr(self.film, what), self.controls["step"].value)
        if number is not None:
            self.set(step=number)

    def _frame(self, name: str, step: int) -> Frame:
        return self.films[name].frame(step)

    def _changed(self, change) -> None:
        if change["owner"] is self.controls["name"]:
            self.controls["step"].max = self.play.max = len(self.film) - 1
            self._buttons()
        super()._changed(change)

    def _buttons(self) -> None:
        for what, button in self.buttons.items():
            button.disabled = not getattr(self.film, what)


def gemm_player(step: int | None = None) -> LanePlayer:
    """The small GEMM with three layouts of its rows, and with its wait one group too late."""
    return LanePlayer(
        {
            "plain rows": gemm_film("plain"),
            "padded rows": gemm_film("padded"),
            "XOR swizzle": gemm_film("swizzled"),
            "padded rows, wait missing": gemm_film("padded", "late wait"),
        },
        step,
    )


def hopper_player() -> LanePlayer:
    """The Hopper GEMM's one block, step by step, from the first tile that wgmma reads."""
    shown = hopper_film()
    return LanePlayer({"TMA and wgmma": shown}, next(s.number for s in shown.steps if s.kind == "load"))
