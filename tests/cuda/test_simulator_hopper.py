"""TMA, mbarriers, clusters and wgmma in the simulator."""

import numpy as np
import pytest
from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx, simulator
from tests.cuda.simulated import make_kernel

u32, s32, u64 = types.uint32, types.int32, types.uint64
read_done = ptx.bulk_wait_group_read(0)
NO_LEADING = 16


def swizzled(matrix, width=128):
    """Bytes of a matrix whose rows are `width` bytes, 16-byte units permuted as TMA does from a
    1024-aligned address."""
    rows = np.ascontiguousarray(matrix).view(np.uint8).reshape(len(matrix), width // 16, 16)
    row = np.arange(len(matrix)) * width // 128 % 8 % (width // 16)
    out = np.empty_like(rows)
    for r in range(len(rows)):
        for unit in range(width // 16):
            out[r, unit ^ row[r]] = rows[r, unit]
    return out.reshape(-1)


# ---- TMA


def load_box(source, out, x, y, size):
    base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
    bar = u32(base + u32(size))
    if cuda.threadIdx.x == 0:
        ptx.mbarrier_init(bar, u32(1))
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        ptx.mbarrier_arrive_expect_tx(bar, u32(size))
        ptx.tma_load_2d(base, ptx.tensor_map_address(source), bar, s32(x), s32(y))
    ptx.mbarrier_wait(bar, u32(0))
    for i in range(cuda.threadIdx.x, size, 32):
        out[i] = ptx.ld_shared_u8(u32(base + i))


@pytest.mark.parametrize(("x", "y"), [(0, 0), (64, 16), (-8, -2), (104, 30), (200, 0)])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_tma_load_swizzles_and_fills_with_zeros(swizzle, x, y):
    columns, rows = (swizzle or 128) // 2, 16
    matrix = np.arange(40 * 120, dtype=np.float16).reshape(40, 120)
    out = np.zeros(rows * columns * 2, np.uint8)
    tensor_map = simulator.tensor_map(matrix, rows, columns, swizzle)
    kernel = make_kernel(
        load_box,
        "source: map",
        "out: uint8",
        "x = int32",
        "y = int32",
        "size = int32",
        shared_bytes=out.size + 8,
    )
    simulator.launch(kernel, 1, tensor_map, out, x, y, out.size)
    box = np.zeros((rows, columns), np.float16)
    for r in range(rows):
        for c in range(columns):
            if 0 <= y + r < 40 and 0 <= x + c < 120:
                box[r, c] = matrix[y + r, x + c]
    expected = swizzled(box, swizzle) if swizzle else box.view(np.uint8).reshape(-1)
    np.testing.assert_array_equal(out, expected)


def test_tma_refuses_columns_between_units_of_16_bytes():
    tensor_map, out = simulator.tensor_map(np.zeros((16, 64), np.float16), 16), np.zeros(2048, np.uint8)
    arguments = ("source: map", "out: uint8", "x = int32", "y = int32", "size = int32")
    with pytest.raises(simulator.InvalidInstruction, match="column 4 of float16: TMA needs a multiple of 16"):
        simulator.launch(make_kernel(load_box, *arguments, shared_bytes=2056), 1, tensor_map, out, 4, 0, 2048)


def test_a_read_before_the_wait_sees_unwritten_memory():
    def kernel(source):
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        bar = u32(base + u32(2048))
        if cuda.threadIdx.x == 0:
            ptx.mbarrier_init(bar, u32(1))
            ptx.mbarrier_arrive_expect_tx(bar, u32(2048))
            ptx.tma_load_2d(base, ptx.tensor_map_address(source), bar, s32(0), s32(0))
            ptx.ld_shared_u32(base)

    tensor_map = simulator.tensor_map(np.zeros((16, 64), np.float16), 16)
    with pytest.raises(simulator.UninitializedShared):
        simulator.launch(make_kernel(kernel, "source: map", shared_bytes=2056), 1, tensor_map)


def store_box(target, x, y, wait, overwrite):
    base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
    for i in range(cuda.threadIdx.x, 512, 32):
        ptx.st_shared_u32(u32(base + 4 * i), u32(i))
    ptx.fence_proxy_async()
    ptx.syncwarp()
    if cuda.threadIdx.x == 0:
        ptx.tma_store_2d(ptx.tensor_map_address(target), base, s32(x), s32(y))
        ptx.bulk_commit_group()
        if overwrite:
            ptx.st_shared_u32(base, u32(99))
        if wait:
            read_done()


@pytest.mark.parametrize(("x", "y"), [(0, 0), (32, 10), (-8, -4)])
def test_tma_store_clips(x, y):
    matrix = np.full((20, 48), -1, np.int32)
    tensor_map = simulator.tensor_map(matrix, 16, 32)
    kernel = make_kernel(
        store_box,
        "target: map",
        "x = int32",
        "y = int32",
        "wait = int32",
        "overwrite = int32",
        shared_bytes=2048,
    )
    simulator.launch(kernel, 1, tensor_map, x, y, 1, 0)
    box = np.zeros((16, 32), np.int32)
    written = np.arange(512, dtype=np.int32)
    for r in range(16):
        for unit in range(8):
            place = r * 32 + (unit ^ (r % 8)) * 4
            box[r, unit * 4 : unit * 4 + 4] = written[place : place + 4]
    expected = np.full((20, 48), -1, np.int32)
    for r in range(16):
        for c in range(32):
            if 0 <= y + r < 20 and 0 <= x + c < 48:
                expected[y + r, x + c] = box[r, c]
    np.testing.assert_array_equal(matrix, expected)


def test_tensor_maps_of_row_slices():
    whole = np.full((16, 80), -1, np.int32)
    tensor_map = simulator.tensor_map(whole[:, 16:48], 16, 32)
    kernel = make_kernel(
        store_box,
        "target: map",
        "x = int32",
        "y = int32",
        "wait = int32",
        "overwrite = int32",
        shared_bytes=2048,
    )
    simulator.launch(kernel, 1, tensor_map, 16, 0, 1, 0)
    assert (whole[:, :32] == -1).all() and (whole[:, 48:] == -1).all() and (whole[:, 32:48] >= 0).all()


def test_stores_must_be_waited_for():
    kernel = make_kernel(
        store_box,
        "target: map",
        "x = int32",
        "y = int32",
        "wait = int32",
        "overwrite = int32",
        shared_bytes=2048,
    )
    tensor_map = simulator.tensor_map(np.zeros((16, 32), np.int32), 16)
    with pytest.raises(simulator.AsyncHazard, match="bulk_wait_group_read"):
        simulator.launch(kernel, 1, tensor_map, 0, 0, 0, 0)
    with pytest.raises(simulator.AsyncHazard, match="changed while tma_store_2d"):
        simulator.launch(kernel, 1, tensor_map, 0, 0, 1, 1)


def test_bulk_load_copies_bytes():
    def kernel(source, out):
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        bar = u32(base + u32(64))
        if cuda.threadIdx.x == 0:
            ptx.mbarrier_init(bar, u32(1))
            ptx.mbarrier_arrive_expect_tx(bar, u32(64))
            ptx.bulk_load(base, u64(ptx.global_address(source) + 16), u32(64), bar)
            ptx.mbarrier_wait(bar, u32(0))
            for i in range(16):
                out[i] = ptx.ld_shared_u32(u32(base + 4 * i))

    source, out = np.arange(20, dtype=np.uint32), np.zeros(16, np.uint32)
    kernel = make_kernel(kernel, "source: uint32", "out: uint32", shared_bytes=72)
    simulator.launch(kernel, 1, source, out)
    np.testing.assert_array_equal(out, source[4:])


# ---- mbarriers


def test_phases_hand_a_buffer_back_and_forth():
    def kernel(out, rounds):
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        full, empty = base, u32(base + 8)
        slot = u32(base + 16)
        if cuda.threadIdx.x == 0:
            ptx.mbarrier_init(full, u32(1))
            ptx.mbarrier_init(empty, u32(32))
        cuda.syncthreads()
        if cuda.threadIdx.x < 32:
            for i in range(rounds):
                ptx.mbarrier_wait(full, u32(i & 1))
                out[i * 32 + cuda.threadIdx.x] = ptx.ld_shared_u32(slot)
                ptx.mbarrier_arrive(empty)
        elif cuda.threadIdx.x == 32:
            for i in range(rounds):
                ptx.mbarrier_wait(empty, u32((i & 1) ^ 1))
                ptx.st_shared_u32(slot, u32(i * i))
                ptx.mbarrier_arrive(full)

    out = np.zeros((5, 32), np.uint32)
    simulator.launch(
        make_kernel(kernel, "out: uint32", "rounds = int32", threads=64, shared_bytes=20), 1, out, 5
    )
    np.testing.assert_array_equal(out, np.arange(5)[:, None] ** 2 * np.ones((1, 32)))


def test_mbarrier_mistakes():
    def uninitialized():
        ptx.mbarrier_arrive(ptx.shared_address(cuda.shared.array(0, types.uint8)))

    def never_completes():
        bar = ptx.shared_address(cuda.shared.array(0, types.uint8))
        ptx.mbarrier_init(bar, u32(2))
        ptx.mbarrier_arrive(bar)
        ptx.mbarrier_wait(bar, u32(0))

    with pytest.raises(simulator.InvalidInstruction, match="no mbarrier"):
        simulator.launch(make_kernel(uninitialized, threads=1, shared_bytes=8), 1)
    with pytest.raises(simulator.Deadlock, match=r"1 arrivals and 0 bytes missing in phase 0"):
        simulator.launch(make_kernel(never_completes, threads=1, shared_bytes=8), 1)


# ---- clusters


def test_multicast_and_remote_arrival():
    def kernel(source, out):
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        bar, peer = u32(base + 2048), u32(base + 2056)
        rank = ptx.cluster_rank()
        if cuda.threadIdx.x == 0:
            ptx.mbarrier_init(bar, u32(1))
            ptx.mbarrier_init(peer, u32(1))
            ptx.mbarrier_arrive_expect_tx(bar, u32(2048))
        ptx.cluster_sync()
        if cuda.threadIdx.x == 0:
            half = u32(base + rank * 1024)
            ptx.tma_load_2d_multicast(
                half, ptx.tensor_map_address(source), bar, s32(0), s32(rank * 8), u32(3)
            )
        ptx.mbarrier_wait(bar, u32(0))
        out[(cuda.blockIdx.x * 32 + cuda.threadIdx.x) * 2] = ptx.ld_shared_u32(
            u32(base + 4 * cuda.threadIdx.x)
        )
        out[(cuda.blockIdx.x * 32 + cuda.threadIdx.x) * 2 + 1] = ptx.ld_shared_u32(
            u32(base + 1024 + 4 * cuda.threadIdx.x)
        )
        if cuda.threadIdx.x == 0:
            ptx.mbarrier_arrive_cluster(peer, u32(1 - rank))
        ptx.mbarrier_wait(peer, u32(0))
        ptx.cluster_sync()

    matrix = np.arange(16 * 32, dtype=np.uint32).reshape(16, 32)
    out = np.zeros((4, 32, 2), np.uint32)
    kernel = make_kernel(kernel, "source: map", "out: uint32", shared_bytes=2064, cluster=2)
    simulator.launch(kernel, 4, simulator.tensor_map(matrix, 8, 32), out)
    for block in range(4):
        np.testing.assert_array_equal(out[block, :, 0], matrix[0])
        np.testing.assert_array_equal(out[block, :, 1], matrix[8])
    with pytest.raises(ValueError, match="multiple of 2"):
        simulator.launch(kernel, 3, simulator.tensor_map(matrix, 8, 32), out)


# ---- wgmma


def run_wgmma(
    a, b, n, dtype, out_dtype, *, transpose_b=False, a_in="shared", swizzle=128, steps=None, start=None
):
    """D of one warpgroup: A (64, k) and B (n, k), or (k, n) with transpose_b, both already in the dtype's
    bytes."""
    k_bytes = a.shape[1] * a.itemsize
    steps = steps or k_bytes // 32
    instruction = ptx.wgmma(
        n, dtype, a_in, steps, False if start is None else "operand",
        transpose_b=transpose_b, swizzle=swizzle,
        b_offsets=tuple(16 * swizzle * step for step in range(steps)) if transpose_b else None,
    )  # fmt: skip
    wait = ptx.wgmma_wait(0, n // 2, "s32" if dtype in ("s8", "u8") else "f32")
    b_width = swizzle // b.itemsize
    b_bytes = b.size * b.itemsize
    kernel_type = types.int32 if dtype in ("s8", "u8") else types.float32
    a_words = np.ascontiguousarray(a).view(np.uint32)
    per = 4 // a.itemsize
    k_columns = 8 * per

    def kernel(tm_a, tm_b, out, scale):
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        bar = u32(base + u32(64 * 128 + b_bytes))
        thread = cuda.threadIdx.x
        if thread == 0:
            ptx.mbarrier_init(bar, u32(1))
        cuda.syncthreads()
        if thread == 0:
            ptx.mbarrier_arrive_expect_tx(bar, u32(64 * k_bytes + b_bytes))
            ptx.tma_load_2d(base, ptx.tensor_map_address(tm_a), bar, s32(0), s32(0))
            boxes = b.shape[1] // b_width
            for box in range(boxes):
                address = u32(base + 64 * 128 + box * (b_bytes // boxes))
                ptx.tma_load_2d(address, ptx.tensor_map_address(tm_b), bar, s32(box * b_width), s32(0))
        ptx.mbarrier_wait(bar, u32(0))
        acc = cuda.local.array(n // 2, kernel_type)
        for i in range(n // 2):
            acc[i] = kernel_type(thread + i)
        leading = u32(b_bytes // (b.shape[1] // b_width)) if transpose_b else u32(NO_LEADING)
        db = ptx.wgmma_descriptor(u32(base + 64 * 128), leading)
        if a_in == "registers":
            fragment = cuda.local.array(4 * steps, types.uint32)
            lane, warp = thread % 32, thread // 32
            for step in range(steps):
                for i in range(4):
                    row = warp * 16 + lane // 4 + 8 * (i % 2)
                    word = step * 8 + lane % 4 + 4 * (i // 2)
                    fragment[4 * step + i] = a_words[row, word]
            left = fragment
        else:
            left = ptx.wgmma_descriptor(base, u32(NO_LEADING))
        if start is None:
            instruction(acc, left, db)
        else:
            instruction(acc, left, db, u32(scale))
        wait(acc)
        for i in range(n // 2):
            out[thread * (n // 2) + i] = acc[i]

    assert k_columns * steps == a.shape[1]
    out = np.zeros((128, n // 2), out_dtype)
    kernel = make_kernel(
        kernel, "tm_a: map", "tm_b: map", f"out: {np.dtype(out_dtype)}", "scale = int32",
        threads=128, shared_bytes=64 * 128 + b_bytes + 8,
    )  # fmt: skip
    map_a = simulator.tensor_map(a, 64, k_bytes // a.itemsize, swizzle)
    map_b = simulator.tensor_map(b, b.shape[0], b_width, swizzle)
    simulator.launch(kernel, 1, map_a, map_b, out, start or 0)
    tile = np.zeros((64, n), out_dtype)
    for thread in range(128):
        g, t, warp = thread % 32 // 4, thread % 4, thread // 32
        for i in range(n // 2):
            tile[16 * warp + g + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * t + i % 2] = out[thread, i]
    return tile


@pytest.mark.parametrize("a_in", ["shared", "registers"])
@pytest.mark.parametrize("n", [8, 64, 128])
def test_wgmma_f16(n, a_in):
    rng = np.random.default_rng(n)
    a = rng.standard_normal((64, 64)).astype(np.float16)
    b = rng.standard_normal((n, 64)).astype(np.float16)
    tile = run_wgmma(a, b, n, "f16", np.float32, a_in=a_in)
    np.testing.assert_allclose(tile, a.astype(np.float64) @ b.astype(np.float64).T, atol=1e-4)


@pytest.mark.parametrize("swizzle", [32, 64])
def test_wgmma_narrow_swizzles(swizzle):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((64, swizzle // 2)).astype(np.float16)
    b = rng.standard_normal((32, swizzle // 2)).astype(np.float16)
    tile = run_wgmma(a, b, 32, "f16", np.float32, swizzle=swizzle)
    np.testing.assert_allclose(tile, a.astype(np.float64) @ b.astype(np.float64).T, atol=1e-4)


@pytest.mark.parametrize("a_in", ["shared", "registers"])
def test_wgmma_transposed_b(a_in):
    """B is (k, n) with n contiguous, in boxes of 64 columns; a k step is 16 rows of 128 bytes."""
    rng = np.random.default_rng(2)
    a = rng.standard_normal((64, 64)).astype(np.float16)
    b = rng.standard_normal((64, 128)).astype(np.float16)
    tile = run_wgmma(a, b, 128, "f16", np.float32, transpose_b=True, a_in=a_in)
    np.testing.assert_allclose(tile, a.astype(np.float64) @ b.astype(np.float64), atol=1e-4)


@pytest.mark.parametrize("a_in", ["shared", "registers"])
@pytest.mark.parametrize(("dtype", "a_type"), [("s8", np.int8), ("u8", np.uint8)])
def test_wgmma_integers(dtype, a_type, a_in):
    rng = np.random.default_rng(3)
    a = rng.integers(np.iinfo(a_type).min, np.iinfo(a_type).max, (64, 128), endpoint=True).astype(a_type)
    b = rng.integers(-128, 127, (32, 128), endpoint=True).astype(np.int8)
    tile = run_wgmma(a, b, 32, dtype, np.int32, a_in=a_in)
    np.testing.assert_array_equal(tile, a.astype(np.int32) @ b.astype(np.int32).T)


@pytest.mark.parametrize("scale", [0, 1])
def test_wgmma_accumulates_where_told(scale):
    rng = np.random.default_rng(4)
    a = rng.standard_normal((64, 64)).astype(np.float16)
    b = rng.standard_normal((16, 64)).astype(np.float16)
    tile = run_wgmma(a, b, 16, "f16", np.float32, start=scale)
    start = np.zeros((64, 16))
    for thread in range(128):
        for i in range(8):
            row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
            start[row, 8 * (i // 4) + 2 * (thread % 4) + i % 2] = thread + i
    expected = a.astype(np.float64) @ b.astype(np.float64).T + scale * start
    np.testing.assert_allclose(tile, expected, atol=1e-3)


def test_wgmma_tf32():
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-64, 64, (rows, 32)).astype(np.float32) for rows in (64, 16))
    tile = run_wgmma(a, b, 16, "tf32", np.float32)
    np.testing.assert_array_equal(tile, a @ b.T)


def in_flight(mistake):
    stage = ptx.wgmma(8, "f16", "shared", 1, False)
    more = ptx.wgmma(8, "f16", "shared", 1)
    wait0, wait1 = ptx.wgmma_wait(0, 4), ptx.wgmma_wait(1, 4)

    def kernel(out):
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        thread = cuda.threadIdx.x
        for i in range(thread, 9216 // 4, 128):
            ptx.st_shared_u32(u32(base + 4 * i), u32(0x3C003C00))
        ptx.fence_proxy_async()
        cuda.syncthreads()
        acc = cuda.local.array(4, types.float32)
        a, b = ptx.wgmma_descriptor(base, 16), ptx.wgmma_descriptor(u32(base + 8192), 16)
        stage(acc, a, b)
        more(acc, a, b)
        wait1(acc)
        if mistake == "read":
            out[0] = acc[0]
        if mistake == "write":
            acc[0] = types.float32(0)
        if mistake == "overwrite" and thread == 0:
            ptx.st_shared_u32(base, u32(0))
        if mistake != "exit":
            wait0(acc)
            out[thread] = acc[thread % 4]

    return make_kernel(kernel, "out: float32", threads=128, shared_bytes=9216)


def test_two_groups_on_the_same_accumulators():
    out = np.zeros(128, np.float32)
    simulator.launch(in_flight(None), 1, out)
    assert (out == 32).all()


@pytest.mark.parametrize("mistake", ["read", "write", "overwrite", "exit"])
def test_wgmma_hazards(mistake):
    with pytest.raises(simulator.AsyncHazard):
        simulator.launch(in_flight(mistake), 1, np.zeros(128, np.float32))


def test_descriptors_must_agree_and_stay_inside():
    stage = ptx.wgmma(8, "f16", "shared", 1, False)

    def kernel(far, differs):
        base = u32(ptx.shared_address(cuda.shared.array(0, types.uint8)))
        acc = cuda.local.array(4, types.float32)
        a = ptx.wgmma_descriptor(u32(base + far + differs * cuda.threadIdx.x), 16)
        stage(acc, a, a)

    kernel = make_kernel(kernel, "far = int32", "differs = int32", threads=128, shared_bytes=8192)
    with pytest.raises(simulator.OutOfBounds, match="the block has 8192 bytes"):
        simulator.launch(kernel, 1, 1024, 0)
    with pytest.raises(simulator.Divergence, match="descriptor of A differs"):
        simulator.launch(kernel, 1, 0, 16)
    with pytest.raises(simulator.UninitializedShared):
        simulator.launch(kernel, 1, 0, 0)
