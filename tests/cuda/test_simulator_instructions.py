"""Every instruction below Hopper against an independent reference."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx, simulator
from minfer.cuda.instruction import Instruction
from minfer.cuda.simulator.semantics import SEMANTICS
from tests.cuda.simulated import make_kernel, run_warp

u32, u64 = types.uint32, types.uint64
words = st.integers(0, 2**32 - 1)
signed = st.integers(-(2**31), 2**31 - 1)
floats = st.floats(width=32)
RNG = np.random.default_rng(7)


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def test_every_instruction_has_semantics():
    names = {thing.name for thing in vars(ptx).values() if isinstance(thing, Instruction)}
    assert len(names) > 80
    assert names - set(SEMANTICS) == set()
    for factory in (
        ptx.cp_async_wait_group(1), ptx.lop3(0xEA), ptx.wgmma(8), ptx.wgmma_wait(0, 4), ptx.pin(4),
        ptx.bulk_wait_group_read(0), ptx.setmaxnreg("dec", 40),
    ):  # fmt: skip
        assert factory.name in SEMANTICS


# ---- integers


@given(words, words, signed)
def test_dp4a(a, b, c):
    x = np.array([a, b], np.uint32).view(np.int8).reshape(2, 4).astype(np.int64)
    total = int(x[0] @ x[1]) + c
    assert ptx.dp4a(a, b, c) == (total + 2**31) % 2**32 - 2**31


@given(words, words, st.integers(0, 0xFFFF))
def test_prmt(a, b, selector):
    source = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    expected = []
    for i in range(4):
        code = selector >> 4 * i & 15
        byte = source[code & 7]
        expected.append((255 if byte >= 128 else 0) if code >= 8 else byte)
    assert ptx.prmt(a, b, selector) == int.from_bytes(bytes(expected), "little")


@given(words, words, words)
def test_shf_r_wrap(low, high, shift):
    assert ptx.shf_r_wrap(low, high, shift) == (high << 32 | low) >> (shift % 32) & 0xFFFFFFFF


@given(words, words, words)
def test_lop3(a, b, c):
    assert ptx.lop3(0xEA)(a, b, c) == a & b | c
    assert ptx.lop3(0x6A)(a, b, c) == (a & b) ^ c
    assert ptx.lop3(0x96)(a, b, c) == a ^ b ^ c
    assert ptx.lop3(0x01)(a, b, c) == ~(a | b | c) & 0xFFFFFFFF


@given(words, words)
def test_udiv_u32(a, b):
    assert ptx.udiv_u32(a, b) == (a // b if b else 2**32 - 1)


@given(words, words, words)
def test_select_u32(condition, a, b):
    assert ptx.select_u32(condition, a, b) == (a if condition else b)
    assert ptx.select_u32(True, a, b) == a


# ---- floats


@given(floats, floats)
def test_pack_and_unpack_f16x2(low, high):
    packed = ptx.pack_f16x2(low, high)
    with np.errstate(over="ignore"):
        expected = np.array([low, high], np.float32).astype(np.float16)
    assert same(float(np.array([packed], np.uint32).view(np.float16)[0]), float(expected[0]))
    assert same(float(ptx.unpack_f16x2_lo(packed)), float(expected[0]))
    assert same(float(ptx.unpack_f16x2_hi(packed)), float(expected[1]))


@given(floats)
def test_pack_bf16x2_rounds_to_the_nearest(value):
    bits = ptx.pack_bf16x2(value, 0.0) & 0xFFFF
    got = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    if math.isnan(value):
        assert math.isnan(got)
        return
    exact = struct.unpack("<I", struct.pack("<f", value))[0]
    low, high = exact & 0xFFFF0000, (exact & 0xFFFF0000) + 0x10000
    below, above = exact - low, high - exact
    chosen = low if below < above or (below == above and not low >> 16 & 1) else high
    assert bits == chosen >> 16


@given(words)
def test_bitcasts(bits):
    value = ptx.bitcast_f32_u32(bits)
    assert same(float(value), struct.unpack("<f", struct.pack("<I", bits))[0])
    if not math.isnan(value):
        assert ptx.bitcast_u32_f32(value) == bits


def halves(pair):
    return np.array([pair], np.uint32).view(np.float16).astype(np.float64)


def assert_halves(pair, exact):
    with np.errstate(over="ignore"):
        expected = exact.astype(np.float16)
    np.testing.assert_array_equal(np.array([pair], np.uint32).view(np.float16), expected)


@given(words, words, words)
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.filterwarnings("ignore:overflow")
def test_half_arithmetic_rounds_once(a, b, c):
    x, y, z = halves(a), halves(b), halves(c)
    assert_halves(ptx.hadd2(a, b), x + y)
    assert_halves(ptx.hsub2(a, b), x - y)
    assert_halves(ptx.hmul2(a, b), x * y)
    assert_halves(ptx.hfma2(a, b, c), x * y + z)
    assert_halves(ptx.hfma2_pair(a, b), x * y[0] + y[1])
    assert_halves(ptx.hmul2_low(a, b), x * y[0])
    assert_halves(ptx.hmul2_high(a, b), x * y[1])


@given(st.floats(-120, 120, width=32))
def test_ex2(x):
    assert float(ptx.ex2_approx(x)) == pytest.approx(2.0**x, rel=3e-7)


@given(st.floats(2.0**-120, 2.0**120, width=32))
def test_approximations(x):
    assert float(ptx.lg2_approx(x)) == pytest.approx(math.log2(x), rel=1e-6, abs=1e-6)
    assert float(ptx.rcp_approx(x)) == pytest.approx(1 / x, rel=2e-7)
    assert float(ptx.rsqrt_approx(x)) == pytest.approx(x**-0.5, rel=2e-7)


def test_approximations_at_the_edges():
    assert ptx.ex2_approx(-np.inf) == 0 and ptx.ex2_approx(200) == np.inf
    assert ptx.ex2_approx(-140) == 0  # subnormal results are flushed
    assert ptx.rcp_approx(0) == np.inf and ptx.rcp_approx(2.0**-130) == np.inf
    assert ptx.lg2_approx(0) == -np.inf and np.isnan(ptx.lg2_approx(-1))
    assert ptx.max_f32(np.nan, 1) == 1 and ptx.min_f32(2, np.nan) == 2


@given(*[st.floats(-1e10, 1e10, width=32)] * 3)
def test_fma_max_min(a, b, c):
    assert float(ptx.fma_rn_f32(a, b, c)) == float(np.float32(np.float64(a) * b + c))
    assert float(ptx.max_f32(a, b)) == max(a, b) and float(ptx.min_f32(a, b)) == min(a, b)


@given(floats, floats)
def test_div(a, b):
    with np.errstate(all="ignore"):
        assert same(float(ptx.div_rn_f32(a, b)), float(np.float32(a) / np.float32(b)))


@given(signed, floats)
def test_conversions(integer, value):
    assert float(ptx.cvt_rn_f32_s32(integer)) == float(np.float32(integer))
    assert float(ptx.cvt_rn_f32_u32(integer)) == float(np.float32(integer % 2**32))
    got = ptx.cvt_rni_s32_f32(value)
    if math.isnan(value):
        assert got == 0
    elif abs(value) >= 2.0**31:
        assert got == (2**31 - 1 if value > 0 else -(2**31))
    else:
        assert got == round(value)  # Python's round is half to even


@given(st.floats(-(2.0**100), 2.0**100, width=32))
def test_tf32_rounds_half_away_from_zero(value):
    bits = ptx.cvt_rna_tf32_f32(value)
    exact = struct.unpack("<I", struct.pack("<f", value))[0]
    low = exact & 0xFFFFE000
    assert bits == (low if exact - low < 0x1000 else low + 0x2000)


# ---- loads and stores


@pytest.mark.parametrize("kind", ["u8", "u16", "u32", "f32", "v2_u32", "v4_u32", "v2_f32", "v4_f32"])
@pytest.mark.parametrize("space", ["global", "shared"])
def test_stores_and_loads_of_every_width(space, kind):
    count = int(kind[1]) if kind[0] == "v" else 1
    element = {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "f32": np.float32}[kind.split("_")[-1]]
    size = count * np.dtype(element).itemsize
    load, store = getattr(ptx, f"ld_{space}_{kind}"), getattr(ptx, f"st_{space}_{kind}")
    source = RNG.integers(0, 255, 32 * size, dtype=np.uint8).view(element).reshape(32, count)
    source = np.nan_to_num(source) if element is np.float32 else source
    data, out = np.zeros((32, count), element), np.zeros((32, count), np.float64)

    def kernel(data):
        lane = cuda.threadIdx.x
        if space == "shared":
            base = ptx.shared_address(cuda.shared.array(0, types.uint8)) + lane * size
        else:
            base = types.uint64(ptx.global_address(data) + lane * size)
        store(base, *source[lane].tolist())
        out[lane] = load(base)
        if space == "shared":
            for i in range(size):
                data[lane * size + i] = ptx.ld_shared_u8(base + i)

    simulator.launch(make_kernel(kernel, "data: uint8", shared_bytes=32 * size), 1, data)
    np.testing.assert_array_equal(data, source)
    np.testing.assert_array_equal(out, source.astype(np.float64))


def test_read_only_loads():
    data = RNG.integers(0, 2**32, 32, dtype=np.uint32)
    out = []

    def kernel(data):
        base = ptx.global_address(data)
        out.append(ptx.ld_global_nc_v4_u32(u64(base + 16)) + ptx.ld_global_stream_v4_u32(u64(base + 32)))
        out.append((*ptx.ld_global_nc_v2_u32(u64(base + 8)), ptx.ld_global_nc_u16(u64(base + 2))))
        ptx.prefetch_global_l2(base)

    simulator.launch(make_kernel(kernel, "data: uint32", threads=1), 1, data)
    assert out == [tuple(data[4:12].tolist()), (*data[2:4].tolist(), int(data[0]) >> 16)]


def test_signed_shared_load():
    out = np.zeros(2, np.int32)

    def kernel(out):
        base = ptx.shared_address(cuda.shared.array(0, types.uint8))
        ptx.st_shared_u8(base, u32(200))
        out[0] = ptx.ld_shared_s8(base)
        out[1] = ptx.ld_shared_u8(base)

    simulator.launch(make_kernel(kernel, "out: int32", threads=1, shared_bytes=4), 1, out)
    assert out.tolist() == [-56, 200]


# ---- warps


def test_shuffles():
    values = RNG.integers(0, 2**32, 32, dtype=np.uint32)
    operands = RNG.integers(0, 32, 32)
    lanes = np.arange(32)
    inputs = np.stack([values, operands], 1)
    by_xor = run_warp(ptx.shfl_xor_u32, inputs, 1, np.uint32)[:, 0]
    np.testing.assert_array_equal(by_xor, values[lanes ^ operands])
    by_index = run_warp(ptx.shfl_idx_u32, inputs, 1, np.uint32)[:, 0]
    np.testing.assert_array_equal(by_index, values[operands])
    down = run_warp(ptx.shfl_down_u32, inputs, 1, np.uint32)[:, 0]
    np.testing.assert_array_equal(down, values[np.where(lanes + operands < 32, lanes + operands, lanes)])
    reals = np.stack([values.astype(np.float32), operands], 1)
    np.testing.assert_array_equal(
        run_warp(ptx.shfl_xor_f32, reals, 1, np.float32)[:, 0], reals[lanes ^ operands, 0]
    )


def test_votes_and_uniform():
    for truth in ([0] * 32, [1] * 32, [0] * 31 + [5]):
        predicates = np.array(truth)[:, None]
        assert (run_warp(ptx.vote_any, predicates, 1, np.uint32) == any(truth)).all()
        assert (run_warp(ptx.vote_all, predicates, 1, np.uint32) == all(truth)).all()
    numbers = np.arange(-3, 61)[:, None]
    assert run_warp(ptx.uniform, numbers, 1, np.int32, threads=64)[:, 0].tolist() == [-3] * 32 + [29] * 32


# ---- matrices


def ldmatrix_reference(rows, count, transposed):
    """rows (8 * count, 8) of uint16 -> (32, count) words by the PTX definition, element by element."""
    out = np.zeros((32, count), np.uint32)
    for lane in range(32):
        for matrix in range(count):
            pair = []
            for e in range(2):
                r, c = lane // 4, 2 * (lane % 4) + e
                pair.append(int(rows[8 * matrix + c, r] if transposed else rows[8 * matrix + r, c]))
            out[lane, matrix] = pair[0] | pair[1] << 16
    return out


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count, transposed):
    instruction = getattr(ptx, f"ldmatrix_x{count}{'_trans' if transposed else ''}")
    source = RNG.integers(0, 2**16, (32, 8), dtype=np.uint16)
    order = RNG.permutation(32)
    out = np.zeros((32, count), np.uint32)

    def kernel(source):
        lane = cuda.threadIdx.x
        base = ptx.shared_address(cuda.shared.array(0, types.uint8))
        ptx.st_shared_v4_u32(
            base + 16 * lane, *ptx.ld_global_v4_u32(u64(ptx.global_address(source) + 16 * lane))
        )
        ptx.syncwarp()
        # lanes beyond the rows that are needed may pass any address
        out[lane] = instruction(base + 16 * order[lane] if lane < 8 * count else u32(1))

    simulator.launch(make_kernel(kernel, "source: uint32", shared_bytes=512), 1, source)
    np.testing.assert_array_equal(out, ldmatrix_reference(source[order], count, transposed))


def test_stmatrix_is_the_inverse_of_ldmatrix():
    registers = RNG.integers(0, 2**32, (32, 4), dtype=np.uint32)
    out = np.zeros((32, 4), np.uint32)

    def kernel():
        lane = cuda.threadIdx.x
        address = ptx.shared_address(cuda.shared.array(0, types.uint8)) + 16 * (31 - lane)
        ptx.stmatrix_x4(address, *registers[lane].tolist())
        ptx.syncwarp()
        out[lane] = ptx.ldmatrix_x4(address)

    simulator.launch(make_kernel(kernel, shared_bytes=512), 1)
    np.testing.assert_array_equal(out, registers)


def fragments(a, b, c):
    """Registers of every lane by the PTX ISA's formulas (row = groupID ..., col = threadID_in_group ...)."""
    per = 4 // a.itemsize
    out = []
    for lane in range(32):
        group, thread = lane // 4, lane % 4
        registers = []
        for i in range(4):
            row = group + 8 * (i % 2)
            column = per * thread + 4 * per * (i // 2)
            registers.append(int(a[row, column : column + per].view(np.uint32)[0]))
        for i in range(2):
            k = per * thread + 4 * per * i
            registers.append(int(np.ascontiguousarray(b[k : k + per, group]).view(np.uint32)[0]))
        sums = [c[group + 8 * (i // 2), 2 * thread + i % 2].item() for i in range(4)]
        out.append(registers + sums)
    return out


def assemble(results, dtype):
    d = np.zeros((16, 8), dtype)
    for lane in range(32):
        for i in range(4):
            d[lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2] = results[lane, i]
    return d


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_float_mma(dtype):
    a, b = (RNG.standard_normal(shape).astype(np.float32) for shape in ((16, 16), (16, 8)))
    c = RNG.standard_normal((16, 8)).astype(np.float32)
    if dtype == "f16":
        a_bits, b_bits = a.astype(np.float16), b.astype(np.float16)
        exact = a_bits.astype(np.float64) @ b_bits.astype(np.float64) + c
    else:
        a_bits, b_bits = ((x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b))
        exact = (a.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64) @ (
            b.view(np.uint32) & 0xFFFF0000
        ).view(np.float32).astype(np.float64) + c
    instruction = getattr(ptx, f"mma_m16n8k16_{dtype}")
    d = assemble(run_warp(instruction, fragments(a_bits, b_bits, c), 4, np.float32), np.float64)
    np.testing.assert_allclose(d, exact, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "a_type", "b_type"),
    [("s8", np.int8, np.int8), ("u8s8", np.uint8, np.int8), ("s8u8", np.int8, np.uint8)],
)
def test_integer_mma(name, a_type, b_type):
    a = RNG.integers(np.iinfo(a_type).min, np.iinfo(a_type).max, (16, 32), endpoint=True).astype(a_type)
    b = RNG.integers(np.iinfo(b_type).min, np.iinfo(b_type).max, (32, 8), endpoint=True).astype(b_type)
    c = RNG.integers(-(2**31), 2**31 - 1, (16, 8)).astype(np.int32)
    instruction = getattr(ptx, f"mma_m16n8k32_{name}")
    d = assemble(run_warp(instruction, fragments(a, b, c), 4, np.int32), np.int32)
    exact = a.astype(np.int64) @ b.astype(np.int64) + c
    np.testing.assert_array_equal(d, exact.astype(np.int32))  # wraps


def test_integer_mma_of_half_the_depth():
    a, b = (RNG.integers(-128, 127, shape, endpoint=True).astype(np.int8) for shape in ((16, 16), (16, 8)))
    c = RNG.integers(-(2**31), 2**31 - 1, (16, 8)).astype(np.int32)
    # The registers of a k32 product whose second half is zero, less those.
    wide = fragments(np.pad(a, ((0, 0), (0, 16))), np.pad(b, ((0, 16), (0, 0))), c)
    narrow = [lane[:2] + lane[4:5] + lane[6:] for lane in wide]
    d = assemble(run_warp(ptx.mma_m16n8k16_s8, narrow, 4, np.int32), np.int32)
    np.testing.assert_array_equal(d, (a.astype(np.int64) @ b.astype(np.int64) + c).astype(np.int32))


# ---- cp.async


@settings(max_examples=20)
@given(st.data())
def test_cp_async_fills_with_zeros(data):
    name, size = data.draw(
        st.sampled_from([("ca_4", 4), ("ca_8", 8), ("ca_16", 16), ("cg_16", 16)]), label="instruction"
    )
    lengths = data.draw(st.lists(st.integers(0, size), min_size=32, max_size=32))
    copy, wait = getattr(ptx, f"cp_async_{name}"), ptx.cp_async_wait_group(0)
    source, out = RNG.integers(1, 255, (32, size), dtype=np.uint8), np.zeros((32, size), np.uint8)

    def kernel(source, out):
        lane = cuda.threadIdx.x
        base = ptx.shared_address(cuda.shared.array(0, types.uint8)) + lane * size
        copy(u32(base), u64(ptx.global_address(source) + lane * size), u32(lengths[lane]))
        ptx.cp_async_commit()
        wait()
        for i in range(size):
            out[lane * size + i] = ptx.ld_shared_u8(base + i)

    kernel = make_kernel(kernel, "source: uint8", "out: uint8", shared_bytes=32 * size)
    simulator.launch(kernel, 1, source, out)
    np.testing.assert_array_equal(out, np.where(np.arange(size) < np.array(lengths)[:, None], source, 0))


def test_cp_async_lands_group_by_group():
    wait_one = ptx.cp_async_wait_group(1)
    out = np.zeros((3, 3), np.uint32)

    def kernel(source, out):
        base = ptx.shared_address(cuda.shared.array(0, types.uint8))
        for i in range(3):
            ptx.st_shared_u32(base + 4 * i, u32(99))
        for i in range(3):
            ptx.cp_async_ca_4(u32(base + 4 * i), u64(ptx.global_address(source) + 4 * i), u32(4))
            ptx.cp_async_commit()
            wait_one()
            for j in range(3):
                out[3 * i + j] = ptx.ld_shared_u32(base + 4 * j)

    kernel = make_kernel(kernel, "source: uint32", "out: uint32", threads=1, shared_bytes=12)
    simulator.launch(kernel, 1, np.arange(3, dtype=np.uint32), out)
    assert out.tolist() == [[99, 99, 99], [0, 99, 99], [0, 1, 99]]


def test_copies_of_one_block_do_not_land_in_the_next():
    wait = ptx.cp_async_wait_group(0)
    out = np.zeros(2, np.uint32)

    def kernel(source, out):
        base = ptx.shared_address(cuda.shared.array(0, types.uint8))
        ptx.st_shared_u32(base, u32(99))
        if cuda.blockIdx.x == 0:
            ptx.cp_async_ca_4(base, ptx.global_address(source), u32(4))
        else:
            ptx.cp_async_commit()
            wait()
        out[cuda.blockIdx.x] = ptx.ld_shared_u32(base)

    kernel = make_kernel(kernel, "source: uint32", "out: uint32", threads=1, shared_bytes=4)
    simulator.launch(kernel, 2, np.zeros(1, np.uint32), out)
    assert out.tolist() == [99, 99]


@pytest.mark.parametrize(
    ("shared", "source", "length", "error"),
    [
        (0, 0, 17, simulator.InvalidInstruction),
        (4, 0, 16, simulator.Misaligned),
        (0, 8, 16, simulator.Misaligned),
        (64, 0, 16, simulator.OutOfBounds),
        (0, 64, 16, simulator.OutOfBounds),
        (0, 48, 16, None),
        (0, 64, 0, None),
    ],
)
def test_cp_async_operands_are_checked(shared, source, length, error):
    def kernel(data):
        base = ptx.shared_address(cuda.shared.array(0, types.uint8))
        ptx.cp_async_cg_16(u32(base + shared), u64(ptx.global_address(data) + source), u32(length))

    kernel = make_kernel(kernel, "data: uint8", threads=1, shared_bytes=64)
    if error is None:
        simulator.launch(kernel, 1, np.zeros(64, np.uint8))
    else:
        with pytest.raises(error):
            simulator.launch(kernel, 1, np.zeros(64, np.uint8))
