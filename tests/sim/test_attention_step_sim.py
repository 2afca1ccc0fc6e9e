"""A decode step's attention in the simulator: one split and several, every treatment of the row."""

import numpy as np
import pytest

from minfer.cuda import simulator
from minfer.cuda.attention import AttentionStepConfig
from minfer.cuda.kernel import ConfigRefused
from tests.cuda.attention_cases import step_case


@pytest.mark.parametrize(
    ("config", "position"),
    [
        (AttentionStepConfig(2, 1, 64, 64, splits=3, output="f32"), 0),
        (AttentionStepConfig(2, 1, 64, 64, bias=True, splits=3, output="f32"), 40),
        (AttentionStepConfig(3, 1, 64, 32, True, bias=True, splits=2, output="records"), 70),
        (AttentionStepConfig(2, 1, 128, 128, bias=True, norm=True, splits=3, output="records"), 99),
        (AttentionStepConfig(9, 1, 64, 64, splits=2, output="f32", chained=True), 33),
        (AttentionStepConfig(2, 1, 64, 64, splits=3, output="f32"), 140),
        (AttentionStepConfig(2, 1, 64, 64, bias=True, splits=3, chained=True), 400),
    ],
    ids=str,
)
def test_rows_and_splits(config, position):
    step_case(config, position).run_simulated()


def test_counters_serve_again():
    """A second launch on the same workspace, with the blocks in another order."""
    case = step_case(AttentionStepConfig(2, 1, 64, 64, splits=3, output="f32"), 400)
    case.run_simulated()
    first = case.results["out"].copy()
    case.results["out"][:] = np.nan
    blocks = [(2, 0, 0), (0, 0, 0), (1, 0, 0)]
    simulator.launch(case.kernel, case.grid, *case.results.values(), blocks=blocks)
    np.testing.assert_array_equal(case.results["out"], first)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ((2, 1, 96, 96), "head_dim=96"),
        ((0, 1, 64, 64), "0 heads"),
        ((3, 2, 64, 64), "3 heads"),
        ((2, 1, 64, 64, False, False, False, 65), "65 splits"),
    ],
)
def test_refusals(fields, says):
    with pytest.raises(ConfigRefused, match=says):
        AttentionStepConfig(*fields)
