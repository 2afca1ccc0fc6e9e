"""The fused products and the unpacking of every format against gguf-py's dequantization."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.engine.host.blocks import HALVES
from minfer.engine.host.matmul import STRIP_FLOATS, matmul_kernel
from minfer.engine.host.matvec import SUPPORTED, blocks_in_row, matvec_kernel, unpack_kernel
from minfer.engine.host.team import Program, team
from minfer.engine.host.weights import address

# Where the float16 scales of a block lie: random bytes there would be NaN or huge.
SCALES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
}  # fmt: skip


def random_rows(kind: Type, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Random rows of a format: uint8 (rows, row_bytes)."""
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    if kind == Type.F32:
        return values.view(np.uint8)
    if kind == Type.F16:
        return values.astype(np.float16).view(np.uint8)
    if kind == Type.BF16:
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    size, size_bytes = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * columns // size, size_bytes), dtype=np.uint8)
    for at in SCALES[kind]:
        scale = rng.uniform(-0.1, 0.1, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def columns_of(kind: Type, blocks: int) -> int:
    return blocks * max(16, GGML_QUANT_SIZES[kind][0])


@pytest.mark.parametrize("kind", SUPPORTED, ids=lambda kind: kind.name)
@settings(max_examples=12)
@given(
    rows=st.integers(1, 23),
    blocks=st.integers(1, 5),
    parts=st.integers(1, 6),
    residual=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_matvec_equals_dequantize_and_multiply(kind, rows, blocks, parts, residual, seed):
    rng = np.random.default_rng(seed)
    columns = columns_of(kind, blocks)
    packed = random_rows(kind, rows, columns, rng)
    x = rng.standard_normal(columns).astype(np.float32)
    biases = rng.standard_normal(rows).astype(np.float32)
    guarded = np.full(rows + 32, 7.0, np.float32)  # what lies around the output must stay as it is
    out = guarded[16:-16]
    out[:] = rng.standard_normal(rows) if residual else np.nan
    weights = gguf.quants.dequantize(packed, kind).reshape(rows, columns).astype(np.float64)
    expected = weights @ x + (out if residual else biases)
    magnitude = np.abs(weights) @ np.abs(x) + 3

    program = Program()
    program.add(
        matvec_kernel(kind), address(out), address(x), address(packed), packed.shape[1], rows,
        blocks_in_row(kind, columns), address(biases), int(residual), address(HALVES), parts=parts,
    )  # fmt: skip
    team(2).run(program.table())
    assert (np.abs(out - expected) <= 2e-6 * magnitude).all()
    assert (guarded[:16] == 7).all() and (guarded[-16:] == 7).all()


@pytest.mark.parametrize("kind", SUPPORTED, ids=lambda kind: kind.name)
@settings(max_examples=8)
@given(
    rows=st.integers(1, 9), blocks=st.integers(1, 4), parts=st.integers(1, 4), seed=st.integers(0, 2**32 - 1)
)
def test_unpacking_equals_dequantize(kind, rows, blocks, parts, seed):
    rng = np.random.default_rng(seed)
    columns = columns_of(kind, blocks)
    packed = random_rows(kind, rows, columns, rng)
    weights = gguf.quants.dequantize(packed, kind).reshape(rows, columns)
    picked = rng.integers(0, rows, 7)
    out, gathered = np.full((rows, columns), np.nan, np.float32), np.empty((7, columns), np.float32)
    program = Program()
    common = address(packed), packed.shape[1]
    program.add(
        unpack_kernel(kind),
        address(out),
        *common,
        rows,
        blocks_in_row(kind, columns),
        0,
        address(HALVES),
        parts=parts,
    )
    program.add(
        unpack_kernel(kind), address(gathered), *common, 7, blocks_in_row(kind, columns), address(picked),
        address(HALVES),
        parts=parts,
    )  # fmt: skip
    team(2).run(program.table())
    # offsets may be fused into the product: one rounding less than the reference
    scale = np.abs(weights).max() + 1e-30
    assert np.abs(out - weights).max() <= 3e-7 * scale
    np.testing.assert_array_equal(gathered, out[picked])


@pytest.mark.parametrize("kind", SUPPORTED, ids=lambda kind: kind.name)
@settings(max_examples=10)
@given(
    tokens=st.integers(1, 10),
    rows=st.integers(1, 75),
    blocks=st.integers(1, 3) | st.just(2304 // 256),
    parts=st.integers(1, 4),
    residual=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_matmul_equals_dequantize_and_multiply(kind, tokens, rows, blocks, parts, residual, seed):
    rng = np.random.default_rng(seed)
    columns = columns_of(kind, blocks)
    packed = random_rows(kind, rows, columns, rng)
    x = rng.standard_normal((tokens, columns + 5)).astype(np.float32)[:, :columns]
    biases = rng.standard_normal(rows).astype(np.float32)
    guarded = np.full((tokens + 2, rows + 32), 7.0, np.float32)
    out = guarded[1:-1, 16:-16]
    out[:] = rng.standard_normal(out.shape) if residual else np.nan
    weights = gguf.quants.dequantize(packed, kind).reshape(rows, columns).astype(np.float64)
    expected = x @ weights.T + (out if residual else biases)
    magnitude = np.abs(x) @ np.abs(weights).T + 3
    strips = np.full((parts, STRIP_FLOATS), np.nan, np.float32)
    program = Program()
    program.add(
        matmul_kernel(kind), address(out), out.strides[0], address(x), x.strides[0], tokens, address(packed),
        packed.shape[1], rows, columns, address(biases), int(residual), address(strips), address(HALVES),
        parts=parts,
    )  # fmt: skip
    team(2).run(program.table())
    assert (np.abs(out - expected) <= 2e-6 * magnitude).all()
    out[:] = 7
    assert (guarded == 7).all()
