"""A simulated block as a film: step by step what its warps do, and what shared memory holds before each step.

A step is one execution of an instruction by one warp. Steps come in the order in which the simulator began
them, which is one of the orders that the barriers allow.
"""

from __future__ import annotations

import bisect
import linecache
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from minfer.arithmetic.banks import (
    BANK_BYTES,
    SECTOR_BYTES,
    BankRequest,
    GlobalRequest,
    TileAddress,
    global_request,
    ldmatrix_request,
    shared_request,
)
from minfer.cuda.trace import Finding, Op, Place, Trace, TracedArray, faulty_rows

KINDS = {
    Op.COPY_ISSUE: "copy",
    Op.COPY_WAIT: "wait",
    Op.LDMATRIX: "load",
    Op.LOAD_SHARED: "load",
    Op.STORE_SHARED: "store",
    Op.STMATRIX: "store",
    Op.ATOMIC: "store",
    Op.MMA: "mma",
    Op.SHUFFLE: "shuffle",
    Op.BARRIER_ARRIVE: "barrier",
    Op.WARP_ARRIVE: "barrier",
    Op.LOAD_GLOBAL: "global",
    Op.STORE_GLOBAL: "global",
    Op.TMA_ISSUE: "copy",
    Op.TMA_LAND: "wait",
    Op.MBARRIER_ARRIVE: "barrier",
    Op.MBARRIER_WAIT: "barrier",
    Op.WGMMA_READ_BEGIN: "load",
    Op.WGMMA: "mma",
    Op.WGMMA_WAIT: "wait",
    Op.BULK_READ_BEGIN: "load",
}
"""What kind of step an operation is. Operations that are not here are no steps of their own."""
NAMES = {
    Op.COPY_ISSUE: "cp.async",
    Op.COPY_WAIT: "cp.async.wait_group",
    Op.LDMATRIX: "ldmatrix",
    Op.LOAD_SHARED: "ld.shared",
    Op.STORE_SHARED: "st.shared",
    Op.MMA: "mma.sync",
    Op.SHUFFLE: "shfl",
    Op.BARRIER_ARRIVE: "bar.sync",
    Op.WARP_ARRIVE: "bar.warp.sync",
    Op.LOAD_GLOBAL: "ld.global",
    Op.STORE_GLOBAL: "st.global",
    Op.STMATRIX: "stmatrix",
    Op.TMA_ISSUE: "TMA or bulk load",
    Op.TMA_LAND: "a TMA load lands",
    Op.MBARRIER_ARRIVE: "mbarrier.arrive",
    Op.MBARRIER_WAIT: "mbarrier.try_wait",
    Op.WGMMA_READ_BEGIN: "wgmma begins to read",
    Op.WGMMA: "wgmma",
    Op.WGMMA_WAIT: "wgmma.wait_group",
    Op.BULK_READ_BEGIN: "a TMA store begins to read",
}
"""The instruction behind an operation."""
EMPTY, FLIGHT, WRITTEN = range(3)
"""States of a shared-memory word: never written, a copy on its way to it, data."""
STATES = ("empty", "in flight", "written")
_FLIGHTS = (Op.COPY_ISSUE, Op.TMA_ISSUE)
_SHARED = (
    *_FLIGHTS, Op.LDMATRIX, Op.LOAD_SHARED, Op.STORE_SHARED, Op.STMATRIX, Op.ATOMIC,
    Op.WGMMA_READ_BEGIN, Op.BULK_READ_BEGIN,
)  # fmt: skip
_BANKED = (Op.LDMATRIX, Op.STMATRIX, Op.LOAD_SHARED, Op.STORE_SHARED)


@dataclass(frozen=True)
class TileAt:
    """A tile in shared memory.

    Attributes:
        start: its byte offset in the block's shared memory. rows, row_bytes: what it holds.
        address: (row, byte column) -> byte offset from `start`: the kernel's own function.
    """

    start: int
    rows: int
    row_bytes: int
    address: TileAddress

    @cached_property
    def words(self) -> dict[int, tuple[int, int]]:
        """Word of shared memory -> (row, byte column) of the tile."""
        return {
            (self.start + self.address(row, byte)) // BANK_BYTES: (row, byte)
            for row in range(self.rows)
            for byte in range(0, self.row_bytes, BANK_BYTES)
        }


