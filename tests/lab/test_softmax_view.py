"""Online softmax against the reference, and the real kernels at toy sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.cuda.reference import attention
from minfer.lab import softmax_view


@settings(max_examples=60)
@given(st.integers(1, 13), st.integers(1, 12))
def test_any_tile_gives_the_references_numbers(tkv, seen):
    q, k, v = softmax_view.toy_row()
    steps = softmax_view.online_softmax(q, k, v, tkv, seen)
    whole = attention(q[None, None], k[:, None], v[:, None], seen - 1)[0, 0]
    np.testing.assert_allclose(softmax_view.result(steps), whole, rtol=1e-5, atol=1e-6)
    assert len(steps) == -(-seen // tkv)
    assert [step.largest for step in steps] == sorted(step.largest for step in steps)


def test_the_toy_moves_its_maximum_in_every_tile(sound):
    steps = softmax_view.online_softmax(*softmax_view.toy_row(), 4, 11)
    assert steps[0].factor == 0 and all(0 < step.factor < 0.5 for step in steps[1:])
    assert softmax_view.step_rows(steps)[-1]["scores"].endswith("-")
    picture = sound(softmax_view.draw_online_softmax(steps))
    assert [row["key"] for row in picture.rows] == list(range(11))


@pytest.mark.parametrize(("tkv", "seen"), [(0, 1), (4, 0), (4, 13)])
def test_impossible_tiles_are_refused(tkv, seen):
    with pytest.raises(ValueError, match="a query sees 1 to 12 keys"):
        softmax_view.online_softmax(*softmax_view.toy_row(), tkv, seen)


def test_the_kernels_are_right_and_meet_the_barriers_of_the_ledger():
    from minfer.lab.attention_view import BARRIERS

    shared = softmax_view.simulate_attention("TKV=16")
    register = softmax_view.simulate_attention("FAP2", nt=3, kv_end=45)
    for run in (shared, register):
        assert run.error <= run.bound and run.findings == []
        assert run.ideal <= run.wavefronts
    # Two tiles each: 20 keys by 16, 45 by 32.
    assert shared.barriers == 2 * BARRIERS["warp_per_row"]
    assert register.barriers == 2 * BARRIERS["register"]
    assert register.wavefronts == register.ideal
    row = softmax_view.toy_rows([register])[0]
    assert (row["equal to the reference"], row["races"], row["of them conflicts"]) == (True, 0, 0)
