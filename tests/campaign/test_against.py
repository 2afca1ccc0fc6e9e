"""The comparison with cuBLAS: its arithmetic, and what it says where it cannot run. No figure is asserted."""

from __future__ import annotations

import sys

import pytest

from minfer import cli
from minfer.campaign.against import (
    COLD_BYTES,
    SHAPES,
    Comparison,
    compare_products,
    copies,
    geometric_mean,
    launches,
)
from minfer.engine.errors import EngineError


def row(ours: float, theirs: float) -> Comparison:
    return Comparison("o", 2048, 3584, 3584, "128x224x64", ours, theirs, "burst")


def test_ratios_and_speeds():
    one = row(72.0, 77.5)
    assert one.ratio == pytest.approx(1.0764, abs=1e-4)
    assert one.tflops == pytest.approx((730.7, 678.9), abs=0.1)
    assert str(one).startswith("o         2048 tokens burst        731 TFLOPS, cuBLAS  679: 1.076")
    assert one.as_dict()["ratio"] == one.ratio
    assert geometric_mean([row(1.0, 2.0), row(2.0, 1.0)]) == pytest.approx(1.0)


@pytest.mark.parametrize("nt", [1, 512, 2048, 8192])
@pytest.mark.parametrize("product", SHAPES)
def test_weights_take_turns_and_graphs_are_whole(product, nt):
    od, depth = SHAPES[product]
    turns = copies(od, depth)
    assert turns * 2 * od * depth >= COLD_BYTES
    assert launches(nt, od, depth) % turns == 0
    assert launches(nt, od, depth) >= turns


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EngineError, match=r"torch is not installed: .*: pip install torch"):
        compare_products([512])


def test_the_command(capsys, monkeypatch):
    seen = {}

    def compare(tokens, rounds, soak, on_row):
        seen.update(tokens=tokens, rounds=rounds, soak=soak)
        for one in (row(1.0, 2.0), row(2.0, 1.0)):
            on_row(one)
        return [row(1.0, 2.0), row(2.0, 1.0)]

    monkeypatch.setattr("minfer.campaign.against.compare_products", compare)
    assert cli.main(["bench", "--against", "torch", "-p", "512", "-r", "3", "--sustained", "0.5"]) == 0
    assert seen == {"tokens": [512], "rounds": 3, "soak": 0.5}
    out = capsys.readouterr().out
    assert out.endswith("geometric mean 1.000, lowest 0.500\n") and out.count("cuBLAS") == 2
    assert cli.main(["bench", "--against", "torch", "-p", "0"]) == 2
    assert cli.main(["bench"]) == 2
    assert "-m MODEL" in capsys.readouterr().err
