"""MMQ configs: what they hold in shared memory, what they refuse, and on which device."""

import pytest

from minfer.arithmetic.devices import DEVICES
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.mmq import (
    WEIGHT_TYPES,
    MmqConfig,
    fast,
    ladder,
    mmq,
    narrow,
    r1,
    shipped,
    shipped_configs,
    stream,
    tried,
    wide,
)


@pytest.mark.parametrize(
    ("config", "activations", "weights"),
    [
        # Seed 003: A 2 x 8 x 64 x 40, B 2 x 64 x 144; the wide tile as it is staged.
        (narrow(kd=8), 40_960, 18_432),
        (narrow(kd=4), 20_480, 18_432),
        (wide(kd=8), 81_920, 18_432),
        (wide(kd=4), 40_960, 18_432),
    ],
    ids=str,
)
def test_shared_memory_of_the_seed_s_tiles(config, activations, weights):
    assert config.stages * config.activation_bytes == activations
    assert config.stages * (config.stage_bytes - config.activation_bytes) == weights
    assert config.shared_bytes == activations + weights + 2 * config.scale_bytes


def test_a_device_s_cap_refuses_with_the_numbers():
    small, large = DEVICES["gb10"], DEVICES["h200"]
    over = wide(kd=8)
    reason = over.refused(small)
    assert str(over.shared_bytes) in reason and str(small.shared_per_block) in reason and "kd=4" in reason
    assert over.refused(large) is None
    assert wide(kd=4).refused(small) is narrow(kd=8).refused(small) is None


@pytest.mark.parametrize("chunks", [1, 4, 12, 20])
def test_rows_of_k_quants_are_whole_super_blocks(chunks):
    with pytest.raises(ConfigRefused, match=f"nb32 = {chunks} .*nb32 % 8 = {chunks % 8}.*f16"):
        narrow("Q4_K").check(1, 1, 32 * chunks)
    narrow("Q5_0").check(1, 1, 32 * chunks)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"variant": "r2"}, "r1, raw"),
        ({"weight_type": "Q3_K"}, "Q3_K"),
        ({"kd": 6}, "kd=6"),
        ({"kd": 8.0}, "kd = 8.0 is no whole number"),
        ({"stages": 1}, "stages=1"),
        ({"tokens_tile": 100}, "tokens_tile = 100"),
        ({"warps": 8, "warps_tokens": 3}, "8 warps"),
        ({"rows_tile": 64, "warps": 16, "kd": 4, "tokens_tile": 256}, "scales for 512 threads"),
        ({"tokens_tile": 128, "rows_tile": 128, "stages": 4, "layout": "padded"}, "fewer stages"),
        ({"weight_type": "Q6_K", "minimum": "tensor"}, "no minima"),
        ({"variant": "folded", "weight_type": "Q6_K"}, "two threads"),
        ({"min_blocks": 9}, "at least 9 blocks"),
        ({"tokens_tile": 64, "rows_tile": 256, "warps": 4, "warps_tokens": 1}, "128 threads"),
    ],
)
def test_refusals_name_the_number(fields, says):
    with pytest.raises(ConfigRefused, match=says):
        MmqConfig(**fields)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ((0, 1, 256), "nt: 0"),
        ((1, 1, 0), "id: 0"),
        ((1, 1, 40), "40 is no multiple of 32"),
        ((1.0, 1, 256), "nt: 1.0"),
        ((1, 2**31, 256), "od: 2147483648"),
    ],
)
def test_products_that_no_kernel_computes(sizes, says):
    with pytest.raises(ConfigRefused, match=says):
        narrow("Q8_0").check(*sizes)


def test_matrices_beyond_32_bit_offsets():
    rows = 2**32 // 210 + 1
    narrow("Q6_K").check(1, rows, 256)
    for config in (r1("Q6_K"), fast("Q6_K")):
        config.check(1, rows - 1, 256)
        with pytest.raises(ConfigRefused, match=r"4,294,967,460 bytes.*take 'raw'"):
            config.check(1, rows, 256)


def test_every_type_is_shipped_in_every_variant():
    configs = shipped_configs()
    assert len(set(configs)) == len(configs) == len({str(config) for config in configs})
    for weight_type in WEIGHT_TYPES:
        own = [config for config in configs if config.weight_type == weight_type]
        assert {config.variant for config in own} >= {"r1", "raw"}
        assert {config.tokens_tile for config in own} == {64, 128}
    assert [kernel.config for kernel in shipped()] == configs


def test_a_kernel_says_what_it_takes():
    kernel = mmq(r1())
    assert [argument.name for argument in kernel.arguments] == [
        "weights",
        "activations",
        "out",
        "nt",
        "od",
        "id",
    ]
    assert kernel.shared_bytes == r1().shared_bytes and kernel.threads == 256
    assert narrow().grid(65, 129) == (2, 3, 1)
    assert narrow().activation_size(3, 512) == 3 * 16 * 40
    assert narrow("Q6_K").sums_shape(2, 3, 512) == (2, 3, 32)


def test_what_lost_is_not_shipped():
    lost = tried("Q4_K")
    assert len({step.config for step in lost}) == len(lost) and all(step.mechanism for step in lost)
    assert not {step.config for step in lost} & set(shipped_configs())
    assert tried("Q6_K") == ()


def test_a_stream_k_kernel_fills_the_device_once():
    config = stream("Q6_K")
    assert config.grid(2048, 3584, 132) == (264, 1, 1)
    assert config.workspace(132) == (264 * 128 * 128, 264)
    # 64 and 16 tiles take 4 and 16 blocks each for 8 blocks less; 112 would cost 40.
    assert [config.grid(nt, od, 132)[0] for nt, od in ((2048, 512), (512, 512), (512, 3584))] == [
        256,
        256,
        264,
    ]
    names = [argument.name for argument in mmq(config).arguments]
    assert names == ["weights", "activations", "out", "parts", "ready", "nt", "od", "id", "stride"]


@pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
def test_the_ladder_changes_something_at_every_step(weight_type):
    steps = ladder(weight_type)
    assert steps[0].config == r1(weight_type)
    assert len({step.config for step in steps}) == len({step.name for step in steps}) == len(steps)
    assert all(step.config.weight_type == weight_type and step.mechanism for step in steps)
    names = [step.name for step in steps]
    assert all(step.base in names[:place] for place, step in enumerate(steps) if step.base)
