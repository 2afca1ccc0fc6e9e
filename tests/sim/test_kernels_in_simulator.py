"""Whole kernels in the simulator: a small GEMM written on the instructions, and the shipped proof GEMM."""

import numpy as np
import pytest
from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx, simulator
from minfer.cuda.gemm import GemmConfig, make_gemm
from minfer.cuda.instruction import device_function
from minfer.cuda.simulator.semantics import SEMANTICS
from minfer.cuda.trace import Op, Trace, check, shared_lines
from tests.cuda.simulated import make_kernel

u32, u64 = types.uint32, types.uint64
TILE, DEPTH, STRIDE = 32, 32, 80  # rows of 64 bytes, 80 apart
STAGE = 2 * TILE * STRIDE


def small_gemm(wait_group=1, barrier=True):
    """C[32, 32] = A[32, K] B[32, K]^T: two cp.async stages, two warps of 16 rows, ldmatrix, mma.sync."""
    wait = ptx.cp_async_wait_group(wait_group)

    @device_function
    def stage_in(stage, a, b, k, depth, thread):
        for j in range(2):
            chunk = thread + 64 * j
            row, part = chunk // 4, chunk % 4
            offset = u64((row * depth + k + part * 8) * 2)
            ptx.cp_async_cg_16(u32(stage + row * STRIDE + part * 16), ptx.global_address(a) + offset, u32(16))
            ptx.cp_async_cg_16(
                u32(stage + (TILE + row) * STRIDE + part * 16), ptx.global_address(b) + offset, u32(16)
            )

    def gemm(a, b, c, depth):
        base = ptx.shared_address(cuda.shared.array(0, types.uint8))
        thread = cuda.threadIdx.x
        lane, warp = thread % 32, thread // 32
        sums = cuda.local.array(16, types.float32)
        for i in range(16):
            sums[i] = types.float32(0)
        stage_in(base, a, b, 0, depth, thread)
        ptx.cp_async_commit()
        for step in range(depth // DEPTH):
            if (step + 1) * DEPTH < depth:
                stage_in(u32(base + (step + 1) % 2 * STAGE), a, b, (step + 1) * DEPTH, depth, thread)
            ptx.cp_async_commit()
            wait()
            if barrier:
                cuda.syncthreads()
            stage = u32(base + step % 2 * STAGE)
            for k in range(2):
                a0, a1, a2, a3 = ptx.ldmatrix_x4(
                    u32(stage + (16 * warp + lane % 16) * STRIDE + 32 * k + lane // 16 * 16)
                )
                for j in range(2):
                    row = TILE + 16 * j + lane // 16 * 8 + lane % 8
                    b0, b1, b2, b3 = ptx.ldmatrix_x4(u32(stage + row * STRIDE + 32 * k + lane // 8 % 2 * 16))
                    o = 8 * j
                    sums[o], sums[o + 1], sums[o + 2], sums[o + 3] = ptx.mma_m16n8k16_f16(
                        a0, a1, a2, a3, b0, b1, sums[o], sums[o + 1], sums[o + 2], sums[o + 3]
                    )
                    o += 4
                    sums[o], sums[o + 1], sums[o + 2], sums[o + 3] = ptx.mma_m16n8k16_f16(
                        a0, a1, a2, a3, b2, b3, sums[o], sums[o + 1], sums[o + 2], sums[o + 3]
                    )
            if barrier:
                cuda.syncthreads()
        for i in range(16):
            row = 16 * warp + lane // 4 + 8 * (i // 2 % 2)
            c[row * 32 + i // 4 * 8 + lane % 4 * 2 + i % 2] = sums[i]

    return make_kernel(
        gemm, "a: float16", "b: float16", "c: float32", "depth = int32", threads=64, shared_bytes=2 * STAGE
    )


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((32, 96)).astype(np.float16) for _ in range(2))
    return a, b, a.astype(np.float64) @ b.astype(np.float64).T


def run(kernel, problem, **keywords):
    a, b, _ = problem
    c = np.full((32, 32), np.nan, np.float32)
    simulator.launch(kernel, 1, a, b, c, a.shape[1], **keywords)
    return c


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_gemm_is_right_in_any_order(problem, seed):
    np.testing.assert_allclose(run(small_gemm(), problem, seed=seed), problem[2], atol=1e-3)


def test_gemm_is_clean_and_free_of_conflicts(problem):
    trace = Trace()
    run(small_gemm(), problem, trace=trace)
    assert check(trace) == []
    assert {line.degree for line in shared_lines(trace, Op.LDMATRIX)} == {1}
    counts = trace.counts()
    assert counts["MMA"] == 3 * 2 * 4 * 64 and counts["COPY_LAND"] == counts["COPY_ISSUE"] == 3 * 256


def test_missing_wait_gives_a_wrong_product_and_is_reported(problem):
    """wait_group 2 with two stages waits for nothing that is needed."""
    kernel = small_gemm(wait_group=2)
    with pytest.raises(simulator.UninitializedShared):
        run(kernel, problem)
    trace = Trace()
    product = run(kernel, problem, strict=False, trace=trace)
    assert not np.allclose(product, problem[2], atol=0.1)
    assert "read before landing" in {finding.kind for finding in check(trace)}


def test_missing_syncthreads_is_reported(problem):
    trace = Trace()
    run(small_gemm(barrier=False), problem, strict=False, trace=trace)
    found = {finding.kind for finding in check(trace)}
    assert "read-write race" in found or "read before landing" in found


@pytest.mark.parametrize("layout", ["padded", "swizzled", "plain"])
def test_proof_gemm(layout):
    """64x64x32, two stages, ragged in every dimension, every element written."""
    config = GemmConfig(layout=layout)
    rng = np.random.default_rng(3)
    nt, od, depth = 61, 59, 72
    a, b = (rng.standard_normal((rows, depth)).astype(np.float16) for rows in (nt, od))
    c = np.full((nt, od), np.nan, np.float32)
    trace = Trace()
    simulator.launch(make_gemm(config), config.grid(nt, od), a, b, c, nt, od, depth, trace=trace)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64).T, atol=1e-3)
    assert check(trace) == []
    degrees = {line.degree for line in shared_lines(trace, Op.LDMATRIX)}
    assert degrees == ({4} if layout == "plain" else {1})


@pytest.mark.parametrize("instruction", ["cp_async_wait_group", "cp_async_commit"])
def test_proof_gemm_needs_its_waits(monkeypatch, instruction):
    monkeypatch.setitem(SEMANTICS, instruction, lambda *operands, **parameters: None)
    config = GemmConfig()
    a, b, c = np.ones((64, 96), np.float16), np.ones((64, 96), np.float16), np.zeros((64, 64), np.float32)
    trace = Trace()
    simulator.launch(make_gemm(config), 1, a, b, c, 64, 64, 96, trace=trace, strict=False)
    assert not np.array_equal(c, np.full((64, 64), 96))
    assert "read before landing" in {finding.kind for finding in check(trace)}
