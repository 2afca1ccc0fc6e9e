"""The simulated GEMM is right, free of races, and its trace says what the bank model says."""

import pytest

from minfer.arithmetic.banks import ldmatrix_request, ldmatrix_rows
from minfer.cuda.kernel import ConfigRefused
from minfer.lab.toy import draw_wavefronts, simulate_gemm


@pytest.fixture(scope="module")
def runs():
    return {
        layout: simulate_gemm(32, 32, 32, tile=(32, 64, 32), layout=layout)
        for layout in ("plain", "padded", "swizzled")
    }


@pytest.mark.parametrize("layout", ["plain", "padded", "swizzled"])
def test_right_and_free_of_races(runs, layout):
    run = runs[layout]
    assert run.error <= run.bound
    assert run.findings == []


@pytest.mark.parametrize("layout", ["plain", "padded", "swizzled"])
def test_the_trace_agrees_with_the_bank_model(runs, layout):
    run = runs[layout]
    (traced,) = [row for row in run.shared if row["instruction"].startswith("ldmatrix")]
    model = ldmatrix_request(ldmatrix_rows(run.config.tiles[0].address))
    assert traced["degree"] == model.degree
    assert traced["wavefronts"] == traced["requests"] * model.wavefronts


def test_padding_and_swizzle_cure_the_loads(runs):
    degrees = {layout: [row["degree"] for row in run.shared] for layout, run in runs.items()}
    assert degrees == {"plain": [4], "padded": [1], "swizzled": [1]}


def test_global_accesses_waste_nothing(runs):
    assert {row["efficiency"] for row in runs["padded"].sectors} == {1.0}


def test_picture(runs, sound):
    sound(draw_wavefronts(list(runs.values())))


def test_a_ragged_product():
    run = simulate_gemm(17, 33, 40, tile=(32, 64, 32))
    assert run.error <= run.bound and run.findings == []


def test_refusals_pass_through():
    with pytest.raises(ConfigRefused):
        simulate_gemm(tile=(64, 64, 48))
