"""What the simulator's tests share: kernels from plain functions, one instruction run on one warp."""

import numpy as np
from numba import cuda
from numba.cuda import types

from minfer.cuda import simulator
from minfer.cuda.kernel import Argument, Kernel

_NUMBA = {
    name: getattr(types, name)
    for name in ("int32", "uint32", "uint64", "float32", "float16", "int8", "uint8")
}


def make_kernel(function, *arguments, threads=32, shared_bytes=0, cluster=1, cooperative=False):
    """A `Kernel`; `arguments` are "name: dtype" for pointers, "name = dtype" for scalars, "name: map" for
    tensor maps."""
    parsed, numba_types = [], []
    for text in arguments:
        pointer = ":" in text
        name, dtype = (part.strip() for part in text.split(":" if pointer else "="))
        kind = "scalar" if not pointer else "tensor_map" if dtype == "map" else "inout"
        element = types.uint8 if dtype == "map" else _NUMBA[dtype]
        numba_types.append(types.CPointer(element) if pointer else element)
        parsed.append(Argument(name, kind))
    return Kernel(
        name=function.__name__,
        config="test",
        function=function,
        signature=lambda: types.void(*numba_types),
        threads=threads,
        shared_bytes=shared_bytes,
        arguments=tuple(parsed),
        min_arch=90 if cluster > 1 else 80,
        cluster=cluster,
        cooperative=cooperative,
    )


def run_warp(instruction, inputs, outputs, out_dtype, threads=32):
    """Execute a register instruction on every lane: `inputs` (threads, operands) uint32 bits or floats ->
    (threads, outputs).

    Operands are passed as Python numbers; results of one register are scalars."""
    operands = [list(row) for row in inputs.tolist()] if hasattr(inputs, "tolist") else inputs
    result = np.zeros((threads, outputs), out_dtype)

    def run_one_instruction():
        thread = cuda.threadIdx.x
        values = instruction(*operands[thread])
        result[thread] = values

    simulator.launch(make_kernel(run_one_instruction, threads=threads), 1)
    return result
