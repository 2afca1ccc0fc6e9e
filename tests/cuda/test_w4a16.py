"""The W4A16 GEMM's configs, and its kernels compiled without a GPU."""

import math

import pytest

from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.registry import shipped_kernels
from minfer.cuda.runtime import compile_kernel
from minfer.cuda.tile.scheduler import reversed_rounds
from minfer.cuda.w4a16 import (
    PAIR,
    W4A16Config,
    choose,
    choose_pair,
    may_split,
    split_workspace,
    w4a16,
)
from minfer.cuda.w4a16.config import split_sums


def test_shared_memory():
    config = W4A16Config("Q4_K", 256, 4)
    assert config.stage_bytes == 256 * 64 * 2
    # 128 blocks of 144 bytes, and 8 f16 pairs of scale and minimum a row
    assert config.slot_bytes == 128 * 144 + 128 * 32
    assert config.buffers == 3
    assert config.shared_bytes == 4 * 32_768 + 3 * 2 * 8192 + 2 * 22_528 + (4 + 2) * 16 + 3 * 8 + 1024


def test_q6_k_slots_hold_aligned_chunks():
    config = W4A16Config("Q6_K", 152, 4)
    # 15 chunks of 16 bytes a row, the scales in the last two
    assert config.slot_bytes == 128 * 240
    assert "w" not in config.boxes


@pytest.mark.parametrize(
    ("od", "depth", "tokens"),
    [(4608, 3584, 192), (4096, 3584, 256), (37888, 3584, 256), (3584, 3584, 232), (3584, 18944, 232)],
)
def test_choice_fills_whole_waves(od, depth, tokens):
    assert choose("Q4_K", 2048, od, depth).tokens == tokens


def test_three_consumers_save_a_wave():
    config = choose("Q4_K", 2048, 4608, 3584)
    assert (config.rows, config.threads, config.tiles(2048, 4608)) == (192, 512, (11, 24))  # 264: 2 x 132
    assert choose("Q6_K", 2048, 4608, 3584).consumers == 2


