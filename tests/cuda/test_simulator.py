"""The executor: threads, collectives, barriers, memory checks, numbers."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx, simulator
from minfer.cuda.convert import ConvertConfig, convert_f32_f16
from minfer.cuda.instruction import device_function
from minfer.cuda.kernel import Argument
from minfer.cuda.simulator.scalars import CASTS
from tests.cuda.simulated import make_kernel

u32 = types.uint32


def copy_kernel(source, target, n):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < n:
        target[i] = source[i]


def test_copy_over_blocks():
    source = np.arange(100, dtype=np.float32)
    target = np.zeros(100, np.float32)
    kernel = make_kernel(copy_kernel, "source: float32", "target: float32", "n = int32", threads=64)
    simulator.launch(kernel, 2, source, target, 100)
    np.testing.assert_array_equal(target, source)


def test_chosen_blocks_only():
    source, target = np.ones(128, np.float32), np.zeros(128, np.float32)
    kernel = make_kernel(copy_kernel, "source: float32", "target: float32", "n = int32", threads=32)
    simulator.launch(kernel, 4, source, target, 128, blocks=[2])
    assert target.nonzero()[0].tolist() == list(range(64, 96))
    with pytest.raises(ValueError, match="not in the grid"):
        simulator.launch(kernel, 4, source, target, 128, blocks=[4])


def test_three_dimensional_grid():
    out = np.zeros((2, 3, 4), np.int32)

    def mark(out):
        if cuda.threadIdx.x == 0:
            x, y, z = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
            out[(z * cuda.gridDim.y + y) * cuda.gridDim.x + x] = 100 * z + 10 * y + x

    simulator.launch(make_kernel(mark, "out: int32"), (4, 3, 2), out)
    assert out[1, 2, 3] == 123 and out[0, 1, 0] == 10


def test_numbers_of_threads_in_the_grid():
    out = np.zeros((2, 3 * 32), np.int32)

    def mark(out):
        x, y = cuda.grid(2)
        assert cuda.grid(1) == x and cuda.gridsize(1) == 96 and cuda.gridsize(2) == (96, 2)
        out[y * cuda.gridsize(1) + x] = 1000 * y + x

    simulator.launch(make_kernel(mark, "out: int32"), (3, 2), out)
    np.testing.assert_array_equal(out, 1000 * np.arange(2)[:, None] + np.arange(96))


def reduce_kernel(source, out, barrier):
    shared = cuda.shared.array(4, types.float32)
    total = source[cuda.threadIdx.x]
    for step in range(5):
        total += ptx.shfl_xor_f32(total, u32(1 << step))
    if cuda.threadIdx.x % 32 == 0:
        shared[cuda.threadIdx.x // 32] = total
    if barrier:
        cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[0] = shared[0] + shared[1] + shared[2] + shared[3]


def test_block_reduction():
    source = np.arange(128, dtype=np.float32)
    out = np.zeros(1, np.float32)
    kernel = make_kernel(reduce_kernel, "source: float32", "out: float32", "barrier = int32", threads=128)
    simulator.launch(kernel, 1, source, out, 1)
    assert out[0] == source.sum()


def test_missing_syncthreads_reads_what_nobody_wrote():
    source, out = np.arange(128, dtype=np.float32), np.zeros(1, np.float32)
    kernel = make_kernel(reduce_kernel, "source: float32", "out: float32", "barrier = int32", threads=128)
    with pytest.raises(simulator.UninitializedShared, match=r"block \(0, 0, 0\), thread 0"):
        simulator.launch(kernel, 1, source, out, 0)
    simulator.launch(kernel, 1, source, out, 0, strict=False)
    assert np.isnan(out[0])


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_threads_gives_the_same_result(seed):
    source, out = np.arange(128, dtype=np.float32), np.zeros(1, np.float32)
    kernel = make_kernel(reduce_kernel, "source: float32", "out: float32", "barrier = int32", threads=128)
    simulator.launch(kernel, 1, source, out, 1, seed=seed)
    assert out[0] == source.sum()


# ---- divergence and deadlock


def test_collective_under_a_lane_condition_is_divergence():
    def kernel(out):
        if cuda.threadIdx.x < 16:
            out[0] = ptx.shfl_idx_u32(u32(1), u32(0))

    with pytest.raises(
        simulator.Divergence, match=r"lane 16 of warp 0 exits while lanes 0-15 waiting at shfl_idx"
    ):
        simulator.launch(make_kernel(kernel, "out: uint32"), 1, np.zeros(1, np.uint32))


def test_collectives_at_different_places_are_divergence():
    def kernel(out):
        if cuda.threadIdx.x < 16:
            out[0] = ptx.shfl_idx_u32(u32(1), u32(0))
        else:
            out[1] = ptx.shfl_idx_u32(u32(1), u32(0))

    with pytest.raises(
        simulator.Divergence, match=r"different instructions.*test_simulator.py:\d+ in kernel"
    ):
        simulator.launch(make_kernel(kernel, "out: uint32"), 1, np.zeros(2, np.uint32))


def test_same_helper_called_at_two_places_is_divergence():
    @device_function
    def helper(x):
        return ptx.shfl_idx_u32(x, u32(0))

    def kernel(out):
        if cuda.threadIdx.x < 16:
            out[0] = helper(u32(1))
        else:
            out[1] = helper(u32(1))

    with pytest.raises(simulator.Divergence, match="different instructions"):
        simulator.launch(make_kernel(kernel, "out: uint32"), 1, np.zeros(2, np.uint32))


def test_barrier_that_not_all_reach_is_a_deadlock():
    def kernel():
        ptx.bar_sync(u32(1), u32(64))

    def first_warp_only():
        if cuda.threadIdx.x < 32:
            ptx.bar_sync(u32(1), u32(64))

    simulator.launch(make_kernel(kernel, threads=64), 1)
    with pytest.raises(simulator.Deadlock, match=r"block 0 warp 0 lanes 0-31 wait at bar_sync"):
        simulator.launch(make_kernel(first_warp_only, threads=64), 1)


def test_syncthreads_does_not_wait_for_threads_that_exited():
    out = np.zeros(1, np.int32)

    def kernel(out):
        if cuda.threadIdx.x >= 32:
            return
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            out[0] = 1

    simulator.launch(make_kernel(kernel, "out: int32", threads=64), 1, out)
    assert out[0] == 1


def test_lanes_of_a_warp_at_different_barriers_are_divergence():
    def kernel():
        if cuda.threadIdx.x % 2 == 0:
            cuda.syncthreads()
        else:
            cuda.syncthreads()

    with pytest.raises(simulator.Divergence, match="barrier 0 at different places"):
        simulator.launch(make_kernel(kernel), 1)


def test_producer_arrives_and_consumer_waits():
    out = np.zeros(32, np.int32)

    def kernel(out):
        shared = cuda.shared.array(32, types.int32)
        thread = cuda.threadIdx.x
        if thread < 32:
            ptx.bar_sync(u32(2), u32(64))
            out[thread] = shared[31 - thread]
        else:
            shared[thread - 32] = thread
            ptx.bar_arrive(u32(2), u32(64))

    simulator.launch(make_kernel(kernel, "out: int32", threads=64), 1, out)
    assert out.tolist() == list(range(63, 31, -1))


@pytest.mark.parametrize(("number", "threads"), [(16, 32), (0, 48), (1, 96), (1, 0)])
def test_barrier_operands_are_checked(number, threads):
    def kernel():
        ptx.bar_sync(u32(number), u32(threads))

    with pytest.raises(simulator.Divergence):
        simulator.launch(make_kernel(kernel, threads=64), 1)


# ---- memory


def test_pointer_out_of_bounds_names_everything():
    source, target = np.zeros(100, np.float32), np.zeros(99, np.float32)
    kernel = make_kernel(copy_kernel, "source: float32", "target: float32", "n = int32", threads=128)
    with pytest.raises(simulator.OutOfBounds) as caught:
        simulator.launch(kernel, 1, source, target, 100)
    error = caught.value
    assert (error.kernel, error.block, error.thread) == ("copy_kernel", (0, 0, 0), 99)
    assert "element 99 of target, which has 99 elements" in str(error)
    assert "test_simulator.py" in error.where and "in copy_kernel" in error.where
    assert error.address % (1 << 40) == 99 * 4


@pytest.mark.parametrize(
    ("offset", "text"), [(-4, "4 bytes before the start"), (100, "4 bytes past the end")]
)
def test_global_address_out_of_bounds_names_the_nearest_array(offset, text):
    data = np.zeros(25, np.uint32)

    def kernel(data):
        ptx.ld_global_u32(types.uint64(ptx.global_address(data) + offset))

    with pytest.raises(simulator.OutOfBounds, match=f"nearest is data .100 bytes., {text}"):
        simulator.launch(make_kernel(kernel, "data: uint32"), 1, data)


@pytest.mark.parametrize("offset", [-16, 64, 60])
def test_shared_address_out_of_bounds(offset):
    def kernel():
        base = ptx.shared_address(cuda.shared.array(0, types.uint8))
        ptx.st_shared_v2_u32(u32(base + offset), u32(0), u32(0))

    with pytest.raises((simulator.OutOfBounds, simulator.Misaligned)):
        simulator.launch(make_kernel(kernel, shared_bytes=64), 1)


def test_misaligned_vector_access():
    def kernel(data):
        ptx.ld_global_v4_u32(types.uint64(ptx.global_address(data) + 8))

    with pytest.raises(simulator.Misaligned, match="multiple of 16"):
        simulator.launch(make_kernel(kernel, "data: uint32"), 1, np.zeros(16, np.uint32))


def test_read_only_argument():
    target = np.zeros(32, np.float32)
    target.flags.writeable = False
    kernel = make_kernel(copy_kernel, "source: float32", "target: float32", "n = int32")
    with pytest.raises(simulator.SimulatorError, match="writes target, which is"):
        simulator.launch(kernel, 1, np.zeros(32, np.float32), target, 32)


def test_inputs_may_not_be_written():
    def kernel(data):
        data[0] = 1.0

    inputs = replace(make_kernel(kernel, "data: float32"), arguments=(Argument("data", "in"),))
    with pytest.raises(simulator.SimulatorError, match="writes data, which is an input"):
        simulator.launch(inputs, 1, np.zeros(4, np.float32))


def test_one_array_as_input_and_output():
    data = np.arange(32, dtype=np.float32)
    kernel = make_kernel(copy_kernel, "source: float32", "target: float32", "n = int32")
    arguments = (Argument("source", "in"), Argument("target", "out"), Argument("n", "scalar"))
    simulator.launch(replace(kernel, arguments=arguments), 1, data, data, 32)


def test_local_arrays_are_checked():
    def unwritten():
        values = cuda.local.array(4, types.float32)
        values[0] = values[1]

    def too_long():
        values = cuda.local.array(4, types.float32)
        values[-1] = types.float32(0)

    with pytest.raises(simulator.UninitializedLocal, match="element 1"):
        simulator.launch(make_kernel(unwritten), 1)
    with pytest.raises(simulator.OutOfBounds, match="indexed with -1"):
        simulator.launch(make_kernel(too_long), 1)


def test_local_arrays_of_two_dimensions_and_types():
    out = np.zeros(4, np.float32)

    def kernel(out):
        a = cuda.local.array((2, 3), dtype=types.int32)
        b = cuda.local.array(1, types.float16)
        a[1, 2] = 1 << 31
        b[0] = 1 / 3
        out[0] = a[1, 2]
        out[1] = b[0]

    simulator.launch(make_kernel(kernel, "out: float32", threads=1), 1, out)
    assert out[0] == -(2.0**31)
    assert out[1] == np.float32(np.float16(1 / 3))


def test_pointers_reinterpret_bytes():
    data = np.array([0x04030201, 0x08070605], np.uint32)
    out = np.zeros(8, np.int32)

    def kernel(data, out):
        for i in range(8):
            out[i] = data[i]

    simulator.launch(make_kernel(kernel, "data: uint8", "out: int32", threads=1), 1, data, out)
    assert out.tolist() == list(range(1, 9))


def test_static_shared_arrays_lie_after_the_dynamic_one():
    out = np.zeros(3, np.uint32)

    def kernel(out):
        dynamic = cuda.shared.array(0, types.uint8)
        first = cuda.shared.array((2, 3), types.float32)
        second = cuda.shared.array(4, types.uint32)
        out[0] = ptx.shared_address(dynamic)
        out[1] = ptx.shared_address(first)
        out[2] = ptx.shared_address(second)
        first[1, 2] = types.float32(1.5)
        second[cuda.threadIdx.x % 4] = types.uint32(7)

    simulator.launch(make_kernel(kernel, "out: uint32", shared_bytes=100), 1, out)
    assert out[0] == 1024 and out.tolist()[1:] == [1024 + 112, 1024 + 112 + 32]


def test_atomics():
    out = np.zeros(1, np.int32)

    def kernel(out):
        total = cuda.shared.array(1, types.int32)
        if cuda.threadIdx.x == 0:
            total[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(total, 0, cuda.threadIdx.x)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            out[0] = total[0]

    simulator.launch(make_kernel(kernel, "out: int32", threads=64), 1, out)
    assert out[0] == 64 * 63 // 2


# ---- numbers


@given(st.integers(-(2**66), 2**66), st.sampled_from([8, 16, 32, 64]))
def test_integer_casts_keep_the_low_bits(value, bits):
    low = value % 2**bits
    assert CASTS[f"uint{bits}"](value) == low
    assert CASTS[f"int{bits}"](value) == (low if low < 2 ** (bits - 1) else low - 2**bits)


def test_casts_wrap_and_products_do_not():
    out = np.zeros(6, np.int64)
    alias = types.int32

    def kernel(out, a, b):
        out[0] = u32(-1)
        out[1] = alias(a * b)
        out[2] = a * b
        out[3] = u32(u32(3) - u32(5))
        out[4] = -7 // 2
        out[5] = types.int8(200)

    from tests.cuda.simulated import _NUMBA

    _NUMBA["int64"] = types.int64
    simulator.launch(
        make_kernel(kernel, "out: int64", "a = int32", "b = int32", threads=1), 1, out, 1 << 20, 1 << 20
    )
    assert out.tolist() == [2**32 - 1, 0, 1 << 40, 2**32 - 2, -4, -56]


def test_float32_arithmetic_rounds_to_float32():
    out = np.zeros(2, np.float32)

    def kernel(out, x):
        out[0] = x + types.float32(2.0**-25)
        out[1] = types.float32(3) * x

    simulator.launch(make_kernel(kernel, "out: float32", "x = float32", threads=1), 1, out, 1.0)
    assert out.tolist() == [1.0, 3.0]


def test_numpy_integers_in_closures_are_plain_integers():
    big, (cast, four) = np.uint32(0x80000000), (types.uint32, np.int32(4))
    pair = (types.uint8, np.uint8(255))
    out = np.zeros(2, np.uint32)

    def kernel(out):
        out[0] = u32((big - 1) ^ (big * four))
        out[1] = cast(-1) + pair[1] - pair[0](256 + 255)

    simulator.launch(make_kernel(kernel, "out: uint32", threads=1), 1, out)
    assert out.tolist() == [0x7FFFFFFF, 0xFFFFFFFF]


def test_arguments_are_checked():
    kernel = make_kernel(copy_kernel, "source: float32", "target: float32", "n = int32")
    array = np.zeros(4, np.float32)
    with pytest.raises(TypeError, match=r"takes 3 arguments .source, target, n., 2 were given"):
        simulator.launch(kernel, 1, array, array)
    with pytest.raises(ValueError, match="does not fit"):
        simulator.launch(kernel, 1, array, array, 2**31)
    with pytest.raises(ValueError, match="C-contiguous"):
        simulator.launch(kernel, 1, np.zeros((4, 4), np.float32).T, array, 4)
    with pytest.raises(TypeError, match="NumPy array"):
        simulator.launch(kernel, 1, [1.0], array, 4)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (2, 40.0, "n is int32, and got 40.0"),
        (2, "40", "n is int32, and got '40'"),
        (2, None, "n is int32, and got None"),
        (2, 1 << 31, "n is int32, and 2147483648 does not fit"),
        (0, np.zeros(41, np.float32)[1:], "x begins 4 bytes into its memory, no multiple of 16"),
        (0, np.zeros(40, ">f4"), "x: the array's >f4 are in the other byte order"),
    ],
)
def test_arguments_are_refused_as_on_the_gpu(at, value, message):
    args = [np.zeros(40, np.float32), np.zeros(40, np.float16), 40]
    args[at] = value
    with pytest.raises((TypeError, ValueError), match=f"convert_f32_f16: {message}"):
        simulator.launch(convert_f32_f16(ConvertConfig(vector=8, threads=32)), 1, *args)


def test_dtypes_of_arrays_are_checked_as_on_the_gpu():
    """Where the kernel says them: bf16 is uint16 in NumPy."""
    kernel = replace(
        make_kernel(copy_kernel, "source: float32", "target: float32", "n = int32"),
        arguments=(
            Argument("source", "in", "float32"),
            Argument("target", "out", "float32"),
            Argument("n", "scalar"),
        ),
    )
    array = np.ones(4, np.float32)
    target = np.zeros(4, np.float32)
    simulator.launch(kernel, 1, array, target, 4)
    with pytest.raises(TypeError, match="source takes float32, got an array of float64"):
        simulator.launch(kernel, 1, array.astype(np.float64), target, 4)
    words = replace(kernel, arguments=(Argument("source", "in", "bfloat16"), *kernel.arguments[1:]))
    simulator.launch(words, 1, array.view(np.uint16), target, 2)


def test_instructions_outside_a_launch_say_so():
    with pytest.raises(RuntimeError, match="outside a kernel"):
        ptx.lane_id()


def test_unknown_cuda_attribute_is_named():
    def kernel():
        cuda.const.array_like(None)

    with pytest.raises(AttributeError, match=r"no cuda\.const") as caught:
        simulator.launch(make_kernel(kernel), 1)
    assert "thread 0" in caught.value.__notes__[0]


def test_python_errors_in_kernels_carry_the_place():
    def kernel():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        simulator.launch(make_kernel(kernel), 1)
    assert "block (0, 0, 0), thread 0 (simulated)" in caught.value.__notes__[0]


def test_a_launch_can_follow_one_that_failed():
    def fails():
        cuda.syncthreads()
        raise ValueError("stop")

    for _ in range(2):
        with pytest.raises(ValueError, match="stop"):
            simulator.launch(make_kernel(fails, threads=64), 1)
    test_copy_over_blocks()


def test_runs_with_numbas_own_simulator_switched_on():
    code = (
        "import sys; sys.path.insert(0, 'tests/cuda'); import test_simulator as t;"
        "t.test_copy_over_blocks(); t.test_block_reduction(); t.test_casts_wrap_and_products_do_not();"
        "print('ran')"
    )
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "ran", done.stderr
