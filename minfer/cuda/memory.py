"""Reading and copying global memory and nothing else: speeds that no kernel which has to read its weights, or
read and write its activations, can pass (`minfer ceilings`)."""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import int32, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.checks import check_choice, check_threads, check_types, check_whole
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument, Kernel

PIECE_BYTES = 16
MAX_PIECES = 2**30
"""int32 counts them, and the step past the last one."""


@dataclass(frozen=True)
class MemoryConfig:
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
        check_types("memory", self)
        check_choice("memory", "loads", self.loads, (1, 2, 4, 8))
        check_threads("memory", self.threads)
        check_whole("memory: blocks", self.blocks, 1, 32)

    def __str__(self) -> str:
        return f"loads={self.loads} threads={self.threads} blocks={self.blocks}"

    @property
    def shared_bytes(self) -> int:
        return 0

    def grid(self, sms: int) -> tuple[int, int, int]:
        """All blocks that a device of so many multiprocessors gets."""
        check_whole("memory: multiprocessors", sms, 1)
        return (sms * self.blocks, 1, 1)


@device_function
def _load(words, o, address):
    words[o], words[o + 1], words[o + 2], words[o + 3] = ptx.ld_global_stream_v4_u32(address)


@device_function
def _store(address, words, o):
    ptx.st_global_v4_u32(address, words[o], words[o + 1], words[o + 2], words[o + 3])


def read_memory(config: MemoryConfig = MemoryConfig()) -> Kernel:
    """sums[t] = the exclusive or of all words that thread t reads.

    Arguments: words uint32 [pieces, 4] (16-byte aligned), sums uint32 [threads of the grid], pieces int32 (at
    most MAX_PIECES). Thread t of n reads pieces t, t + n, t + 2 n, ...
    """
    loads, threads, words_held = config.loads, config.threads, 4 * config.loads

    def read_pieces(words, sums, pieces):
        piece = int32(cuda.blockIdx.x * threads + cuda.threadIdx.x)
        step = int32(cuda.gridDim.x * threads)
        source, held = ptx.global_address(words), cuda.local.array(words_held, uint32)
        target = ptx.global_address(sums) + uint64(piece) * uint64(4)
        total = uint32(0)
        while piece + int32(loads - 1) * step < pieces:
            for n in range(loads):
                _load(held, 4 * n, source + uint64(piece + int32(n) * step) * uint64(PIECE_BYTES))
            for n in range(words_held):
                total ^= held[n]
            piece += int32(loads) * step
        while piece < pieces:
            _load(held, 0, source + uint64(piece) * uint64(PIECE_BYTES))
            total ^= held[0] ^ held[1] ^ held[2] ^ held[3]
            piece += step
        ptx.st_global_u32(target, total)

    arguments = (
        Argument("words", "in", "uint32"),
        Argument("sums", "out", "uint32"),
        Argument("pieces", "scalar", "int32"),
    )
    return Kernel("read_memory", config, read_pieces, threads, 0, arguments)


def copy_memory(config: MemoryConfig = MemoryConfig()) -> Kernel:
    """target = words.

    Arguments: words and target uint32 [pieces, 4] (16-byte aligned), pieces int32 (at most MAX_PIECES).
    """
    loads, threads, words_held = config.loads, config.threads, 4 * config.loads

    def copy_pieces(words, target, pieces):
        piece = int32(cuda.blockIdx.x * threads + cuda.threadIdx.x)
        step = int32(cuda.gridDim.x * threads)
        source, held = ptx.global_address(words), cuda.local.array(words_held, uint32)
        out = ptx.global_address(target)
        while piece + int32(loads - 1) * step < pieces:
            for n in range(loads):
                _load(held, 4 * n, source + uint64(piece + int32(n) * step) * uint64(PIECE_BYTES))
            for n in range(loads):
                _store(out + uint64(piece + int32(n) * step) * uint64(PIECE_BYTES), held, 4 * n)
            piece += int32(loads) * step
        while piece < pieces:
            _load(held, 0, source + uint64(piece) * uint64(PIECE_BYTES))
            _store(out + uint64(piece) * uint64(PIECE_BYTES), held, 0)
            piece += step

    arguments = (
        Argument("words", "in", "uint32"),
        Argument("target", "out", "uint32"),
        Argument("pieces", "scalar", "int32"),
    )
    return Kernel("copy_memory", config, copy_pieces, threads, 0, arguments)


KERNELS = ("copy_memory", "read_memory")


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    return [copy_memory(), read_memory()]
