"""What a trace consists of: the columns of its rows, places in the source, the launch."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

#: columns of `Trace.table`. `site` indexes `Trace.sites`; `sync` and `occurrence` number executions of a
#: site, so that rows of one warp that agree in both, in site and in op are one request.
DTYPE = np.dtype(
    [
        ("op", "u1"),
        ("block", "i4"),
        ("thread", "i4"),
        ("site", "i4"),
        ("sync", "i4"),
        ("occurrence", "i4"),
        ("address", "i8"),
        ("width", "i4"),
        ("extra", "i8"),
    ]
)


@dataclass(frozen=True)
class Place:
    """A line of kernel source."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file_name}:{self.line} in {self.function}"

    @property
    def file_name(self) -> str:
        """The file as a reader knows it: without folders, and a cell of a notebook as such."""
        folder, name = os.path.split(self.file)
        return "this notebook" if os.path.basename(folder).startswith("ipykernel_") else name


@dataclass(frozen=True)
class TracedArray:
    """A global array of the launch: its name, first address and bytes."""

    name: str
    address: int
    size: int


@dataclass(frozen=True)
class LaunchInfo:
    """What was launched."""

    kernel: str
    config: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    cluster: int
    arrays: tuple[TracedArray, ...]
