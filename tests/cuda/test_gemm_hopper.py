"""The Hopper GEMM: config arithmetic, the choice of a tile, and the assembled kernel."""

import pytest

from minfer.cuda.gemm_hopper import (
    GemmHopperConfig,
    Heads,
    choose,
    make_gemm_hopper,
    may_split,
    split_workspace,
)
from minfer.cuda.gemm_hopper.config import SPLIT_TILES, WARPGROUPS
from minfer.cuda.gemm_hopper.split import share_with_lead
from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.registry import shipped_kernels
from minfer.cuda.runtime import compile_kernel
from tests.cuda.compiled import clean


def test_shared_memory():
    config = GemmHopperConfig()
    assert config.stage_bytes == 128 * 128 + 256 * 128
    # 4 stages of 48 KiB leave two buffers of 2 KiB for each of 8 warps; 64 bytes of mbarriers, 1 KiB to align
    assert config.store_buffers == 2
    assert config.shared_bytes == 4 * 49_152 + 8 * 2 * 2048 + 64 + 1024


def test_a_tile_of_a_gated_product_has_half_of_each_matrix():
    config = GemmHopperConfig(epilogue="swiglu")
    assert (config.out_m, config.loads, config.boxes["b"]) == (128, 2, (128, 64))
    assert config.tiles(2048, 18944) == (16, 148)


def test_a_rotated_tile_is_brought_in_runs_where_pairs_are_far_apart():
    far, near = Heads(28, 4, 128), Heads(28, 4, 128, interleaved=True)
    one, other = (GemmHopperConfig(192, 4, "f16", "rope", 192, heads) for heads in (far, near))
    assert (one.loads, one.boxes["b"]) == (6, (32, 64))
    assert (other.loads, other.boxes["b"]) == (1, (192, 64))
    assert GemmHopperConfig(128, epilogue="rope", heads=Heads(14, 2, 64)).loads == 1
    assert one.store_buffers == 1


def test_rotation_keeps_the_tile_that_is_fastest():
    assert choose(2048, 4608, 3584).can_rotate
    assert not choose(512, 4608, 3584).can_rotate  # 144 rows of B: a pair in two tiles
    assert not choose(8192, 4608, 3584).can_rotate  # 256 tokens


def test_a_rotated_product_has_the_heads_width():
    config = GemmHopperConfig(192, 4, "f16", "rope", 192, Heads(28, 4, 128))
    config.check(1, 4608, 3584)
    with pytest.raises(ConfigRefused, match="q, k and v of neox heads=28/4 hd=128 have 4608 rows"):
        config.check(1, 4600, 3584)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((28, 5, 128), "28 heads on 5 kv heads"), ((0, 4, 128), "0 heads"), ((28, 4, 96), "head_dim=96")],
)
def test_heads_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ConfigRefused, match=message):
        Heads(*arguments)


def test_tokens_decide_the_warpgroups():
    three, tall = GemmHopperConfig(200, 4, tile_n=192), GemmHopperConfig(224, 3, tile_n=256)
    assert (three.threads, three.warps, three.boxes["a"]) == (512, 12, (192, 64))
    assert (tall.threads, tall.warps, tall.boxes["a"]) == (256, 8, (256, 64))
    for groups in WARPGROUPS.values():
        if groups.registers is None:  # sums from register 24 on
            assert 24 + groups.row_blocks * groups.largest_m // 2 <= 65_536 // (128 * groups.consumers) - 1
            continue
        producer, consumer = groups.registers
        # What the block's threads start with, 65,536 registers in whole eights.
        start = 65_536 // (128 * (groups.consumers + 1)) // 8 * 8
        assert producer + groups.consumers * consumer <= (groups.consumers + 1) * start


def test_f32_results_have_narrower_chunks():
    assert GemmHopperConfig(out="f32").boxes["c"] == (16, 32)


def test_each_consumer_s_rows_are_loaded_alone_with_a_lead():
    even, led = (GemmHopperConfig(split_k=True, split_lead=lead) for lead in (0, 6))
    assert (even.boxes["a"], led.boxes["a"]) == ((128, 64), (64, 64))
    assert even.shared_bytes == led.shared_bytes


