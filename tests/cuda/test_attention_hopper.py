"""Hopper's attention without a GPU: config arithmetic, the table of tiles, the assembled kernel."""

import pytest

from minfer.cuda.attention import HopperAttentionConfig, attention_hopper, hopper_steps
from minfer.cuda.attention.hopper_config import TILE_OVERHEAD
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.runtime import compile_kernel

SEVEN_B = HopperAttentionConfig(28, 4)


def lists(config: HopperAttentionConfig, nt: int, q_offset: int, kv_end: int) -> list[list[tuple[int, int]]]:
    """(query block, head) of every block of a launch, in order."""
    order, blocks = config.successors(nt, q_offset, kv_end, 132), -(-nt // 128)
    found = []
    for block in range(config.grid(nt, 132)[0]):
        tile, mine = block, []
        while tile >= 0:
            mine.append((blocks - 1 - tile // config.heads, tile % config.heads))
            tile = int(order[tile])
        found.append(mine)
    return found


def test_shared_memory():
    # Q, two K, two V of 32 KiB, 8 warps x 16 rows of output; 2 + 4 + 4 mbarriers, 1 KiB to align
    assert SEVEN_B.tile_bytes == 32768
    assert SEVEN_B.shared_bytes == 5 * 32768 + 8 * 16 * 256 + 10 * 8 + 1024
    assert HopperAttentionConfig(14, 2, 64).shared_bytes == 5 * 16384 + 8 * 16 * 128 + 10 * 8 + 1024


@pytest.mark.parametrize("schedule", ["strided", "lpt"])
@pytest.mark.parametrize(("nt", "q_offset"), [(1, 0), (129, 0), (2048, 0), (300, 1000)])
def test_every_tile_comes_once(schedule, nt, q_offset):
    config = HopperAttentionConfig(28, 4, schedule=schedule)
    found = lists(config, nt, q_offset, q_offset + nt)
    blocks = -(-nt // 128)
    assert len(found) == min(132, 28 * blocks)
    assert sorted(tile for mine in found for tile in mine) == [
        (row, head) for row in range(blocks) for head in range(28)
    ]


def test_lpt_spreads_the_work_better():
    def longest(schedule):
        config = HopperAttentionConfig(28, 4, schedule=schedule)
        return max(
            sum(config.kv_tiles(row, 0, 2048) + TILE_OVERHEAD for row, _ in mine)
            for mine in lists(config, 2048, 0, 2048)
        )

    mean = 28 * sum(range(1, 17)) / 132 + 28 * 16 * TILE_OVERHEAD / 132
    assert longest("lpt") < 1.05 * mean < longest("strided")


def test_kv_tiles():
    """They start at the tile's first position, or end with the stored rows."""
    assert [SEVEN_B.kv_tiles(block, 0, 2048) for block in (0, 1, 15)] == [1, 2, 16]
    assert SEVEN_B.kv_tiles(0, 0, 3) == 1
    assert SEVEN_B.kv_tiles(0, 130, 140) == 2
    assert SEVEN_B.kv_tiles(0, 130, 500) == 3  # from row 130 down to row -126


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head_dim": 96}, "head_dim=96"),
        ({"kv_heads": 3}, "28 heads on 3 kv heads"),
        ({"softmax": "none"}, "softmax='none'"),
        ({"schedule": "random"}, "schedule='random'"),
        ({"rescue_above": 65504.0}, "rescue_above=65504.0"),
    ],
)
def test_configs_that_cannot_run_are_refused(arguments, message):
    with pytest.raises(ConfigRefused, match=message):
        HopperAttentionConfig(**{"heads": 28, "kv_heads": 4} | arguments)


@pytest.mark.parametrize("lengths", [(0, 0, 1), (1, 0, 0), (1, -1, 1)])
def test_lengths_that_make_no_sense_are_refused(lengths):
    with pytest.raises(ConfigRefused, match="lengths start at 1"):
        SEVEN_B.successors(*lengths, 132)


@pytest.mark.parametrize(
    "config",
    [
        SEVEN_B,
        hopper_steps(28, 4)["lazy rescale"],
        HopperAttentionConfig(9, 3, 64),
    ],
    ids=str,
)
def test_assembled_without_spills_and_serialisation(config):
    compiled = compile_kernel(attention_hopper(config), "sm_90a")
    resources = compiled.resources
    assert ".local" not in compiled.ptx
    assert resources.spill_bytes == resources.stack_bytes == 0
    assert resources.warnings == ()
    assert resources.registers == 168
    # Q K^T of the diagonal and of the loop; P V of the loop and of the last KV tile (chained: before it too).
    products = config.head_dim // 16 * 2 + 8 * (3 if config.chained else 2)
    assert resources.instructions["wgmma"] == products
    assert "USETMAXREG" in compiled.sass


def test_the_exponentials_run_under_p_v():
    """In the main loop P V is waited for after the exponentials, and only the scores before them."""
    sass = compile_kernel(attention_hopper(SEVEN_B), "sm_90a").sass
    order = [
        name
        for line in sass.splitlines()
        for name in ("DEPBAR.LE gsb0, 0x1", "DEPBAR.LE gsb0, 0x0", "MUFU.EX2")
        if name in line
    ]
    scores = order.index("DEPBAR.LE gsb0, 0x1")
    assert order[scores + 1 : order.index("DEPBAR.LE gsb0, 0x0", scores)].count("MUFU.EX2") == 64
