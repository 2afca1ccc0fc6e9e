"""RoPE frequencies against a scalar transcription of the published formulas."""

import math
from dataclasses import replace

import numpy as np
import pytest

from minfer.model.config import RopeConfig
from minfer.model.errors import ModelFileError
from minfer.model.model import Model
from minfer.model.rope import frequencies


@pytest.fixture(scope="module")
def config(data_dir):
    return Model.load(data_dir / "qwen3-k.gguf").config  # head size 128, base 1e6


def with_rope(config, **changes):
    return replace(config, rope=replace(config.rope, **changes))


def test_plain(config):
    inv_freq, scale = frequencies(config)
    assert inv_freq.dtype == np.float32
    assert inv_freq.shape == (64,)
    assert scale == 1.0
    np.testing.assert_allclose(inv_freq, [1e6 ** (-i / 64) for i in range(64)], rtol=1e-7)


def test_linear_divides_positions(config):
    plain, _ = frequencies(config)
    inv_freq, scale = frequencies(with_rope(config, scaling="linear", factor=4.0, attn_factor=0.5))
    np.testing.assert_allclose(inv_freq, plain / 4, rtol=1e-7)
    assert scale == 0.5


def test_factors_divide_frequencies(config):
    plain, _ = frequencies(config)
    divisors = np.linspace(1, 8, 64, dtype=np.float32)
    inv_freq, scale = frequencies(config, divisors)
    np.testing.assert_allclose(inv_freq, plain / divisors, rtol=2e-7)
    assert scale == 1.0


@pytest.mark.parametrize(("fast", "slow", "ext", "original"), [(32, 1, 1, 32768), (16, 2, 0.5, 4096)])
def test_yarn(config, fast, slow, ext, original):
    """The paper's ramp over pairs: gamma 0 below `slow` turns in the original context, 1 above `fast`."""
    scaled = with_rope(
        config,
        scaling="yarn",
        factor=4.0,
        original_context=original,
        beta_fast=fast,
        beta_slow=slow,
        ext_factor=ext,
        attn_factor=1.25,
    )
    inv_freq, scale = frequencies(scaled)

    def pair(turns):
        return 128 * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(1e6))

    low, high = max(0, math.floor(pair(fast))), min(127, math.ceil(pair(slow)))
    for index in range(64):
        theta = 1e6 ** (-2 * index / 128)
        gamma = (1 - min(1, max(0, (index - low) / (high - low)))) * ext
        assert inv_freq[index] == pytest.approx((1 - gamma) * theta / 4 + gamma * theta, rel=1e-6)
    assert scale == pytest.approx(1.25 * (1 + 0.1 * math.log(4)))
    plain, _ = frequencies(config)
    if ext == 1:
        assert inv_freq[0] == plain[0]
    assert inv_freq[-1] == pytest.approx(plain[-1] / 4)


def test_yarn_of_extreme_settings_is_finite(config):
    """Whatever a file may say within the checked ranges gives numbers, or an error of ours."""
    base_config = RopeConfig(2, 1.0000001, interleaved=True, scaling="yarn")
    for factor in (1e-30, 1.0, 1e30):
        for original in (1, 2**31 - 1):
            for beta in (1e-30, 1e30):
                rope = replace(
                    base_config, factor=factor, original_context=original, beta_fast=beta, beta_slow=beta
                )
                inv_freq, scale = frequencies(replace(config, rope=rope))
                assert np.isfinite(inv_freq).all()
                assert math.isfinite(scale)


@pytest.mark.parametrize("scaling", ["linear", "yarn"])
def test_overflow_is_an_error(config, scaling):
    rope = replace(config.rope, scaling=scaling, factor=1e-45, original_context=4096)
    with pytest.raises(ModelFileError, match="RoPE frequencies overflow"):
        frequencies(replace(config, rope=rope))
    with pytest.raises(ModelFileError, match="RoPE frequencies overflow"):
        frequencies(config, np.full(64, 1e-45, np.float32))
