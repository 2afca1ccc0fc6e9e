"""Products straight from quantized blocks: which MMQ kernel a matrix takes, and what where one cannot.

A route names a chain of kernels, the best first. A matrix takes the first one that can run: a kernel is
passed over for a format that it does not read, for rows that are no whole super-blocks, for shared memory
that the device does not allow, or because it does not compile or the driver refuses it. What no kernel of
the chain takes goes through the f16 GEMM, dequantized before each product. Every step down is told, once for
each format and row length; nothing is ever left unwritten.

    mmq_fast       large -> stream-k -> fast --> narrow KD=8 -> R1 -> f16
    mmq_raw_wide   wide KD=8 -> wide KD=4 -> narrow KD=8 -> R1 -> f16
    mmq_raw                                  narrow KD=8 -> R1 -> f16
    mmq                                                     R1 -> f16

Where whole tiles leave next to no multiprocessor idle, the fast kernel takes the place of the stream-k one;
not of the large one, whose blocks have a multiprocessor to themselves: nobody fills it until the next begins.
Up to SMALL_TOKENS tokens start at the chain's first kernel whose tile is no taller than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from minfer.cuda.kernel import CompileError, ConfigRefused, LaunchRefused
from minfer.cuda.mmq import WEIGHT_TYPES, MmqConfig, fast, large, mmq, narrow, r1, stream, wide
from minfer.engine.cuda.launches import launch_for
from minfer.engine.cuda.routes import SMALL_TOKENS

if TYPE_CHECKING:
    from minfer.engine.cuda.devices import Device
    from minfer.engine.cuda.weights import Run, Stack


STREAM_COST = 0.04
"""What a grid that stays costs: its blocks' shares are fixed, where others come as multiprocessors fall
free."""


@dataclass(frozen=True)
class Step:
    """A kernel of a chain, without the format.

    Attributes:
        name: as lines and records say it.
        make: format -> its config; raises ConfigRefused for a format that it does not read.
    """

    name: str
    make: Callable[[str], MmqConfig]

    def __str__(self) -> str:
        return self.name


_R1, _NARROW = Step("R1", r1), Step("narrow KD=8", narrow)
_WIDE = tuple(Step(f"wide KD={kd}", partial(wide, kd=kd)) for kd in (8, 4))
CHAINS: dict[str, tuple[Step, ...]] = {
    "mmq": (_R1,),
    "mmq_raw": (_NARROW, _R1),
    "mmq_raw_wide": (*_WIDE, _NARROW, _R1),
    "mmq_fast": (Step("large", large), Step("stream-k", stream), Step("fast", fast), _NARROW, _R1),
    "mmq_raw_kd4": (Step("narrow KD=4", partial(narrow, kd=4)), _R1),
    "mmq_raw_wide_kd4": (_WIDE[1], _NARROW, _R1),
}
"""The kernels of each route, the best first. Behind the last one stands the f16 GEMM. The last two are no
routes of their own: the campaign compares them with others."""


def workspace(route: str, sms: int) -> tuple[int, int]:
    """f32 elements and counters that the stream-k kernels of a route take at most, (0, 0) if it has none."""
    configs = [step.make(format) for step in CHAINS[route] for format in WEIGHT_TYPES]
    sizes = [(0, 0), *(config.workspace(sms) for config in configs if config.stream)]
    return max(parts for parts, _ in sizes), max(ready for _, ready in sizes)


@cache
def small_place(route: str) -> int:
    """The first step of a route's chain for few tokens."""
    tiles = [step.make("Q4_K").tokens_tile for step in CHAINS[route]]
    return next(place for place, tile in enumerate(tiles) if tile <= SMALL_TOKENS)


@dataclass(frozen=True)
class Choice:
    """The kernel of a matrix: a step of its chain, or None for the f16 GEMM, and why not an earlier one."""

    place: int
    config: MmqConfig | None
    passed_over: tuple[str, ...] = ()


@cache
def choose(route: str, format: str, columns: int, shared_bytes: int, first: int = 0) -> Choice:
    """What a route does with rows of `columns` weights on a device that allows `shared_bytes` a block; from
    the chain's step `first` on."""
    chain, passed_over, place = CHAINS[route], [], first
    while place < len(chain):
        reason = None
        try:
            config = chain[place].make(format)
            config.check(1, 1, columns)
        except ConfigRefused as error:
            reason = str(error)
        else:
            if config.shared_bytes > shared_bytes:
                reason = (
                    f"it takes {config.shared_bytes:,} bytes of shared memory a block, the device allows "
                    f"{shared_bytes:,}"
                )
        if reason is None:
            return Choice(place, config, tuple(passed_over))
        passed_over.append(step_down(route, place, format, columns, reason))
        place = next_place(route, place, format)
    return Choice(len(chain), None, tuple(passed_over))