def test_names_tell_variants_apart():
    configs = [
        GemmHopperConfig(),
        GemmHopperConfig(out="f32"),
        GemmHopperConfig(out="f32", epilogue="add"),
        GemmHopperConfig(epilogue="swiglu"),
        GemmHopperConfig(192),
        GemmHopperConfig(192, tile_n=192),
        GemmHopperConfig(192, tile_n=192, pdl=True),
        GemmHopperConfig(192, split_k=True),
        GemmHopperConfig(192, split_k=True, split_lead=4),
        GemmHopperConfig(192, split_k=True, split_lead=8),
        GemmHopperConfig(192, 3, tile_n=256),
        GemmHopperConfig(192, 3, tile_n=256, skew=2),
        GemmHopperConfig(192, 3, tile_n=256, skew=3),
        GemmHopperConfig(epilogue="rope", heads=Heads(2, 1, 64)),
        GemmHopperConfig(epilogue="rope", heads=Heads(2, 1, 64, interleaved=True)),
        GemmHopperConfig(epilogue="rope", heads=Heads(2, 1, 64, bias=True)),
    ]
    assert len({str(config) for config in configs}) == len(configs)


def test_grids_are_persistent():
    assert GemmHopperConfig().grid(2048, 37888, 132) == (132, 1, 1)
    assert GemmHopperConfig().grid(130, 256, 132) == (2, 1, 1)
    assert GemmHopperConfig(224, 3, tile_n=256).grid(8192, 3584, 132) == (128, 1, 1)  # four equal waves
    assert GemmHopperConfig(pdl=True).grid(130, 256, 132) == (132, 1, 1)  # every multiprocessor has a seat


@pytest.mark.parametrize(
    ("nt", "od", "depth", "tile_n", "tile_m"),
    [
        # the shapes of a 7B at 2048 tokens: 128, 264 and 1584 tiles in 0.97, 2.0 and 12.0 waves of 132
        (2048, 3584, 3584, 256, 224),
        (2048, 4608, 3584, 192, 192),
        (2048, 37888, 3584, 256, 192),
        (8192, 3584, 18944, 256, 224),  # 512 tiles: 3.88 waves
        # and at 512: 128 tiles for o, as many for q, k and v
        (512, 3584, 3584, 128, 112),
        (512, 4608, 3584, 128, 144),
    ],
)
def test_choice_fills_whole_waves(nt, od, depth, tile_n, tile_m):
    config = choose(nt, od, depth)
    assert (config.tile_n, config.tile_m) == (tile_n, tile_m)
    assert config.skew == (2 if tile_n == 256 else 0)


def test_gates_of_the_largest_tile_are_not_skewed():
    assert str(choose(2048, 8960, 1536, epilogue="swiglu")) == "256x224x64 3 stages swiglu pdl"


def test_few_tokens_share_the_depth_of_long_products():
    for nt, tile_m, lead in ((1, 64, 0), (128, 64, 0), (256, 112, 0), (384, 168, 6), (512, 224, 6)):
        config = choose(nt, 3584, 18944)
        assert config.split_k and config.grid(nt, 3584, 132) == (132, 1, 1)
        assert (config.tile_m, config.split_lead) == (tile_m, lead)
    assert not choose(1024, 3584, 18944).split_k  # 128 tiles of 128 x 224 need no halves
    assert not choose(256, 3584, 3584).split_k  # the exchange takes longer than half of the depth
    assert not choose(512, 3584, 3584).split_k and not choose(384, 3584, 3584).split_k
    assert may_split(3584) and not may_split(2048) and not choose(1, 3584, 2048).split_k


def test_halves_need_a_multiprocessor_each():
    config = GemmHopperConfig(split_k=True)
    assert config.grid(130, 256, 132) == (4, 1, 1)
    with pytest.raises(ConfigRefused, match="512 x 4608 takes 144 blocks that wait for each other"):
        config.grid(512, 4608, 132)
    with pytest.raises(ConfigRefused, match="id = 64 is one k-tile"):
        config.check(1, 8, 64)


