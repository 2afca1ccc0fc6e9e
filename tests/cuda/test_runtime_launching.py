"""Loading and launching against a fake driver: limits, packing, counts, captures, checked mode."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.kernel import Argument, Kernel, LaunchRefused
from minfer.cuda.runtime import arrays, driver, launching
from tests.cuda import fake_driver

ARGUMENTS = (
    Argument("a", "in", "float32"),
    Argument("b", "in", "bfloat16"),
    Argument("out", "out", "float32"),
    Argument("n", "scalar", "int32"),
    Argument("alpha", "scalar", "float32"),
    Argument("seed", "scalar", "uint64"),
)


@dataclass(frozen=True)
class Config:
    tile: int = 64

    def __str__(self) -> str:
        return f"tile={self.tile}"


def make_kernel(**changes) -> Kernel:
    fields = {
        "name": "scale",
        "config": Config(),
        "function": lambda: None,
        "signature": lambda: None,
        "threads": 128,
        "shared_bytes": 0,
        "arguments": ARGUMENTS,
    }
    return Kernel(**(fields | changes))


@pytest.fixture
def fake(fake, monkeypatch):
    monkeypatch.setattr(launching, "compile_kernel", partial(fake_driver.compiled, static_shared_bytes=512))
    return fake


@pytest.fixture
def args(fake):
    return (
        runtime.to_device(np.ones(8, np.float32)),
        runtime.empty(8, np.uint16),
        runtime.empty((2, 4), np.float32),
        -7,
        1.5,
        1 << 40,
    )


class Tensor:
    """As torch has it: 8 elements on a GPU, or on the host (index -1)."""

    shape = (8,)

    def __init__(self, dtype: str) -> None:
        self.dtype, self.index = dtype, 0

    is_cuda = property(lambda self: self.index >= 0)
    device = property(lambda self: f"cuda:{self.index}" if self.is_cuda else "cpu")

    def get_device(self):
        return self.index

    def is_contiguous(self):
        return True

    def data_ptr(self):
        return 0x1000


class TestPacking:
    def test_what_the_driver_sees(self, fake, args):
        kernel = make_kernel(shared_bytes=1000)
        runtime.launch(kernel, (3, 4, 5), *args)
        (seen,) = fake.launched
        assert (seen.grid, seen.block, seen.shared, seen.stream) == ((3, 4, 5), (128, 1, 1), 1000, 0)
        assert seen.slots[:3] == [a.pointer for a in args[:3]]
        assert struct.unpack("i", struct.pack("Q", seen.slots[3])[:4]) == (-7,)
        assert struct.unpack("f", struct.pack("Q", seen.slots[4])[:4]) == (1.5,)
        assert seen.slots[5] == 1 << 40
        assert seen.attributes == []

    @pytest.mark.parametrize("grid", [5, (5,), (5, 1), [5, 1, 1], (np.int64(5), 1, 1), np.int64(5)])
    def test_grids_may_be_short(self, fake, args, grid):
        runtime.launch(make_kernel(), grid, *args)
        assert fake.launched[0].grid == (5, 1, 1)

    def test_a_grid_that_was_changed_is_read_again(self, fake, args):
        kernel, grid = make_kernel(), [5, 1, 1]
        runtime.launch(kernel, grid, *args)
        grid[0] = 6
        runtime.launch(kernel, grid, *args)
        assert [seen.grid for seen in fake.launched] == [(5, 1, 1), (6, 1, 1)]

    @pytest.mark.parametrize("grid", [1.5, (), (1, 1, 1, 1), (2.0,), "7"])
    def test_what_is_no_grid_is_refused(self, fake, args, grid):
        with pytest.raises((TypeError, ValueError), match="one to three whole numbers"):
            runtime.launch(make_kernel(), grid, *args)
        assert not fake.launched

    def test_prepared_launches_see_the_same_and_keep_their_own(self, fake, args):
        loaded = runtime.load(make_kernel())
        first, second = loaded.prepare((1, 1, 1), *args), loaded.prepare((2, 1, 1), *args, pdl=True)
        first(), second(), first()
        assert [(s.grid[0], s.attributes) for s in fake.launched] == [
            (1, []),
            (2, [driver.ATTRIBUTE_PROGRAMMATIC]),
            (1, []),
        ]
        assert fake.launched[0].slots == fake.launched[2].slots

    def test_addresses_and_array_interfaces(self, fake, args):
        class Foreign:
            __cuda_array_interface__ = args[0].__cuda_array_interface__

        runtime.launch(make_kernel(), (1, 1, 1), Foreign(), Tensor("torch.bfloat16"), 0xABC0, 1, 1, 1)
        assert fake.launched[0].slots[:3] == [args[0].pointer, 0x1000, 0xABC0]

    def test_a_tensor_elsewhere_is_refused_also_after_one_on_the_device(self, fake, args):
        kernel, tensor = make_kernel(), Tensor("torch.float32")
        for _ in range(2):
            runtime.launch(kernel, (1, 1, 1), tensor, *args[1:])
        assert [s.slots[0] for s in fake.launched] == [0x1000, 0x1000]
        for index, words in ((-1, "lies on cpu: move it"), (1, "lies on cuda:1, kernels run on GPU 0")):
            tensor.index = index
            with pytest.raises(TypeError, match=f"'a', takes a device array of float32: the tensor {words}"):
                runtime.launch(kernel, (1, 1, 1), tensor, *args[1:])

    def test_streams(self, fake, args):
        stream = runtime.Stream()
        runtime.launch(make_kernel(), (1, 1, 1), *args, stream=stream)
        with stream:
            runtime.launch(make_kernel(), (1, 1, 1), *args)
        runtime.launch(make_kernel(), (1, 1, 1), *args, stream=77)
        runtime.launch(make_kernel(), (1, 1, 1), *args)
        assert [s.stream for s in fake.launched] == [stream.handle, stream.handle, 77, 0]
        with pytest.raises(TypeError, match="no CUDA stream"):
            runtime.launch(make_kernel(), (1, 1, 1), *args, stream="fast")

    def test_tensor_maps_are_passed_by_value(self, fake):
        kernel = make_kernel(arguments=(Argument("m", "tensor_map"),))
        described = runtime.tensor_map(runtime.empty((64, 64), np.float16), 64)
        runtime.launch(kernel, (1, 1, 1), described)
        assert fake.launched[0].pointers == [described.address]
        with pytest.raises(TypeError, match="'m', takes a TensorMap, got int"):
            runtime.launch(kernel, (1, 1, 1), 7)


class TestBadArguments:
    def test_addresses_that_a_kernel_cannot_load_from(self, fake, args):
        """Before the launch, and by name: a misaligned vector load ends the whole context."""
        wide = (
            Argument("a", "in", "float32", align=16),
            Argument("b", "in", "bfloat16"),
            Argument("out", "out", "float32", align=8),
            *ARGUMENTS[3:],
        )
        kernel, a, rest = make_kernel(arguments=wide), args[0], args[1:]
        runtime.launch(kernel, (1, 1, 1), a, *rest)
        assert fake.launched[0].slots[0] == a.pointer
        message = r"'a' lies at 0x[0-9a-f]*8, no multiple of 16 bytes: pass whole rows"
        with pytest.raises(ValueError, match=message):
            runtime.launch(kernel, (1, 1, 1), a[2:], *rest)
        with pytest.raises(ValueError, match="'out' lies at 0x1004, no multiple of 8"):
            runtime.launch(kernel, (1, 1, 1), a, args[1], 0x1004, *args[3:])
        with pytest.raises(ValueError, match="'a' lies at"):
            runtime.load(kernel).prepare((1, 1, 1), a[1:], *rest)
        assert len(fake.launched) == 1

    @pytest.mark.parametrize(
        ("at", "value", "message"),
        [
            (0, "host", "argument 0, 'a', takes a device array of float32: ndarray is no array on the GPU"),
            (0, "half", "argument 0, 'a', takes float32, got an array of float16"),
            (3, 1 << 31, r"argument 3, 'n', is int32 \(-2147483648 to 2147483647\), got 2147483648"),
            (3, 1.5, r"argument 3, 'n', takes an integer \(int32\), got 1.5"),
            (5, -1, "argument 5, 'seed', is uint64"),
            (3, np.zeros(4, np.int32), r"argument 3, 'n', takes an integer \(int32\), got array"),
            (0, -1, "argument 0, 'a', takes an address of 64 bits, got -1"),
            (2, 1 << 64, "argument 2, 'out', takes an address of 64 bits, got 18446744073709551616"),
            (4, "1.5", r"argument 4, 'alpha', takes a number \(float32\), got '1.5'"),
            (4, 1e300, r"argument 4, 'alpha', is float32 \(up to 3\.403e\+38\), got 1e\+300"),
            (4, None, "argument 4, 'alpha', takes a number"),
        ],
    )
    def test_named(self, fake, args, at, value, message):
        wrong = list(args)
        special = {"host": np.ones(8, np.float32), "half": runtime.empty(8, np.float16)}
        wrong[at] = special.get(str(value), value)
        with pytest.raises((TypeError, ValueError), match=message):
            runtime.launch(make_kernel(), (1, 1, 1), *wrong)
        assert not fake.launched

    def test_an_array_for_another_grid(self, fake):
        """16 elements, and one for each block."""
        seats = Argument("seats", "inout", "uint32", cleared=16, per_block=True)
        kernel, array = make_kernel(arguments=(seats,)), runtime.to_device(np.zeros(20, np.uint32))
        runtime.launch(kernel, (2, 2), array)
        bound = runtime.load(kernel).prepare(4, array)
        bound()
        runtime.launch(kernel, 5, array.pointer)  # an address has no size
        message = r"'seats' has 20 elements, a grid of 5 blocks takes 16 \+ 5: make one for this grid"
        with pytest.raises(ValueError, match=message):
            runtime.launch(kernel, 5, array)
        with pytest.raises(ValueError, match=message):
            runtime.load(kernel).prepare(5, array)
        assert len(fake.launched) == 3

    def test_count(self, fake, args):
        with pytest.raises(TypeError, match=r"takes 6 arguments \(a, b, out, n, alpha, seed\), got 5"):
            runtime.launch(make_kernel(), (1, 1, 1), *args[:-1])

    def test_numpy_scalars_are_numbers(self, fake, args):
        runtime.launch(make_kernel(), (1, 1, 1), *args[:3], np.int32(5), np.float32(2), np.uint64(3))
        assert fake.launched[0].slots[3] == 5 and fake.launched[0].slots[5] == 3

    def test_strided_arrays(self, fake, args):
        interface = args[0].__cuda_array_interface__ | {"strides": (8,)}
        strided = type("Strided", (), {"__cuda_array_interface__": interface})()
        with pytest.raises(ValueError, match="not C-contiguous"):
            runtime.launch(make_kernel(), (1, 1, 1), strided, *args[1:])

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"typestr": ">f4"}, "other byte order"),
            ({"typestr": "<f5"}, "no sound __cuda_array_interface__"),
            ({"data": None}, "no sound __cuda_array_interface__"),
            ({"data": (4098, False)}, "float32 at 0x1002 lie at no multiple of 4 bytes: make a copy"),
        ],
    )
    def test_array_interfaces_that_no_kernel_reads(self, fake, args, changes, message):
        interface = args[0].__cuda_array_interface__ | changes
        foreign = type("Foreign", (), {"__cuda_array_interface__": interface})()
        with pytest.raises((TypeError, ValueError), match=f"argument 0, 'a', takes .*{message}"):
            runtime.launch(make_kernel(), (1, 1, 1), foreign, *args[1:])

    def test_what_is_no_truth_value(self, fake):
        kernel = make_kernel(arguments=(Argument("on", "scalar", "bool"),))
        runtime.launch(kernel, 1, True), runtime.launch(kernel, 1, np.False_)
        assert [seen.slots[0] & 0xFF for seen in fake.launched] == [1, 0]
        for wrong in ("yes", 2, None, np.zeros(4)):
            with pytest.raises(TypeError, match="argument 0, 'on', takes True or False, got"):
                runtime.launch(kernel, 1, wrong)


class TestLimits:
    def test_shared_memory_is_refused_with_the_numbers(self, fake, args):
        kernel = make_kernel(shared_bytes=232448)  # and 512 static
        with pytest.raises(LaunchRefused) as refused:
            runtime.launch(kernel, (1, 1, 1), *args)
        error = refused.value
        assert (error.asked, error.allowed, error.kernel) == (232448 + 512, 232448, "scale")
        assert str(error) == (
            "scale [tile=64] refused on NVIDIA H200: asks for 232960 bytes of shared memory a block, "
            "allowed 232448: use smaller tiles or fewer stages"
        )
        assert not fake.named("cuModuleLoadData")

    @pytest.mark.parametrize(("asked", "opted"), [(49152 - 512, False), (49152, True), (200000, True)])
    def test_opt_in_above_48_kb(self, fake, args, asked, opted):
        runtime.load(make_kernel(shared_bytes=asked))
        assert fake.function_attributes["MAX_DYNAMIC_SHARED_SIZE_BYTES"] == (asked if opted else 49152)

    def test_an_opt_in_that_does_not_hold(self, fake, monkeypatch):
        monkeypatch.setattr(fake, "cuFuncSetAttribute", lambda *_: (fake_driver.Status.SUCCESS,))
        with pytest.raises(LaunchRefused, match="the opt-in did not hold"):
            runtime.load(make_kernel(shared_bytes=100000))

    def test_registers(self, fake, args):
        fake.function_attributes["MAX_THREADS_PER_BLOCK"] = 96
        with pytest.raises(
            LaunchRefused, match="asks for 128 threads a block, allowed 96: it uses 32 registers"
        ):
            runtime.load(make_kernel())

    @pytest.mark.parametrize("grid", [(0, 1, 1), (2**31, 1, 1), (1, 65536, 1), (1, 1, -1)])
    def test_grids(self, fake, args, grid):
        with pytest.raises(LaunchRefused, match="blocks along"):
            runtime.launch(make_kernel(), grid, *args)
        with pytest.raises(LaunchRefused, match="blocks along"):
            runtime.load(make_kernel()).prepare(grid, *args)
        assert not fake.launched

    def test_clusters(self, fake, args):
        with pytest.raises(LaunchRefused, match="asks for 3 blocks along x, allowed multiples of 2"):
            runtime.launch(make_kernel(cluster=2, min_arch=90), (3, 1, 1), *args)

    def test_blocks_that_wait_for_each_other_are_all_resident(self, fake, args):
        """16 blocks of 128 threads an SM by the fake driver's occupancy, on 132 SMs."""
        kernel = make_kernel(cooperative=True)
        runtime.launch(kernel, 132 * 16, *args)
        runtime.launch(kernel, 1, *args, pdl=True)
        cooperative, programmatic = driver.ATTRIBUTE_COOPERATIVE, driver.ATTRIBUTE_PROGRAMMATIC
        assert [seen.attributes for seen in fake.launched] == [[cooperative], [cooperative, programmatic]]
        with pytest.raises(LaunchRefused, match="asks for 2113 blocks of a cooperative grid, allowed 2112"):
            runtime.launch(kernel, 132 * 16 + 1, *args)

    def test_the_driver_s_own_refusals(self, fake, args):
        fake.launch_status = [driver.LAUNCH_OUT_OF_RESOURCES]
        with pytest.raises(LaunchRefused, match="asks for 128 threads x 32 registers a block, allowed 65536"):
            runtime.launch(make_kernel(), (1, 1, 1), *args)
        fake.launch_status = [driver.INVALID_VALUE]
        kernel = make_kernel()
        with pytest.raises(runtime.DriverError, match=r"launching scale \[tile=64\] on NVIDIA H200 \(grid"):
            runtime.launch(kernel, (1, 1, 1), *args)
        assert runtime.launch_counts() == {}

    def test_a_thread_without_a_context_gets_one(self, fake, args):
        fake.launch_status = [driver.INVALID_CONTEXT, 0]
        runtime.launch(make_kernel(), (1, 1, 1), *args)
        assert len(fake.launched) == 1


