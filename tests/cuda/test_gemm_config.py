"""The arithmetic of GEMM configs, and what they refuse."""

import pytest

from minfer.cuda.gemm import GemmConfig, seed_config
from minfer.cuda.kernel import ConfigRefused


def bytes_per_kflop(config: GemmConfig) -> float:
    return sum(config.copied_bytes) / (config.step_flop / 1000)


def test_wider_tiles_stage_fewer_bytes_a_flop():
    """Seed 000's ledger of one k-step, with exact values: TM 64 -> 128 takes 31.25 to 23.44 bytes per 1000
    FLOP."""
    narrow, wide = GemmConfig(), GemmConfig(tile_m=128)
    assert narrow.copied_bytes == (4096, 4096)
    assert narrow.step_flop == 262_144
    assert wide.copied_bytes == (4096, 8192)
    assert wide.step_flop == 524_288
    assert bytes_per_kflop(narrow) == 31.25
    assert bytes_per_kflop(wide) == 23.4375
    assert bytes_per_kflop(wide) / bytes_per_kflop(narrow) == 0.75


@pytest.mark.parametrize(
    ("config", "shared", "threads"),
    [
        (GemmConfig(), 2 * (64 + 64) * 80, 256),
        (GemmConfig(layout="plain"), 2 * (64 + 64) * 64, 256),
        (GemmConfig(layout="swizzled", stages=4), 4 * (64 + 64) * 64, 256),
        (GemmConfig(tile_m=128, tile_k=64), 2 * (64 + 128) * 144, 256),
        (GemmConfig(tile_m=256, warps=16), 2 * (64 + 256) * 80, 512),
        # the ring holds A as f32; two f16 tiles of A are behind it
        (GemmConfig(a_source="f32_mirror"), 2 * (64 * 128 + 64 * 80) + 2 * 64 * 80, 256),
        (GemmConfig(128, 256, 64, 3, layout="swizzled"), 3 * (128 + 256) * 128, 256),
        # the ring holds A only; two f16 tiles of B are behind it, whatever the blocks
        (GemmConfig(tile_m=128, b_source="Q4_K"), 2 * 64 * 80 + 2 * 128 * 80, 256),
    ],
    ids=str,
)
def test_shared_memory_and_threads(config, shared, threads):
    assert config.shared_bytes == shared
    assert config.threads == threads


def test_an_f32_operand_is_copied_as_f32():
    assert GemmConfig(a_source="f32_mirror").copied_bytes == (8192, 4096)


def test_blocks_are_read_at_their_own_width():
    """32 weights of each of 128 rows: 4.5 bits a weight in Q4_K, 6.5625 in Q6_K, 16 in f16."""
    for name, bits in (("Q4_K", 4.5), ("Q6_K", 6.5625), ("f16", 16)):
        assert GemmConfig(tile_m=128, b_source=name).copied_bytes[1] == 128 * 32 * bits / 8


def test_grid_counts_token_tiles_fastest():
    assert GemmConfig(tile_m=128).grid(65, 129) == (2, 2, 1)
    assert GemmConfig(tile_m=128).grid(1, 1) == (1, 1, 1)
    assert GemmConfig().grid(2048, 37888) == (32, 592, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tile_n": 40}, "tile_n = 40 over 2 warps.*one of 32"),
        ({"tile_m": 96}, "tile_m = 96 over 4 warps"),
        ({"tile_k": 48}, "k-step 48"),
        ({"stages": 1}, "1 stages"),
        ({"warps": 64}, "2048 threads a block.* 32 and 1024"),
        ({"warps": 9}, "9 warps do not divide"),
        ({"tile_n": 256, "tile_m": 256}, "registers a thread.*limit is 255"),
        ({"tile_n": 256, "tile_m": 256, "warps": 16, "stages": 2}, "512 threads, a multiprocessor has 65536"),
        (
            {"tile_n": 128, "tile_m": 256, "tile_k": 64, "stages": 5},
            "276480 bytes of shared memory, the largest device allows 232448",
        ),
        ({"tile_m": 64.0}, "tile_m = 64.0 is no whole number"),
        ({"stages": True}, "stages = True is no whole number"),
        ({"pitch": "wide"}, "pitch = 'wide'"),
        ({"pitch": 0}, "pitch: 0: must be a whole number, at least 1"),
        ({"pitch": -3}, "pitch: -3"),
        ({"warps": 0}, "0 warps are 0 threads a block.*1 to 32 warps"),
        ({"layout": "diagonal"}, "layout = 'diagonal' is not one of padded, swizzled, plain"),
        ({"a_source": "f64"}, "a_source"),
        ({"b_source": "q9"}, "b_source"),
        ({"out": "s8"}, "out"),
    ],
)
def test_configs_that_cannot_run_are_refused(arguments, message):
    with pytest.raises(ConfigRefused, match=message):
        GemmConfig(**arguments)


