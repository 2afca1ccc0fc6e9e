"""Prefill and decode work of the 7B, from its shapes."""

import pytest

from minfer.arithmetic.work import QWEN25_7B, decode_bytes, layer_gmac, prefill_gmac, qwen25_7b_q4_k_m


def test_weights_of_a_layer():
    assert round(QWEN25_7B.weights() / 1e6, 2) == 233.05


def test_gmac_of_a_layer_at_2659_tokens():
    assert round(layer_gmac(QWEN25_7B, 2659), 1) == 619.7


def test_lm_head_over_all_tokens():
    assert round(prefill_gmac(QWEN25_7B, 2659, tail=False)["lm_head"] / 1000, 3) == 1.449


def test_the_tail_runs_once():
    nt = 2659
    full, tail = prefill_gmac(QWEN25_7B, nt, tail=False), prefill_gmac(QWEN25_7B, nt)
    assert tail["lm_head"] == full["lm_head"] / nt
    assert tail["k+v"] == full["k+v"]
    rows = 27 * nt + 1
    assert tail["down"] == pytest.approx(full["down"] * rows / (28 * nt))
    assert sum(full[c] for c in ("gate+up", "down", "q+o", "k+v")) == pytest.approx(
        28 * layer_gmac(QWEN25_7B, nt)
    )


def test_one_token_needs_no_tail_rule():
    assert prefill_gmac(QWEN25_7B, 1, tail=True) == pytest.approx(prefill_gmac(QWEN25_7B, 1, tail=False))


def test_attention_is_causal():
    one_layer = 2 * 28 * 128 * 3 / 1e9  # two tokens: 1 + 2 visible positions
    assert prefill_gmac(QWEN25_7B, 2, tail=False)["attention"] == pytest.approx(28 * one_layer)


def test_q4_k_m_pattern():
    types = qwen25_7b_q4_k_m()
    better = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]
    assert [i for i, t in enumerate(types["down"]) if t == "Q6_K"] == better
    assert types["v"] == types["down"]
    assert set(types["gate"]) == {"Q4_K"} and types["lm_head"] == ["Q6_K"]


def test_bytes_of_a_decoded_token():
    token = decode_bytes(QWEN25_7B, qwen25_7b_q4_k_m())
    assert round(token / 1e9, 2) == 4.37
    cache = decode_bytes(QWEN25_7B, qwen25_7b_q4_k_m(), context=2048) - token
    assert cache == 2 * 28 * 2048 * 512 * 2


def test_refusals():
    with pytest.raises(ValueError, match="nt is 0; it must be at least 1"):
        prefill_gmac(QWEN25_7B, 0)
    with pytest.raises(KeyError):
        QWEN25_7B.matrix("router")
