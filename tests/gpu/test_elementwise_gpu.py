"""The elementwise kernels on a GPU, over the issue's shapes."""

import numpy as np
import pytest

from minfer.cuda.blocks import BLOCKS
from tests.cuda import elementwise_cases as cases
from tests.cuda.parity import Case

NT = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 512, 2048)


@pytest.mark.parametrize("nt", NT)
def test_rmsnorm(nt):
    for residual in (False, True):
        for output in ("f32", "f16", "q8"):
            cases.rmsnorm_case(nt, 3584, output, residual).run_on_gpu()
            cases.rmsnorm_case(min(nt, 129), 576, output, residual).run_on_gpu()
        cases.rmsnorm_case(nt, 3584, "f16", True, residual_type="f16").run_on_gpu()
        cases.rmsnorm_case(nt, 37, "f32", residual, vector=1).run_on_gpu()


@pytest.mark.parametrize("nt", NT)
def test_swiglu(nt):
    for output in ("f32", "f16", "q8"):
        cases.swiglu_case(nt, 4864, output, packed=False).run_on_gpu()
        cases.swiglu_case(nt, 4864, output, packed=True).run_on_gpu()
    for output in ("f16", "q8"):
        cases.swiglu_case(nt, 1536, output, source="f16", packed=True).run_on_gpu()
    cases.swiglu_case(nt, 37, vector=1).run_on_gpu()


@pytest.mark.parametrize("output", ["f16", "q8"])
def test_swiglu_of_the_7b(output):
    cases.swiglu_case(512, 18944, output, packed=True).run_on_gpu()


@pytest.mark.parametrize("nt", NT)
def test_additions(nt):
    for dim, vector in ((4608, 4), (37, 1)):
        cases.bias_add_case(nt, dim, vector).run_on_gpu()
        cases.residual_add_case(nt, dim, vector).run_on_gpu()


@pytest.mark.parametrize("nt", NT)
def test_rope(nt):
    cases.rope_case(nt, 28, 128, 128, False).run_on_gpu()
    cases.rope_case(nt, 4, 128, 128, False, factors=True, pad=64).run_on_gpu()
    cases.rope_case(nt, 9, 64, 64, True).run_on_gpu()


@pytest.mark.parametrize("nt", NT)
def test_rope_store(nt):
    cases.rope_store_case(nt, 28, 4, 128, 128, False, True, "f16").run_on_gpu()
    cases.rope_store_case(nt, 14, 2, 64, 64, False, True, "f32").run_on_gpu()
    cases.rope_store_case(nt, 9, 3, 64, 64, True, False, "f16").run_on_gpu()
    cases.rope_store_case(nt, 28, 4, 128, 128, False, True, "f16", source="f16").run_on_gpu()
    cases.rope_store_case(nt, 28, 4, 128, 128, False, True, "f32", norm=True).run_on_gpu()
    cases.rope_store_case(nt, 0, 4, 128, 128, False, True, "f16").run_on_gpu()


@pytest.mark.parametrize("format", BLOCKS)
def test_embedding(format):
    cases.embedding_case(format, 1024, [3, 0, 99, -1, 100, 57], rows=100).run_on_gpu()


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K"])
def test_embedding_of_the_7b(format):
    cases.embedding_case(format, 3584, [3, 0, 99, -1, 100, 57], rows=100).run_on_gpu()


@pytest.mark.parametrize("name", cases.cases_by_rows(9))
def test_rows_in_chunks(name):
    cases.check_rows_in_chunks(cases.cases_by_rows(9)[name], Case.run_on_gpu)


@pytest.mark.parametrize("n", [1, 31, 33, 1000, 49152, 151936, 152064])
def test_argmax(n):
    logits = np.random.default_rng(n).normal(size=n).astype(np.float32)
    tied = logits.copy()
    tied[[n // 3, n // 2, n - 1]] = 9
    broken = logits.copy()
    broken[n // 2] = np.nan
    for values in (logits, tied, broken):
        for case in cases.argmax_cases(values):
            case.run_on_gpu()