def test_names_are_short_and_tell_variants_apart():
    configs = [
        GemmConfig(),
        GemmConfig(stages=3),
        GemmConfig(out="f16"),
        GemmConfig(a_source="f32_mirror"),
        GemmConfig(b_source="Q4_K"),
        GemmConfig(layout="plain"),
        GemmConfig(warps=4),
        GemmConfig(warps_n=4),
        GemmConfig(pitch=96),
    ]
    names = [str(config) for config in configs]
    assert len(set(names)) == len(names)
    assert all(len(name) < 60 for name in names)


def test_products_that_a_kernel_cannot_compute_are_refused():
    GemmConfig().check(1, 3, 8)
    GemmConfig(b_source="Q6_K").check(1, 3, 512)
    with pytest.raises(ConfigRefused, match="id = 12 is no multiple of 8"):
        GemmConfig().check(1, 3, 12)
    with pytest.raises(ConfigRefused, match="id = 320 is no multiple of 256"):
        GemmConfig(b_source="Q6_K").check(1, 3, 320)
    with pytest.raises(ConfigRefused, match="at least 1"):
        GemmConfig().check(0, 3, 8)
    with pytest.raises(ConfigRefused, match=r"nt: 1\.5: must be a whole number"):
        GemmConfig().check(1.5, 3, 8)
    with pytest.raises(ConfigRefused, match="od: 2147483648: must be at most 2147483647"):
        GemmConfig().check(1, 2**31, 8)
    with pytest.raises(ConfigRefused, match="65 outputs in rows that are 64 elements apart"):
        GemmConfig(pitch=64).check(1, 65, 8)


def test_the_seed_s_switches_select_configs():
    assert seed_config({}) == GemmConfig(tile_m=128)
    assert seed_config({"MINFER_GEMM_TM": "64", "MINFER_GEMM_K64": "1"}) == GemmConfig(tile_k=64)
    wide = seed_config({"MINFER_GEMM_TM": "256", "MINFER_GEMM_AF32": "1"})
    assert (wide.tile_m, wide.threads, wide.a_source) == (256, 512, "f32_mirror")
    with pytest.raises(ConfigRefused, match="MINFER_GEMM_TM = '96' is not one of 64, 128, 256"):
        seed_config({"MINFER_GEMM_TM": "96"})


@pytest.mark.parametrize("tile_m", ["64", "128", "256"])
@pytest.mark.parametrize("k64", ["0", "1"])
@pytest.mark.parametrize("af32", ["0", "1"])
def test_every_combination_of_switches_is_a_config(tile_m, k64, af32):
    """TM = 128 with k-steps of 64 takes 55,296 B: the seed's 56 KB, which halved its resident blocks."""
    config = seed_config({"MINFER_GEMM_TM": tile_m, "MINFER_GEMM_K64": k64, "MINFER_GEMM_AF32": af32})
    assert config.shared_bytes <= 232_448
    if (tile_m, k64, af32) == ("128", "1", "0"):
        assert config.shared_bytes == 55_296
