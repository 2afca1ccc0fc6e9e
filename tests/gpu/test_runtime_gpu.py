"""The runtime on a GPU: launches, limits, checked mode, counts, graphs, streams."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from minfer.cuda import runtime
from minfer.cuda.kernel import LaunchRefused
from tests.cuda.array_cases import check_views_share_memory
from tests.gpu.tiny import (
    STATIC_BYTES,
    TinyConfig,
    axpby,
    cluster_ranks,
    fill,
    increment,
    shared_echo,
    static_shared_echo,
)

N = 1000
GRID = (-(-N // 128), 1, 1)
AXPBY = axpby()


def axpby_arrays():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, N)).astype(np.float32)
    return a, b, np.float32(2) * a + np.float32(-3) * b


@pytest.fixture(autouse=True)
def fresh_counts():
    runtime.reset_launch_counts()


def hopper_only():
    if runtime.device().capability < (9, 0):
        pytest.skip("clusters and programmatic launches need compute capability 9.0")


class TestDevice:
    def test_limits(self):
        gpu = runtime.device()
        assert gpu.capability >= (8, 0)
        assert gpu.sms > 0 and gpu.shared_optin_bytes > gpu.shared_block_bytes == 48 * 1024
        assert gpu.shared_reserved_bytes == 1024
        assert gpu.registers_sm == 65536

    def test_is_the_table_s_device(self):
        from minfer.arithmetic.devices import by_name

        gpu = runtime.device()
        known = by_name(gpu.name)
        if known is None:
            pytest.skip(f"{gpu.name} is not in minfer.arithmetic's table")
        assert gpu.arch == known.arch
        assert gpu.sms == known.sms
        assert gpu.shared_optin_bytes == known.shared_per_block
        assert gpu.shared_sm_bytes == known.shared_per_sm
        assert gpu.shared_reserved_bytes == known.shared_reserved
        assert gpu.registers_sm == known.registers_per_sm
        assert gpu.blocks_sm == known.blocks_per_sm
        assert gpu.threads_sm == known.threads_per_sm
        assert gpu.l2_bytes == known.l2


class TestArrays:
    @pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "float32", "int64"])
    def test_round_trip(self, dtype):
        host = np.arange(7 * 33).reshape(7, 33).astype(dtype)
        np.testing.assert_array_equal(runtime.to_device(host).to_host(), host)

    def test_views_share_memory(self):
        check_views_share_memory()

    def test_upload_through_pinned_buffers(self):
        host = np.random.default_rng(0).integers(0, 256, 1_000_003).astype(np.uint8)
        staging = (runtime.Pinned(1 << 16), runtime.Pinned(1 << 16))
        array = runtime.empty(host.shape, np.uint8)
        runtime.upload(array, host, staging, runtime.Stream())
        np.testing.assert_array_equal(array.to_host(), host)

    def test_more_memory_than_there_is(self):
        with pytest.raises(MemoryError, match=r"bytes free, .* were asked for"):
            runtime.empty(runtime.device().memory_bytes + 1, np.uint8)


class TestLaunch:
    def test_result(self):
        a, b, wanted = axpby_arrays()
        out = runtime.to_device(np.full(N, np.nan, np.float32))
        runtime.launch(AXPBY, GRID, runtime.to_device(a), runtime.to_device(b), out, N, 2.0, -3.0)
        np.testing.assert_allclose(out.to_host(), wanted, rtol=1e-5, atol=1e-6)

    def test_prepared(self):
        a, b, wanted = axpby_arrays()
        out = runtime.empty(N, np.float32)
        bound = runtime.load(AXPBY).prepare(
            GRID, runtime.to_device(a), runtime.to_device(b), out, N, 2.0, -3.0
        )
        for _ in range(3):
            out.fill_bytes(0xFF)
            bound()
            np.testing.assert_allclose(out.to_host(), wanted, rtol=1e-5, atol=1e-6)

    def test_torch_tensors(self):
        torch = pytest.importorskip("torch")
        a, b, wanted = axpby_arrays()
        out = torch.full((N,), float("nan"), device="cuda")
        args = (torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), out, N, 2.0, -3.0)
        runtime.launch(AXPBY, GRID, *args)
        np.testing.assert_allclose(out.cpu().numpy(), wanted, rtol=1e-5, atol=1e-6)
        stream = torch.cuda.Stream()
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        runtime.launch(AXPBY, GRID, *args, stream=stream)
        stream.synchronize()
        np.testing.assert_allclose(out.cpu().numpy(), wanted, rtol=1e-5, atol=1e-6)

    def test_from_a_thread_that_never_used_the_gpu(self):
        a, b, wanted = axpby_arrays()
        out = runtime.empty(N, np.float32)
        bound = runtime.load(AXPBY).prepare(
            GRID, runtime.to_device(a), runtime.to_device(b), out, N, 2.0, -3.0
        )
        failures = []

        def work():
            try:
                bound()
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not failures
        np.testing.assert_allclose(out.to_host(), wanted, rtol=1e-5, atol=1e-6)

    def test_argument_errors_name_the_argument(self):
        array = runtime.empty(N, np.float32)
        with pytest.raises(TypeError, match="takes 6 arguments"):
            runtime.launch(AXPBY, GRID, array)
        with pytest.raises(TypeError, match="'b', takes float32, got an array of float16"):
            runtime.launch(AXPBY, GRID, array, runtime.empty(N, np.float16), array, N, 2.0, -3.0)
        with pytest.raises(ValueError, match="'n', is int32"):
            runtime.launch(AXPBY, GRID, array, array, array, 1 << 31, 2.0, -3.0)

    def test_clusters(self):
        hopper_only()
        kernel = cluster_ranks(TinyConfig(threads=32, cluster=2))
        out = runtime.empty(8, np.uint32)
        runtime.launch(kernel, (8, 1, 1), out)
        assert out.to_host().tolist() == [0, 1] * 4
        with pytest.raises(LaunchRefused, match="multiples of 2"):
            runtime.launch(kernel, (7, 1, 1), out)
        assert runtime.load(kernel).max_clusters() > 0

    def test_programmatic_launches_keep_their_order(self):
        hopper_only()
        data = runtime.to_device(np.zeros(N, np.int32))
        kernel = increment()
        stream = runtime.Stream()
        for _ in range(50):
            runtime.launch(kernel, GRID, data, N, stream=stream, pdl=True)
        assert set(data.to_host(stream).tolist()) == {50}


class TestSharedMemory:
    @pytest.mark.parametrize("kilobytes", [16, 48, 49, 99])
    def test_opt_in(self, kilobytes):
        kernel = shared_echo(TinyConfig(shared_bytes=kilobytes * 1024))
        out = runtime.empty(128, np.uint32)
        runtime.launch(kernel, (1, 1, 1), out)
        assert out.to_host().tolist() == [(i + 1) % 128 for i in range(128)]

    def test_the_whole_block_limit(self):
        limit = runtime.device().shared_optin_bytes
        kernel = shared_echo(TinyConfig(shared_bytes=limit))
        out = runtime.empty(128, np.uint32)
        runtime.launch(kernel, (1, 1, 1), out)
        assert out.to_host()[0] == 1
        assert runtime.load(kernel).attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES") == limit

    def test_what_is_over_the_limit_is_refused_with_the_numbers(self):
        limit = runtime.device().shared_optin_bytes
        asked = limit + STATIC_BYTES
        kernel = static_shared_echo(TinyConfig(threads=32, shared_bytes=limit))
        with pytest.raises(LaunchRefused) as refusal:
            runtime.launch(kernel, (1, 1, 1), runtime.empty(128, np.uint32))
        assert (refusal.value.asked, refusal.value.allowed) == (asked, limit)
        assert refusal.value.device == runtime.device().name
        for part in (kernel.name, str(kernel.config), str(limit), str(asked)):
            assert part in str(refusal.value)
        assert not runtime.launch_counts()

    @pytest.mark.parametrize("grid", [(0, 1, 1), (1, 65536, 1), (1, 1, 65536), (2**31, 1, 1)])
    def test_grids_that_cuda_does_not_allow(self, grid):
        with pytest.raises(LaunchRefused, match="blocks along"):
            runtime.launch(fill(), grid, runtime.empty(4, np.uint8), 4)


class TestChecked:
    def test_passes_a_kernel_that_writes_everything(self):
        a, b, wanted = axpby_arrays()
        out = runtime.empty(N, np.float32)
        with runtime.checked():
            runtime.launch(AXPBY, GRID, runtime.to_device(a), runtime.to_device(b), out, N, 2.0, -3.0)
        np.testing.assert_allclose(out.to_host(), wanted, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "uint8", "int32"])
    def test_catches_what_is_left_unwritten(self, dtype):
        out = runtime.empty((10, 100), dtype)
        kernel = fill(TinyConfig(number=3), dtype)
        with runtime.checked(), pytest.raises(runtime.Unwritten) as caught:
            runtime.launch(kernel, GRID, out, 990)
        assert caught.value.index == (9, 90)
        assert caught.value.count == 10
        assert kernel.name in str(caught.value) and "'out'" in str(caught.value)

    @pytest.mark.parametrize("number", [0xA5, 0x5B])
    def test_a_kernel_may_write_the_canary(self, number):
        out = runtime.empty(N, np.uint8)
        with runtime.checked():
            runtime.launch(fill(TinyConfig(number=number)), GRID, out, N)
        assert set(out.to_host().tolist()) == {number}

    def test_a_prepared_launch_and_a_tensor_of_torch(self):
        torch = pytest.importorskip("torch")
        out = torch.zeros(N, device="cuda", dtype=torch.int32)
        bound = runtime.load(fill(TinyConfig(number=3), "int32")).prepare(GRID, out, N - 1)
        bound()
        with runtime.checked(), pytest.raises(runtime.Unwritten, match=r"first at \(999,\)"):
            bound()


class TestCountsAndGraphs:
    def test_counts(self):
        kernel, out = fill(TinyConfig(number=1)), runtime.empty(N, np.uint8)
        for _ in range(3):
            runtime.launch(kernel, GRID, out, N)
        assert runtime.launch_counts() == {(kernel.name, str(kernel.config)): 3}
        runtime.reset_launch_counts()
        assert runtime.launch_counts() == {}

    def test_capture_and_replay(self):
        kernel = fill(TinyConfig(number=7), "int32")
        out = runtime.to_device(np.zeros(N, np.int32))
        bound = runtime.load(kernel).prepare(GRID, out, N)
        with runtime.capture() as graph:
            for _ in range(4):
                bound()
        assert runtime.launch_counts() == {}
        assert not out.to_host().any()
        for _ in range(2):
            graph.replay()
        graph.stream.synchronize()
        assert set(out.to_host().tolist()) == {7}
        assert runtime.launch_counts() == {(kernel.name, str(kernel.config)): 8}

    def test_a_replay_reads_what_the_arrays_hold_then(self):
        a, b, _ = axpby_arrays()
        arrays = runtime.to_device(a), runtime.to_device(b), runtime.empty(N, np.float32)
        runtime.load(AXPBY)
        with runtime.capture() as graph:
            runtime.launch(AXPBY, GRID, *arrays, N, 1.0, 1.0)
        for factor in (1, 2):
            arrays[0].copy_from(factor * a)
            graph.replay()
            graph.stream.synchronize()
            np.testing.assert_allclose(arrays[2].to_host(), factor * a + b, rtol=1e-5, atol=1e-6)

    def test_memory_freed_inside_a_capture(self):
        out = runtime.empty(N, np.uint8)
        kernel = fill(TinyConfig(number=5))
        runtime.load(kernel)
        with runtime.capture() as graph:
            temporary = runtime.empty(1 << 20, np.uint8)
            del temporary
            runtime.launch(kernel, GRID, out, N)
        graph.replay()
        graph.stream.synchronize()
        assert set(out.to_host().tolist()) == {5}

    def test_checked_mode_is_refused_inside_a_capture(self):
        kernel, out = fill(TinyConfig(number=5)), runtime.empty(N, np.uint8)
        runtime.load(kernel)
        with pytest.raises(RuntimeError, match="graph capture"), runtime.capture(), runtime.checked():
            runtime.launch(kernel, GRID, out, N)
        runtime.launch(kernel, GRID, out, N)
        assert set(out.to_host().tolist()) == {5}

    def test_an_error_inside_a_capture_comes_out(self):
        capture = runtime.capture()
        with pytest.raises(ValueError, match="mine"), capture as graph:
            raise ValueError("mine")
        with pytest.raises(RuntimeError, match="not captured to its end"):
            graph.replay()

    def test_events(self):
        out = runtime.empty(1 << 24, np.uint8)
        kernel = fill()
        stream = runtime.Stream()
        with stream:
            start = runtime.Event().record()
            runtime.launch(kernel, (1 << 17, 1, 1), out, 1 << 24)
            stop = runtime.Event().record()
        assert 0 < stop.since(start) < 1000
