"""The trace of a simulated launch: one row for everything that a lane did, in order of execution."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import numpy as np

from minfer.cuda.trace.files import read_trace, write_trace
from minfer.cuda.trace.layout import DTYPE, LaunchInfo, Place
from minfer.cuda.trace.ops import Op
from minfer.cuda.trace.source import SOURCE_MARK, call_chain

_CHUNK = 1 << 16


class Trace:
    """Give an empty one to `simulator.launch`; read `table`, `sites` and `info` afterwards.

    Attributes:
        info: what was launched; None before.
        sites: for every site the chain of source lines that led to the instruction, innermost first.
    """

    def __init__(self) -> None:
        self.info: LaunchInfo | None = None
        self.sites: list[tuple[Place, ...]] = []
        self._site_of: dict[tuple[int, ...], int] = {}
        self._rows: list[tuple[int, ...]] = []
        self._chunks: list[np.ndarray] = []

    def __repr__(self) -> str:
        kernel = self.info.kernel if self.info else "nothing yet"
        return f"<trace of {kernel}, {len(self)} records>"

    def __len__(self) -> int:
        return len(self._rows) + sum(len(chunk) for chunk in self._chunks)

    # ---- recording, called by the simulator

    def begin(self, info: LaunchInfo) -> None:
        """Start recording a launch. A trace holds one launch only."""
        if self.info is not None:
            raise ValueError(f"this trace already holds a launch of {self.info.kernel}; use a new Trace")
        self.info = info

    def record(self, lane: Any, op: Op, address: int = 0, width: int = 0, extra: int = 0) -> None:
        """Add a row for `lane` at the kernel source that is running."""
        site = self._site()
        sync = lane.warp.synchronizations + lane.barriers
        counts = lane.site_counts
        if lane.counted_sync != sync:
            counts.clear()
            lane.counted_sync = sync
        key = site << 6 | op
        occurrence = counts.get(key, 0)
        counts[key] = occurrence + 1
        self._rows.append((op, lane.block.number, lane.thread, site, sync, occurrence, address, width, extra))
        if len(self._rows) >= _CHUNK:
            self._flush()

    def _site(self) -> int:
        key = call_chain(sys._getframe(2))
        site = self._site_of.get(key)
        if site is None:
            site = self._site_of[key] = len(self.sites)
            self.sites.append(_places(sys._getframe(2)))
        return site

    def _flush(self) -> None:
        if self._rows:
            self._chunks.append(np.array(self._rows, DTYPE))
            self._rows.clear()

    # ---- reading

    @property
    def table(self) -> np.ndarray:
        """All rows, in order, as a structured array of `DTYPE`."""
        self._flush()
        if len(self._chunks) != 1:
            self._chunks = [np.concatenate(self._chunks) if self._chunks else np.empty(0, DTYPE)]
        return self._chunks[0]

    def rows(self, *ops: Op, block: int | None = None, thread: int | None = None) -> np.ndarray:
        """The rows of these ops (all if none is given), of one block or thread if asked."""
        table = self.table
        keep = np.isin(table["op"], ops) if ops else np.ones(len(table), bool)
        if block is not None:
            keep &= table["block"] == block
        if thread is not None:
            keep &= table["thread"] == thread
        return table[keep]

    def place(self, site: int) -> Place:
        """The source line of a site: the innermost one."""
        return self.sites[site][0] if self.sites[site] else Place("?", 0, "?")

    def counts(self) -> dict[str, int]:
        """Rows of every op, by name."""
        numbers, counts = np.unique(self.table["op"], return_counts=True)
        return {Op(number).name: int(count) for number, count in zip(numbers, counts, strict=True)}

    def counts_by_line(self) -> Counter[tuple[Place, Op]]:
        """Rows of every source line and op."""
        result: Counter[tuple[Place, Op]] = Counter()
        pairs, counts = np.unique(self.table[["site", "op"]], return_counts=True)
        for (site, op), count in zip(pairs.tolist(), counts.tolist(), strict=True):
            result[self.place(site), Op(op)] += count
        return result

    # ---- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `path`.npz (the rows) and `path`.json (version, launch, sites); a suffix .npz or .json is
        dropped."""
        write_trace(path, self.info, self.sites, self.table)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read what `save` wrote.

        Raises:
            TraceFileError: the files cannot be read, are no trace, of another version, damaged, or do not
                belong together; names the file and what is wrong.
        """
        trace = cls()
        trace.info, trace.sites, table = read_trace(path)
        trace._chunks = [table]
        return trace


def _places(frame: Any) -> tuple[Place, ...]:
    places = []
    while frame is not None:
        if SOURCE_MARK in frame.f_globals:
            places.append(Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(places)
