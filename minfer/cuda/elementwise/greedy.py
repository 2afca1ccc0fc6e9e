"""The choice of greedy decoding: the index of the largest logit, and the next token's state."""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numba.cuda.types import int32, uint8, uint32, uint64

from minfer.cuda import ptx
from minfer.cuda.checks import blocks_for, check_choice, check_threads, check_types
from minfer.cuda.dependent import dependent_start, least_arch
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument, Kernel

NAN_KEY = 0xFFFFFFFF  # above every number's key


@dataclass(frozen=True)
class ArgmaxConfig:
    """Argmax in two launches of one kernel.

    Attributes:
        stage: "partial" (logits -> one candidate a block), "final" (candidates -> the index, one block) or
            "next" (as "final", and makes the index the next token).
        threads: threads a block.
        pdl: programmatic dependent launch (`minfer.cuda.dependent`).
    """

    stage: str = "partial"
    threads: int = 256
    pdl: bool = False

    def __post_init__(self) -> None:
        check_types("argmax", self)
        check_choice("argmax", "stage", self.stage, ("partial", "final", "next"))
        check_threads("argmax", self.threads)

    def __str__(self) -> str:
        return f"{self.stage} threads={self.threads}{' pdl' if self.pdl else ''}"

    @property
    def shared_bytes(self) -> int:
        return self.threads // 32 * 8

    def grid(self, n: int) -> tuple[int, int, int]:
        """Blocks for n logits: 4 a thread, at most 256 blocks, which then walk; one block for the final
        stage."""
        blocks = min(256, blocks_for("argmax: n", n, self.threads * 4))
        return (blocks if self.stage == "partial" else 1, 1, 1)


@device_function
def order_key(bits):
    """A float's bits as an integer whose order is the order of the floats, both zeros alike, NaN on top."""
    magnitude = bits & uint32(0x7FFFFFFF)
    if magnitude > uint32(0x7F800000):
        return uint32(NAN_KEY)
    if bits > uint32(0x80000000):
        return uint32(0x80000000) - magnitude
    return uint32(0x80000000) + magnitude


def argmax(config: ArgmaxConfig = ArgmaxConfig()) -> Kernel:
    """The index of the largest of n f32 logits, the lowest of equal ones; -1 if any is NaN: a broken
    forward pass must not make a token.

    Arguments, partial: logits f32 [n], candidates uint32 [blocks, 2] (key, index), n int32; launched on any
    number of blocks. Final: candidates uint32 [n, 2], index int32 [1], n int32 (the partial stage's
    blocks); one block. Next: candidates, chosen int32 [2] (the index goes to the element of the position's
    parity), token, position, length int32 [1] (the index, or 0 for -1; both one more than before), n.
    """
    threads = config.threads
    warps, start = threads // 32, dependent_start(config.pdl)

    @device_function
    def better(key, index, other_key, other_index):
        return other_key > key or (other_key == key and other_index < index)

    @device_function
    def block_best(key, index):
        """The block's best (key, index), in every thread."""
        scratch = ptx.shared_address(cuda.shared.array(0, uint8))
        thread = int32(cuda.threadIdx.x)
        for step in range(5):
            mask = uint32(1 << step)
            other_key = ptx.shfl_xor_u32(key, mask)
            other_index = ptx.shfl_xor_u32(index, mask)
            if better(key, index, other_key, other_index):
                key = other_key
                index = other_index
        if (thread & 31) == 0:
            ptx.st_shared_v2_u32(scratch + uint32((thread >> 5) * 8), key, index)
        cuda.syncthreads()
        for w in range(warps):
            other_key, other_index = ptx.ld_shared_v2_u32(scratch + uint32(w * 8))
            if better(key, index, other_key, other_index):
                key = other_key
                index = other_index
        return key, index

    def argmax_partial(logits, candidates, n):
        start()
        source = ptx.global_address(logits)
        key = uint32(0)
        index = uint32(0x7FFFFFFF)
        for i in range(cuda.blockIdx.x * threads + cuda.threadIdx.x, n, cuda.gridDim.x * threads):
            found = order_key(ptx.ld_global_u32(source + uint64(i) * uint64(4)))
            if better(key, index, found, uint32(i)):
                key = found
                index = uint32(i)
        key, index = block_best(key, index)
        if cuda.threadIdx.x == 0:
            target = ptx.global_address(candidates) + uint64(cuda.blockIdx.x) * uint64(8)
            ptx.st_global_v2_u32(target, key, index)

    @device_function
    def best_candidate(candidates, n):
        source = ptx.global_address(candidates)
        key = uint32(0)
        best = uint32(0x7FFFFFFF)
        for i in range(int32(cuda.threadIdx.x), n, threads):
            other_key, other_index = ptx.ld_global_v2_u32(source + uint64(i) * uint64(8))
            if better(key, best, other_key, other_index):
                key = other_key
                best = other_index
        key, best = block_best(key, best)
        return int32(-1) if key == uint32(NAN_KEY) else int32(best)

    def argmax_final(candidates, index, n):
        start()
        best = best_candidate(candidates, n)
        if cuda.threadIdx.x == 0:
            index[0] = best

    def argmax_next(candidates, chosen, token, position, length, n):
        start()
        best = best_candidate(candidates, n)
        if cuda.threadIdx.x == 0:
            chosen[position[0] & 1] = best
            token[0] = int32(max(best, 0))
            position[0] += 1
            length[0] += 1

    candidates = Argument("candidates", "out" if config.stage == "partial" else "in", "uint32")
    function, given = {
        "partial": (argmax_partial, (Argument("logits", "in", "float32"), candidates)),
        "final": (argmax_final, (candidates, Argument("index", "out", "int32"))),
        "next": (
            argmax_next,
            (
                candidates,
                Argument("chosen", "inout", "int32"),
                Argument("token", "out", "int32"),
                Argument("position", "inout", "int32"),
                Argument("length", "inout", "int32"),
            ),
        ),
    }[config.stage]
    return Kernel(
        name="argmax",
        config=config,
        function=function,
        threads=threads,
        shared_bytes=config.shared_bytes,
        arguments=(*given, Argument("n", "scalar", "int32")),
        min_arch=least_arch(config.pdl),
    )


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    return [
        argmax(ArgmaxConfig(stage, pdl=pdl))
        for stage in ("partial", "final", "next")
        for pdl in (False, True)
    ]
