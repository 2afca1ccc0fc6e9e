"""wmma's operations on fragments, run lane by lane against NumPy."""

import numpy as np
import pytest
from numba import cuda
from numba.cuda import types

from minfer.cuda import ptx, simulator
from minfer.cuda.kernel import Argument, ConfigRefused, Kernel
from minfer.cuda.tile.epilogue import store_accumulators
from minfer.cuda.tile.fragments import (
    accumulator_to_operand,
    fill_fragment,
    load_matrix_sync,
    mma_sync,
    store_matrix_sync,
)
from minfer.cuda.tile.maps import Fragment
from minfer.cuda.tile.shared import SharedTile

NUMPY = {"f16": np.float16, "bf16": np.uint16, "s8": np.int8}


def run(function, signature, *arrays, shared_bytes=8192):
    kernel = Kernel(
        name=function.__name__,
        config=None,
        function=function,
        signature=lambda: types.void(*(types.CPointer(t) for t in signature)),
        threads=32,
        shared_bytes=shared_bytes,
        arguments=tuple(Argument(f"a{i}", "inout") for i in range(len(arrays))),
    )
    simulator.launch(kernel, 1, *arrays)


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """Nearest bf16 of values that bf16 represents exactly."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def operands(dtype: str, k: int):
    """Small integers, exact in every type: A [16, k], B [k, 16] as f32 and as stored."""
    draw = np.random.default_rng(1)
    a, b = (draw.integers(-8, 9, shape).astype(np.float32) for shape in ((16, k), (k, 16)))
    encode = bf16_bits if dtype == "bf16" else lambda x: x.astype(NUMPY[dtype])
    return a, b, encode


@pytest.mark.parametrize(
    ("dtype", "a_layout", "b_layout"),
    [
        ("f16", "row_major", "col_major"),
        ("f16", "col_major", "row_major"),
        ("bf16", "row_major", "row_major"),
        ("s8", "row_major", "col_major"),
    ],
)
@pytest.mark.parametrize("padding", [0, 16])
def test_product_of_two_fragments(dtype, a_layout, b_layout, padding):
    a_fragment, b_fragment = Fragment("matrix_a", dtype, a_layout), Fragment("matrix_b", dtype, b_layout)
    load_a, load_b = load_matrix_sync(a_fragment), load_matrix_sync(b_fragment)
    multiply, fill = mma_sync(dtype), fill_fragment()
    out = "s32" if dtype == "s8" else "f32"
    store = store_matrix_sync(out)
    accumulator, start = (types.int32, 3) if out == "s32" else (types.float32, 3.0)
    a, b, encode = operands(dtype, a_fragment.k)
    stored_a = encode(a if a_layout == "row_major" else a.T)
    stored_b = encode(b if b_layout == "row_major" else b.T)
    item = stored_a.dtype.itemsize
    leading_a, leading_b = stored_a.shape[1] * item + padding, stored_b.shape[1] * item + padding
    # Rows at their leading dimension in one block of bytes, as shared memory holds them.
    image = np.zeros(4096, np.uint8)
    for base, matrix, leading in ((0, stored_a, leading_a), (2048, stored_b, leading_b)):
        for row in range(matrix.shape[0]):
            line = np.ascontiguousarray(matrix[row]).view(np.uint8)
            image[base + row * leading : base + row * leading + line.size] = line
    result = np.zeros((16, 16), np.int32 if out == "s32" else np.float32)

    def product(source, target):
        shared = ptx.shared_address(cuda.shared.array(0, dtype=types.uint8))
        lane = cuda.threadIdx.x
        for i in range(8):
            place = (lane + 32 * i) * 16
            ptx.st_shared_v4_u32(shared + place, *ptx.ld_global_v4_u32(ptx.global_address(source) + place))
        ptx.syncwarp()
        x = cuda.local.array(4, dtype=types.uint32)
        y = cuda.local.array(4, dtype=types.uint32)
        z = cuda.local.array(8, dtype=accumulator)
        fill(z, accumulator(start))
        load_a(x, 0, shared, leading_a)
        load_b(y, 0, shared + 2048, leading_b)
        multiply(z, 0, x, 0, y, 0)
        store(z, 0, shared + 4096, 64)
        ptx.syncwarp()
        for i in range(2):
            place = (lane + 32 * i) * 16
            ptx.st_global_v4_u32(
                ptx.global_address(target) + place, *ptx.ld_shared_v4_u32(shared + 4096 + place)
            )

    run(product, (types.uint8, types.int32), image, result)
    assert np.array_equal(result, a @ b + 3)


def test_a_product_becomes_the_next_operand_in_registers():
    """(A B) V with A B never in memory: the accumulator is converted in place (the identity of the maps)."""
    a_fragment, b_fragment = Fragment("matrix_a", "f16"), Fragment("matrix_b", "f16", "row_major")
    tile = SharedTile(16, 32, padding=16)
    load_a, load_b = load_matrix_sync(a_fragment, tile), load_matrix_sync(b_fragment, tile)
    multiply, fill, convert = mma_sync("f16"), fill_fragment(2), accumulator_to_operand()
    store = store_accumulators(1, 1)
    draw = np.random.default_rng(2)
    matrices = draw.integers(-3, 4, (3, 16, 16)).astype(np.float16)
    result = np.full((16, 16), np.nan, np.float32)
    at, size = tile.address, tile.size_bytes

    def chain(source, target):
        shared = ptx.shared_address(cuda.shared.array(0, dtype=types.uint8))
        lane = cuda.threadIdx.x
        for i in range(3):
            place = lane * 16 + 512 * i
            words = ptx.ld_global_v4_u32(ptx.global_address(source) + place)
            ptx.st_shared_v4_u32(shared + i * size + at(lane // 2, lane % 2 * 16), *words)
        ptx.syncwarp()
        x = cuda.local.array(4, dtype=types.uint32)
        y = cuda.local.array(4, dtype=types.uint32)
        z = cuda.local.array(16, dtype=types.float32)
        fill(z, types.float32(0))
        load_a(x, 0, shared, 0, 0)
        load_b(y, 0, shared + size, 0, 0)
        multiply(z, 0, x, 0, y, 0)
        convert(x, 0, z, 0)
        load_b(y, 0, shared + 2 * size, 0, 0)
        multiply(z, 8, x, 0, y, 0)
        for i in range(8):
            z[i] = z[8 + i]
        store(z, ptx.global_address(target), 0, 0, 16, 16)

    run(chain, (types.float16, types.float32), matrices, result)
    a, b, v = matrices.astype(np.float32)
    assert np.array_equal(result, a @ b @ v)


@pytest.mark.parametrize(
    ("dtype", "layout"), [("f32", "row_major"), ("f32", "col_major"), ("f16", "row_major")]
)
def test_store_matrix_sync(dtype, layout):
    store = store_matrix_sync(dtype, layout)
    accumulator = Fragment("accumulator", "f32")
    item = 4 if dtype == "f32" else 2
    result = np.zeros((16, 16), np.float32 if dtype == "f32" else np.float16)
    expected = np.arange(256, dtype=np.float32).reshape(16, 16)
    held = np.array(
        [[expected[accumulator.position(lane, e)] for e in range(8)] for lane in range(32)], np.float32
    )

    def save(source, target):
        shared = ptx.shared_address(cuda.shared.array(0, dtype=types.uint8))
        lane = cuda.threadIdx.x
        z = cuda.local.array(8, dtype=types.float32)
        for i in range(8):
            z[i] = source[lane * 8 + i]
        store(z, 0, shared, 16 * item)
        ptx.syncwarp()
        for i in range(item // 2):
            place = (lane + 32 * i) * 16
            ptx.st_global_v4_u32(ptx.global_address(target) + place, *ptx.ld_shared_v4_u32(shared + place))

    element = types.float32 if dtype == "f32" else types.float16
    run(save, (types.float32, element), held, result)
    assert np.array_equal(result, expected if layout == "row_major" else expected.T)


def test_impossible_operations_are_refused():
    with pytest.raises(ConfigRefused, match="fill_fragment"):
        load_matrix_sync(Fragment("accumulator", "f32"))
    with pytest.raises(ConfigRefused, match="row-major"):
        store_matrix_sync("f16", "col_major")
    for count in (0, -1, 1.5):
        with pytest.raises(ConfigRefused, match=r"fill_fragment: .*a whole number, at least 1"):
            fill_fragment(count)
