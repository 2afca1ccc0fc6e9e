"""Hopper's attention in the simulator: every step of its ladder on ragged shapes and hostile scores."""

from dataclasses import replace

import numpy as np
import pytest

from minfer.cuda.attention import HopperAttentionConfig, hopper_steps
from minfer.cuda.trace import Op, Trace, check, shared_lines
from tests.cuda.hopper_attention_cases import KINDS, HopperCase

STEPS = hopper_steps(1, 1, 64)
ONE = HopperAttentionConfig(1, 1, 64)


@pytest.mark.parametrize("step", STEPS)
def test_every_step(step):
    """Three KV tiles, the last one begins before row 0."""
    HopperCase(STEPS[step], 20, 300).run_simulated()


@pytest.mark.parametrize(
    ("nt", "kv_end", "offset"),
    [
        (1, 1, None),
        (9, 9, None),
        (130, 130, None),  # two tiles; the second one's keys start at row 2
        (5, 128, None),
        (5, 133, None),
        (6, 3, 0),  # queries past the stored range
        (6, 140, 137),
    ],
)
def test_ragged_shapes(nt, kv_end, offset):
    HopperCase(ONE, nt, kv_end, offset).run_simulated()


@pytest.mark.parametrize(("heads", "kv_heads"), [(7, 1), (3, 3), (4, 2)])
def test_head_dim_128_and_groups(heads, kv_heads):
    """More tiles than blocks: rings that go on from tile to tile."""
    HopperCase(HopperAttentionConfig(heads, kv_heads, 128), 5, 34).run_simulated()


@pytest.mark.parametrize("softmax", ["running", "lazy", "diagonal"])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_hostile_scores(kind, softmax):
    config = HopperAttentionConfig(1, 1, 64, softmax=softmax)
    case = HopperCase(config, 7, 420, kind=kind)
    if kind == "bias":
        assert 300.0**2 > 65504
    case.run_simulated()


@pytest.mark.parametrize("query", ["shared", "registers"])
def test_chained_tiles(query):
    """The output of a tile leaves under the next one's first product; the last one has none."""
    config = HopperAttentionConfig(3, 1, 64, query=query, chained=True)
    HopperCase(config, 5, 200).run_simulated(sms=1, seed=1)
    HopperCase(config, 135, 200).run_simulated()


def test_a_low_guard_changes_nothing_but_the_way():
    """A reference that moves in nearly every KV tile."""
    often = HopperCase(HopperAttentionConfig(1, 1, 64, rescue_above=1.0), 20, 400)
    often.run_simulated()
    never = HopperCase(ONE, 20, 400)
    never.run_simulated()
    assert (often.out != never.out).any()


@pytest.mark.parametrize("step", ["no overlap", "lazy rescale", "staggered start"])
def test_any_thread_order_gives_the_same(step):
    case = HopperCase(hopper_steps(3, 1, 64)[step], 3, 200)
    case.run_simulated()
    expected = case.out
    case.run_simulated(seed=1)
    np.testing.assert_array_equal(case.out, expected)


@pytest.mark.parametrize("step", ["overlap", "Q in registers", "chained"])
def test_traced_run_has_no_race_and_no_conflict(step):
    trace = Trace()
    config = replace(STEPS["Q in registers"], chained=True) if step == "chained" else STEPS[step]
    config = replace(config, heads=2)
    HopperCase(config, 8, 300).run_simulated(sms=1, trace=trace)
    assert check(trace) == []
    assert {line.degree for line in shared_lines(trace) if line.op is Op.STMATRIX} == {1}