@pytest.mark.parametrize("k_tiles", [2, 3, 8, 9, 10, 11, 296])
@pytest.mark.parametrize("lead", [1, 2, 4, 30])
def test_blocks_with_a_lead_share_all_k_tiles(k_tiles, lead):
    """The rows of a consumer meet every k-tile once: in the block that finishes them all of its own, in the
    other one those for both."""
    spans = [share_with_lead(lead)(part, k_tiles) for part in (0, 1)]
    for finisher, giver in (spans, spans[::-1]):
        first, count, both = finisher
        numbers = [first + k if k < both else k for k in range(count)]
        given = range(giver[0], giver[0] + giver[2])
        assert sorted([*numbers, *given]) == list(range(k_tiles))
        assert both == giver[2] == max(1, k_tiles // 2 - lead)


def test_halves_have_room_in_the_workspace():
    """The largest grid of each tile that `choose` takes; larger tiles fit if they are few."""
    elements, counters = split_workspace(132)
    assert (elements, counters) == (66 * 128 * 224, 132)
    for tile_n, tile_m, stages, lead in SPLIT_TILES:
        config = GemmHopperConfig(tile_m, stages, tile_n=tile_n, split_k=True, split_lead=lead)
        assert config.grid(tile_n, 66 * tile_m, 132) == (132, 1, 1)
    config = GemmHopperConfig(256, 4, split_k=True)
    assert config.grid(128, 57 * 256, 132) == (114, 1, 1)
    words = "128 x 14848 in tiles of 128 x 256 takes 1,900,544 sums .* has 1,892,352 for 132 multiprocessors"
    with pytest.raises(ConfigRefused, match=words):
        config.grid(128, 58 * 256, 132)
    assert GemmHopperConfig(256, 4).grid(128, 58 * 256, 132) == (58, 1, 1)


def test_short_products_are_dependent_launches():
    assert choose(512, 37888, 3584).pdl and choose(2048, 3584, 3584).pdl
    assert not choose(2048, 37888, 3584).pdl and not choose(8192, 3584, 3584).pdl


def test_a_group_holds_about_2048_tokens():
    assert GemmHopperConfig().group(2048, 4096) == 16
    assert GemmHopperConfig().group(8192, 4096) == 16
    assert GemmHopperConfig().group(100, 4096) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((40,), "tile_m = 40: must be a multiple of 8 from 64"),
        ((196,), "tile_m = 196"),
        ((120, 4, "f16", "swiglu"), "tile_m = 120: must be a multiple of 16 from 128"),
        ((128.0,), "tile_m = 128.0 is no whole number"),
        ((232, 3, "f16", "store", 256), "tile_m = 232: must be a multiple of 8 from 64 to 224"),
        ((192, 3, "f16", "store", 64), "tile_n = 64 is not one of 128, 192, 256"),
        ((256, 4, "f64"), "out = 'f64' is not one of f16, f32"),
        ((256, 4, "f16", "gelu"), "epilogue = 'gelu'"),
        ((256, 4, "f16", "add"), "add is for f32 results"),
        ((272,), "tile_m = 272"),
        ((256, 4, "f16", "rope"), "rope takes Heads"),
        ((256, 4, "f16", "store", 128, Heads(2, 1, 64)), "no other epilogue has any"),
        ((256, 4, "f32", "rope", 128, Heads(2, 1, 64)), "out = f32: take f16"),
        ((144, 5, "f16", "rope", 128, Heads(2, 1, 64)), "a tile of 128 x 144: tile_m must be a multiple"),
        ((192, 3, "f16", "rope", 256, Heads(2, 1, 64)), "a tile of 256 x 192"),
        ((192, 3, "f16", "store", 256, None, False, True), "split_k with 256 tokens"),
        ((112, 6, "f16", "store", 128, None, False, False, 0, 4), "split_lead = 4: .* 0 without split_k"),
        ((112, 6, "f16", "store", 128, None, False, True, 0, -1), "split_lead = -1: must be 0 or more"),
        ((256, 4, "f16", "store", 128, None, False, False, 2), "skew with 128 tokens"),
        ((224, 3, "f16", "store", 256, None, False, False, 4), "skew = 4: must be from 0 to 3"),
        ((224, 3, "f16", "store", 256, None, False, False, -1), "skew = -1"),
        ((224, 3, "f16", "swiglu", 256, None, False, False, 2), "skew with swiglu over 224 rows"),
        ((256, 1), "1 stages"),
        ((256, 5), "use fewer stages"),
    ],
)
def test_configs_that_cannot_run_are_refused(arguments, message):
    with pytest.raises(ConfigRefused, match=message):
        GemmHopperConfig(*arguments)