def test_a_pair_ends_with_narrow_tiles():
    """q and k of the 7B with v in Q6_K, which takes wider tiles: less than 3 x 132; the blocks that begin
    with one of Q6_K end with a narrow one of Q4_K, the last in their order, or have no third one."""
    config = choose_pair(2048, (4096, 512), 3584, width=4608, left=4096)
    assert (config.format, config.tokens, config.narrow, config.store) == (PAIR, 192, True, "tma")
    tiles, others = math.prod(config.tiles(2048, 4096)), 4 * -(-2048 // config.second_tokens)
    assert config.second_tokens == 232 and (tiles, others) == (11 * 32, 9 * 4)
    assert config.has_narrow(2048) and config.group(2048) == 10
    dealt = reversed_rounds(tiles + others, 132)
    assert all(len(own) == 2 or own[2] >= tiles + others - 32 for own in dealt[:others])
    assert config.boxes["a"][0] == 192 and config.boxes["a_other"][0] == 232
    assert config.stage_bytes == 232 * 128
    assert config.boxes["w"][1] == 144 and config.landing_arrivals == 96
    assert config.slot_bytes % 128 == 0 and config.slot_bytes >= W4A16Config("Q6_K").slot_bytes
    assert config.pdl
    assert choose_pair(2048, (512, 4000), 3584, width=4512, left=4000).store == "direct"


def test_a_pair_of_few_tokens_is_one_round():
    """Tiles of Q6_K that take as long as those of Q4_K, though they take longer to unpack."""
    config = choose_pair(512, (4096, 512), 3584)
    assert not config.narrow and (config.tokens, config.other_tokens) == (176, 96)
    assert config.grid(512, 4096, 132, 512) == (3 * 32 + 6 * 4, 1, 1)


def test_split_k_of_few_tokens():
    """Two blocks share a tile where that is quicker than narrower ones, and all are on the GPU at once."""
    for format in ("Q4_K", "Q6_K"):
        for nt, parts, tokens in ((512, 2, 256), (256, 4, 256), (128, 4, 128)):
            config = choose(format, nt, 3584, 18944)
            assert (config.split_k, config.tokens) == (parts, tokens)
            assert config.grid(nt, 3584, 132) == (112, 1, 1)
        assert choose(format, 2048, 3584, 18944).split_k == 1
    assert may_split(3584) and choose("Q4_K", 512, 37888, 3584, gated=True).split_k == 1
    assert choose("Q4_K", 64, 3584, 256).split_k == 1
    with pytest.raises(ConfigRefused, match="takes 168 blocks that wait for each other"):
        W4A16Config(tokens=256, split_k=2).grid(640, 3584, 132)


def test_the_workspace_holds_what_any_choice_hands_over():
    elements, counters = split_workspace(132)
    assert (elements, counters) == (132 * 128 * 256 * 3 // 4, 132)
    for parts, tokens in ((2, 256), (4, 256), (4, 128)):
        # Of each of the blocks the others' sums of what it finishes.
        assert parts * split_sums(tokens, parts) == (parts - 1) * 128 * tokens
        assert 132 // parts * parts * split_sums(tokens, parts) <= elements


def test_columns_are_narrow_where_few_tokens_are_left():
    config = W4A16Config(PAIR, 192, 4, narrow=True)
    assert [config.has_narrow(nt) for nt in (192, 320, 321, 384, 512)] == [False, True, False, False, True]
    assert [config.group(nt) for nt in (100, 320, 321, 4096)] == [1, 1, 2, 11]
    assert not W4A16Config(PAIR, 192, 4).has_narrow(320)


def test_few_rows_take_narrow_tiles():
    assert choose("Q6_K", 2048, 512, 2048).tokens == 64
    assert choose("Q6_K", 2048, 512, 3584).split_k == 2  # deep enough for the exchange
    assert choose("Q6_K", 2048, 3584, 18944).tokens == 232


def test_the_choice_is_shipped_and_stores_any_width():
    kernels = {kernel.config for kernel in shipped_kernels()["w4a16"]}
    for nt in (1, 65, 300, 2048):
        assert choose("Q6_K", nt, 3584, 18944) in kernels
    assert choose("Q4_K", 100, 100, 256, width=100).store == "direct"
    assert choose("Q4_K", 100, 104, 256, out="f32", width=104).store == "direct"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "Q5_K"}, "one of Q4_K, Q6_K, Q4_K.Q6_K"),
        ({"consumers": 4}, "4 consumers"),
        ({"tokens": 264}, "264 tokens"),
        ({"tokens": 56}, "56 tokens"),
        ({"out": "f32"}, 'take store="direct"'),
        ({"stages": 5}, "5 stages, 2 slots: must be the 4 k-tiles of a block, or of two"),
        ({"slots": 1}, "4 stages, 1 slots"),
        ({"stages": 8}, "use fewer stages"),
        ({"tokens": 192, "narrow": True}, "narrow: of Q4_K.Q6_K with more than 128 tokens"),
        ({"format": PAIR, "tokens": 128, "narrow": True}, "narrow: of Q4_K.Q6_K with more than 128 tokens"),
        ({"format": PAIR, "tokens": 64, "gated": True}, "neither gated nor has it a bias"),
        ({"other_tokens": 96}, "96 tokens of a second matrix: .* of Q4_K.Q6_K only"),
        ({"format": PAIR, "tokens": 128, "other_tokens": 100}, "100 tokens of a second matrix"),
        ({"split_k": 3}, "split_k = 3: 1, 2 or 4 blocks"),
        ({"tokens": 128, "gated": True, "split_k": 2}, "split_k: of one matrix with 2 consumers"),
        ({"tokens": 192, "consumers": 3, "split_k": 2}, "split_k: of one matrix with 2 consumers"),
        ({"tokens": 232, "split_k": 2}, "232 tokens with split_k = 2: a multiple of 16 from 64"),
        ({"tokens": 64, "split_k": 4}, "64 tokens with split_k = 4: a multiple of 16 from 128"),
    ],
)
def test_configs_that_cannot_run_are_refused(changes, message):
    with pytest.raises(ConfigRefused, match=message):
        W4A16Config(**changes)


def test_products_that_do_not_fit_are_refused():
    W4A16Config().check(1, 1, 256, 8)
    for shape, message in (((1, 1, 128, 8), "multiple of 256"), ((1, 1, 256, 12), "direct store")):
        with pytest.raises(ConfigRefused, match=message):
            W4A16Config().check(*shape)
    with pytest.raises(ConfigRefused, match="192 outputs beside others: TMA stores tiles of 128"):
        W4A16Config(PAIR, 64).check(1, 256, 256, 256, left=192)
    with pytest.raises(ConfigRefused, match="id = 768 is 3 blocks a row, too few for split_k = 4"):
        W4A16Config(split_k=4).check(1, 8, 768, 8)


ASSEMBLED = {
    choose("Q4_K", 2048, 4608, 3584): 128,
    choose("Q4_K", 2048, 37888, 3584): 168,
    choose("Q6_K", 2048, 3584, 18944): 168,
    choose_pair(2048, (4096, 512), 3584, width=4608, left=4096): 168,
    choose_pair(512, (4096, 512), 3584, width=4608, left=4096): 168,
    choose("Q4_K", 512, 3584, 18944): 168,
    choose("Q6_K", 512, 3584, 18944): 168,
    choose("Q6_K", 256, 3584, 18944): 168,
}
"""Config -> its registers."""


@pytest.mark.parametrize(("config", "registers"), ASSEMBLED.items(), ids=str)
def test_assembled_without_spills_and_serialisation(config, registers):
    compiled = compile_kernel(w4a16(config), "sm_90a")
    resources = compiled.resources
    assert ".local" not in compiled.ptx
    assert resources.spill_bytes == resources.stack_bytes == 0
    assert resources.warnings == ()
    assert resources.registers == registers
    assert resources.instructions["wgmma"] == 16 * (len(config.parts) + config.narrow)
    assert "USETMAXREG" in compiled.sass
