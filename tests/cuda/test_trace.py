"""The tracer: what is recorded, requests per source line, faults that the checker finds, files."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx, simulator
from minfer.cuda.instruction import device_function
from minfer.cuda.trace import Op, Trace, check, global_lines, requests, shared_lines
from tests.cuda.simulated import make_kernel

u32, u64 = types.uint32, types.uint64
wait_all, wait_one = ptx.cp_async_wait_group(0), ptx.cp_async_wait_group(1)


def traced(kernel, grid, *arguments, strict=False, **keywords):
    trace = Trace()
    simulator.launch(kernel, grid, *arguments, trace=trace, strict=strict, **keywords)
    return trace


def kinds(trace):
    return [finding.kind for finding in check(trace)]


# ---- requests


def fill_and_load(stride):
    """Fill 16 rows of 32 bytes at this stride, then load them by one ldmatrix.x4."""
    base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
    lane = cuda.threadIdx.x
    row = u32(base + (lane % 16) * stride + lane // 16 * 16)
    ptx.st_shared_v4_u32(row, u32(0), u32(0), u32(0), u32(0))
    ptx.syncwarp()
    ptx.ldmatrix_x4(row)


@pytest.mark.parametrize(("stride", "degree"), [(256, 8), (272, 1), (64, 4), (80, 1), (128, 8), (144, 1)])
def test_ldmatrix_conflicts_of_padded_and_unpadded_rows(stride, degree):
    trace = traced(make_kernel(fill_and_load, "stride = int32", shared_bytes=16 * 272), 1, stride)
    (line,) = shared_lines(trace, Op.LDMATRIX)
    assert (line.degree, line.requests, line.ideal, line.wavefronts) == (degree, 1, 4, 4 * degree)
    assert line.place.function == "fill_and_load" and line.place.file == __file__
    assert check(trace) == []


def test_lines_are_told_apart_and_the_costly_one_is_first():
    def kernel():
        shared = cuda.shared.array(1024, types.float32)
        lane = cuda.threadIdx.x
        shared[lane] = types.float32(0)
        shared[lane * 32] = types.float32(0)

    first, second = shared_lines(traced(make_kernel(kernel), 1))
    assert (first.degree, first.conflicts, second.degree, second.conflicts) == (32, 31, 1, 0)
    assert first.place.line == second.place.line + 1


def test_divergent_lanes_are_grouped_by_execution():
    def kernel():
        shared = cuda.shared.array(32, types.float32)
        lane = cuda.threadIdx.x
        for _ in range(3):
            if lane % 2 == 0:
                shared[lane] = types.float32(0)
            ptx.syncwarp()

    found = list(requests(traced(make_kernel(kernel), 1), Op.STORE_SHARED))
    assert len(found) == 3
    assert all(request.lanes == tuple(range(0, 32, 2)) for request in found)


@pytest.mark.parametrize(("stride", "sectors"), [(1, 4), (2, 8), (8, 32), (0, 1)])
def test_sectors_of_strided_loads(stride, sectors):
    def kernel(data, stride):
        ptx.ld_global_f32(u64(ptx.global_address(data) + 4 * stride * cuda.threadIdx.x))

    trace = traced(
        make_kernel(kernel, "data: float32", "stride = int32"), 1, np.zeros(256, np.float32), stride
    )
    (line,) = global_lines(trace)
    assert line.sectors == sectors == line.sectors_per_request
    assert line.efficiency == min(32, 32 if stride else 1) * 4 / (32 * sectors)


def test_pointer_accesses_count_too():
    def kernel(source, target):
        target[cuda.threadIdx.x] = source[cuda.threadIdx.x]

    trace = traced(
        make_kernel(kernel, "source: float16", "target: float32", threads=64),
        1,
        np.ones(64, np.float16),
        np.zeros(64, np.float32),
    )
    assert {line.op: (line.requests, line.sectors) for line in global_lines(trace)} == {
        Op.LOAD_GLOBAL: (2, 4),
        Op.STORE_GLOBAL: (2, 8),
    }


def test_a_helper_called_twice_has_two_sites_on_one_line():
    @device_function
    def put(shared, i):
        shared[i] = types.float32(0)

    def kernel():
        shared = cuda.shared.array(1024, types.float32)
        put(shared, cuda.threadIdx.x)
        put(shared, cuda.threadIdx.x * 2)

    first, second = shared_lines(traced(make_kernel(kernel), 1))
    assert first.place == second.place and first.place.function == "put"
    assert first.chain[1].line == second.chain[1].line + 1
    assert (first.degree, second.degree) == (2, 1)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 255), min_size=32, max_size=32))
def test_conflicts_agree_with_counting_words(words):
    """Any addresses: the degree is the most distinct words that one bank holds."""

    def kernel():
        base = ptx.shared_address(cuda.shared.array(0, types.uint8))
        ptx.st_shared_u32(u32(base + 4 * words[cuda.threadIdx.x]), u32(0))

    (line,) = shared_lines(traced(make_kernel(kernel, shared_bytes=1024), 1))
    banks = [[word for word in set(words) if word % 32 == bank] for bank in range(32)]
    assert line.degree == max(map(len, banks))


def test_counts():
    trace = traced(make_kernel(fill_and_load, "stride = int32", shared_bytes=16 * 272), 1, 272)
    assert trace.counts() == {"STORE_SHARED": 32, "LDMATRIX": 32, "WARP_ARRIVE": 32, "WARP_LEAVE": 32}
    by_line = {op: count for (_, op), count in trace.counts_by_line().items()}
    assert by_line[Op.LDMATRIX] == 32
    assert len(trace.rows(Op.LDMATRIX, thread=3)) == 1


# ---- the checker


def copy_through_shared(wait, barrier, shift):
    def kernel(source, target):
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        thread = cuda.threadIdx.x
        ptx.cp_async_cg_16(u32(base + 16 * thread), u64(ptx.global_address(source) + 16 * thread), u32(16))
        ptx.cp_async_commit()
        if wait:
            wait_all()
        if barrier:
            cuda.syncthreads()
        other = (thread + shift) % 64
        for i in range(4):
            target[4 * thread + i] = ptx.ld_shared_u32(u32(base + 16 * other + 4 * i))

    return make_kernel(kernel, "source: uint32", "target: uint32", threads=64, shared_bytes=1024)


@pytest.mark.parametrize(
    ("wait", "barrier", "shift", "expected"),
    [
        (True, True, 1, []),
        (True, False, 0, []),
        (False, True, 0, ["read before landing"]),
        (False, True, 1, ["read before landing"]),
        (True, False, 63, ["read-write race", "uninitialized read"]),
    ],
)
def test_asynchronous_copies(wait, barrier, shift, expected):
    source, target = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    trace = traced(copy_through_shared(wait, barrier, shift), 1, source, target)
    assert sorted(kinds(trace)) == expected
    right = np.array_equal(target.reshape(64, 4), np.roll(source.reshape(64, 4), -shift, axis=0))
    assert right == (not expected)


def test_findings_name_both_places():
    source, target = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    finding = check(traced(copy_through_shared(True, False, 63), 1, source, target))[0]
    assert (finding.space, finding.block) == ("shared", 0)
    assert finding.place.line > finding.other_place.line
    assert finding.count > 1
    assert "read-write race: shared" in str(finding) and "times" in str(finding)


def test_reusing_a_stage_needs_a_barrier():
    def kernel(source, barrier):
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        thread = cuda.threadIdx.x
        for _ in range(2):
            ptx.cp_async_cg_16(u32(base + 16 * thread), ptx.global_address(source), u32(16))
            ptx.cp_async_commit()
            wait_all()
            cuda.syncthreads()
            ptx.ld_shared_v4_u32(u32(base + 16 * (63 - thread)))
            if barrier:
                cuda.syncthreads()

    kernel = make_kernel(kernel, "source: uint32", "barrier = int32", threads=64, shared_bytes=1024)
    source = np.zeros(4, np.uint32)
    assert kinds(traced(kernel, 1, source, 1)) == []
    assert kinds(traced(kernel, 1, source, 0)) == ["read-write race"]


def test_two_lanes_write_one_byte():
    def kernel():
        shared = cuda.shared.array(16, types.uint8)
        shared[cuda.threadIdx.x // 2] = 1

    assert kinds(traced(make_kernel(kernel), 1)) == ["write-write race"]


@pytest.mark.parametrize(("each", "found"), [(0, []), (1, ["write-write race"])])
def test_lanes_that_store_one_value_to_one_place(each, found):
    """With one instruction it does not matter whose comes last."""

    def kernel(out, each):
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        lane = cuda.threadIdx.x
        ptx.st_shared_u32(base, u32(7 + lane * each))
        ptx.syncwarp()
        out[lane] = ptx.ld_shared_u32(base)

    made = make_kernel(kernel, "out: uint32", "each = int32", shared_bytes=16)
    assert kinds(traced(made, 1, np.zeros(32, np.uint32), each)) == found


def test_the_same_value_by_two_instructions_is_a_race():
    def kernel():
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        if cuda.threadIdx.x == 0:
            ptx.st_shared_u32(base, u32(7))
        else:
            ptx.st_shared_u32(base, u32(7))

    assert kinds(traced(make_kernel(kernel, shared_bytes=16), 1)) == ["write-write race"]


def test_blocks_that_wait_for_each_other():
    """Each keeps the order of its own threads; what passes between them in memory is not checked."""

    def kernel(counter, data, out, ordered):
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        thread, block = cuda.threadIdx.x, cuda.blockIdx.x
        if thread == 0:
            ptx.st_shared_u32(base, u32(block))
            data[block] = u32(block + 5)
            ptx.red_add_release_u32(ptx.global_address(counter), u32(1))
            ptx.wait_global_u32(ptx.global_address(counter), u32(2))
        if ordered:
            cuda.syncthreads()
        if thread == 32:
            out[block] = data[1 - block] + ptx.ld_shared_u32(base)

    made = make_kernel(
        kernel, "counter: uint32", "data: uint32", "out: uint32", "ordered = int32", threads=64,
        shared_bytes=16, cooperative=True,
    )  # fmt: skip
    for ordered, found in ((1, []), (0, ["uninitialized read", "read-write race"])):
        counter, data, out = (np.zeros(n, np.uint32) for n in (1, 2, 2))
        trace = traced(made, 2, counter, data, out, ordered)
        assert set(kinds(trace)) <= set(found) and bool(kinds(trace)) == bool(found)
        assert not ordered or out.tolist() == [6 + 0, 5 + 1]


def test_lanes_of_a_warp_need_syncwarp():
    def kernel(out, sync):
        shared = cuda.shared.array(32, types.uint32)
        lane = cuda.threadIdx.x
        shared[lane] = lane
        if sync:
            ptx.syncwarp()
        else:
            ptx.shfl_xor_u32(u32(lane), u32(1))
        out[lane] = shared[31 - lane]

    kernel = make_kernel(kernel, "out: uint32", "sync = int32")
    assert kinds(traced(kernel, 1, np.zeros(32, np.uint32), 1)) == []
    assert kinds(traced(kernel, 1, np.zeros(32, np.uint32), 0)) == ["read-write race"]


def test_uninitialized_reads():
    def kernel(out):
        shared = cuda.shared.array(64, types.float32)
        shared[cuda.threadIdx.x] = types.float32(0)
        out[cuda.threadIdx.x] = shared[63]

    (finding,) = check(traced(make_kernel(kernel, "out: float32"), 1, np.zeros(32, np.float32)))
    assert (finding.kind, finding.count, finding.address) == ("uninitialized read", 32, 1024 + 63 * 4)
    assert finding.other_place is None


def test_named_barriers_order_producer_and_consumer():
    def kernel(wait):
        shared = cuda.shared.array(32, types.int32)
        thread = cuda.threadIdx.x
        if thread >= 32:
            shared[thread - 32] = thread
            ptx.bar_arrive(u32(2), u32(64))
        else:
            if wait:
                ptx.bar_sync(u32(2), u32(64))
            else:
                ptx.bar_arrive(u32(2), u32(64))
            shared[thread]

    assert kinds(traced(make_kernel(kernel, "wait = int32", threads=64), 1, 1)) == []
    assert kinds(traced(make_kernel(kernel, "wait = int32", threads=64), 1, 0)) != []


def test_global_memory_between_blocks():
    def kernel(out, spread):
        out[cuda.blockIdx.x * spread + cuda.threadIdx.x] = 1

    kernel = make_kernel(kernel, "out: int32", "spread = int32")
    assert kinds(traced(kernel, 2, np.zeros(64, np.int32), 32)) == []
    (finding,) = check(traced(kernel, 2, np.zeros(64, np.int32), 31))
    assert (finding.kind, finding.space, finding.block) == ("write-write race", "global", 1)


def test_global_memory_within_a_block():
    def kernel(data, barrier):
        thread = cuda.threadIdx.x
        value = data[thread]
        if barrier:
            cuda.syncthreads()
        data[63 - thread] = value

    kernel = make_kernel(kernel, "data: int32", "barrier = int32", threads=64)
    assert kinds(traced(kernel, 1, np.zeros(64, np.int32), 1)) == []
    assert kinds(traced(kernel, 1, np.zeros(64, np.int32), 0)) == ["read-write race"]


def test_atomics_are_no_race():
    def kernel(out):
        cuda.atomic.add(out, 0, 1)

    out = np.zeros(1, np.int32)
    assert kinds(traced(make_kernel(kernel, "out: int32", threads=64), 2, out)) == []
    assert out[0] == 128


# ---- Hopper


def ring(rounds, *, early_release=False, wait=True, sync=True):
    """A producer thread loads boxes by TMA into two slots, a warp reads them."""

    def kernel(source, out):
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        full, empty = u32(base + 2048), u32(base + 2064)
        thread = cuda.threadIdx.x
        if thread == 0:
            for s in range(2):
                ptx.mbarrier_init(u32(full + 8 * s), u32(1))
                ptx.mbarrier_init(u32(empty + 8 * s), u32(32))
            ptx.fence_mbarrier_init()
        if sync:
            cuda.syncthreads()
        if thread == 0:
            for i in range(rounds):
                slot, phase = i % 2, i // 2 % 2
                ptx.mbarrier_wait(u32(empty + 8 * slot), u32(phase ^ 1))
                bar = u32(full + 8 * slot)
                ptx.mbarrier_arrive_expect_tx(bar, u32(1024))
                ptx.tma_load_2d(
                    u32(base + 1024 * slot),
                    ptx.tensor_map_address(source),
                    bar,
                    types.int32(0),
                    types.int32(8 * i),
                )
        elif thread >= 32:
            for i in range(rounds):
                slot, phase = i % 2, i // 2 % 2
                if wait:
                    ptx.mbarrier_wait(u32(full + 8 * slot), u32(phase))
                if early_release:
                    ptx.mbarrier_arrive(u32(empty + 8 * slot))
                out[i * 32 + thread - 32] = ptx.ld_shared_u32(u32(base + 1024 * slot + 4 * (thread - 32)))
                if not early_release:
                    ptx.mbarrier_arrive(u32(empty + 8 * slot))

    return make_kernel(kernel, "source: map", "out: uint32", threads=64, shared_bytes=2080)


def test_a_ring_of_mbarriers_is_clean():
    source, out = np.arange(40 * 32, dtype=np.uint32).reshape(40, 32), np.zeros((5, 32), np.uint32)
    assert kinds(traced(ring(5), 1, simulator.tensor_map(source, 8), out)) == []
    np.testing.assert_array_equal(out, source[::8])


def test_mbarriers_must_be_initialised_before():
    source, out = np.zeros((40, 32), np.uint32), np.zeros((5, 32), np.uint32)
    assert set(kinds(traced(ring(2, sync=False), 1, simulator.tensor_map(source, 8), out))) == {
        "mbarrier race"
    }


def test_missing_mbarrier_waits_are_found():
    source, out = np.zeros((40, 32), np.uint32), np.zeros((5, 32), np.uint32)
    assert "read before landing" in kinds(
        traced(ring(2, wait=False), 1, simulator.tensor_map(source, 8), out)
    )
    assert "read-write race" in kinds(
        traced(ring(3, early_release=True), 1, simulator.tensor_map(source, 8), out)
    )


@pytest.mark.parametrize(
    ("fence", "barrier", "wait", "expected"),
    [
        (True, True, True, []),
        (False, True, True, ["missing proxy fence"]),
        (True, False, True, ["read-write race"]),
        (True, True, False, ["overwrites asynchronous read"]),
    ],
)
def test_stores_by_tma(fence, barrier, wait, expected):
    read_done = ptx.bulk_wait_group_read(0)

    def kernel(target):
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        thread = cuda.threadIdx.x
        ptx.st_shared_v4_u32(u32(base + 16 * thread), u32(1), u32(2), u32(3), u32(4))
        if fence:
            ptx.fence_proxy_async()
        if barrier:
            cuda.syncthreads()
        if thread == 63:
            ptx.tma_store_2d(ptx.tensor_map_address(target), base, types.int32(0), types.int32(0))
            ptx.bulk_commit_group()
            if not wait:  # the same bytes again: no difference in the result
                ptx.st_shared_v4_u32(base, u32(1), u32(2), u32(3), u32(4))
            read_done()

    target = simulator.tensor_map(np.zeros((8, 32), np.uint32), 8)
    kernel = make_kernel(kernel, "target: map", threads=64, shared_bytes=1024)
    assert kinds(traced(kernel, 1, target)) == expected


@pytest.mark.parametrize(("fence", "expected"), [(True, []), (False, ["missing proxy fence"])])
def test_wgmma_reads_what_was_written_and_fenced(fence, expected):
    stage, wait = ptx.wgmma(8, "f16", "shared", 1, False, wait=0), ptx.wgmma_wait(0, 4)

    def kernel():
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        thread = cuda.threadIdx.x
        for i in range(thread, 9216 // 16, 128):
            ptx.st_shared_v4_u32(u32(base + 16 * i), u32(0), u32(0), u32(0), u32(0))
        if fence:
            ptx.fence_proxy_async()
        cuda.syncthreads()
        acc = cuda.local.array(4, types.float32)
        stage(acc, ptx.wgmma_descriptor(base, 16), ptx.wgmma_descriptor(u32(base + 8192), 16))
        wait(acc)
        cuda.syncthreads()
        ptx.st_shared_u32(u32(base + 4 * thread), u32(0))

    trace = traced(make_kernel(kernel, threads=128, shared_bytes=9216), 1)
    assert list(dict.fromkeys(kinds(trace))) == expected
    assert trace.counts()["WGMMA"] == 128


# ---- files


def test_saved_traces_give_the_same_answers(tmp_path):
    source, target = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    trace = traced(copy_through_shared(True, False, 63), 1, source, target)
    trace.save(tmp_path / "copy.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.json", "copy.npz"]
    loaded = Trace.load(tmp_path / "copy")
    np.testing.assert_array_equal(loaded.table, trace.table)
    assert loaded.info == trace.info and loaded.sites == trace.sites
    assert check(loaded) == check(trace)
    assert shared_lines(loaded) == shared_lines(trace) and global_lines(loaded) == global_lines(trace)


def test_writes_of_cp_async_have_no_bank_conflicts_to_count():
    """The hardware writes them as they arrive (data/reference/banks-h200.json)."""
    source, target = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    trace = traced(copy_through_shared(True, False, 63), 1, source, target)
    assert trace.counts()["COPY_ISSUE"] and any(r.op is Op.COPY_ISSUE for r in requests(trace))
    assert Op.COPY_ISSUE not in {line.op for line in shared_lines(trace)}
    with pytest.raises(ValueError, match="not COPY_ISSUE"):
        shared_lines(trace, Op.COPY_ISSUE)


def test_a_trace_holds_one_launch():
    trace = Trace()
    with pytest.raises(ValueError, match="empty"):
        check(trace)
    kernel = make_kernel(fill_and_load, "stride = int32", shared_bytes=16 * 272)
    simulator.launch(kernel, 1, 272, trace=trace)
    with pytest.raises(ValueError, match="already holds"):
        simulator.launch(kernel, 1, 272, trace=trace)
