"""What a small kernel around one PTX instruction is, and how its source becomes one.

The same source runs on the GPU and in the simulator, and both must give the same words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx
from minfer.cuda.instruction import Instruction, f32
from minfer.cuda.kernel import Argument, Kernel

THREADS = 128


@dataclass(frozen=True)
class Probe:
    """One kernel with its inputs.

    Attributes:
        kernel: its last array argument is the output, of `out_words` u32.
        inputs: the arrays before it.
        rtol, atol: 0 for bit equality; else the output is compared as f32.
    """

    kernel: Kernel
    inputs: tuple[np.ndarray, ...]
    out_words: int
    rtol: float = 0.0
    atol: float = 0.0

    def __str__(self) -> str:
        return self.kernel.name


@dataclass(frozen=True)
class ProbeConfig:
    """Which instruction."""

    instruction: str

    def __str__(self) -> str:
        return self.instruction


def probe_kernel(
    name: str, function: Callable, inputs: tuple, shared_bytes: int = 0, **limits: Any
) -> Kernel:
    arguments = (
        *(Argument(f"in{i}", "in", array.dtype.name) for i, array in enumerate(inputs)),
        Argument("out", "out", "uint32"),
    )
    return Kernel(
        name="probe",
        config=ProbeConfig(name),
        function=function,
        threads=THREADS,
        shared_bytes=shared_bytes,
        arguments=arguments,
        **limits,
    )


def compiled(source: str, **names: Any) -> Callable:
    """The function `kernel` of a source text: one text serves instructions of any number of operands."""
    scope = {"cuda": cuda, "ptx": ptx, "types": types, **names}
    exec(source, scope)
    return scope["kernel"]


def source_probe(
    name: str, lines: list[str], inputs: tuple, out_words: int, shared_bytes: int = 0, **limits: Any
) -> Probe:
    """The probe of a body in lines, of one input `in0`; `tid` is the thread, `base` the shared memory."""
    source = "\n".join(
        [
            "def kernel(in0, out):",
            "    tid = types.int32(cuda.threadIdx.x)",
            "    base = ptx.shared_address(cuda.shared.array(0, types.uint8))",
            *lines,
        ]
    )
    return Probe(probe_kernel(name, compiled(source), inputs, shared_bytes, **limits), inputs, out_words)


def result_words(instruction: Instruction) -> list[str]:
    """Expressions for the results of the call `r`, as u32 words."""
    several = len(instruction.returns) > 1
    words = []
    for i, scalar in enumerate(instruction.returns):
        value = f"r[{i}]" if several else "r"
        words.append(f"ptx.bitcast_u32_f32({value})" if scalar is f32 else f"types.uint32({value})")
    return words


def random_bytes(name: str, count: int) -> np.ndarray:
    """Random bytes; for f32 accesses, random ordinary floats."""
    rng = np.random.default_rng(count)
    if "f32" in name:
        return rng.normal(size=count // 4).astype(np.float32).view(np.uint8)
    return rng.integers(0, 256, count).astype(np.uint8)


FILL = [
    "    tid = types.int32(cuda.threadIdx.x)",
    "    base = ptx.shared_address(cuda.shared.array(0, types.uint8))",
    "    for i in range({words} // 128):",
    "        at = types.int32(i * 128) + tid",
    "        ptx.st_shared_u32(base + types.uint32(at * 4), in0[at])",
    "    cuda.syncthreads()",
]
DRAIN = [
    "    cuda.syncthreads()",
    "    for i in range({words} // 128):",
    "        at = types.int32(i * 128) + tid",
    "        out[at] = ptx.ld_shared_u32(base + types.uint32(at * 4))",
]


def shared_lines(lines: list[str], words: int) -> list[str]:
    return [line.format(words=words) for line in lines]
