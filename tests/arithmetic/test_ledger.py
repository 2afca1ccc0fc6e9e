"""The seeds' ledgers, to the byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.arithmetic.devices import GB10, H200
from minfer.arithmetic.ledger import (
    GemmTile,
    attention_ledger,
    attention_shared_bytes,
    bits_a_weight,
    gemm_ledger,
    mmq_shared_bytes,
    tflops_of_us_per_gmac,
    us_per_gmac,
)
from minfer.arithmetic.occupancy import blocks_per_sm


def test_a_k_step_at_tm_64_and_128():
    narrow, wide = GemmTile(tm=64), GemmTile(tm=128)
    assert (narrow.a_bytes, narrow.b_bytes, narrow.flop) == (4096, 4096, 262_144)
    assert (wide.a_bytes, wide.b_bytes, wide.flop) == (4096, 8192, 524_288)
    assert round(narrow.bytes_per_kflop, 2) == 31.25
    assert round(wide.bytes_per_kflop, 2) == 23.44
    assert wide.bytes_per_kflop / narrow.bytes_per_kflop == pytest.approx(0.75)
    assert wide.barriers_per_mflop == narrow.barriers_per_mflop / 2


def test_mma_between_barriers():
    # The seed counts m16n16k16: 4 and 8 a warp; each is two m16n8k16.
    assert GemmTile(tm=64).mma_per_warp(8) == 2 * 4
    assert GemmTile(tm=128).mma_per_warp(8) == 2 * 8


def test_widening_tm_saves_on_a_only():
    narrow = gemm_ledger(GemmTile(tm=64), 2048, 18944, 3584)
    wide = gemm_ledger(GemmTile(tm=128), 2048, 18944, 3584)
    assert wide.a_l2_bytes * 2 == narrow.a_l2_bytes
    assert wide.b_l2_bytes == narrow.b_l2_bytes
    assert wide.barriers * 2 == narrow.barriers


def test_whole_gemm_adds_up():
    ledger = gemm_ledger(GemmTile(), 2048, 4608, 3584)
    assert (ledger.n_tiles, ledger.m_tiles, ledger.k_steps) == (32, 72, 112)
    assert ledger.flop == ledger.padded_flop == 2 * 2048 * 4608 * 3584
    assert ledger.l2_bytes == ledger.blocks * ledger.k_steps * ledger.tile.staged_bytes
    assert ledger.dram_bytes == 2048 * 3584 * 2 + 4608 * 3584 * 2 + 2048 * 4608 * 4


def test_ragged_edges_cost_padded_flop():
    ledger = gemm_ledger(GemmTile(), 65, 65, 33)
    assert (ledger.n_tiles, ledger.m_tiles, ledger.k_steps) == (2, 2, 2)
    assert ledger.padded_flop == 128 * 128 * 64 * 2


def test_panel_sharing_streams_the_weights_once():
    def on(device, nt, blocks):
        tile = GemmTile(tm=128)
        return gemm_ledger(tile, nt, 18944, 3584, resident_blocks=blocks * device.sms, l2_bytes=device.l2)

    # A (14.7 MB) and the 5 panels of a wave's 144 blocks fit into the 24 MiB of a GB10.
    whole = on(GB10, 2048, 3)
    assert (whole.a_dram_passes, whole.b_dram_passes) == (1, 1)
    # Twice the tokens do not: A streams once for each of 66 waves.
    assert on(GB10, 4096, 3).a_dram_passes == 66
    assert on(H200, 4096, 2).a_dram_passes == 1
    # More token tiles than resident blocks: a panel of B outlives the wave.
    assert on(GB10, 64 * 150, 3).b_dram_passes == 2


def test_flash_attention_shared_memory():
    assert attention_shared_bytes(64) == 17_408 * 3 + 16_384 + 768 == 69_376
    assert attention_shared_bytes(32) == 43_776
    assert attention_shared_bytes(32, scores=False) == 34_816
    assert attention_shared_bytes(64) <= GB10.shared_per_block


def test_double_buffered_flash_attention_is_over_the_cap():
    """Seed 000, 3.3: the padded layout shipped single-buffered, as a second K, V buffer does not fit."""
    twice = attention_shared_bytes(64) + 2 * 64 * 272
    assert twice == 104_192 > GB10.shared_per_block
    assert blocks_per_sm(GB10, 256, 128, twice).blocks == 0


def test_halving_tkv_doubles_the_fixed_cost():
    wide, narrow = attention_ledger(2048, 64), attention_ledger(2048, 32)
    assert wide.kv_tiles == 32 * 33 // 2
    assert narrow.kv_tiles == 2 * wide.kv_tiles
    assert narrow.barriers == 2 * wide.barriers
    assert narrow.flop == wide.flop > wide.useful_flop


def test_mmq_raw_narrow():
    shared = mmq_shared_bytes(8)
    assert (shared.activations, shared.weights, shared.scales) == (40_960, 18_432, 4_096)
    assert shared.total == 63_488 == 62 * 1024
    assert blocks_per_sm(GB10, 128, 128, shared.total).limits["shared"] == 1


def test_mmq_raw_wide_and_the_cap():
    deep = mmq_shared_bytes(8, tokens=128, rows=128, scale_stages=2)
    assert (deep.activations, deep.weights, deep.scales) == (81_920, 36_864, 16_384)
    assert deep.total == 135_168 > GB10.shared_per_block == 101_376 == 99 * 1024
    shallow = mmq_shared_bytes(4, tokens=128, rows=128, scale_stages=2)
    assert (shallow.activations, shallow.weights, shallow.scales) == (40_960, 36_864, 8_192)
    assert shallow.total == 86_016 <= GB10.shared_per_block


def test_the_wide_tile_as_its_text_describes_it_fits_with_less():
    # 128 tokens x 64 rows: only the activations double.
    assert mmq_shared_bytes(8, tokens=128, rows=64).total == 81_920 + 18_432 + 4_096


@pytest.mark.parametrize(
    ("quant", "bits"),
    [
        ("F16", 16),
        ("Q4_K", 4.5),
        ("Q6_K", 6.5625),
        ("q8_0", 8.5),
        ("Q4_0", 4.5),
        ("Q4_1", 5.0),
        ("Q5_0", 5.5),
        ("F32", 32),
    ],
)
def test_bits_a_weight(quant, bits):
    assert bits_a_weight(quant) == bits


def test_quant_blocks_match_the_gguf_package():
    constants = pytest.importorskip("gguf.constants")
    from minfer.arithmetic.ledger import QUANT_BLOCKS

    for name, sizes in QUANT_BLOCKS.items():
        assert constants.GGML_QUANT_SIZES[constants.GGMLQuantizationType[name]] == sizes


def test_us_per_gmac():
    assert us_per_gmac(0.597, 15_114) == pytest.approx(39.5, abs=0.01)
    assert tflops_of_us_per_gmac(39.5) == pytest.approx(50.6, abs=0.05)
    assert tflops_of_us_per_gmac(59.5) == pytest.approx(33.6, abs=0.05)


def test_refusals():
    with pytest.raises(ValueError, match="tn is 0"):
        GemmTile(tn=0)
    with pytest.raises(ValueError, match=r"ks is 32\.0; it must be at least 1, a whole number"):
        GemmTile(ks=32.0)
    with pytest.raises(ValueError, match="b_bits is nan; it must be above 0"):
        GemmTile(b_bits=float("nan"))
    with pytest.raises(ValueError, match="nt is 0; it must be at least 1"):
        gemm_ledger(GemmTile(), 0, 1, 1)
    with pytest.raises(ValueError, match="known: F32"):
        bits_a_weight("Q9")
    with pytest.raises(ValueError, match="nt is 0"):
        attention_ledger(0, 64)
    with pytest.raises(ValueError, match="tkv is -1"):
        attention_shared_bytes(-1)
    with pytest.raises(ValueError, match="kd is '4'"):
        mmq_shared_bytes("4")
    with pytest.raises(ValueError, match=r"0\.0 GMAC"):
        us_per_gmac(1.0, 0.0)


sizes = st.integers(1, 5000)


@given(sizes, sizes, sizes, st.sampled_from([64, 128, 256]), st.sampled_from([32, 64]))
def test_issued_work_covers_the_product(nt, od, id, tm, ks):
    ledger = gemm_ledger(GemmTile(tm=tm, ks=ks), nt, od, id, resident_blocks=96, l2_bytes=24 << 20)
    assert ledger.padded_flop >= ledger.flop
    assert 1 <= ledger.a_dram_passes <= ledger.m_tiles
    assert 1 <= ledger.b_dram_passes <= ledger.n_tiles
