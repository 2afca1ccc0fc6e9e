"""The elementwise kernels in the simulator: every variant, ragged sizes, poisoned outputs, exact buffers."""

import dataclasses

import numpy as np
import pytest

from minfer.cuda import elementwise as ew
from minfer.cuda.blocks import BLOCKS
from tests.cuda import elementwise_cases as cases
from tests.cuda.parity import Case


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(
    ("nt", "dim", "output", "vector"),
    [(2, 37, "f32", 1), (2, 96, "f32", 4), (1, 132, "f16", 4), (2, 96, "q8", 4), (1, 320, "q8", 4)],
)
def test_rmsnorm(nt, dim, output, vector, residual):
    cases.rmsnorm_case(nt, dim, output, residual, vector, threads=64).run_simulated()


def test_rmsnorm_in_place():
    case = cases.rmsnorm_case(2, 64, residual=True, threads=32)
    case.arguments["hidden"] = case.arguments["residual"]
    held = {"x": case.arguments["x"].copy(), "residual": case.arguments["residual"].copy()}
    from minfer.cuda import simulator

    out = case.arguments["out"].copy()
    simulator.launch(
        case.kernel,
        case.grid,
        held["x"],
        held["residual"],
        held["residual"],
        case.arguments["weight"],
        out,
        64,
        1e-6,
    )
    np.testing.assert_array_equal(held["residual"], case.expected["hidden"])
    np.testing.assert_allclose(out, case.expected["out"], 2e-6, 1e-7)


def test_nan_reaches_every_output():
    for output in ("f32", "f16", "q8"):
        case = cases.rmsnorm_case(1, 64, output, threads=32)
        case.arguments["x"][0, 5] = np.nan

        def check(result, output=output):
            if output == "q8":
                result = cases.reference.unpack_q8(result, 64)[1]
            assert np.isnan(result.astype(np.float32)).all()

        case.expected["out"] = check
        case.run_simulated()


@pytest.mark.parametrize(
    ("nt", "ff", "output", "source", "packed", "vector"),
    [
        (2, 37, "f32", "f32", False, 1),
        (2, 37, "f32", "f32", True, 1),
        (2, 132, "f32", "f32", False, 4),
        (2, 132, "f16", "f32", True, 4),
        (2, 96, "q8", "f32", True, 4),
        (1, 132, "f16", "f16", True, 4),
        (1, 160, "q8", "f16", False, 4),
    ],
)
def test_swiglu(nt, ff, output, source, packed, vector):
    cases.swiglu_case(nt, ff, output, source, packed, vector, threads=32).run_simulated()


@pytest.mark.parametrize(("nt", "dim", "vector"), [(1, 1, 1), (3, 37, 1), (2, 4, 4), (3, 132, 4)])
def test_additions(nt, dim, vector):
    cases.bias_add_case(nt, dim, vector, threads=32).run_simulated()
    cases.residual_add_case(nt, dim, vector, threads=32).run_simulated()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("nt", "heads", "head_dim", "rotary", "pad"), [(3, 2, 64, 64, 0), (2, 3, 32, 16, 8)])
def test_rope(nt, heads, head_dim, rotary, pad, interleaved):
    cases.rope_case(nt, heads, head_dim, rotary, interleaved, factors=True, pad=pad).run_simulated()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("rotary", "bias", "query"), [(64, True, "f16"), (32, False, "f32")])
def test_rope_store(rotary, bias, query, interleaved):
    cases.rope_store_case(3, 3, 1, 64, rotary, interleaved, bias, query, threads=32).run_simulated()


@pytest.mark.parametrize(
    "shape",
    [
        (2, 3, 1, 64, 64, False, True, "f32", 64, True),
        (2, 4, 2, 128, 64, True, True, "f16", 32, True),
        (3, 3, 1, 64, 64, False, True, "f16", 32, False, "f16"),
        (3, 0, 2, 64, 64, True, False, "f16", 32),
    ],
    ids=["head norms", "head norms, part rotates", "f16 rows", "k and v alone"],
)
def test_rope_store_options(shape):
    cases.rope_store_case(*shape).run_simulated()


def test_rmsnorm_adds_f16():
    cases.rmsnorm_case(3, 96, "f16", True, threads=32, residual_type="f16").run_simulated()


@pytest.mark.parametrize("format", BLOCKS)
def test_embedding(format):
    cases.embedding_case(
        format, 512 if BLOCKS[format].weights == 256 else 96, [3, 0, 8, -1, 9]
    ).run_simulated()


@pytest.mark.parametrize(
    "logits",
    [
        np.random.default_rng(0).normal(size=300),
        np.full(70, -np.inf),
        np.array([1, 5, -2, 5, 5, 0]),
        np.array([-0.0, 0.0]),
        np.concatenate([np.full(200, -1e30), [np.inf], np.zeros(50), [np.inf]]),
        np.concatenate([np.zeros(200), [np.nan], np.full(9, np.inf)]),
        np.array([-3.0]),
    ],
    ids=["random", "all minus infinity", "ties", "zeros", "infinities", "nan", "one"],
)
def test_argmax(logits):
    for case in cases.argmax_cases(logits.astype(np.float32), threads=32, blocks=3):
        case.run_simulated()


@pytest.mark.parametrize("name", cases.cases_by_rows(9))
def test_rows_in_chunks(name):
    cases.check_rows_in_chunks(cases.cases_by_rows(9)[name], Case.run_simulated)


def test_dependent_launches_compute_the_same():
    factories = {
        "rmsnorm": ew.rmsnorm,
        "swiglu": ew.swiglu,
        "embedding": ew.embedding,
        "rope_store": ew.rope_store,
    }
    for case in (
        cases.rmsnorm_case(1, 64, "q8", residual=True, threads=32),
        cases.swiglu_case(1, 64, "q8", packed=True, threads=32),
        cases.embedding_case("Q4_K", 256, [2]),
        cases.rope_store_case(1, 2, 1, 32, 32, False, True, "f16", threads=32),
    ):
        assert case.kernel.min_arch == 80
        case.kernel = factories[case.kernel.name](dataclasses.replace(case.kernel.config, pdl=True))
        assert case.kernel.min_arch == 90
        case.run_simulated()
