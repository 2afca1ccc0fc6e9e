"""The clock that the multiprocessors really ran at, from their own counters.

A GPU at its power limit changes its clock within a millisecond; what the driver's sensors say of it is older
than a short measurement is long. Two launches of this kernel around the work tell cycles and nanoseconds
between them, multiprocessor by multiprocessor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numba import cuda
from numba.cuda.types import int32

from minfer.cuda import ptx
from minfer.cuda.checks import check_threads, check_types
from minfer.cuda.kernel import Argument, Kernel

SLOTS = 256
"""Places for readings: more than a GPU has multiprocessors."""


@dataclass(frozen=True)
class ClockConfig:
    """A block an SM.

    Attributes:
        threads: many, so that two blocks hardly go to one SM while another has none.
    """

    threads: int = 1024

    def __post_init__(self) -> None:
        check_types("read_clock", self)
        check_threads("read_clock", self.threads)

    def __str__(self) -> str:
        return f"threads={self.threads}"

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, sms: int) -> tuple[int, int, int]:
        """A block a multiprocessor."""
        return (sms, 1, 1)


@cache
def read_clock(config: ClockConfig = ClockConfig()) -> Kernel:
    """readings[sm] = (cycles, nanoseconds) on each multiprocessor that got a block.

    Arguments: readings uint64 [SLOTS, 2]; what no block wrote stays.
    """

    def read_clock_pairs(readings):
        if cuda.threadIdx.x == 0:
            place = int32(ptx.multiprocessor()) % SLOTS * 2
            readings[place] = ptx.clock64()
            readings[place + 1] = ptx.globaltimer()

    arguments = (Argument("readings", "inout", "uint64"),)
    return Kernel("read_clock", config, read_clock_pairs, config.threads, config.shared_bytes, arguments)


def mean_mhz(before: Sequence, after: Sequence) -> float | None:
    """Mean clock between two readings: the median over the multiprocessors that both hold; None: they hold
    none, or no time passed."""
    first, last = (np.asarray(readings, np.int64).reshape(-1, 2) for readings in (before, after))
    both = (first[:, 1] > 0) & (last[:, 1] > first[:, 1])
    cycles, nanoseconds = (last - first)[both].T
    return float(np.median(cycles / nanoseconds) * 1e3) if both.any() else None


KERNELS = ("read_clock",)


def shipped() -> list[Kernel]:
    """The one config."""
    return [read_clock()]