ASSEMBLED = (
    GemmHopperConfig(),
    GemmHopperConfig(224, 4),
    GemmHopperConfig(112, 6, "f32", "add", pdl=True, split_k=True),
    GemmHopperConfig(224, 4, "f32", "add", pdl=True, split_k=True, split_lead=6),
    GemmHopperConfig(epilogue="swiglu"),
    GemmHopperConfig(200, 4, out="f32", epilogue="add", tile_n=192),
    GemmHopperConfig(192, 3, epilogue="swiglu", tile_n=256),
    GemmHopperConfig(224, 3, epilogue="swiglu", tile_n=256),
    GemmHopperConfig(224, 3, out="f32", epilogue="add", tile_n=256, pdl=True),
    GemmHopperConfig(224, 3, out="f32", epilogue="add", tile_n=256, pdl=True, skew=2),
    GemmHopperConfig(224, 3, tile_n=256, skew=3),
    GemmHopperConfig(192, 3, epilogue="swiglu", tile_n=256, skew=2),
    GemmHopperConfig(192, 4, epilogue="rope", tile_n=192, heads=Heads(28, 4, 128, bias=True)),
)


@pytest.mark.parametrize("config", ASSEMBLED, ids=str)
def test_assembled_without_spills_and_serialisation(config):
    compiled = compile_kernel(make_gemm_hopper(config), "sm_90a")
    resources = compiled.resources
    assert ".local" not in compiled.ptx
    assert resources.spill_bytes == resources.stack_bytes == 0
    assert resources.warnings == ()
    assert resources.instructions["wgmma"] % 4 == 0
    if config.producer:
        assert resources.registers == 65_536 // config.threads // 8 * 8
    assert ("USETMAXREG" in compiled.sass) == config.producer


@pytest.mark.parametrize(
    ("width", "inner"), [(896, 4864), (1536, 8960), (2048, 11008), (4096, 14336), (5120, 27648)]
)
def test_what_is_chosen_for_other_models_compiles_without_spills(width, inner):
    """Their residual streams, gates and vocabularies, from one token to 8192: a shipped tile or not."""
    chosen = set()
    for nt in (1, 96, 160, 256, 448, 640, 896, 1400, 2048, 3300, 8192):
        chosen |= {choose(nt, width, depth, out="f32", epilogue="add") for depth in (width, inner)}
        chosen |= {choose(nt, inner, width, epilogue="swiglu"), choose(nt, 151_936, width)}
    for config in chosen - {kernel.config for kernel in shipped_kernels()["gemm_hopper"]}:
        clean(make_gemm_hopper(config), "sm_90a")


def test_other_architectures_are_refused():
    with pytest.raises(ConfigRefused, match="only sm_90a"):
        compile_kernel(make_gemm_hopper(GemmHopperConfig()), "sm_100a")


def test_more_tiles_than_their_places_can_be_told_of_are_refused():
    config = GemmHopperConfig(64, 8)
    assert config.grid(128 * 1023, 64 * 1025, 132)[0] <= 132  # 2^20 - 1 tiles
    with pytest.raises(ConfigRefused, match=r"takes 1,048,576 tiles of 128 x 64, 1,048,575 at most"):
        config.grid(128 * 1024, 64 * 1024, 132)


def test_products_that_tma_cannot_move_are_refused():
    GemmHopperConfig().check(1, 8, 8)
    for shape in ((1, 12, 8), (1, 8, 12)):
        with pytest.raises(ConfigRefused, match="multiples of 8"):
            GemmHopperConfig().check(*shape)
