"""The MMQ reference against GGML's own dequantization, and against itself."""

import numpy as np
import pytest

from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.mmq import WEIGHT_TYPES, reference
from tests.cuda.block_data import random_matrix
from tests.cuda.mmq_cases import operands


@pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
def test_integers_and_scales_are_ggml_s_weights(weight_type):
    packed, values = random_matrix(weight_type, 5, 512)
    w = reference.integers(weight_type, packed)
    dense = (w.quants * w.scales[..., None]).reshape(5, 512)
    dense += np.repeat(w.minima, 512 // w.minima.shape[1], axis=1)
    np.testing.assert_allclose(dense, values, rtol=1e-6, atol=1e-7)
    assert np.abs(w.quants).max() <= (128 if weight_type == "Q8_0" else 32)


@pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
def test_the_sums_are_the_product_s(weight_type):
    packed, activations = operands(weight_type, 3, 4, 512)
    w = reference.integers(weight_type, packed)
    sums = reference.integer_sums(weight_type, packed, activations)
    values, d = reference.unpad40(activations)
    runs = sums.shape[2] // d.shape[1]
    wanted = np.einsum("tor,or,tr->to", sums, w.scales, np.repeat(d, runs, axis=1))
    wanted += (values.sum(axis=-1) * d) @ w.minima.reshape(4, d.shape[1], -1)[..., 0].T
    got, magnitude = reference.product(weight_type, packed, activations)
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
    assert (magnitude >= np.abs(got) - 1e-9).all()


def test_folded_sums_are_the_halves_times_their_scales():
    packed, activations = operands("Q6_K", 3, 4, 512)
    halves = reference.integer_sums("Q6_K", packed, activations).reshape(3, 4, 2, 16)
    scales = packed.reshape(4, 2, 210)[..., 192:208].view(np.int8).astype(np.int32)
    folded = (halves * scales).reshape(3, 4, 16, 2).sum(axis=-1)
    np.testing.assert_array_equal(reference.integer_sums("Q6_K", packed, activations, folded=True), folded)


def test_chunks_hold_scale_values_and_sum():
    q = np.arange(-32, 32).reshape(1, 64)
    chunks = reference.pad40(q, [[0.5, 0.25]])
    assert chunks.shape == (1, 2, 40) and chunks.dtype == np.uint8
    assert chunks[0, 0, :2].view(np.float16)[0] == 0.5 and (chunks[..., 2:4] == 0).all()
    assert chunks[0, 0, 4] == 256 - 32 and chunks[0, 1, 5] == 1
    assert chunks[0, :, 36:].copy().view(np.int32).ravel().tolist() == [q[0, :32].sum(), q[0, 32:].sum()]
    values, d = reference.unpad40(chunks)
    np.testing.assert_array_equal(values.reshape(1, 64), q)
    np.testing.assert_array_equal(d, [[0.5, 0.25]])


def test_an_unknown_type_is_refused():
    with pytest.raises(ConfigRefused, match="Q3_K"):
        reference.integers("Q3_K", np.zeros((1, 110), np.uint8))
