"""A warp-specialised, persistent wgmma GEMM in the simulator: TMA ring, clusters with multicast, stores by
TMA."""

import numpy as np
import pytest
from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx, simulator
from minfer.cuda.instruction import device_function
from minfer.cuda.simulator.semantics import SEMANTICS
from minfer.cuda.trace import Op, Trace, check, shared_lines
from tests.cuda.simulated import make_kernel

u32, s32 = types.uint32, types.int32
ROWS, COLUMNS, DEPTH, STAGES = 128, 64, 64, 2  # of a block's tile and k-step
A_BYTES, B_BYTES, C_BYTES = ROWS * DEPTH * 2, COLUMNS * DEPTH * 2, 16 * COLUMNS * 2
STAGE = A_BYTES + B_BYTES
STORE = STAGES * STAGE
BARRIERS = STORE + 8 * C_BYTES


def hopper_gemm(cluster, *, late_release=True):
    """Warpgroup 0 loads, two more multiply 64 rows each; `cluster` blocks share the columns of B by
    multicast."""
    stage = ptx.wgmma(COLUMNS, "f16", "shared", 4, "operand", wait=1)
    finish = ptx.wgmma_wait(0, COLUMNS // 2)
    stores_read = ptx.bulk_wait_group_read(0)
    give, take = ptx.setmaxnreg("dec", 40), ptx.setmaxnreg("inc", 232)

    @device_function
    def release(barrier, thread):
        if thread < cluster:
            if cluster > 1:
                ptx.mbarrier_arrive_cluster(barrier, u32(thread))
            else:
                ptx.mbarrier_arrive(barrier)

    def gemm(tm_a, tm_b, tm_c, n_tiles, m_tiles, steps):
        base = ptx.shared_address(cuda.shared.array(0, types.uint8))
        full, empty = u32(base + BARRIERS), u32(base + BARRIERS + 8 * STAGES)
        thread = cuda.threadIdx.x
        rank = s32(ptx.cluster_rank())
        if thread == 0:
            for s in range(STAGES):
                ptx.mbarrier_init(u32(full + 8 * s), u32(1))
                ptx.mbarrier_init(u32(empty + 8 * s), u32(2 * cluster))
            ptx.fence_mbarrier_init()
        ptx.cluster_sync()
        tile, tile_step = cuda.blockIdx.x // cluster, cuda.gridDim.x // cluster
        slot, phase = 0, 0
        if ptx.uniform(s32(thread // 128)) == 0:
            give()
            if thread == 0:
                while tile < n_tiles * m_tiles:
                    row = (tile % n_tiles * cluster + rank) * ROWS
                    column = tile // n_tiles * COLUMNS + rank * (COLUMNS // cluster)
                    for k in range(steps):
                        ptx.mbarrier_wait(u32(empty + 8 * slot), u32(phase ^ 1))
                        place, bar = u32(base + slot * STAGE), u32(full + 8 * slot)
                        ptx.mbarrier_arrive_expect_tx(bar, u32(STAGE))
                        ptx.tma_load_2d(place, ptx.tensor_map_address(tm_a), bar, s32(k * DEPTH), s32(row))
                        part = u32(place + A_BYTES + rank * (B_BYTES // cluster))
                        ptx.tma_load_2d_multicast(
                            part,
                            ptx.tensor_map_address(tm_b),
                            bar,
                            s32(k * DEPTH),
                            s32(column),
                            u32((1 << cluster) - 1),
                        )
                        slot += 1
                        if slot == STAGES:
                            slot, phase = 0, phase ^ 1
                    tile += tile_step
        else:
            take()
            consumer, local, lane = thread // 128 - 1, thread % 128, thread % 32
            warp = ptx.uniform(s32(local // 32))
            sums = cuda.local.array(COLUMNS // 2, types.float32)
            a = ptx.wgmma_descriptor(u32(base + consumer * (A_BYTES // 2)), u32(16))
            b = ptx.wgmma_descriptor(u32(base + A_BYTES), u32(16))
            out = u32(base + STORE + (4 * consumer + warp) * C_BYTES)
            for i in range(COLUMNS // 2):
                sums[i] = types.float32(0)
            while tile < n_tiles * m_tiles:
                before = 0
                for k in range(steps):
                    ptx.mbarrier_wait(u32(full + 8 * slot), u32(phase))
                    stage(sums, u32(a + slot * (STAGE >> 4)), u32(b + slot * (STAGE >> 4)), u32(k))
                    if late_release:
                        if k > 0:
                            release(u32(empty + 8 * before), local)
                    else:
                        release(u32(empty + 8 * slot), local)
                    before = slot
                    slot += 1
                    if slot == STAGES:
                        slot, phase = 0, phase ^ 1
                finish(sums)
                if late_release:
                    release(u32(empty + 8 * before), local)
                if lane == 0:
                    stores_read()
                ptx.syncwarp()
                for j in range(COLUMNS // 16):
                    o = 8 * j
                    chunk = (2 * j + lane // 16) ^ (lane & 7)
                    ptx.stmatrix_x4(
                        u32(out + lane % 16 * 128 + chunk * 16),
                        ptx.pack_f16x2(sums[o], sums[o + 1]),
                        ptx.pack_f16x2(sums[o + 2], sums[o + 3]),
                        ptx.pack_f16x2(sums[o + 4], sums[o + 5]),
                        ptx.pack_f16x2(sums[o + 6], sums[o + 7]),
                    )
                ptx.fence_proxy_async()
                ptx.syncwarp()
                if lane == 0:
                    row = (tile % n_tiles * cluster + rank) * ROWS + 64 * consumer + 16 * warp
                    ptx.tma_store_2d(
                        ptx.tensor_map_address(tm_c), out, s32(tile // n_tiles * COLUMNS), s32(row)
                    )
                    ptx.bulk_commit_group()
                tile += tile_step
            if lane == 0:
                stores_read()
        ptx.cluster_sync()

    return make_kernel(
        gemm, "tm_a: map", "tm_b: map", "tm_c: map", "n_tiles = int32", "m_tiles = int32", "steps = int32",
        threads=384, shared_bytes=BARRIERS + 16 * STAGES, cluster=cluster,
    )  # fmt: skip


def run(kernel, cluster, rows=200, columns=136, depth=168, **keywords):
    rng = np.random.default_rng(11)
    a, b = (rng.standard_normal((count, depth)).astype(np.float16) for count in (rows, columns))
    c = np.full((rows, columns), np.nan, np.float16)
    maps = (
        simulator.tensor_map(a, ROWS),
        simulator.tensor_map(b, COLUMNS // cluster),
        simulator.tensor_map(c, 16),
    )
    tiles = -(-rows // (ROWS * cluster)), -(-columns // COLUMNS)
    simulator.launch(kernel, 2, *maps, *tiles, -(-depth // DEPTH), **keywords)
    return c, a.astype(np.float64) @ b.astype(np.float64).T


@pytest.mark.parametrize(("cluster", "seed"), [(1, None), (2, None), (2, 4)])
def test_hopper_gemm_is_right(cluster, seed):
    product, exact = run(hopper_gemm(cluster), cluster, seed=seed)
    np.testing.assert_allclose(product, exact, atol=0.03)


@pytest.mark.parametrize("cluster", [1, 2])
def test_hopper_gemm_is_clean_and_free_of_conflicts(cluster):
    trace = Trace()
    run(hopper_gemm(cluster), cluster, trace=trace)
    assert check(trace) == []
    assert {line.degree for line in shared_lines(trace, Op.STMATRIX)} == {1}


@pytest.mark.parametrize(
    ("instruction", "fault"),
    [
        ("fence_proxy_async", "missing proxy fence"),
        ("syncwarp", "read-write race"),
        ("cluster_sync", "mbarrier race"),
        ("bulk_wait_group_read", simulator.AsyncHazard),
        ("wgmma_wait", simulator.AsyncHazard),
        ("mbarrier_arrive_expect_tx", simulator.Deadlock),
    ],
)
def test_no_ordering_instruction_can_be_left_out(monkeypatch, instruction, fault):
    monkeypatch.setitem(SEMANTICS, instruction, lambda *operands, **parameters: None)
    trace = Trace()
    if isinstance(fault, str):
        run(hopper_gemm(2), 2, trace=trace)
        assert fault in {finding.kind for finding in check(trace)}
    else:
        with pytest.raises(fault):
            run(hopper_gemm(2), 2, trace=trace)


def test_a_stage_released_too_early_is_found():
    """The release must follow the wait for the wgmma that reads the stage."""
    trace = Trace()
    try:
        run(hopper_gemm(1, late_release=False), 1, trace=trace)
    except simulator.AsyncHazard as error:
        assert "changed while wgmma" in str(error)
    found = {finding.kind for finding in check(trace)}
    assert found and found <= {"overwrites asynchronous read", "read-write race"}
