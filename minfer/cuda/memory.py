"""Reading global memory and nothing else: the speed that no kernel which has to read weights can pass
(`minfer ceilings`)."""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.checks import check_choice, check_threads, check_types, check_whole
from minfer.cuda.kernel import Argument, Kernel

PIECE_BYTES = 16
MAX_PIECES = 2**30
"""int32 counts them, and the step past the last one."""


@dataclass(frozen=True)
class ReadMemoryConfig:
    """A grid that stays; a thread takes pieces of 16 bytes that lie as far apart as the grid has threads.

    Attributes:
        loads: pieces that a thread has on their way at a time.
        threads: threads a block.
        blocks: blocks a multiprocessor.
    """

    loads: int = 4
    threads: int = 512
    blocks: int = 4

    def __post_init__(self) -> None:
        check_types("read_memory", self)
        check_choice("read_memory", "loads", self.loads, (1, 2, 4, 8))
        check_threads("read_memory", self.threads)
        check_whole("read_memory: blocks", self.blocks, 1, 32)

    def __str__(self) -> str:
        return f"loads={self.loads} threads={self.threads} blocks={self.blocks}"

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, sms: int) -> tuple[int, int, int]:
        """All blocks that a device of so many multiprocessors gets."""
        check_whole("read_memory: multiprocessors", sms, 1)
        return (sms * self.blocks, 1, 1)


def read_memory(config: ReadMemoryConfig = ReadMemoryConfig()) -> Kernel:
    """sums[t] = the exclusive or of all words that thread t reads.

    Arguments: words uint32 [pieces, 4] (16-byte aligned), sums uint32 [threads of the grid], pieces int32 (at
    most MAX_PIECES). Thread t of n reads pieces t, t + n, t + 2 n, ...
    """
    loads, threads = config.loads, config.threads

    def read_pieces(words, sums, pieces):
        thread = int32(cuda.blockIdx.x * threads + cuda.threadIdx.x)
        step = int32(cuda.gridDim.x * threads)
        source, piece = ptx.global_address(words), thread
        total = uint32(0)
        while piece + int32(loads - 1) * step < pieces:
            for n in range(loads):
                at = source + uint64(piece + int32(n) * step) * uint64(PIECE_BYTES)
                a, b, c, d = ptx.ld_global_stream_v4_u32(at)
                total ^= a ^ b ^ c ^ d
            piece += int32(loads) * step
        while piece < pieces:
            a, b, c, d = ptx.ld_global_stream_v4_u32(source + uint64(piece) * uint64(PIECE_BYTES))
            total ^= a ^ b ^ c ^ d
            piece += step
        sums[thread] = total

    arguments = (
        Argument("words", "in", "uint32"),
        Argument("sums", "out", "uint32"),
        Argument("pieces", "scalar", "int32"),
    )
    return Kernel("read_memory", config, read_pieces, threads, 0, arguments)


KERNELS = ("read_memory",)


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    return [read_memory()]