class TestCounts:
    def test_by_name_and_config(self, fake, args):
        one, other = make_kernel(), make_kernel(config=Config(32))
        for kernel in (one, one, other):
            runtime.launch(kernel, (1, 1, 1), *args)
        assert runtime.launch_counts() == {("scale", "tile=64"): 2, ("scale", "tile=32"): 1}
        runtime.reset_launch_counts()
        assert runtime.launch_counts() == {}

    def test_a_capture_counts_when_it_is_replayed(self, fake, args):
        bound = runtime.load(make_kernel()).prepare((1, 1, 1), *args)
        with runtime.capture() as graph:
            bound(), bound()
        assert runtime.launch_counts() == {}
        graph.replay(), graph.replay(), graph.replay()
        assert runtime.launch_counts() == {("scale", "tile=64"): 6}

    def test_memory_freed_in_a_capture_is_kept_until_its_end(self, fake, args):
        with runtime.capture():
            array = runtime.empty(4, np.uint8)
            del array
            assert not fake.named("cuMemFree")
        assert len(fake.named("cuMemFree")) == 1

    def test_the_default_stream_is_no_stream_to_capture(self, fake):
        with pytest.raises(ValueError, match="default stream"), runtime.capture(0):
            pass


class TestChecked:
    """The fake kernel writes `value` to the first `written` elements of `out`, as bit patterns."""

    def kernel(self, fake, dtype: str, written: int, pattern):
        itemsize = arrays.itemsize(dtype)

        def run(slots):
            for i in range(written):
                ctypes.memmove(slots[0] + i * itemsize, pattern(i).to_bytes(itemsize, "little"), itemsize)

        fake.run = run
        arguments = (Argument("out", "out", dtype), Argument("state", "inout", "int32"))
        return make_kernel(arguments=arguments)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int16", "int32", "int64"])
    def test_everything_written(self, fake, dtype):
        kernel = self.kernel(fake, dtype, 12, lambda i: i)
        with runtime.checked():
            runtime.launch(kernel, (1, 1, 1), runtime.empty((3, 4), dtype), runtime.zeros(1, np.int32))
        assert len(fake.launched) == 1

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int16", "int32", "int64"])
    def test_the_first_unwritten_element_is_named(self, fake, dtype):
        kernel = self.kernel(fake, dtype, 9, lambda i: i)
        with runtime.checked(), pytest.raises(runtime.Unwritten) as error:
            runtime.launch(kernel, (1, 1, 1), runtime.empty((3, 4), dtype), runtime.zeros(1, np.int32))
        assert (error.value.index, error.value.count) == ((2, 1), 3)
        assert (
            str(error.value)
            == "scale [tile=64] left 3 of 12 elements of output 'out' unwritten, first at (2, 1)"
        )

    def test_bfloat16_in_uint16(self, fake):
        kernel = self.kernel(fake, "bfloat16", 7, lambda i: i)
        with runtime.checked(), pytest.raises(runtime.Unwritten, match="1 of 8"):
            runtime.launch(kernel, (1, 1, 1), runtime.empty(8, np.uint16), runtime.zeros(1, np.int32))

    @pytest.mark.parametrize("pattern", [0xA5, 0x5B])
    def test_a_kernel_may_write_the_canary(self, fake, pattern):
        kernel = self.kernel(fake, "uint8", 12, lambda i: pattern)
        out = runtime.empty(12, np.uint8)
        with runtime.checked():
            runtime.launch(kernel, (1, 1, 1), out, runtime.zeros(1, np.int32))
        assert set(out.to_host()) == {pattern}

    def test_the_second_run_starts_from_the_same_state(self, fake):
        kernel = self.kernel(fake, "uint8", 12, lambda i: 0xA5)
        write, state = fake.run, runtime.to_device(np.array([40], np.int32))

        def run(slots):
            write(slots)
            ctypes.c_int32.from_address(slots[1]).value += 1

        fake.run = run
        with runtime.checked():
            runtime.launch(kernel, (1, 1, 1), runtime.empty(12, np.uint8), state)
        assert len(fake.launched) == 2
        assert state.to_host().tolist() == [41]

    def test_poison_is_nan_for_floats(self, fake):
        seen = []
        kernel = self.kernel(fake, "float32", 0, lambda i: i)
        out = runtime.empty(3, np.float32)
        fake.run = lambda slots: seen.append(
            np.ctypeslib.as_array((ctypes.c_float * 3).from_address(slots[0])).copy()
        )
        with runtime.checked(), pytest.raises(runtime.Unwritten):
            runtime.launch(kernel, (1, 1, 1), out, runtime.zeros(1, np.int32))
        assert np.isnan(seen).all() and len(seen) == 2

    def test_an_output_over_an_input_is_not_poisoned(self, fake):
        """A kernel that adds to a buffer in place reads what is there, in a second run too."""
        arguments = (
            Argument("x", "in", "int32"),
            Argument("sum", "out", "int32"),
            Argument("flag", "out", "uint8"),
        )

        def run(slots):
            ctypes.c_int32.from_address(slots[1]).value = ctypes.c_int32.from_address(slots[0]).value + 1
            ctypes.memset(slots[2], 0xA5, 1)  # the canary: the launch is repeated

        fake.run = run
        x = runtime.to_device(np.array([7], np.int32))
        with runtime.checked():
            runtime.launch(make_kernel(arguments=arguments), (1, 1, 1), x, x, runtime.empty(1, np.uint8))
        assert len(fake.launched) == 2 and x.to_host().tolist() == [8]

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_an_input_that_must_be_finite(self, fake, bad):
        kernel = make_kernel(arguments=(Argument("x", "in", "float16", finite=True),))
        values = np.ones((2, 3), np.float16)
        with runtime.checked():
            runtime.launch(kernel, 1, runtime.to_device(values))
        values[1, 0] = bad
        with runtime.checked(), pytest.raises(runtime.NotFinite, match=r"1 of 6 .* at \(1, 0\)") as error:
            runtime.launch(kernel, 1, runtime.to_device(values))
        assert (error.value.argument, error.value.count) == ("x", 1)
        runtime.launch(kernel, 1, runtime.to_device(values))  # outside of checked mode nobody looks
        assert len(fake.launched) == 2

    def test_what_must_be_zero_between_launches(self, fake):
        words = Argument("words", "inout", "uint32", cleared=2)
        kernel, dirty = make_kernel(arguments=(words,)), np.array([0, 7, 7], np.uint32)
        with runtime.checked():
            runtime.launch(kernel, 1, runtime.to_device(np.array([0, 0, 7], np.uint32)))
            with pytest.raises(
                ValueError, match="1 of the first 2 elements of argument 'words' are not zero"
            ):
                runtime.launch(kernel, 1, runtime.to_device(dirty))
        assert len(fake.launched) == 1

    def test_an_address_cannot_be_checked(self, fake):
        kernel = self.kernel(fake, "uint8", 1, lambda i: 1)
        with runtime.checked(), pytest.raises(TypeError, match="as an array, not an address"):
            runtime.launch(kernel, (1, 1, 1), 4096, runtime.zeros(1, np.int32))

    def test_not_inside_a_capture(self, fake):
        kernel = self.kernel(fake, "uint8", 1, lambda i: 1)
        out, state = runtime.empty(1, np.uint8), runtime.zeros(1, np.int32)
        with pytest.raises(RuntimeError, match="graph capture"), runtime.capture(), runtime.checked():
            runtime.launch(kernel, (1, 1, 1), out, state)
        runtime.launch(kernel, (1, 1, 1), out, state)  # and the mode has ended
