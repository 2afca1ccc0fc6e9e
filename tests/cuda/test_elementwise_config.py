"""The convert and elementwise configs' arithmetic and refusals, and the RoPE table."""

import numpy as np
import pytest

from minfer.cuda import convert, elementwise, gemv, q8, quantize, reference
from minfer.cuda.attention import shipped as attention_shipped
from minfer.cuda.blocks import BLOCKS
from minfer.cuda.convert import ConvertConfig, StoreKvConfig
from minfer.cuda.elementwise import (
    AddConfig,
    ArgmaxConfig,
    EmbeddingConfig,
    RmsNormConfig,
    RopeConfig,
    RopeStoreConfig,
    SwigluConfig,
    rope_table,
)
from minfer.cuda.kernel import ConfigRefused


def test_grids_cover_every_element():
    assert ConvertConfig(8, 256).grid(2048) == (1, 1, 1) and ConvertConfig(8, 256).grid(2049) == (2, 1, 1)
    assert StoreKvConfig(4, 128).grid(7, 513) == (7, 2, 1)
    assert RmsNormConfig().grid(9) == (9, 1, 1)
    assert SwigluConfig(threads=256).grid(2, 1025) == (2, 2, 1)
    assert SwigluConfig(output="q8", threads=32).grid(1, 96) == (1, 1, 1)
    assert SwigluConfig(output="q8", threads=32).grid(1, 160) == (1, 2, 1)  # the last record is filled up
    assert AddConfig(1, 32).grid(1, 33) == (1, 2, 1)
    assert RopeConfig(28, 128, 128).grid(5) == (5, 4, 1)
    assert RopeStoreConfig(28, 4, 128, 128).width == 4608
    assert RopeStoreConfig(28, 4, 128, 128).grid(1) == (1, 5, 1)
    assert EmbeddingConfig("Q4_K", 3584).grid(3) == (3, 7, 1)
    assert ArgmaxConfig().grid(152064) == (149, 1, 1) and ArgmaxConfig("final").grid(152064) == (1, 1, 1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ConvertConfig(vector=4), "4 elements"),
        (lambda: ConvertConfig(threads=100), "100 threads"),
        (lambda: StoreKvConfig(vector=8), "8 dims"),
        (lambda: RmsNormConfig(output="bf16"), "bf16"),
        (lambda: RmsNormConfig(output="f16", vector=1), "vector=4"),
        (lambda: SwigluConfig(source="f16", vector=1), "vector=4"),
        (lambda: SwigluConfig(source="f16", vector=8), "f16 to pad40"),
        (lambda: AddConfig(vector=2), "vector=2"),
        (lambda: RopeConfig(4, 64, 20), "20 rotary dims of 64"),
        (lambda: RopeConfig(0, 64, 64), "rope: 0 heads"),
        (lambda: RopeStoreConfig(-4, 4, 64, 64), "rope_store: -4 heads on 4"),
        (lambda: RopeConfig(4, 64, 72), "72 rotary dims of 64"),
        (lambda: RopeStoreConfig(9, 2, 64, 64), "9 heads on 2"),
        (lambda: EmbeddingConfig("IQ2_XS", 256), "IQ2_XS"),
        (lambda: EmbeddingConfig("Q6_K", 384), "384 Q6_K weights; take a multiple of 256"),
        (lambda: ArgmaxConfig("all"), "all"),
    ],
)
def test_refusals_name_the_number(make, says):
    with pytest.raises(ConfigRefused, match=says):
        make()


def test_block_sizes_are_gguf_s():
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    for name, block in BLOCKS.items():
        assert (block.weights, block.size) == GGML_QUANT_SIZES[GGMLQuantizationType[name]]


def test_rope_table_keeps_the_fraction_of_a_turn():
    """At position 131071 an f32 angle is off by up to 0.004 radians; the table is not."""
    frequencies = 1e6 ** (-np.arange(0, 128, 2) / 128)
    table = rope_table(frequencies, 131072, scale=1.5)
    angle = np.longdouble(131071) * frequencies.astype(np.longdouble)
    np.testing.assert_allclose(table[-1, :, 0], 1.5 * np.cos(angle), atol=2e-7)
    np.testing.assert_allclose(table[-1, :, 1], 1.5 * np.sin(angle), atol=2e-7)


def test_q8_records_round_trip():
    x = np.random.default_rng(0).normal(size=(2, 3, 96)).astype(np.float32)
    x[0, 0, :32] = 0
    q, d, s = reference.quantize_q8(x)
    records = reference.pack_q8(q, d, s)
    assert records.shape == (2, 3, q8.q8_record_bytes(96)) == (2, 3, 160)
    for got, wanted in zip(reference.unpack_q8(records, 96), (q, d, s), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert np.abs(reference.dequantize_q8(records, 96) - x).max() <= d.max() / 2 * 1.001


def test_shipped_configs_are_distinct():
    modules = (convert, elementwise, gemv, quantize)
    kernels = [*attention_shipped(), *(kernel for module in modules for kernel in module.shipped())]
    assert len({str(kernel) for kernel in kernels}) == len(kernels) > 90
