"""The comparison with cuBLAS runs, checks what it times, and says so in a line."""

from __future__ import annotations

import pytest

from minfer.campaign.against import compare_products, geometric_mean

pytestmark = pytest.mark.usefixtures("hopper")


@pytest.mark.parametrize("soak", [0.0, 0.02])
def test_a_small_product(soak):
    pytest.importorskip("torch")
    lines = []
    (row,) = compare_products([130], {"small": (512, 256)}, rounds=3, soak=soak, on_row=lines.append)
    assert lines == [row]
    assert (row.nt, row.od, row.depth) == (130, 512, 256)
    assert row.ours_us > 0 and row.theirs_us > 0
    assert row.regime == ("sustained" if soak else "burst")


@pytest.mark.parametrize(
    ("regime", "soak", "tokens"), [("bursts", 0.0, (512, 2048, 8192)), ("sustained", 0.1, (2048,))]
)
def test_products_of_the_7b(regime, soak, tokens, measure):
    """For the record: how many times as fast as cuBLAS."""
    pytest.importorskip("torch")
    rows = compare_products(tokens, rounds=7, soak=soak)
    found = {f"{row.product} {row.nt}": round(row.ratio, 3) for row in rows}
    measure(
        f"Hopper GEMM against cuBLAS, {regime}", found | {"geometric mean": round(geometric_mean(rows), 3)}
    )
    speeds = {f"{row.product} {row.nt}": round(row.tflops[0], 1) for row in rows}
    measure(f"Hopper GEMM TFLOPS, {regime}", speeds)