def next_place(route: str, place: int, format: str) -> int:
    """The first step behind one of a route's chain that has another config for a format: what was refused
    once is not tried again."""
    chain = CHAINS[route]
    refused, place = _made(chain[place], format), place + 1
    while refused is not None and place < len(chain) and _made(chain[place], format) == refused:
        place += 1
    return place


def _made(step: Step, format: str) -> MmqConfig | None:
    """A step's config; None: it does not read the format."""
    try:
        return step.make(format)
    except ConfigRefused:
        return None


def step_down(route: str, place: int, format: str, columns: int, reason: str) -> str:
    """The line that tells why a step of a route's chain is not taken, and what comes next."""
    chain = CHAINS[route]
    behind = next_place(route, place, format)
    following = chain[behind] if behind < len(chain) else "the f16 GEMM"
    return f"{route}: {chain[place]} refused for {format} rows of {columns}: {reason}; next: {following}"


def takes(route: str, shapes: Sequence[tuple[str, int]], shared_bytes: int) -> bool:
    """Whether MMQ kernels take all of these (format, columns): matrices that are multiplied at once."""
    return all(choose(route, *shape, shared_bytes).config is not None for shape in shapes)


class MmqProducts:
    """Launches the MMQ kernels of a route. `tell` gets a line for each step down."""

    def __init__(self, device: Device, route: str, tell: Callable[[str], None]):
        self.device, self.route, self.tell = device, route, tell
        self._first: dict[tuple[str, int], int] = {}
        self._told: set[str] = set()
        parts, ready = workspace(route, device.sms)
        if parts:
            self._parts, self._ready = device.empty(parts, np.float32), device.empty(ready, np.uint32)
            device.clear(self._ready)

    def multiply(self, out: Any, operand: Callable[[str], Any], stack: Stack) -> bool:
        """out = x . stack^T, f32 or f16 (tokens, rows). operand("pad40"): x as chunks, uint8 (tokens, bytes).

        Returns False, with nothing launched or a refused launch behind it, where the stack must take the f16
        GEMM instead: in that case `out` is to be written by that.
        """
        if not all(self._choice(run, len(out)).config is not None for run in stack.runs):
            return False
        chunks, first = operand("pad40"), 0
        stride = stack.rows if len(stack.runs) > 1 else None
        for run in stack.runs:
            if not self._launch(run, chunks, out.reshape(-1)[first:] if stride else out, stride):
                return False
            first += run.rows
        return True

    def _choice(self, run: Run, tokens: int) -> Choice:
        first = self._first.get((run.format, run.columns), 0)
        if tokens <= SMALL_TOKENS:
            first = max(first, small_place(self.route))
        choice = choose(self.route, run.format, run.columns, self.device.shared_bytes, first)
        for line in choice.passed_over:
            if line not in self._told:
                self._told.add(line)
                self.tell(line)
        return choice

    def _launch(self, run: Run, chunks: Any, out: Any, stride: int | None) -> bool:
        """Multiply one run, into some columns of rows of `stride` elements or a matrix of its own; steps down
        where the compiler or the driver refuses. False: no step is left."""
        nt, form = len(chunks), "f16" if out.dtype == np.float16 else "f32"
        sizes = nt, run.rows, self.device.sms
        while (config := (choice := self._choice(run, nt)).config) is not None:
            args = nt, run.rows, run.columns
            try:
                product = launch_for(mmq, _fitted, sizes, config, sizes, stride is not None, form)
                if product.config.stream:
                    args = self._parts, self._ready, *args, stride or run.rows
                elif stride is not None:
                    args = *args, stride
                product.on(self.device, run.blocks, chunks, out, *args)
                return True
            except (LaunchRefused, CompileError) as error:
                self.tell(step_down(self.route, choice.place, run.format, run.columns, str(error)))
                self._first[run.format, run.columns] = next_place(self.route, choice.place, run.format)
        return False


def _fitted(config: MmqConfig, sizes: tuple[int, int, int], strided: bool, form: str) -> MmqConfig:
    """A chain's config for a product of (tokens, rows, multiprocessors)."""
    stream = config.stream and (config.min_blocks == 1 or config.idle(*sizes) >= STREAM_COST)
    return replace(config, stream=stream, strided=strided, out=form)
