"""The seeds' figures load, and agree with the ledgers to the digits that they print."""

import pytest

from minfer.arithmetic.devices import DEVICES, GB10
from minfer.arithmetic.ledger import (
    GemmTile,
    attention_shared_bytes,
    bits_a_weight,
    mmq_shared_bytes,
)
from minfer.arithmetic.reference import figure, figures
from minfer.arithmetic.work import QWEN25_7B, prefill_gmac


def test_every_figure_says_where_it_comes_from():
    for entry in figures().values():
        assert entry.device in DEVICES
        assert entry.section and entry.what and entry.unit and entry.file.startswith(entry.seed)


def test_shared_memory_figures_agree_with_the_ledger():
    for seed, key, exact in [
        ("002", "fa.tkv64.shared", attention_shared_bytes(64)),
        ("002", "fa.tkv32.shared", attention_shared_bytes(32)),
        ("002", "fa.register_softmax.shared", attention_shared_bytes(32, scores=False)),
        ("003", "mmq.wide.shared.kd8", mmq_shared_bytes(8, tokens=128, rows=128, scale_stages=2).total),
        ("003", "mmq.wide.shared.kd4", mmq_shared_bytes(4, tokens=128, rows=128, scale_stages=2).total),
    ]:
        assert figure(seed, key).value == pytest.approx(exact / 1000, rel=0.006)
    assert figure("003", "mmq.raw.shared.kd8").value == mmq_shared_bytes(8).total / 1024
    assert figure("003", "shared.cap").value == GB10.shared_per_block / 1024


def test_where_a_seed_rounds_the_ledger_counts():
    printed = [figure("000", f"gemm.smem_b_per_kflop.tm{tm}").value for tm in (64, 128)]
    exact = [GemmTile(tm=tm).bytes_per_kflop for tm in (64, 128)]
    assert printed == pytest.approx(exact, rel=0.02)
    assert printed[1] / printed[0] == pytest.approx(exact[1] / exact[0], rel=0.002)


def test_model_figures_agree_with_the_shapes():
    assert figure("002", "tail.lm_head.tmac").value == pytest.approx(
        prefill_gmac(QWEN25_7B, 2659, tail=False)["lm_head"] / 1000, rel=0.001
    )
    assert figure("002", "weights.bits.q4_k").value == bits_a_weight("Q4_K")
    assert figure("003", "gqa.sharing").value == QWEN25_7B.heads // QWEN25_7B.kv_heads


def test_ranges_and_sentences():
    assert figure("000", "prefill.after").value == (2340, 2370)
    assert str(figure("000", "prefill.after")) == "2,340-2,370 tok/s (GB10, 2026-09-01, seed 000 section 5)"
    assert str(figure("000", "gemm.ms.tm64")) == "455 ms (GB10, 2026-09-01, seed 000 section 2.1)"


def test_unknown_figures_are_refused(tmp_path):
    with pytest.raises(KeyError, match=r"known: prefill\.before"):
        figure("000", "nothing")
    with pytest.raises(KeyError, match="seeds are 000, 002 and 003"):
        figure("999", "nothing")
    with pytest.raises(FileNotFoundError, match="come with the repository"):
        figures(tmp_path)
