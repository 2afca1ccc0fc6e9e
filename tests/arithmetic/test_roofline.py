"""Rooflines meet at the ridge, and decode is memory divided by bytes."""

import pytest

from minfer.arithmetic.devices import GB10, H200
from minfer.arithmetic.ledger import GemmTile, gemm_ledger
from minfer.arithmetic.roofline import decode_limit, least_seconds, ridge, roofline
from minfer.arithmetic.work import QWEN25_7B, decode_bytes, qwen25_7b_q4_k_m


def test_ridge_of_an_h200():
    assert ridge(H200) == pytest.approx(206, abs=0.5)


def test_below_the_ridge_memory_is_the_wall():
    point = roofline(H200, flop=2e9, dram_bytes=1e9)
    assert (point.wall, point.attainable) == ("memory", 2 * H200.bandwidth)
    assert point.fraction == pytest.approx(point.attainable / H200.tensor_f16)


def test_above_the_ridge_compute_is():
    ledger = gemm_ledger(GemmTile(), 2048, 37888, 3584)
    point = roofline(H200, ledger.flop, ledger.dram_bytes)
    assert (point.wall, point.attainable, point.fraction) == ("compute", H200.tensor_f16, 1.0)


def test_measured_ceilings_replace_the_datasheet():
    point = roofline(H200, 1e9, 1e9, bandwidth=4240e9, peak=755e12)
    assert point.attainable == 4240e9
    assert point.ridge == pytest.approx(755e12 / 4240e9)


def test_decode_roofline_of_the_7b():
    token = decode_bytes(QWEN25_7B, qwen25_7b_q4_k_m())
    assert decode_limit(4240e9, token) == pytest.approx(970, abs=1)
    assert decode_limit(GB10.bandwidth, token) == pytest.approx(62.5, abs=0.1)


def test_least_seconds_is_the_slower_roof():
    assert least_seconds(H200, 0, 4.8e12) == 1.0
    assert least_seconds(H200, 989.4e12, 4.8e12) == 1.0
    assert least_seconds(H200, 2 * 989.4e12, 4.8e12) == 2.0


def test_no_bytes_is_refused():
    with pytest.raises(ValueError, match="at least one byte"):
        roofline(H200, 1, 0)
