"""The attention configs' arithmetic and refusals."""

import pytest

from minfer.cuda.attention import AttentionConfig, DecodeAttentionConfig, seed_steps
from minfer.cuda.kernel import ConfigRefused


def config(**changes):
    return AttentionConfig(**({"heads": 28, "kv_heads": 4} | changes))


@pytest.mark.parametrize(
    ("changes", "total"),
    [
        ({"tkv": 64, "softmax": "warp_per_row", "pv": "shared"}, 69_376),
        ({"tkv": 32, "softmax": "warp_per_row", "pv": "shared"}, 43_776),
        ({"tkv": 32}, 34_816),
        ({"tkv": 64, "stages": 2}, 17_408 * 5),
    ],
)
def test_shared_memory_is_what_the_seeds_count(changes, total):
    assert config(**changes).shared_bytes == total


def test_parts_of_the_widest_tile():
    c = config(tkv=64, softmax="warp_per_row", pv="shared")
    assert (c.query_bytes, c.kv_bytes, c.score_bytes, c.statistics_bytes) == (17_408, 17_408, 16_384, 768)
    assert c.row_stride == 272 and config(pad=0).row_stride == 256


def test_threads_and_grid():
    assert config().threads == 128 and config(softmax="serial", pv="scalar").threads == 256
    assert (
        config().grid(1) == (28, 1, 1)
        and config().grid(65) == (28, 2, 1)
        and config().grid(2048) == (28, 32, 1)
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"head_dim": 96}, "96"),
        ({"tkv": 48}, "48"),
        ({"heads": 27}, "27 heads on 4"),
        ({"softmax": "register", "pv": "shared"}, "neither"),
        ({"softmax": "serial", "pv": "register"}, "neither"),
        ({"score_pad": 2, "softmax": "serial", "pv": "shared"}, "multiple of 4"),
        ({"score_pad": 4}, "softmax=register"),
        ({"stages": 3}, "3"),
    ],
)
def test_refusals_name_the_number(changes, says):
    with pytest.raises(ConfigRefused, match=says):
        config(**changes)


def test_refuses_more_shared_memory_than_any_device_has():
    with pytest.raises(ConfigRefused, match="232448"):
        config(tkv=64, softmax="warp_per_row", pv="shared", stages=2, score_pad=512)


def test_steps_are_distinct_and_run_alone():
    steps = seed_steps(28, 4)
    assert len(set(steps.values())) == len(steps)
    assert {c.pv for c in steps.values()} == {"scalar", "shared", "register"}
    assert {c.softmax for c in steps.values()} == {"serial", "warp_per_row", "register"}
    assert {c.tkv for c in steps.values()} == {16, 32, 64}


def test_decode_arithmetic():
    c = DecodeAttentionConfig(28, 4, 128, splits=33)
    assert c.block_heads == 7 and c.grid() == (33, 4, 1) and c.row_groups == 8
    assert c.shared_bytes == 8 * 7 * 130 * 4
    assert DecodeAttentionConfig(32, 2, 128).block_heads == 8
    assert DecodeAttentionConfig(32, 2, 128).grid()[1] == 4
    with pytest.raises(ConfigRefused, match="0 splits"):
        DecodeAttentionConfig(28, 4, splits=0)
