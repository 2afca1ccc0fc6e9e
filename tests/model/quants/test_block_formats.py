"""Our block code against the `gguf` package's, bit for bit."""

import gguf.quants
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from minfer.model.errors import ModelFileError
from minfer.model.quants import FORMATS, can_dequantize, dequantizable_types, dequantize, pack
from minfer.model.quants.k_quants import pack_scales, unpack_scales

T = GGMLQuantizationType
REFERENCE_PACKED = (
    T.Q4_0,
    T.Q4_1,
    T.Q5_0,
    T.Q5_1,
    T.Q8_0,
    T.BF16,
)  # types that the gguf package can quantize to
# Largest error of a packed weight, as a share of the block's largest magnitude: half a step, or the missing
# code at the far end of a signed range, and the rounding of the scales.
LOSS = {T.F32: 0, T.F16: 2**-11, T.BF16: 2**-8, T.Q8_0: 0.006, T.Q6_K: 0.04, T.Q5_0: 0.065, T.Q5_1: 0.036}
LOSS |= {T.Q5_K: 0.058, T.Q4_0: 0.127, T.Q4_1: 0.07, T.Q4_K: 0.093}


def random_blocks(kind, rows, blocks, seed=0):
    """Random bytes whose f16 scales may be anything, NaN and inf included."""
    return np.random.default_rng(seed).integers(0, 256, (rows, blocks * GGML_QUANT_SIZES[kind][1]), np.uint8)


@pytest.mark.parametrize("kind", dequantizable_types(), ids=lambda kind: kind.name)
def test_dequantize_equals_gguf_on_any_bytes(kind):
    raw = random_blocks(kind, rows=5, blocks=9)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, kind)
    got = dequantize(raw, kind)
    assert got.dtype == np.float32
    assert got.shape == (5, 9 * GGML_QUANT_SIZES[kind][0])
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_dequantize_is_the_same_in_one_chunk_or_many(kind, monkeypatch):
    raw = random_blocks(kind, rows=3, blocks=8)
    whole = dequantize(raw, kind)
    monkeypatch.setattr("minfer.model.quants._CHUNK_ELEMENTS", 3 * FORMATS[kind].block_size)
    np.testing.assert_array_equal(dequantize(raw, kind), whole)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_format_sizes(kind):
    fmt = FORMATS[kind]
    assert (fmt.block_size, fmt.type_size) == GGML_QUANT_SIZES[kind]
    assert fmt.row_bytes(3 * fmt.block_size) == 3 * fmt.type_size
    assert fmt.name == kind.name


def test_bits_per_weight():
    assert FORMATS[T.Q4_K].bits_per_weight == 4.5
    assert FORMATS[T.Q6_K].bits_per_weight == 6.5625
    assert FORMATS[T.F16].bits_per_weight == 16


@pytest.mark.parametrize("kind", REFERENCE_PACKED, ids=lambda kind: kind.name)
def test_pack_equals_gguf(kind):
    values = np.random.default_rng(1).standard_normal((7, 256)).astype(np.float32)
    values[0] = 0
    values[1, :32] = -3.5
    np.testing.assert_array_equal(pack(values, kind), gguf.quants.quantize(values, kind))


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
@settings(max_examples=40)
@given(
    hnp.arrays(np.float32, (2, 256), elements=st.floats(-1000, 1000, width=32)),
    st.sampled_from([1.0, 1e-3]),
)
def test_pack_then_dequantize_is_close(kind, values, scale):
    values = values * np.float32(scale)
    fmt = FORMATS[kind]
    back = dequantize(pack(values, kind), kind)
    blocks = values.reshape(-1, fmt.block_size)
    error = np.abs(back.reshape(blocks.shape) - blocks).max(axis=1)
    # Scales below f16's normal range lose precision of their own.
    assert (error <= LOSS[kind] * np.abs(blocks).max(axis=1) + 64 * 2.0**-14).all()


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_zeros_pack_to_zeros(kind):
    assert not dequantize(pack(np.zeros((1, 256), np.float32), kind), kind).any()


@given(hnp.arrays(np.uint8, (3, 12)))
def test_k_quant_scales_round_trip(packed):
    np.testing.assert_array_equal(pack_scales(*unpack_scales(packed)), packed)


@pytest.mark.parametrize("kind", [T.Q8_1, T.Q8_K])
def test_a_type_without_a_dequantizer_is_an_error(kind):
    assert not can_dequantize(kind)
    with pytest.raises(
        ModelFileError, match=rf"{kind.name} cannot be dequantized \(supported: F32, F16.*Q4_K"
    ):
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)


def test_pack_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="a row of 100 is not a whole number of Q4_K blocks of 256"):
        pack(np.zeros((1, 100), np.float32), T.Q4_K)
    with pytest.raises(ValueError, match="finite"):
        pack(np.full((1, 32), np.nan, np.float32), T.Q8_0)
    with pytest.raises(ValueError, match="packing to IQ2_XS is not supported"):
        pack(np.zeros((1, 256), np.float32), T.IQ2_XS)
