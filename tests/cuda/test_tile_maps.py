"""Fragment maps against the instructions that they describe, and the identity that P.V rests on."""

import subprocess
import sys

import numpy as np
import pytest

from minfer.cuda.tile.maps import Fragment, holders

OPERANDS = [
    Fragment("matrix_a", "f16", "row_major"),
    Fragment("matrix_a", "f16", "col_major"),
    Fragment("matrix_b", "f16", "row_major"),
    Fragment("matrix_b", "f16", "col_major"),
    Fragment("matrix_a", "s8", "row_major"),
    Fragment("matrix_b", "s8", "col_major"),
]
ACCUMULATOR = Fragment("accumulator", "f32")


@pytest.mark.parametrize("fragment", [*OPERANDS, ACCUMULATOR], ids=str)
def test_every_element_has_one_holder(fragment):
    rows, columns = fragment.shape
    assert len(holders(fragment)) == rows * columns == 32 * fragment.elements
    assert all(0 <= r < rows and 0 <= c < columns for r, c in holders(fragment))


def test_accumulator_and_a_fragment_share_their_map():
    a = Fragment("matrix_a", "f16")
    for lane in range(32):
        for element in range(8):
            assert a.position(lane, element) == ACCUMULATOR.position(lane, element)


def ldmatrix(memory: np.ndarray, fragment: Fragment) -> np.ndarray:
    """[32 lanes, elements] of ldmatrix.x4 on `memory` [rows, bytes], by the definition of the instruction:
    lanes 8 i ... 8 i + 7 name matrix i's rows; lane l receives 32 bits of row l // 4, or with .trans two
    16-bit elements of column l // 4."""
    result = np.zeros((32, 16), np.uint8)
    for i in range(4):
        rows = []
        for lane in range(8 * i, 8 * i + 8):
            row, byte = fragment.source(lane)
            rows.append(memory[row, byte : byte + 16])
        words = np.stack(rows).view(np.uint16)
        if fragment.transposed:
            words = np.ascontiguousarray(words.T)
        for lane in range(32):
            pair = words[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
            result[lane, 4 * i : 4 * i + 4] = np.ascontiguousarray(pair).view(np.uint8)
    return result


@pytest.mark.parametrize("fragment", OPERANDS, ids=str)
def test_ldmatrix_brings_each_lane_the_elements_of_its_map(fragment):
    dtype = {"f16": np.uint16, "s8": np.uint8}[fragment.dtype]
    rows, columns = fragment.shape
    matrix = np.random.default_rng(0).permutation(2**8 * rows * columns)[: rows * columns]
    matrix = (matrix % (1 << 8 * dtype().itemsize)).astype(dtype).reshape(rows, columns)
    stored = matrix if fragment.layout == "row_major" else np.ascontiguousarray(matrix.T)
    loaded = ldmatrix(stored.view(np.uint8).reshape(stored.shape[0], -1), fragment).view(dtype)
    for lane in range(32):
        for element in range(fragment.elements):
            assert loaded[lane, element] == matrix[fragment.position(lane, element)]


def test_mma_operand_halves_are_the_two_columns_blocks():
    """Registers 2 h, 2 h + 1 of a B fragment and elements 4 h ... 4 h + 3 of an accumulator are the same 8
    columns."""
    b = Fragment("matrix_b", "f16", "col_major")
    for lane in range(32):
        for half in range(2):
            for element in range(4 * half, 4 * half + 4):
                assert b.position(lane, element)[1] // 8 == half
                assert ACCUMULATOR.position(lane, element)[1] // 8 == half


@pytest.mark.parametrize(
    "arguments",
    [
        ("matrix_c", "f16"),
        ("matrix_a", "f32"),
        ("accumulator", "f16"),
        ("matrix_b", "s8", "row_major"),
        ("matrix_a", "s8", "col_major"),
        ("matrix_a", "f16", "diagonal"),
    ],
)
def test_impossible_fragments_are_refused(arguments):
    with pytest.raises(ValueError, match="fragment"):
        Fragment(*arguments)


def test_maps_and_tiles_need_no_numba():
    code = (
        "import sys\nfrom minfer.cuda.tile import maps, shared\nfrom minfer.cuda import ptx, gemm\n"
        "shared.SharedTile(8, 64, swizzle=64).address(3, 16)\n"
        "gemm.GemmConfig().shared_bytes\nprint('numba' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
