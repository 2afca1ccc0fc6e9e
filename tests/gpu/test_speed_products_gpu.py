"""The comparison with cuBLAS runs, checks what it times, and says so in a line."""

from __future__ import annotations

import pytest

from minfer.campaign.against import compare_products

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
