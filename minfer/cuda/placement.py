"""Which multiprocessors lie together, as far as launches show it.

The blocks of an ordinary launch on an idle GPU, one a multiprocessor, fill one GPC (a group of 16 or 18
multiprocessors that share a way to L2) after the other, always in the same order. Multiprocessors are
numbered across the GPCs, and which has how many differs from one GPU to the next; so this order is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from numba import cuda
from numba.cuda.types import uint64

from minfer.cuda import ptx
from minfer.cuda.checks import check_threads, check_types, check_whole
from minfer.cuda.kernel import MAX_SHARED_BYTES, Argument, Kernel

STAY_NS = 20_000
"""That a block stays, so that no other one follows it on its multiprocessor."""


@dataclass(frozen=True)
class PlacementConfig:
    """Blocks that have a multiprocessor to themselves, by what they ask of its shared memory."""

    threads: int = 128
    shared_bytes: int = 120 * 1024

    def __post_init__(self) -> None:
        check_types("placement", self)
        check_threads("placement", self.threads)
        check_whole("placement: shared_bytes", self.shared_bytes, 0, MAX_SHARED_BYTES)

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.shared_bytes} bytes"

    def grid(self, sms: int) -> tuple[int, int, int]:
        """A block a multiprocessor."""
        return sms, 1, 1


@cache
def placement(config: PlacementConfig = PlacementConfig()) -> Kernel:
    """where[block] = the number of the multiprocessor that ran it.

    Arguments: where uint32 [blocks].
    """

    def placed_blocks(where):
        if cuda.threadIdx.x == 0:
            where[cuda.blockIdx.x] = ptx.multiprocessor()
            begun = ptx.globaltimer()
            while ptx.globaltimer() - begun < uint64(STAY_NS):
                pass

    arguments = (Argument("where", "out", "uint32"),)
    return Kernel(
        "placement", config, placed_blocks, config.threads, config.shared_bytes, arguments, min_arch=90
    )


def places(where: Sequence[int]) -> list[int]:
    """The place of each multiprocessor in the order of blocks, from what `placement` wrote. By number where
    that was no order (blocks of another process were in the way): slower, and as right."""
    count = len(where)
    numbers = [int(number) for number in where]
    if sorted(numbers) != list(range(count)):
        return list(range(count))
    found = [0] * count
    for block, number in enumerate(numbers):
        found[number] = block
    return found


KERNELS = ("placement",)


def shipped() -> list[Kernel]:
    """The one config."""
    return [placement()]