@dataclass(frozen=True)
class Step:
    """One execution of an instruction by a warp.

    Attributes:
        number: its place in the film. op, kind: what (see `KINDS`). warp: who.
        lanes: lanes that take part; addresses: one a lane, bytes from the start of shared memory (global
            addresses for the kind "global"); width: bytes a lane. matrices: of ldmatrix or stmatrix, else 0.
        landed: (offset, bytes) of the copies that land in this step.
        chain: the source lines that led here, innermost first.
        findings: the faults that the race checker sees in this step.
    """

    number: int
    op: Op
    warp: int
    lanes: tuple[int, ...]
    addresses: tuple[int, ...]
    width: int
    matrices: int
    landed: tuple[tuple[int, int], ...]
    chain: tuple[Place, ...]
    findings: tuple[Finding, ...]

    @property
    def kind(self) -> str:
        return KINDS[self.op]

    @property
    def place(self) -> Place:
        """The line of the kernel itself."""
        return self.chain[-1]

    @property
    def in_shared(self) -> bool:
        """Whether the addresses are of shared memory."""
        return self.op in _SHARED

    @cached_property
    def banks(self) -> BankRequest | None:
        """The bank request; None where the bank model says nothing (copies land sector by sector)."""
        if self.op not in _BANKED:
            return None
        if self.matrices:
            return ldmatrix_request(self.addresses, self.matrices)
        return shared_request(*self._of_all_lanes())

    @cached_property
    def moved(self) -> GlobalRequest | None:
        """The sectors of global memory that it moves; None: it is no load or store of global memory."""
        return global_request(*self._of_all_lanes()) if self.kind == "global" else None

    @property
    def scattered(self) -> bool:
        """Whether it moves more sectors of global memory than its bytes need."""
        return self.moved is not None and self.moved.sectors > -(-self.moved.bytes_used // SECTOR_BYTES)

    def _of_all_lanes(self) -> tuple[list[int], int, list[bool]]:
        """(the address of each of 32 lanes, bytes a lane, which lanes take part)."""
        where, active = [0] * 32, [False] * 32
        for lane, address in zip(self.lanes, self.addresses, strict=True):
            where[lane], active[lane] = address, True
        return where, self.width, active

    def __str__(self) -> str:
        return f"warp {self.warp}, {NAMES.get(self.op, self.op.name.lower())}"


@dataclass(frozen=True)
class Frame:
    """What is to be seen at a step.

    Attributes:
        film, step: whose. states: for every word of shared memory its state before the step.
        words: the words that the step touches: word, bank, lane (the first to name it), phase, state before,
            conflict (others of its phase wait for the same bank), hazard, and the tile, row and byte where it
            lies in one.
        load: words wanted from each bank in the phase that wants most of it.
    """

    film: Film
    step: Step
    states: np.ndarray
    words: list[dict]
    load: list[int]


@dataclass(frozen=True)
class Film:
    """All steps of a block.

    Attributes:
        name: what ran. shared_bytes: of the block. steps: in order.
        tiles: name -> where a tile lies. arrays: the launch's, in global memory.
    """

    name: str
    shared_bytes: int
    steps: tuple[Step, ...]
    tiles: Mapping[str, TileAt] = field(default_factory=dict)
    arrays: tuple[TracedArray, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def warps(self) -> int:
        """Warps of the block."""
        return 1 + max(step.warp for step in self.steps)

    @cached_property
    def conflicts(self) -> list[int]:
        """Numbers of the steps with a bank conflict."""
        return [step.number for step in self.steps if step.banks and step.banks.conflicts]

    @cached_property
    def hazards(self) -> list[int]:
        """Numbers of the steps in which the race checker finds a fault."""
        return [step.number for step in self.steps if step.findings]

    @cached_property
    def scattered(self) -> list[int]:
        """Numbers of the steps that move more sectors of global memory than their bytes need."""
        return [step.number for step in self.steps if step.scattered]

    def next(self, numbers: list[int], after: int) -> int | None:
        """The first of ascending `numbers` past a step, from the start again at the end; None if empty."""
        if not numbers:
            return None
        return numbers[bisect.bisect_right(numbers, after) % len(numbers)]

    def tile_of(self, word: int) -> tuple[str, int, int] | None:
        """(tile, row, byte column) of a word of shared memory."""
        for name, tile in self.tiles.items():
            if word in tile.words:
                return (name, *tile.words[word])
        return None

    def states(self, number: int) -> np.ndarray:
        """The state of every word before a step."""
        states = np.full(-(-self.shared_bytes // BANK_BYTES), EMPTY, np.int8)

        def put(address: int, size: int, state: int) -> None:
            states[address // BANK_BYTES : -(-(address + size) // BANK_BYTES)] = state

        for step in self.steps[:number]:
            if step.op in _FLIGHTS or (step.kind == "store" and step.in_shared):
                for address in step.addresses:
                    put(address, step.width, FLIGHT if step.op in _FLIGHTS else WRITTEN)
            for address, size in step.landed:
                put(address, size, WRITTEN)
        return states

    def frame(self, number: int) -> Frame:
        """What is to be seen at a step; numbers past the end show the last one."""
        step = self.steps[min(number, len(self) - 1)]
        states = self.states(step.number)
        words = [self._word(word, lane, phase, states, step) for word, lane, phase in _touched(step)]
        load = [0] * 32
        if step.banks is not None:
            load = step.banks.load().max(axis=0).tolist()
        return Frame(self, step, states, words, load)

    def _word(self, word: int, lane: int, phase: int, states: np.ndarray, step: Step) -> dict:
        bank = word % 32
        crowded = step.banks is not None and step.banks.load()[phase, bank] > 1
        tile, row, byte = self.tile_of(word) or (None, None, None)
        state = STATES[states[word]]
        return {
            "word": word,
            "bank": bank,
            "lane": lane,
            "phase": phase,
            "state": state,
            "conflict": bool(crowded),
            "hazard": bool(step.findings) and step.kind == "load" and state != "written",
            "tile": tile,
            "row": row,
            "byte": byte,
        }


def _touched(step: Step) -> list[tuple[int, int, int]]:
    """(word, the first lane that names it, its phase) of a step's shared-memory words, ascending."""
    if not step.in_shared:
        return []
    lanes_a_phase = 8 if step.matrices or step.width == 16 else 16 if step.width == 8 else 32
    one_phase = step.banks is None
    found: dict[int, tuple[int, int]] = {}
    for lane, address in zip(step.lanes, step.addresses, strict=True):
        phase = 0 if one_phase else lane // lanes_a_phase
        for word in range(address // BANK_BYTES, -(-(address + step.width) // BANK_BYTES)):
            found.setdefault(word, (lane, phase))
    return [(word, *found[word]) for word in sorted(found)]


def film(trace: Trace, block: int = 0, tiles: Mapping[str, TileAt] | None = None) -> Film:
    """The film of one block of a traced launch.

    Args:
        block: its number in the grid. tiles: what lies where in shared memory.

    Raises:
        ValueError: the trace is empty, or the block did nothing that is shown.
    """
    from minfer.cuda.simulator.memory import SHARED_BASE

    if trace.info is None:
        raise ValueError("the trace is empty: give it to simulator.launch first")
    table = trace.table
    faults: dict[int, list[Finding]] = {}
    for row, finding in faulty_rows(trace):
        faults.setdefault(row, []).append(finding)
    landed: dict[tuple[int, int, int], list[tuple[int, int]]] = {}  # by warp, site, synchronization
    executions = _executions(table, block)
    for rows in executions:
        if table[rows[0]]["op"] == Op.COPY_LAND:
            part = table[rows]
            where = zip((part["address"] - SHARED_BASE).tolist(), part["width"].tolist(), strict=True)
            landed.setdefault(_moment(table[rows[0]]), []).extend(where)
    steps: list[Step] = []
    for rows in executions:
        head, part = table[rows[0]], table[rows]
        op = Op(int(head["op"]))
        if op is Op.COPY_LAND:
            continue
        findings = {id(f): f for row in rows.tolist() for f in faults.get(row, ())}
        arrived = landed.pop(_moment(head), ()) if op is Op.COPY_WAIT else ()
        if op is Op.TMA_LAND:
            arrived = [(int(head["address"]) - SHARED_BASE, int(head["width"]))]
        base = SHARED_BASE if op in _SHARED else 0
        steps.append(
            Step(
                number=len(steps),
                op=op,
                warp=int(head["thread"]) // 32,
                lanes=tuple((part["thread"] % 32).tolist()),
                addresses=tuple((part["address"] - base).tolist()),
                width=int(head["width"]),
                matrices=int(head["extra"]) if op in (Op.LDMATRIX, Op.STMATRIX) else 0,
                landed=tuple(arrived),
                chain=trace.sites[int(head["site"])],
                findings=tuple(findings.values()),
            )
        )
    if not steps:
        raise ValueError(f"block {block} of {trace.info.kernel} did nothing that is shown")
    name = f"{trace.info.kernel} [{trace.info.config}]"
    touched = [max(step.addresses) + step.width for step in steps if step.in_shared]
    shared_bytes = max([trace.info.shared_bytes, *touched])  # arrays of a fixed size are not in the launch's
    return Film(name, shared_bytes, tuple(steps), dict(tiles or {}), trace.info.arrays)


def _moment(row: np.void) -> tuple[int, int, int]:
    return int(row["thread"]) // 32, int(row["site"]), int(row["sync"])


def _executions(table: np.ndarray, block: int) -> list[np.ndarray]:
    """The rows of each execution of an instruction by a warp, lanes ascending; by their first row."""
    shown = np.isin(table["op"], [*KINDS, Op.COPY_LAND]) & (table["block"] == block)
    rows = np.flatnonzero(shown)
    part = table[rows]
    keys = np.stack(
        [part["op"], part["thread"] // 32, part["site"], part["sync"], part["occurrence"]], axis=1
    )
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    members = np.split(rows[np.argsort(group, kind="stable")], np.cumsum(np.bincount(group))[:-1])
    return [members[i][np.argsort(table["thread"][members[i]], kind="stable")] for i in order]


def source_lines(place: Place, around: int = 6) -> list[dict]:
    """The lines around a place: number, text, current. Empty where the source cannot be read."""
    lines = linecache.getlines(place.file)
    first = max(place.line - around, 1)
    shown = lines[first - 1 : place.line + around]
    return [
        {"number": first + i, "text": text.rstrip("\n"), "current": first + i == place.line}
        for i, text in enumerate(shown)
    ]
