"""The comparison with cuBLAS and cuDNN runs, checks what it times, and says so in a line."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from minfer.campaign.contests import attention, block_product, f16_product
from minfer.campaign.side_by_side import compare
from minfer.engine.errors import EngineError

pytestmark = pytest.mark.usefixtures("hopper")


SMALL = {"name": "o", "nt": 130, "od": 512, "depth": 256}
CONTESTS = (
    partial(f16_product, **SMALL),
    partial(block_product, format="Q4_K", **SMALL),
    partial(block_product, format="Q6_K", **SMALL),
    partial(attention, nt=300),
)


@pytest.mark.parametrize("soak", [0.0, 0.02])
@pytest.mark.parametrize("contest", CONTESTS, ids=["f16", "Q4_K", "Q6_K", "attention"])
def test_a_small_contest(contest, soak):
    pytest.importorskip("torch")
    lines = []
    (row,) = compare([contest], rounds=3, soak=soak, on_row=lines.append)
    assert lines == [row]
    assert row.nt == contest.keywords["nt"]
    assert row.ours_us > 0 and row.theirs_us > 0
    assert row.regime == ("sustained" if soak else "burst")
    assert 100 < row.ours_mhz < 4000 and 100 < row.theirs_mhz < 4000
    assert row.cycles[0] == row.ours_us * row.ours_mhz
    assert row.peer.startswith("cuDNN" if row.product == "attention" else "cuBLAS")


def test_a_wrong_result_is_not_timed():
    pytest.importorskip("torch")

    def broken(torch):
        contest = f16_product(torch, **SMALL)
        wrong = contest.ours[0]().clone()
        return replace(contest, ours=[lambda: wrong.zero_()])

    with pytest.raises(EngineError, match=r"o at 130 tokens, ours .*: off by 1.0e\+00, not timed"):
        compare([broken], rounds=1)
