"""What a `Kernel` refuses when it is built, and its optional arguments."""

import numpy as np
import pytest
from numba import cuda
from numba.cuda.types import uint64

from minfer.cuda import ptx, simulator
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel, grid_shape
from minfer.cuda.runtime.compiler import kernel_ptx


def kernel(**changes):
    fields = {
        "name": "scale",
        "config": "tile=64",
        "function": lambda: None,
        "signature": lambda: None,
        "threads": 128,
        "shared_bytes": 0,
        "arguments": (),
    }
    return Kernel(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threads": 0}, "0 threads a block; CUDA allows 1 to 1024"),
        ({"threads": 128.0}, r"threads = 128\.0 is no whole number"),
        ({"shared_bytes": "1"}, "shared_bytes = '1' is no whole number"),
        ({"signature": None, "arguments": (Argument("x", "in"),)}, "argument 'x' has no dtype"),
        ({"threads": 1025}, "1025 threads a block"),
        ({"shared_bytes": -1}, "-1 bytes of shared memory"),
        ({"min_blocks": 0}, "at least 0 blocks of 128 threads"),
        ({"min_blocks": 17}, "at least 17 blocks of 128 threads an SM; an SM holds 1 to 16"),
        ({"threads": 32, "min_blocks": 33}, "an SM holds 1 to 32"),
        ({"max_registers": 0}, "max_registers 0"),
        ({"max_registers": 256}, "max_registers 256; a thread has 1 to 255"),
        ({"cluster": 2}, "clusters need sm_90"),
        ({"cluster": 17, "min_arch": 90}, "clusters of 17 blocks"),
    ],
)
def test_kernels_that_cannot_run_are_refused(changes, message):
    with pytest.raises(ConfigRefused, match=message) as refused:
        kernel(**changes)
    assert str(refused.value).startswith("scale [tile=64]: ")


def test_arguments_that_cannot_be():
    for fields, message in (
        (("x", "input"), "kind 'input' is none of in, out"),
        (("x", "in", "float99"), "dtype 'float99' is none of bool, int8"),
    ):
        with pytest.raises(ValueError, match=f"argument 'x': {message}"):
            Argument(*fields)


def test_the_limits_themselves_are_legal():
    kernel(threads=1024, min_blocks=2)
    kernel(threads=64, min_blocks=32, cluster=16, min_arch=90)
    kernel(max_registers=255)


def test_grid_shapes():
    assert (
        grid_shape(3) == (3, 1, 1) and grid_shape((3, 4)) == (3, 4, 1) and grid_shape([3, 4, 5]) == (3, 4, 5)
    )
    for wrong in (1.5, (2.0, 1), "12", None, (), (1, 1, 1, 1)):
        with pytest.raises((TypeError, ValueError), match="one to three whole numbers of blocks"):
            grid_shape(wrong)


def scaled_sum(x, gains, addend, factor, y):
    i = cuda.threadIdx.x
    value = x[i] + factor
    if gains is not None:
        value *= gains[i]
    at = ptx.global_address(addend)
    if at != 0:
        value += ptx.ld_global_f32(at + uint64(i) * uint64(4))
    y[i] = value


def with_options(gains: bool, addend: bool, factor: bool) -> Kernel:
    arguments = (
        Argument("x", "in", "float32"),
        Argument("gains", "in", "float32", present=gains),
        Argument("addend", "in", "float32", present=addend),
        Argument("factor", "scalar", "float32", present=factor),
        Argument("y", "out", "float32"),
    )
    return Kernel("scaled_sum", (gains, addend, factor), scaled_sum, 4, 0, arguments)


@pytest.mark.parametrize("addend", [False, True])
@pytest.mark.parametrize("gains", [False, True])
@pytest.mark.parametrize("factor", [False, True])
def test_absent_arguments_are_not_passed(gains, addend, factor):
    x, g, a = (np.arange(4, dtype=np.float32) + n for n in range(3))
    f, y = np.float32(2), np.empty(4, np.float32)
    passed = [x, *([g] if gains else []), *([a] if addend else []), *([f] if factor else []), y]
    kernel = with_options(gains, addend, factor)
    assert len(kernel.passed) == len(passed)
    simulator.launch(kernel, 1, *passed)
    np.testing.assert_array_equal(y, (x + f * factor) * (g if gains else 1) + a * addend)
    with pytest.raises(TypeError, match=rf"takes {len(passed)} arguments"):
        simulator.launch(kernel, 1, *passed, y)


@pytest.mark.parametrize("present", [False, True])
def test_absent_arguments_are_no_parameters_of_the_compiled_kernel(present):
    text, _ = kernel_ptx(with_options(present, present, present), "sm_80")
    assert text.count(".param .") == (5 if present else 2)
    assert text.count("ld.global") == (3 if present else 1)
